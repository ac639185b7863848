"""Base losses of data alone, and what holds for all of them."""

import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tinker import types as sdk

import penalties as pn
from penalties.training import losses
from tests.training.losses.cases import LENGTHS, batch, check_gradients, datum, drawn, numpy, some


class TestCrossEntropy:
    @given(lengths=LENGTHS, seed=st.integers(0, 100), candidates=st.sampled_from([None, 3]))
    def test_is_the_weighted_sum(self, lengths: list[int], seed: int, candidates: int | None) -> None:
        data = batch(lengths, candidates, seed, weights=some)
        logprobs = drawn(data, seed)
        loss, metrics = losses.cross_entropy(data, logprobs)
        weights = np.concatenate([one.loss_fn_inputs["weights"].to_numpy().reshape(-1) for one in data])
        nll = -np.concatenate([array.reshape(-1) for array in numpy(logprobs)])
        assert loss.item() == pytest.approx((weights * nll).sum())
        if weights.sum() == 0:
            assert metrics == {}
        else:
            mean = (weights * nll).sum() / weights.sum()
            assert metrics["mean_nll"].item() == pytest.approx(mean)
            assert metrics["perplexity"].item() == pytest.approx(math.exp(mean))
        check_gradients(lambda tensors: losses.cross_entropy(data, tensors)[0], logprobs)

    def test_a_target_counts_one_without_weights(self) -> None:
        loss, metrics = losses.cross_entropy([datum([1, 2])], [torch.tensor([-1.0, -2.0])])
        assert (loss.item(), metrics["mean_nll"].item()) == (3.0, 1.5)

    def test_negative_weights_do_not_cancel_in_the_mean(self) -> None:
        data = [datum([1, 2], weights=[1.0, -1.0])]
        loss, metrics = losses.cross_entropy(data, [torch.tensor([-1.0, -3.0])])
        assert (loss.item(), metrics["mean_nll"].item()) == (-2.0, 2.0)

    def test_a_batch_in_which_nothing_counts_has_no_mean(self) -> None:
        loss, metrics = losses.cross_entropy([datum([1], weights=[0.0])], [torch.tensor([-1.0])])
        assert (loss.item(), metrics) == (0.0, {})

    def test_what_does_not_count_may_be_anything(self) -> None:
        logprobs = [torch.tensor([-math.inf, -2.0], requires_grad=True)]
        loss, metrics = losses.cross_entropy([datum([1, 2], weights=[0.0, 1.0])], logprobs)
        loss.backward()
        assert (loss.item(), metrics["mean_nll"].item()) == (2.0, 2.0)
        assert logprobs[0].grad is not None
        assert logprobs[0].grad.tolist() == [0.0, -1.0]

    def test_half_precision_is_added_up_in_float32(self) -> None:
        loss, _ = losses.cross_entropy([datum(np.zeros(4097, np.int64))], [torch.full((4097,), -1.0).bfloat16()])
        assert (loss.dtype, loss.item()) == (torch.float32, 4097.0)

    def test_metrics_carry_no_graph(self) -> None:
        logprobs = [torch.tensor([-1.0], requires_grad=True)]
        _, metrics = losses.cross_entropy([datum([1])], logprobs)
        assert not any(metric.requires_grad for metric in metrics.values())

    def test_data_of_the_sdk(self) -> None:
        one = sdk.Datum(
            model_input=sdk.ModelInput.from_ints([1, 2]),
            loss_fn_inputs={"target_tokens": [2, 3], "weights": [0.0, 2.0]},
        )
        assert losses.cross_entropy([one], [torch.tensor([-1.0, -2.0])])[0].item() == 4.0


class TestImportanceSampling:
    @given(lengths=LENGTHS, seed=st.integers(0, 100))
    def test_is_the_formula(self, lengths: list[int], seed: int) -> None:
        data = batch(
            lengths,
            seed=seed,
            advantages=lambda generator, shape: generator.integers(-1, 2, shape).astype(np.float32),
            logprobs=lambda generator, shape: -generator.exponential(1.0, shape).astype(np.float32),
        )
        logprobs = drawn(data, seed)
        loss, metrics = losses.importance_sampling(data, logprobs)
        now = np.concatenate(numpy(logprobs))
        old = np.concatenate([one.loss_fn_inputs["logprobs"].to_numpy() for one in data]).astype(np.float64)
        advantages = np.concatenate([one.loss_fn_inputs["advantages"].to_numpy() for one in data])
        ratio = np.exp(now - old)
        assert loss.item() == pytest.approx(-(ratio * advantages).sum())
        counted = ratio[advantages != 0]
        assert metrics["ratio_mean"].item() == pytest.approx(counted.mean() if counted.size else 0.0)
        assert metrics["ratio_max"].item() == pytest.approx(counted.max() if counted.size else 0.0)
        estimates = (ratio - 1 - np.log(ratio))[advantages != 0]
        assert metrics["kl"].item() == pytest.approx(estimates.mean() if counted.size else 0.0, abs=1e-9)
        check_gradients(lambda tensors: losses.importance_sampling(data, tensors)[0], logprobs, 1e-4)

    def test_gradient_where_nothing_has_moved_is_minus_the_advantage(self) -> None:
        logprobs = [torch.tensor([-1.0, -2.0], requires_grad=True)]
        one = datum([1, 2], logprobs=[-1.0, -2.0], advantages=[0.5, -3.0])
        losses.importance_sampling([one], logprobs)[0].backward()
        assert logprobs[0].grad is not None
        assert logprobs[0].grad.tolist() == [-0.5, 3.0]

    def test_weights_are_not_read(self) -> None:
        one = datum([1, 2], logprobs=[-1.0, -2.0], advantages=[0.5, -3.0], weights=[0.0, 0.0])
        assert losses.importance_sampling([one], [torch.tensor([-1.0, -2.0])])[0].item() == 2.5

    @pytest.mark.parametrize("missing", ["logprobs", "advantages"])
    def test_needs_both(self, missing: str) -> None:
        whole = {"logprobs": [-1.0], "advantages": [1.0]}
        data = [datum([1], **whole), datum([1], **{key: value for key, value in whole.items() if key != missing})]
        with pytest.raises(pn.InputError, match=f"datum 1: importance_sampling needs {missing} in its loss_fn_inputs"):
            losses.importance_sampling(data, [torch.zeros(1), torch.zeros(1)])

    def test_shapes_are_those_of_the_targets(self) -> None:
        one = datum([1, 2], logprobs=[-1.0, -1.0], advantages=[1.0])
        with pytest.raises(pn.InputError, match=r"datum 0: its advantages has shape \(1,\) and its target_tokens \(2,"):
            losses.importance_sampling([one], [torch.zeros(2)])


