"""Custom losses through a client: the gradient that reaches the model, and everything beside it."""

import asyncio
import json
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import penalties as pn
from penalties.training import Datum, ModelInput, forward_backward_custom, forward_backward_custom_async
from penalties.training import custom_loss as module

from .clients import RemoteClient, batch, datum, plain_gradients

SERVERS = [("tinker", False), ("skyrl", True)]


def squared(data: Any, logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
    return sum(((one.exp() - 0.3) ** 2).sum() * (place + 1) for place, one in enumerate(logprobs)), {"mine": 7.0}


def pairwise(data: Any, logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
    sums = torch.stack([one.sum() for one in logprobs])
    return -torch.nn.functional.logsigmoid(sums[0::2] - sums[1::2]).mean(), {}


def assert_trained_alike(client: RemoteClient, data: Any, loss: Any, rtol: float = 1e-5) -> None:
    for name, gradient in plain_gradients(data, loss).items():
        found = client.gradients()[name]
        assert found is not None
        scale = float(gradient.abs().max())
        torch.testing.assert_close(found, gradient, rtol=rtol, atol=rtol * scale)


class TestTheGradient:
    @pytest.mark.parametrize(("server", "averages"), SERVERS)
    @pytest.mark.parametrize("loss", [squared, pairwise, lambda d, lp: (10 * squared(d, lp)[0], {})])
    def test_is_that_of_autograd(self, server: str, averages: bool, loss: Any) -> None:
        client, data = RemoteClient(averages), batch(3, 5, 1, 4)
        forward_backward_custom(client, data, loss, server=server).result(60)
        assert_trained_alike(client, data, lambda lp: loss(data, lp)[0])

    @pytest.mark.parametrize(("server", "averages"), SERVERS)
    @pytest.mark.parametrize("tracked", [False, True])
    def test_has_the_regularizers_in_it(self, server: str, averages: bool, tracked: bool) -> None:
        client, data = RemoteClient(averages), batch(3, 5, 2)

        def steep(logprobs: Any) -> Tensor:
            return sum((one**3).sum() for one in logprobs)

        def ends(flat_logprobs: Any, lengths: Any) -> Tensor:
            return torch.stack([one[-1] for one in flat_logprobs.split(lengths)]).square().mean()

        terms = [pn.Term("l2", 0.3, inputs="logprobs"), pn.Term(steep, 0.01), pn.Term(ends, 0.5, runs="thread")]
        result = forward_backward_custom(
            client, data, squared, regularizers=terms, server=server, track_grad_norms=tracked
        ).result(60)

        def whole(logprobs: list[Tensor]) -> Tensor:
            l2 = sum((one**2).sum() for one in logprobs)
            last = torch.stack([one[-1] for one in logprobs]).square().mean()
            return squared(data, logprobs)[0] + 0.3 * l2 + 0.01 * steep(logprobs) + 0.5 * last

        assert_trained_alike(client, data, whole)
        assert (result.custom_loss["l2"].grad_norm is not None) is tracked
        if tracked:
            flat = torch.cat([client.model.logprobs(one).detach() for one in data])
            assert float(result.custom_loss["l2"].grad_norm) == pytest.approx(float(2 * flat.norm()), rel=1e-4)
            assert result.metrics["steep_grad_norm"] > 0

    def test_is_zero_where_nothing_depends_on_a_datum(self) -> None:
        client, data = RemoteClient(), batch(3, 2)
        forward_backward_custom(client, data, lambda d, lp: (lp[0].sum(), {})).result(60)
        assert client.sent[0][1].loss_fn_inputs["weights"].tolist() == [0.0, 0.0]
        # One that reads of the model and has none at all would train nothing, and nobody would know.
        for lost in (lambda d, lp: torch.tensor(3.0), lambda d, lp: squared(d, lp)[0].detach()):
            with pytest.raises(pn.GradientError, match="base_loss: its value has no gradient, so that the model would"):
                forward_backward_custom(client, data, lost)
        meant = pn.Term(lambda logprobs: logprobs[0].sum(), name="told", differentiable=False)
        forward_backward_custom(client, data, None, regularizers=[meant]).result(60)
        assert client.sent[1][0].loss_fn_inputs["weights"].tolist() == [0.0, 0.0, 0.0]
        rests = pn.Term("l2", inputs="logprobs", every=10)
        forward_backward_custom(client, data, None, regularizers=[rests], step=1).result(60)
        assert len(client.sent) == 3

    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    def test_is_taken_whatever_mode_the_caller_is_in(self, mode: Any) -> None:
        client, data = RemoteClient(), batch(3, 2)
        with mode():
            forward_backward_custom(client, data, squared).result(60)
        assert_trained_alike(client, data, lambda lp: squared(data, lp)[0])

    def test_counts_once_where_a_function_goes_backward_itself(self) -> None:
        def eager(logprobs: Any) -> Any:
            value = sum((one**2).sum() for one in logprobs)
            value.backward(retain_graph=True)
            return value

        client, data = RemoteClient(), batch(3, 2)
        forward_backward_custom(client, data, None, regularizers=[eager]).result(60)
        assert_trained_alike(client, data, lambda lp: sum((one**2).sum() for one in lp))

    def test_is_zero_where_terms_read_nothing_of_the_model(self) -> None:
        client, data = RemoteClient(), batch(3, 2)
        client.delay = lambda: time.sleep(0.05)
        terms = [pn.Term(lambda data: torch.tensor(float(len(data))), name="count", inputs="data")]
        out = forward_backward_custom(client, data, None, regularizers=terms, track_grad_norms=True).result(60)
        assert out.metrics["count"] == 2.0
        assert client.sent[0][1].loss_fn_inputs["weights"].tolist() == [0.0, 0.0]

    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_cosines_between_terms(self, asynchronous: bool) -> None:
        def opposed(data: Any, logprobs: Any) -> Any:
            return -3 * squared(data, logprobs)[0]

        given: dict[str, Any] = {"regularizers": [opposed], "cosines": True}
        if asynchronous:
            call = forward_backward_custom_async(RemoteClient(), batch(3, 2), squared, **given)
            out = asyncio.run(call).result(60)
        else:
            out = forward_backward_custom(RemoteClient(), batch(3, 2), squared, **given).result(60)
        np.testing.assert_allclose(out.custom_loss.cosines, [[1, -1], [-1, 1]], atol=1e-6)
        assert forward_backward_custom(RemoteClient(), batch(3, 2), squared).result(60).custom_loss.cosines is None

    def test_accumulates_over_calls(self) -> None:
        client, data = RemoteClient(), batch(3, 2)
        for _ in range(2):
            forward_backward_custom(client, data, squared).result(60)
        assert_trained_alike(client, data, lambda lp: 2 * squared(data, lp)[0])

    def test_over_candidates(self) -> None:
        client, data = RemoteClient(), batch(3, 4, candidates=3)

        def loss(data: Any, logprobs: Any) -> Tensor:
            assert [one.shape for one in logprobs] == [(3, 3), (4, 3)]
            return sum((one.exp() * one).sum() for one in logprobs)

        def whole(logprobs: list[Tensor]) -> Tensor:
            return loss(data, logprobs) + pn.entropy(torch.cat(logprobs), logits=True)

        # A penalty of one input is of the log-probabilities, unless it says of what else.
        forward_backward_custom(client, data, loss, regularizers=["entropy"]).result(60)
        assert_trained_alike(client, data, whole)

    def test_in_a_process(self) -> None:
        client, data = RemoteClient(), batch(3, 5)

        def away(data: Any, logprobs: Any) -> Any:
            return sum((one**2).sum() for one in logprobs), {"process": float(os.getpid())}

        with pn.Executor(max_workers=1) as executor:
            term = pn.Term(away, 0.5, runs="process")
            for _ in range(2):
                out = forward_backward_custom(
                    client, data, squared, regularizers=[term], executor=executor, track_grad_norms=True
                ).result(60)
        assert out.metrics["away/process"] != os.getpid()
        assert_trained_alike(
            client, data, lambda lp: 2 * (squared(data, lp)[0] + 0.5 * sum((one**2).sum() for one in lp))
        )

    @settings(max_examples=40, deadline=None)
    @given(
        lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
        powers=st.lists(st.floats(0.5, 3.0), min_size=1, max_size=3),
        weight=st.floats(0.0, 10.0),
        which=st.sampled_from(SERVERS),
    )
    def test_of_any_loss(self, lengths: list[int], powers: list[float], weight: float, which: Any) -> None:
        server, averages = which
        client, data = RemoteClient(averages), batch(*lengths)

        def loss(data: Any, logprobs: Any) -> Any:
            parts = [((-one) ** power).mean() for one in logprobs for power in powers]
            return torch.stack(parts).prod().sin() + torch.stack(parts).sum()

        term = pn.Term("smooth_l1", weight, inputs="flat_logprobs")
        forward_backward_custom(client, data, loss, regularizers=[term], server=server).result(60)
        assert_trained_alike(client, data, lambda lp: loss(data, lp) + weight * pn.smooth_l1(torch.cat(lp)), rtol=1e-4)


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
        with pytest.raises(pn.InputError, match='"reward": its provider gave one number per datum; its attribute'):
            forward_backward_custom(
                RemoteClient(), batch(2, 3), None, regularizers=[term], references={"reward": Rewards()}
            )

        class Listed(Rewards):
            def start(self, client: Any, data: Any, *, step: Any) -> Any:
                return [1.0, 2.0]

        with pytest.raises(pn.InputError, match='"reward": its provider gave list; expected a concurrent Future'):
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
        with pytest.raises(pn.InputError, match=r"initial: datum 0: is new after the first call"):
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

    def test_a_reference_that_nobody_reads_is_not_asked_for(self) -> None:
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


class TestRegularizers:
    def test_as_dicts(self) -> None:
        client, data = RemoteClient(), batch(2, 3)

        def step(weight: float) -> float:
            config = [{"fn": "l1", "weight": weight, "inputs": "logprobs"}, {"fn": "l2", "inputs": ["logprobs"]}]
            return forward_backward_custom(client, data, None, regularizers=config).result(60).metrics["l1_weighted"]

        assert step(0.2) == pytest.approx(2 * step(0.1))
        assert step(0.2) == pytest.approx(2 * step(0.1))

    def test_a_term_over_packed_arrays_shows_as_it_was_given(self) -> None:
        def ends(logprobs: Any) -> Any:
            return logprobs[0][-1]

        made = pn.training.objective.objective_of(None, [pn.Term(ends, 0.5)], {}, None, rows=False, local=False)
        assert repr(made.pipeline["ends"]) == "Term(ends, weight=0.5)"

    def test_dicts_with_objects_in_them_are_the_same_as_long_as_these_are(self) -> None:
        client, data = RemoteClient(), batch(2, 3)
        weight = torch.tensor(0.5, requires_grad=True)
        for _ in range(2):
            config = [{"fn": "l1", "weight": weight, "inputs": "logprobs"}]
            forward_backward_custom(client, data, None, regularizers=config).result(60)
        found = sum(float(client.model.logprobs(one).detach().abs().sum()) for one in data)
        assert float(weight.grad) == pytest.approx(2 * found, rel=1e-5)

    def test_functions_of_other_numbers_of_parameters_have_to_name_inputs(self) -> None:
        with pytest.raises(pn.InputError, match='alone: no input is named "y"'):
            forward_backward_custom(RemoteClient(), batch(2), None, regularizers=[pn.Term(lambda y: y, name="alone")])

    def test_as_dicts_whose_values_change(self) -> None:
        client, data = RemoteClient(), batch(2, 3)
        found: list[float] = []
        for number in range(1, 5):
            config = [MappingProxyType({"fn": "l1", "weight": np.float32(number), "inputs": ["logprobs"]})]
            out = forward_backward_custom(client, data, None, regularizers=config).result(60)
            found.append(out.custom_loss["l1"].weight)
        assert found == [1.0, 2.0, 3.0, 4.0]

    def test_options_beside_the_three_parameters(self) -> None:
        seen: list[Any] = []

        def own(d: Any, lp: Any, opts: Any, alpha: float = 0.5) -> Any:
            seen.append((opts, alpha))
            return lp[0].sum()

        terms = [pn.Term(own, options={"alpha": 9.0}), pn.Term(own, name="b", options={"opts": {"a": 1}})]
        forward_backward_custom(RemoteClient(), batch(2), None, regularizers=terms).result(60)
        assert seen == [({}, 9.0), ({"a": 1}, 0.5)]

    def test_functions_of_c(self) -> None:
        terms = [pn.Term(torch.sum, name="sum", inputs="flat_logprobs")]
        client, data = RemoteClient(), batch(2)
        forward_backward_custom(client, data, None, regularizers=terms).result(60)
        assert_trained_alike(client, data, lambda lp: torch.cat(lp).sum())

    def test_mixed_with_terms(self) -> None:
        config = [{"fn": "l1", "inputs": "logprobs"}, pn.Term("l2", inputs="logprobs")]
        out = forward_backward_custom(RemoteClient(), batch(2), None, regularizers=config).result(60)
        assert out.custom_loss.names == ("l1", "l2")

    def test_as_a_pipeline_with_other_weights(self) -> None:
        pipeline = pn.Pipeline([pn.Term("l1", inputs="logprobs")])
        client, data = RemoteClient(), batch(2)
        out = forward_backward_custom(client, data, None, regularizers=pipeline, weights={"l1": 0.25}).result(60)
        assert out.metrics["l1_weighted"] == pytest.approx(0.25 * out.metrics["l1"])

    def test_many_are_kept_and_let_go(self) -> None:
        client, data = RemoteClient(), batch(2)
        for number in range(40):
            config = [{"fn": "l1", "weight": float(number), "inputs": "logprobs"}]
            forward_backward_custom(client, data, None, regularizers=config).result(60)
        from penalties.training import objective

        assert len(objective._known) <= objective._KEPT
        assert len(objective._described) <= 8 * objective._KEPT

    def test_a_timeout_for_those_that_have_none(self) -> None:
        def slow(data: Any) -> Any:
            time.sleep(5.0)
            return torch.tensor(0.0)

        terms = [pn.Term(slow, runs="thread"), pn.Term("l1", inputs="logprobs", timeout=20.0)]
        with pytest.raises(pn.TermTimeoutError, match="slow: took more than 0.1 s") as caught:
            forward_backward_custom(RemoteClient(), batch(2), squared, regularizers=terms, timeout=0.1)
        assert caught.value.output["l1"].value is not None

    @pytest.mark.parametrize(
        ("regularizers", "message"),
        [
            ("l1", "a Pipeline, a list of terms, or a list of dicts"),
            (pn.Pipeline([], base="l1"), "a pipeline without a base: the base is loss_fn"),
            ([{"fn": "l1", "base": True}], "no base among them"),
            (
                [pn.Term("l1", inputs="teacher")],
                'l1: no input is named "teacher"; there is data, lengths, logprobs, mask$',
            ),
            ([pn.Term("l1", inputs="params")], 'l1: reads "params", which is inside the model'),
            (
                [pn.Term("l1", inputs="params.base")],
                'l1: reads "params.base"; expected "params", a dict of all of them',
            ),
            ([pn.Term("l1", inputs="hidden.1")], 'l1: reads "hidden.1", which is inside the model'),
        ],
    )
    def test_wrong_ones(self, regularizers: Any, message: str) -> None:
        client = RemoteClient()
        with pytest.raises(pn.PenaltiesError, match=message):
            forward_backward_custom(client, batch(2), squared, regularizers=regularizers)
        assert client.calls == []


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
            ("dpo", r"dpo: needs log-probabilities to compare with, as references=.*there is none"),
            ({"fn": "dpo", "weight": 2.0}, "only fn and options for a loss by name"),
        ],
    )
    def test_wrong_ones(self, loss_fn: Any, message: str) -> None:
        with pytest.raises(pn.PenaltiesError, match=message):
            forward_backward_custom(RemoteClient(), batch(2, 2), loss_fn)


