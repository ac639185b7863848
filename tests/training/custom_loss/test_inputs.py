"""What terms read, and the base loss."""

import asyncio
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from penalties.training import forward_backward_custom
from tests.training.clients import RemoteClient, batch, datum
from tests.training.custom_loss.cases import assert_trained_alike, squared


class TestWhatTermsRead:
    def test_everything_of_a_batch(self) -> None:
        weights = {"weights": [0.0, 1.0, 2.0]}
        client, data = RemoteClient(), [datum(0, 3, **weights), datum(1, 2)]
        seen: dict[str, Any] = {}

        def term(
            data: Any, logprobs: Any, flat_logprobs: Any, lengths: Any, mask: Any, flat_mask: Any, step: Any
        ) -> Any:
            seen.update(locals())
            return flat_logprobs.sum()

        forward_backward_custom(client, data, None, regularizers=[term], step=4).result(60)
        assert seen["data"] == data
        assert [one.shape for one in seen["logprobs"]] == [(3,), (2,)]
        assert seen["lengths"] == (3, 2)
        assert [one.tolist() for one in seen["mask"]] == [[False, True, True], [True, True]]
        assert seen["flat_mask"].tolist() == [False, True, True, True, True]
        assert seen["step"] == 4

    def test_references_by_name(self) -> None:
        client, data = RemoteClient(), batch(3, 2)
        teacher = [np.full(3, -1.0, np.float32), torch.full((2,), -2.0)]
        seen: dict[str, Any] = {}

        def term(logprobs: Any, teacher: Any, reward: Any) -> Any:
            seen.update(locals())
            return sum(r * (a - b).square().sum() for a, b, r in zip(logprobs, teacher, reward, strict=True))

        found = forward_backward_custom(
            client,
            data,
            None,
            regularizers=[term, pn.Term("kl_estimate", 0.1, inputs=("logprobs", "teacher"))],
            references={"teacher": teacher, "reward": [0.5, 2.0]},
        ).result(60)
        assert [one.tolist() for one in seen["teacher"]] == [[-1.0] * 3, [-2.0] * 2]
        assert [float(one) for one in seen["reward"]] == [0.5, 2.0]
        flat = [client.model.logprobs(one).detach() for one in data]
        expected = pn.kl_estimate(torch.cat(flat), torch.tensor([-1.0, -1.0, -1.0, -2.0, -2.0]))
        assert found.metrics["kl_estimate"] == pytest.approx(float(expected), rel=1e-5)

    def test_references_from_providers(self) -> None:
        class Rewards:
            per_datum = True

            def start(self, client: Any, data: Any, *, step: Any) -> Any:
                return pn.training.futures.resolved([np.float32(1.0), np.float32(2.0)])

        seen: list[Any] = []

        def term(logprobs: Any, reward: Any) -> Any:
            seen.extend(float(one) for one in reward)
            return logprobs[0].sum()

        forward_backward_custom(
            RemoteClient(), batch(2, 3), None, regularizers=[term], references={"reward": Rewards()}
        ).result(60)
        assert seen == [1.0, 2.0]
        Rewards.per_datum = False
        with pytest.raises(pn.InputError, match='"reward": its provider returned one number per datum'):
            forward_backward_custom(
                RemoteClient(), batch(2, 3), None, regularizers=[term], references={"reward": Rewards()}
            )

        class Listed(Rewards):
            def start(self, client: Any, data: Any, *, step: Any) -> Any:
                return [1.0, 2.0]

        with pytest.raises(pn.InputError, match='"reward": its provider returned list'):
            forward_backward_custom(
                RemoteClient(), batch(2, 3), None, regularizers=[term], references={"reward": Listed()}
            )
        with pytest.raises(pn.InputError, match='reference "reward"'):
            forward_backward_custom(
                RemoteClient(), batch(2, 3), None, regularizers=[term], references={"reward": range(3)}
            )

    def test_a_call_that_failed_has_begun_nothing(self) -> None:
        client = RemoteClient()
        initial = {"initial": pn.training.references.initial()}

        def broken(logprobs: Any, initial: Any) -> Any:
            raise ValueError("no")

        with pytest.raises(pn.TermError, match="broken"):
            forward_backward_custom(client, [datum(0, 3)], None, regularizers=[broken], references=initial)
        term = pn.Term("kl_estimate", inputs=("logprobs", "initial"))
        forward_backward_custom(client, [datum(1, 4)], None, regularizers=[term], references=initial).result(60)
        with pytest.raises(pn.InputError, match=r"initial: datum 0: is new"):
            forward_backward_custom(client, [datum(2, 4)], None, regularizers=[term], references=initial)

    def test_prompts_do_not_count_where_a_penalty_takes_a_mask(self) -> None:
        data = [datum(0, 4, weights=[0.0, 0.0, 1.0, 1.0]), datum(1, 2)]
        masked = pn.Term("entropy_estimate", inputs="logprobs")
        every = pn.Term("entropy_estimate", name="every", inputs="logprobs", options={"mask": None})
        client = RemoteClient()
        found = forward_backward_custom(client, data, None, regularizers=[masked, every]).result(60).metrics
        flat = torch.cat([client.model.logprobs(one).detach() for one in data])
        mask = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0, 1.0])
        assert found["entropy_estimate"] == pytest.approx(float(pn.entropy_estimate(flat, mask=mask)), rel=1e-5)
        assert found["every"] == pytest.approx(float(pn.entropy_estimate(flat)), rel=1e-5)

    def test_a_function_that_takes_a_mask_gets_it(self) -> None:
        data = [datum(0, 4, weights=[0.0, 0.0, 1.0, 1.0]), datum(1, 2)]
        seen: list[Any] = []

        def lists(logprobs: Any, mask: Any = None) -> Any:
            seen.append([one.tolist() for one in mask])
            return logprobs[0].sum()

        def packed(flat_logprobs: Any, *, mask: Any = None) -> Any:
            seen.append(mask.tolist())
            return flat_logprobs.sum()

        adapter = pn.Term(pn.training.adapters.entropy, inputs="logprobs")
        client = RemoteClient()
        found = forward_backward_custom(client, data, None, regularizers=[lists, packed, adapter]).result(60)
        assert seen == [[[False, False, True, True], [True, True]], [False, False, True, True, True, True]]
        flat = torch.cat([client.model.logprobs(one).detach() for one in data])
        mask = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0, 1.0])
        assert found.metrics["entropy"] == pytest.approx(float(pn.entropy_estimate(flat, mask=mask)), rel=1e-5)

    def test_a_reference_that_no_term_reads_is_not_requested(self) -> None:
        client = RemoteClient()
        unread = {"initial": pn.training.references.initial(), "teacher": [np.zeros(3)]}
        forward_backward_custom(client, batch(3), squared, references=unread).result(60)
        assert [name for name, _ in client.calls] == ["forward", "forward_backward"]

    def test_candidates_count_where_one_of_them_has_weight(self) -> None:
        seen: list[Any] = []

        def term(logprobs: Any, flat_mask: Any) -> Any:
            seen.append(flat_mask.tolist())
            return logprobs[0].sum()

        one = datum(0, 2, 3, weights=[[0.0, 0.0, 0.0], [0.0, 0.5, 0.0]])
        forward_backward_custom(RemoteClient(), [one], None, regularizers=[term]).result(60)
        assert seen == [[False, True]]

    def test_functions_of_two_or_three_parameters_of_any_name(self) -> None:
        seen: list[Any] = []

        def two(batch: Any, lps: Any) -> Any:
            seen.append(batch)
            return lps[0].sum(), {"count": len(lps)}

        def three(batch: Any, lps: Any, opts: Any) -> Any:
            seen.append(opts)
            return lps[0].sum()

        class Object:
            name = "object"

            def compute(self, data: Any, logprobs: Any, options: Any) -> Any:
                seen.append(options)
                return logprobs[1].sum()

        data = batch(2, 3)
        terms = [two, three, pn.Term(Object(), options={"a": 1})]
        found = forward_backward_custom(RemoteClient(), data, None, regularizers=terms).result(60)
        assert seen == [data, {}, {"a": 1}]
        assert found.metrics["two/count"] == 2.0

    def test_terms_that_remember(self) -> None:
        client, data = RemoteClient(), batch(2, 3)
        terms = [pn.EMA(pn.Term("l1", inputs="logprobs"), decay=0.5)]
        first = forward_backward_custom(client, data, None, regularizers=terms).result(60).custom_loss
        client.model.head.data.mul_(2.0)
        second = forward_backward_custom(client, data, None, regularizers=terms, state=first.state).result(60)
        plain = sum(float(client.model.logprobs(one).detach().abs().sum()) for one in data)
        expected = 0.5 * first.total + 0.5 * plain
        assert second.metrics["total"] == pytest.approx(expected, rel=1e-5)

    def test_coroutines(self) -> None:
        async def awaited(logprobs: Any) -> Any:
            await asyncio.sleep(0.001)
            return sum((one**2).sum() for one in logprobs)

        client, data = RemoteClient(), batch(2, 3)
        forward_backward_custom(client, data, None, regularizers=[awaited]).result(60)
        assert_trained_alike(client, data, lambda lp: sum((one**2).sum() for one in lp))

    def test_terms_of_data_run_while_the_forward_does(self) -> None:
        client, data = RemoteClient(), batch(2)
        begun = threading.Event()
        client.delay = lambda: begun.wait(20) and None

        def early(data: Any) -> Any:
            begun.set()
            return torch.tensor(float(len(data)))

        for place in ("inline", "thread"):
            begun.clear()
            start = time.monotonic()
            terms = [pn.Term(early, runs=place)]
            out = forward_backward_custom(client, data, squared, regularizers=terms, track_grad_norms=True).result(60)
            assert time.monotonic() - start < 15
            assert out.metrics["early"] == 1.0