NEEDS_REFERENCE = {"dpo": (2,), "reverse_kl": (2, 3)}


@pytest.mark.parametrize("name", losses.BY_NAME)
class TestEveryLoss:
    def call(self, name: str, lengths: list[int], **changed: Any) -> Any:
        candidates = 3 if name == "reverse_kl" else None
        shape: Any = lambda length: (length,) if candidates is None else (length, candidates)
        inputs = {"advantages": np.ones, "logprobs": np.zeros}
        extra = {key: lambda _, size, make=make: make(size, np.float32) for key, make in inputs.items()}
        arguments: dict[str, Any] = {
            "data": batch(lengths, candidates, **(extra if name == "importance_sampling" else {})),
            "logprobs": [torch.zeros(shape(length)) for length in lengths],
        }
        if name in NEEDS_REFERENCE:
            arguments["reference"] = [torch.zeros(shape(length)) for length in lengths]
        return losses.BY_NAME[name](**{**arguments, **changed})

    def test_gives_a_scalar_and_scalar_metrics(self, name: str) -> None:
        loss, metrics = self.call(name, [2, 3])
        assert loss.shape == ()
        assert metrics
        assert all(metric.shape == () for metric in metrics.values())

    def test_no_data(self, name: str) -> None:
        with pytest.raises(pn.InputError, match=f"{name}: got no data"):
            self.call(name, [])

    def test_as_many_logprobs_as_data(self, name: str) -> None:
        with pytest.raises(pn.InputError, match=f"datum 1: {name} has 2 data and 1 arrays of logprobs"):
            self.call(name, [2, 3], logprobs=[torch.zeros(2)])

    def test_logprobs_of_the_shape_of_the_targets(self, name: str) -> None:
        wrong = torch.zeros(4) if name != "reverse_kl" else torch.zeros(4, 3)
        right = torch.zeros(2) if name != "reverse_kl" else torch.zeros(2, 3)
        with pytest.raises(pn.InputError, match=r"datum 1: its logprobs have shape \(4,.* and its target_tokens \(3,"):
            self.call(name, [2, 3], logprobs=[right, wrong])

    def test_nan_names_the_datum(self, name: str) -> None:
        shapes = [(1,), (2,), (3,), (1,)] if name != "reverse_kl" else [(1, 3), (2, 3), (3, 3), (1, 3)]
        logprobs = [torch.zeros(shape) for shape in shapes]
        logprobs[2].view(-1)[-1] = math.nan
        with pytest.raises(pn.InputError, match="datum 2: found nan in its logprobs"):
            self.call(name, [1, 2, 3, 1], logprobs=logprobs)

    def test_rejects_what_is_not_a_datum(self, name: str) -> None:
        with pytest.raises(pn.InputError, match="datum 0: got int; expected a datum"):
            self.call(name, [1], data=[7])

    def test_without_torch(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "torch", None)
        with pytest.raises(pn.MissingLibraryError, match='pip install "penalties\\[torch\\]"'):
            self.call(name, [])

    def test_is_a_base_of_a_pipeline(self, name: str) -> None:
        pipeline = pn.Pipeline(base=pn.Term(losses.BY_NAME[name], name="base"))
        shape = (2,) if name != "reverse_kl" else (2, 3)
        generator = torch.Generator().manual_seed(0)
        logprobs = [-torch.rand(shape, generator=generator) for _ in range(2)]
        inputs: dict[str, Any] = {"logprobs": logprobs}
        if name in NEEDS_REFERENCE:
            inputs["reference"] = [torch.rand(shape, generator=generator) for _ in range(2)]
        extra = {"advantages": np.ones(2, np.float32), "logprobs": np.zeros(2, np.float32)}
        more = extra if name == "importance_sampling" else {}
        inputs["data"] = [datum(np.zeros(shape, np.int64), **more) for _ in range(2)]
        out = pipeline.value_and_grad(**inputs, wrt="logprobs")
        assert [gradient.shape for gradient in out.gradient["logprobs"]] == [shape, shape]
        assert out.metrics()["base_loss_grad_norm"] > 0
        assert all(isinstance(value, float) for value in out.metrics().values())