class TestTheResult:
    def test_is_the_clients_with_ours_in_it(self) -> None:
        client, data = RemoteClient(), batch(3, 2)
        future = forward_backward_custom(client, data, squared, regularizers=[pn.Term("l1", 0.1, inputs="logprobs")])
        result = future.result(60)
        assert future.result(60) is result
        assert result.loss_fn_output_type == "Fake"
        assert result.metrics["mine"] == 7.0
        assert result.metrics["loss:sum"] == pytest.approx(result.custom_loss.total)
        assert result.metrics["loss:sum"] == pytest.approx(result.metrics["total"])
        assert "surrogate_loss:sum" in result.metrics
        assert all(type(number) is float for number in result.metrics.values())
        assert result.custom_loss.to_dict()["regularizers"]["l1"]["weight"] == 0.1
        assert client.calls == [("forward", "cross_entropy"), ("forward_backward", "cross_entropy")]

    def test_numbers_of_terms_are_not_those_of_the_base(self) -> None:
        def base(data: Any, logprobs: Any) -> Any:
            return logprobs[0].sum(), {"l1": 7.0, "total": 123.0, "loss:sum": 5.0, "mine": 1.0}

        terms = [pn.Term("l1", 0.5, inputs="logprobs")]
        found = forward_backward_custom(RemoteClient(), batch(3), base, regularizers=terms).result(60)
        assert found.metrics["l1"] == pytest.approx(found.custom_loss["l1"].value)
        assert found.metrics["total"] == found.metrics["loss:sum"] == pytest.approx(found.custom_loss.total)
        assert (found.metrics["mine"], found.metrics["base_loss/l1"]) == (1.0, 7.0)

    def test_of_clients_that_give_no_futures(self) -> None:
        class Plain(RemoteClient):
            def _answer(self, make: Any) -> Any:
                return make()

        class Coroutines(RemoteClient):
            def _answer(self, make: Any) -> Any:
                async def later() -> Any:
                    return make()

                return later()

        for kind in (Plain, Coroutines):
            client, data = kind(), batch(3)
            assert forward_backward_custom(client, data, squared).result(60).metrics["mine"] == 7.0
            assert_trained_alike(client, data, lambda lp, data=data: squared(data, lp)[0])

    def test_an_optimizer_step_sent_next_comes_after_it(self) -> None:
        client = RemoteClient()
        forward_backward_custom(client, batch(3), squared)
        assert [name for name, _ in client.calls] == ["forward", "forward_backward"]

    def test_of_objects_that_know_nothing_of_it(self) -> None:
        import dataclasses

        @dataclasses.dataclass(frozen=True)
        class Theirs:
            loss_fn_outputs: list[Any]
            metrics: dict[str, float]

        class Plain:
            def __init__(self, outputs: Any, metrics: Any) -> None:
                self.loss_fn_outputs, self.metrics = outputs, metrics

        for kind in (Theirs, Plain):
            client = RemoteClient()
            client._output = lambda data, logprobs, loss, kind=kind: kind(  # type: ignore[method-assign]
                [{"logprobs": one.tolist()} for one in logprobs], {}
            )
            result = forward_backward_custom(client, batch(3), squared).result(60)
            assert isinstance(result, kind)
            assert result.custom_loss.total == pytest.approx(result.metrics["loss:sum"])

    def test_can_be_awaited(self) -> None:
        async def main() -> Any:
            client, data = RemoteClient(), batch(3, 2)
            future = await forward_backward_custom_async(client, data, squared)
            result = await future
            assert await future.result_async(60) is result
            assert_trained_alike(client, data, lambda lp: squared(data, lp)[0])
            return result

        assert asyncio.run(main()).metrics["mine"] == 7.0

    def test_a_late_one_is_a_timeout(self) -> None:
        never: Future[Any] = Future()
        late = module.CustomLossFuture(never, lambda result: result)
        with pytest.raises(TimeoutError):
            late.result(0.01)
        with pytest.raises(TimeoutError):
            asyncio.run(late.result_async(0.01))
        # Who waited in its own thread ends, too.
        never.set_result(3)
        assert late.result(60) == 3