class TestBase:
    def test_by_name(self) -> None:
        client, data = RemoteClient(), [datum(0, 3, weights=[0.0, 1.0, 1.0]), datum(1, 2)]
        result = forward_backward_custom(client, data, "cross_entropy").result(60)
        logprobs = [client.model.logprobs(one).detach() for one in data]
        total = -float(logprobs[0][1:].sum() + logprobs[1].sum())
        assert result.metrics["base_loss"] == pytest.approx(total, rel=1e-5)
        assert result.metrics["mean_nll"] == pytest.approx(total / 4, rel=1e-5)
        assert result.metrics["perplexity"] == pytest.approx(np.exp(total / 4), rel=1e-5)
        weights = client.sent[0][0].loss_fn_inputs["weights"].tolist()
        assert weights == pytest.approx([0.0, 1.0, 1.0])

    def test_by_name_with_a_reference(self) -> None:
        data = batch(3, 2, 4, 1)
        reference = [np.full(len(one.loss_fn_inputs["target_tokens"].data), -2.0) for one in data]
        for name in ("reference", "initial"):
            found = forward_backward_custom(RemoteClient(), data, "dpo", references={name: reference}).result(60)
            assert found.metrics["base_loss"] > 0
        options = {"fn": "dpo", "options": {"beta": 1e-9}}
        found = forward_backward_custom(RemoteClient(), data, options, references={"r": reference}).result(60)
        assert found.metrics["base_loss"] == pytest.approx(np.log(2), rel=1e-5)

    def test_as_a_term_or_the_arguments_of_one(self) -> None:
        term = pn.Term("l2", inputs="flat_logprobs")
        data = batch(3)
        one = forward_backward_custom(RemoteClient(), data, term).result(60)
        other = forward_backward_custom(RemoteClient(), data, {"fn": "l2", "inputs": "logprobs"}).result(60)
        assert one.metrics["base_loss"] == pytest.approx(other.metrics["base_loss"])

    def test_a_description_that_changes(self) -> None:
        data = batch(3, 2)
        reference = {"r": [np.full(3, -2.0), np.full(2, -1.0)]}
        spec: dict[str, Any] = {"fn": "dpo", "options": {"beta": 0.1}}
        first = forward_backward_custom(RemoteClient(), data, spec, references=reference).result(60).metrics
        spec["options"]["beta"] = 1.0
        second = forward_backward_custom(RemoteClient(), data, spec, references=reference).result(60).metrics
        assert second["margin"] == pytest.approx(10 * first["margin"], rel=1e-4)

    def test_the_functions_behind_the_names_and_terms_of_them(self) -> None:
        data = batch(3, 2)
        reference = {"r": [np.full(3, -2.0), np.full(2, -1.0)]}
        dpo = forward_backward_custom(RemoteClient(), data, pn.training.losses.dpo, references=reference).result(60)
        assert dpo.metrics["base_loss"] > 0
        one = forward_backward_custom(RemoteClient(), data, pn.Term("l1")).result(60)
        assert one.metrics["base_loss"] > 0

    @pytest.mark.parametrize(
        ("loss_fn", "message"),
        [
            (None, "expected a loss, or regularizers, or both"),
            ("cross_entropie", "one of cross_entropy"),
            (3, "a function of"),
            ("dpo", r"dpo: needs log-probabilities to compare with.*references=.*there is none"),
            ({"fn": "dpo", "weight": 2.0}, "only fn and options for a loss by name"),
        ],
    )
    def test_wrong_ones(self, loss_fn: Any, message: str) -> None:
        with pytest.raises(pn.PenaltiesError, match=message):
            forward_backward_custom(RemoteClient(), batch(2, 2), loss_fn)

    def test_a_function_may_take_a_reference_too(self) -> None:
        def distance(data: Any, logprobs: Any, reference: Any) -> Any:
            return sum(((one - other) ** 2).sum() for one, other in zip(logprobs, reference, strict=True))

        client, data = RemoteClient(), batch(3, 2)
        target = [np.full(3, -1.0), np.full(2, -2.0)]
        forward_backward_custom(client, data, distance, references={"teacher": target}).result(60)
        tensors = [torch.as_tensor(array) for array in target]
        assert_trained_alike(client, data, lambda logprobs: distance(data, logprobs, tensors))
        with pytest.raises(pn.InputError, match="distance: needs log-probabilities to compare with"):
            forward_backward_custom(client, data, distance)