class TestAsync:
    def test_the_loop_is_never_blocked(self) -> None:
        def slow(logprobs: Any) -> Any:
            time.sleep(0.3)
            return logprobs[0].sum()

        gaps: list[float] = []

        async def beat() -> None:
            before = time.monotonic()
            while True:
                await asyncio.sleep(0.005)
                now = time.monotonic()
                gaps.append(now - before)
                before = now

        async def main() -> None:
            beating = asyncio.create_task(beat())
            future = await forward_backward_custom_async(RemoteClient(), batch(3), squared, regularizers=[slow])
            await future
            beating.cancel()

        asyncio.run(main())
        assert len(gaps) > 10

    def test_modes_of_the_thread_are_not_ours_to_change(self) -> None:
        async def main() -> None:
            with torch.no_grad():
                await forward_backward_custom_async(RemoteClient(), batch(3), squared)

        with pytest.raises(pn.GradientError, match="was awaited inside torch.no_grad"):
            asyncio.run(main())

    def test_one_that_is_cancelled_before_the_forward_is_there_runs_nothing(self) -> None:
        client, ran, go = RemoteClient(), [], threading.Event()
        client.delay = lambda: go.wait(20) and None

        def term(logprobs: Any) -> Any:
            ran.append(1)
            return logprobs[0].sum()

        async def main() -> None:
            call = asyncio.create_task(forward_backward_custom_async(client, batch(3), squared, regularizers=[term]))
            await asyncio.sleep(0.2)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            go.set()
            await asyncio.sleep(0.3)

        asyncio.run(main())
        assert ran == []

    def test_one_that_is_cancelled_sends_nothing(self) -> None:
        client = RemoteClient()
        begun, go = threading.Event(), threading.Event()

        def slow(logprobs: Any) -> Any:
            begun.set()
            go.wait(20)
            return logprobs[0].sum()

        async def main() -> None:
            call = asyncio.create_task(
                forward_backward_custom_async(
                    client, batch(3), squared, regularizers=[pn.Term(slow, runs="thread", timeout=30.0)]
                )
            )
            while not begun.is_set():
                await asyncio.sleep(0.01)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            go.set()
            await asyncio.sleep(0.1)

        asyncio.run(main())
        assert [name for name, _ in client.calls] == ["forward"]


class TestBadInput:
    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ([], "got no data; expected at least one datum"),
            ("text", "got data=str; expected a list of data"),
            ([3], "datum 0: got int; expected a datum"),
            ([datum(0, 2), Datum(ModelInput.from_ints([1]))], "datum 1: its loss_fn_inputs have no target_tokens"),
            (
                [datum(0, 2), datum(1, 2, 3)],
                r"datum 1: its target_tokens have shape \(2, 3\) and those of datum 0 \(2,\)",
            ),
            ([datum(0, 0)], r"datum 0: its target_tokens have shape \(0,\); expected at least one target"),
            ([datum(0, 2, weights=[1.0])], r"datum 0: its weights have shape \(1,\) and its target_tokens \(2,\)"),
            (
                [Datum(ModelInput.from_ints([1]), {"target_tokens": np.zeros((1, 1, 1), int)})],
                r"datum 0: its target_tokens have shape \(1, 1, 1\)",
            ),
        ],
    )
    def test_data(self, data: Any, message: str) -> None:
        client = RemoteClient()
        with pytest.raises(pn.InputError, match=message):
            forward_backward_custom(client, data, squared)
        assert client.calls == []

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"server": "other"}, 'server="other"; expected "tinker" or "skyrl"'),
            ({"executor": 3}, "executor=3; expected an Executor"),
            ({"track_grad_norms": "yes"}, 'track_grad_norms="yes"'),
            ({"cosines": 1}, "cosines=1"),
            ({"references": [1]}, "a dict from names"),
            ({"references": {1: []}}, "names, each a string"),
            ({"references": {"mask": [1.0]}}, "another name"),
            ({"references": {"step": [1.0]}}, "another name"),
            ({"references": {"": [1.0]}}, "another name"),
            ({"server": ["x"]}, "server="),
            ({"timeout": [1]}, "timeout="),
            ({"references": {"teacher": [np.zeros(2)]}}, "teacher.*datum 0"),
        ],
    )
    def test_options(self, arguments: Any, message: str) -> None:
        with pytest.raises(pn.PenaltiesError, match=message):
            forward_backward_custom(RemoteClient(), [datum(0, 3)], squared, **arguments)

    @pytest.mark.parametrize(
        ("targets", "message"),
        [
            ([[1], [2, 3]], "datum 0: its target_tokens: an array: .*expected rows of one length"),
            ({"shape": [2]}, "datum 0: its target_tokens: an array: got no data; expected numbers"),
            ({"data": [1, 2], "dtype": "int64", "shape": [3]}, "as many numbers as the shape has places"),
        ],
    )
    def test_targets_of_other_clients(self, targets: Any, message: str) -> None:
        class Theirs:
            model_input = ModelInput.from_ints([1, 2])
            loss_fn_inputs = {"target_tokens": targets}  # noqa: RUF012

        with pytest.raises(pn.InputError, match=message):
            forward_backward_custom(RemoteClient(), [Theirs()], squared)

    def test_data_of_other_clients(self) -> None:
        class Theirs:
            def __init__(self, model_input: Any, loss_fn_inputs: Any) -> None:
                self.model_input, self.loss_fn_inputs = model_input, loss_fn_inputs

        data = [Theirs(ModelInput.from_ints([1, 2]), {"target_tokens": [2, 3]})]
        client = RemoteClient()
        forward_backward_custom(client, data, squared).result(60)
        assert_trained_alike(client, data, lambda lp: squared(data, lp)[0])

    def test_logits_that_are_not_said_to_be_some(self) -> None:
        with pytest.raises(pn.PenaltiesError, match="these are logits, and no log-probabilities"):
            pn.training.objective.objective_of(
                None, [pn.Term("entropy", inputs="logits")], {}, None, rows=False, local=True
            )

    def test_a_gradient_too_large_to_be_sent(self) -> None:
        client = RemoteClient(averages=True)
        with pytest.raises(pn.NonFiniteError, match="datum 0: the gradient of the loss is too large to be sent"):
            forward_backward_custom(
                client, batch(3, 2), lambda d, lp: 1e38 * (lp[0] - lp[0].detach()).sum(), server="skyrl"
            )
        assert [name for name, _ in client.calls] == ["forward"]

    def test_a_client_that_lacks_a_method(self) -> None:
        class Sampler:
            def forward(self) -> None: ...

        with pytest.raises(pn.InputError, match="the client, Sampler, has no method forward_backward"):
            forward_backward_custom(Sampler(), batch(2), squared)

    @pytest.mark.parametrize("name", ["kl_divergence", "js_divergence", "entropy"])
    def test_a_divergence_of_sampled_tokens(self, name: str) -> None:
        inputs = "logprobs" if name == "entropy" else ("logprobs", "teacher")
        with pytest.raises(
            pn.InputError, match=f"{name} compares distributions, and these log-prob.*one sampled token"
        ):
            forward_backward_custom(
                RemoteClient(),
                [datum(0, 2)],
                None,
                regularizers=[pn.Term(name, inputs=inputs)],
                references={"teacher": [np.zeros(2)]},
            )

    @pytest.mark.parametrize("name", ["kl_estimate", "entropy_estimate"])
    def test_an_estimate_from_what_was_not_drawn(self, name: str) -> None:
        inputs = "logprobs" if name == "entropy_estimate" else ("logprobs", "teacher")
        with pytest.raises(
            pn.InputError, match="is for one sampled token at each place, and these target_tokens have 3"
        ):
            forward_backward_custom(
                RemoteClient(),
                [datum(0, 2, 3)],
                None,
                regularizers=[pn.Term(name, inputs=inputs)],
                references={"teacher": [np.zeros((2, 3))]},
            )

    def test_candidates_on_a_server_that_averages(self) -> None:
        client = RemoteClient(averages=True)
        with pytest.raises(pn.InputError, match="datum 0: has 3 targets at each place"):
            forward_backward_custom(client, [datum(0, 2, 3)], lambda d, lp: lp[0].sum(), server="skyrl")
        assert client.calls == []

    @pytest.mark.parametrize(
        ("outputs", "message"),
        [
            (None, "the client gave NoneType; expected an output"),
            ([], "the client gave 0 outputs for 2 data"),
            ([{"logprobs": [-1.0] * 3}, {}], "datum 1: the forward gave nothing; expected logprobs"),
            ([None, {}], "datum 0: the forward gave NoneType; expected logprobs"),
            ([{"logprobs": [[-1.0], [1.0, 2.0]]}, {}], "datum 0: the logprobs of the forward: an array"),
            ([{"logprobs": [-1.0]}, {}], r"datum 0: the forward gave logprobs of shape \(1,\) for targets \(3,\)"),
            ([{"logprobs": [-1.0, np.nan, 0.0]}, {}], "datum 0: the forward gave nan among its logprobs"),
            ([{"logprobs": [-1.0, -np.inf, 0.0]}, {}], "datum 0: the forward gave inf among its logprobs"),
        ],
    )
    def test_forwards_that_went_wrong(self, outputs: Any, message: str) -> None:
        class Output:
            loss_fn_outputs = outputs

        client = RemoteClient()
        client._output = lambda *args: None if outputs is None else Output()  # type: ignore[method-assign]
        with pytest.raises(pn.PenaltiesError, match=message):
            forward_backward_custom(client, batch(3, 2), squared)
        assert [name for name, _ in client.calls] == ["forward"]

    def test_a_gradient_that_is_not_finite_is_not_sent(self) -> None:
        def steep(data: Any, logprobs: Any) -> Any:
            return sum((0 * one).abs().sqrt().sum() for one in logprobs[1:])

        client = RemoteClient()
        with pytest.raises(pn.NonFiniteError, match="datum 1: the gradient of the loss is nan there; nothing was sent"):
            forward_backward_custom(client, batch(2, 2), steep)
        assert [name for name, _ in client.calls] == ["forward"]

    def test_a_forward_that_fails_is_raised_as_it_is(self) -> None:
        client = RemoteClient()

        def fail() -> None:
            raise ConnectionError("the server is gone")

        client.delay = fail
        with pytest.raises(ConnectionError, match="the server is gone"):
            forward_backward_custom(client, batch(2), squared)

    def test_a_loss_that_fails_sends_nothing(self) -> None:
        client = RemoteClient()
        with pytest.raises(pn.TermError, match="base_loss: raised ZeroDivisionError"):
            forward_backward_custom(client, batch(2), lambda d, lp: 1 / 0)
        assert [name for name, _ in client.calls] == ["forward"]


class TestEvents:
    def test_start_stop_and_exception(self) -> None:
        heard: list[Any] = []
        handler = pn.telemetry.attach(lambda *event: heard.append(event))
        try:
            terms = [pn.Term("l1", 0.1, inputs="logprobs")]
            forward_backward_custom(
                RemoteClient(), batch(3, 2), squared, regularizers=terms, track_grad_norms=True, step=4
            )
            with pytest.raises(pn.TermError):
                forward_backward_custom(RemoteClient(), batch(3), lambda d, lp: 1 / 0)
        finally:
            pn.telemetry.detach(handler)
        ours = [(name, *rest) for name, *rest in heard if name.startswith("custom_loss")]
        assert [name for name, _, _ in ours] == [
            "custom_loss.start",
            "custom_loss.stop",
            "custom_loss.start",
            "custom_loss.exception",
        ]
        about = {"model_id": "fake", "data_count": 2, "regularizer_count": 1, "track_grad_norms": True, "step": 4}
        start, stop = ours[0], ours[1]
        assert set(start[1]) == {"time", "monotonic_time"}
        assert {name: start[2][name] for name in about} == about
        assert set(stop[1]) == {"duration", "loss_total", "regularizer_total", "total_grad_norm"}
        assert float(stop[1]["total_grad_norm"]) > 0
        assert stop[2]["output"].names == ("base_loss", "l1")
        # One number for the whole and for the pipeline inside it, another for the next.
        assert len({metadata["call"] for _, _, metadata in heard}) == 2
        assert "ZeroDivisionError" in str(ours[3][2]["error"])

    def test_a_sink_counts_each_call_once(self, tmp_path: Any) -> None:
        path = tmp_path / "events.jsonl"
        with pn.telemetry.JSONLines(path):
            for _ in range(2):
                forward_backward_custom(RemoteClient(), batch(3, 2), squared).result(60)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        stops = [(line["event"], line["step"]) for line in lines if line["event"].endswith("stop")]
        assert stops == [("pipeline.stop", 0), ("custom_loss.stop", 0), ("pipeline.stop", 1), ("custom_loss.stop", 1)]

    def test_a_pipeline_inside_a_term_has_a_number_of_its_own(self) -> None:
        def nested(flat_logprobs: Any) -> Any:
            return pn.Pipeline(["l2"])(flat_logprobs).total

        calls: list[Any] = []
        handler = pn.telemetry.attach(lambda event, measured, about: calls.append(about["call"]), "pipeline.stop")
        try:
            forward_backward_custom(RemoteClient(), batch(3, 2), squared, regularizers=[nested])
        finally:
            pn.telemetry.detach(handler)
        assert len(set(calls)) == 2


def test_the_shared_executor_is_made_again_in_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    first = module._default()
    assert module._default() is first
    monkeypatch.setattr(module, "_shared", [(-1, first)])
    other = module._default()
    assert other is not first
    other.close()


def test_torch_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(pn.MissingLibraryError, match="torch"):
        module._torch()
