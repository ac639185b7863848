"""The base losses against their formulas, written again with NumPy, and what they refuse."""

import builtins
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tinker import types as sdk

import penalties as pn
from penalties.training import Datum, ModelInput, losses

LENGTHS = st.lists(st.integers(1, 5), min_size=1, max_size=5)


def datum(targets: Any, **inputs: Any) -> Datum:
    array = np.asarray(targets)
    return Datum(ModelInput.from_ints(range(len(array))), {"target_tokens": array, **inputs})


def batch(lengths: list[int], candidates: int | None = None, seed: int = 0, **inputs: Any) -> list[Datum]:
    """Data with targets of these lengths; `inputs` make what else they hold, from a generator and a shape."""
    generator = np.random.default_rng(seed)
    shapes = [(length,) if candidates is None else (length, candidates) for length in lengths]
    made = [{key: make(generator, shape) for key, make in inputs.items()} for shape in shapes]
    return [datum(np.zeros(shape, np.int64), **more) for shape, more in zip(shapes, made, strict=True)]


def drawn(data: list[Datum], seed: int) -> list[torch.Tensor]:
    """Log-probabilities for the targets of each datum."""
    generator = np.random.default_rng(seed)
    found = [-generator.exponential(1.0, one.loss_fn_inputs["target_tokens"].shape) for one in data]
    return [torch.tensor(array, requires_grad=True) for array in found]


def numpy(tensors: list[torch.Tensor]) -> list[np.ndarray[Any, Any]]:
    return [tensor.detach().numpy() for tensor in tensors]


def check_gradients(loss_of: Any, logprobs: list[torch.Tensor], tolerance: float = 1e-6) -> None:
    """The gradients at every element are central differences."""
    found = torch.autograd.grad(loss_of(logprobs), logprobs, allow_unused=True, materialize_grads=True)
    step = 1e-6
    for place, tensor in enumerate(logprobs):
        for index in np.ndindex(*tensor.shape):
            ends = []
            for sign in (1, -1):
                moved = [one.detach().clone() for one in logprobs]
                moved[place][index] += sign * step
                ends.append(loss_of(moved).item())
            assert found[place][index].item() == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=tolerance)


def some(generator: np.random.Generator, shape: Any) -> Any:
    return generator.integers(0, 3, shape).astype(np.float32)


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
        with pytest.raises(
            pn.InputError, match=r"datum 0: the shape of its advantages is \(1,\) and that of its target_tokens \(2,"
        ):
            losses.importance_sampling([one], [torch.zeros(2)])


def sigmoid_loss(data: list[Datum], logprobs: list[Any], reference: list[Any], beta: float) -> dict[str, float]:
    """DPO from the formula, one pair after the other."""
    rewards = []
    for one, policy, before in zip(data, logprobs, reference, strict=True):
        weights = one.loss_fn_inputs["weights"].to_numpy().astype(np.float64)
        rewards.append(beta * ((weights * policy).sum() - (weights * before).sum()))
    margins = [chosen - rejected for chosen, rejected in zip(rewards[::2], rewards[1::2], strict=True)]
    return {
        "loss": float(np.mean([math.log1p(math.exp(-margin)) for margin in margins])),
        "accuracy": float(np.mean([margin > 0 for margin in margins])),
        "margin": float(np.mean(margins)),
        "chosen_reward": float(np.mean(rewards[::2])),
        "rejected_reward": float(np.mean(rewards[1::2])),
    }


class TestDpo:
    @given(
        lengths=st.lists(st.integers(1, 5), min_size=1, max_size=3),
        seed=st.integers(0, 100),
        beta=st.floats(0.05, 3.0),
    )
    def test_is_the_formula(self, lengths: list[int], seed: int, beta: float) -> None:
        data = batch([*lengths, *lengths], seed=seed, weights=some)
        logprobs, reference = drawn(data, seed), numpy(drawn(data, seed + 1000))
        loss, metrics = losses.dpo(data, logprobs, reference, beta=beta)
        expected = sigmoid_loss(data, numpy(logprobs), reference, beta)
        assert loss.item() == pytest.approx(expected.pop("loss"))
        assert {key: metric.item() for key, metric in metrics.items()} == pytest.approx(expected)
        check_gradients(lambda tensors: losses.dpo(data, tensors, reference, beta=beta)[0], logprobs)

    def test_starts_at_ln_2(self) -> None:
        data, same = batch([2, 3]), [torch.zeros(2), torch.zeros(3)]
        loss, metrics = losses.dpo(data, same, same)
        assert loss.item() == pytest.approx(math.log(2))
        assert metrics["accuracy"].item() == 0.0

    def test_far_apart_is_finite(self) -> None:
        data = batch([1, 1])
        logprobs = [torch.tensor([-1e4], requires_grad=True), torch.tensor([-1.0])]
        loss, _ = losses.dpo(data, logprobs, [torch.zeros(1), torch.zeros(1)], beta=1.0)
        loss.backward()
        assert loss.item() == pytest.approx(9999.0)
        assert logprobs[0].grad is not None
        assert logprobs[0].grad.item() == -1.0

    def test_a_step_raises_the_chosen_and_lowers_the_rejected(self) -> None:
        logprobs = [torch.tensor([-1.0, -1.0], requires_grad=True), torch.tensor([-1.0], requires_grad=True)]
        losses.dpo(batch([2, 1]), logprobs, [torch.zeros(2), torch.zeros(1)])[0].backward()
        assert all((tensor.grad < 0).all() for tensor in logprobs[:1])
        assert all((tensor.grad > 0).all() for tensor in logprobs[1:])

    def test_the_reference_is_constant(self) -> None:
        reference = [torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)]
        logprobs = [torch.tensor([-1.0], requires_grad=True), torch.tensor([-1.0], requires_grad=True)]
        losses.dpo(batch([1, 1]), logprobs, reference)[0].backward()
        assert reference[0].grad is None

    def test_data_come_in_pairs(self) -> None:
        data = batch([1, 1, 1])
        zeros = [torch.zeros(1)] * 3
        with pytest.raises(pn.InputError, match="datum 2: has no partner among 3 data; dpo takes pairs"):
            losses.dpo(data, zeros, zeros)

    def test_sequences_have_one_target_at_each_place(self) -> None:
        zeros = [torch.zeros(2, 3)] * 2
        with pytest.raises(pn.InputError, match=r"datum 0: its target_tokens have shape \(2, 3\); dpo compares"):
            losses.dpo(batch([2, 2], 3), zeros, zeros)

    @pytest.mark.parametrize("beta", [0.0, -1.0, math.inf, "high"])
    def test_beta_is_above_zero(self, beta: Any) -> None:
        zeros = [torch.zeros(1)] * 2
        with pytest.raises(pn.OptionError, match="dpo: beta="):
            losses.dpo(batch([1, 1]), zeros, zeros, beta=beta)

    def test_an_unknown_option_names_the_nearest(self) -> None:
        with pytest.raises(pn.OptionError, match="did you mean beta?"):
            losses.dpo([], [], [], betta=1.0)  # type: ignore[call-arg]


def plain_reverse_kl(student: Any, teacher: Any, renormalize: bool) -> Any:
    """KL(student ‖ teacher) at each place from the formula."""
    p, q = np.exp(student), np.exp(teacher)
    if renormalize:
        p, q = p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)
    return (p * (np.log(p) - np.log(q))).sum(-1)


class TestReverseKl:
    @given(
        lengths=LENGTHS,
        seed=st.integers(0, 100),
        renormalize=st.booleans(),
        reduction=st.sampled_from(["mean", "sum"]),
    )
    def test_is_the_formula(self, lengths: list[int], seed: int, renormalize: bool, reduction: str) -> None:
        data = batch(
            lengths, 3, seed, weights=lambda generator, shape: np.repeat(some(generator, shape[0])[:, None], 3, 1)
        )
        logprobs, reference = drawn(data, seed), numpy(drawn(data, seed + 1000))
        options: dict[str, Any] = {"renormalize": renormalize, "reduction": reduction}
        loss, metrics = losses.reverse_kl(data, logprobs, reference, **options)
        weights = np.concatenate([one.loss_fn_inputs["weights"].to_numpy()[:, 0] for one in data])
        student, teacher = np.concatenate(numpy(logprobs)), np.concatenate(reference)
        values = plain_reverse_kl(student, teacher, renormalize)
        total = max(weights.sum(), 1.0)
        expected = (weights * values).sum() / (total if reduction == "mean" else 1.0)
        assert loss.item() == pytest.approx(expected, abs=1e-12)
        assert metrics["reverse_kl"].item() == pytest.approx((weights * values).sum() / total, abs=1e-12)
        assert metrics["student_mass"].item() == pytest.approx((weights * np.exp(student).sum(-1)).sum() / total)
        assert metrics["teacher_mass"].item() == pytest.approx((weights * np.exp(teacher).sum(-1)).sum() / total)
        counted = values[weights > 0]
        assert metrics["reverse_kl_max"].item() == pytest.approx(counted.max() if counted.size else 0.0, abs=1e-12)
        assert metrics["reverse_kl_min"].item() == pytest.approx(counted.min() if counted.size else 0.0, abs=1e-12)
        check_gradients(lambda tensors: losses.reverse_kl(data, tensors, reference, **options)[0], logprobs)

    def test_is_zero_where_both_agree_up_to_a_factor(self) -> None:
        student = torch.tensor([[0.5, 0.25]]).log()
        loss, _ = losses.reverse_kl(batch([1], 2), [student], [student - 1.0])
        assert loss.item() == pytest.approx(0.0, abs=1e-6)

    def test_a_candidate_of_weight_zero_is_left_out(self) -> None:
        one = datum([[1, 2, 0]], weights=[[1.0, 1.0, 0.0]])
        logprobs = [torch.tensor([[-1.0, -2.0, -0.1]], dtype=torch.float64, requires_grad=True)]
        loss, metrics = losses.reverse_kl([one], logprobs, [np.array([[-2.0, -1.5, -9.0]])])
        loss.backward()
        expected = plain_reverse_kl(np.array([[-1.0, -2.0]]), np.array([[-2.0, -1.5]]), True)
        assert loss.item() == pytest.approx(expected[0])
        assert metrics["student_mass"].item() == pytest.approx(math.exp(-1) + math.exp(-2))
        assert logprobs[0].grad is not None
        assert logprobs[0].grad[0, 2] == 0
        assert logprobs[0].grad.isfinite().all()

    def test_a_place_without_candidates_has_no_gradient_and_no_nan(self) -> None:
        one = datum([[1, 2], [1, 2]], weights=[[0.0, 0.0], [1.0, 1.0]])
        logprobs = [torch.tensor([[-1.0, -2.0], [-1.0, -0.5]], requires_grad=True)]
        loss, _ = losses.reverse_kl([one], logprobs, [np.array([[-1.0, -1.0], [-1.0, -1.0]])])
        loss.backward()
        assert logprobs[0].grad is not None
        assert logprobs[0].grad[0].tolist() == [0.0, 0.0]
        assert logprobs[0].grad.isfinite().all()

    def test_a_batch_in_which_nothing_counts_is_zero(self) -> None:
        logprobs = [torch.tensor([[-1.0, -2.0]], requires_grad=True)]
        loss, metrics = losses.reverse_kl([datum([[1, 2]], weights=[[0.0, 0.0]])], logprobs, [np.zeros((1, 2))])
        assert loss.item() == 0.0
        assert {key: metric.item() for key, metric in metrics.items()} == dict.fromkeys(metrics, 0.0)

    def test_weights_that_are_probabilities_are_refused(self) -> None:
        data = [datum([[1, 2]]), datum([[1, 2], [1, 2]], weights=[[1.0, 1.0], [0.7, 0.3]])]
        zeros = [torch.zeros(1, 2), torch.zeros(2, 2)]
        with pytest.raises(
            pn.InputError, match="datum 1: the weights of the candidates at one of its places differ, 0.3"
        ):
            losses.reverse_kl(data, zeros, zeros)

    def test_sampled_tokens_are_refused(self) -> None:
        with pytest.raises(pn.InputError, match=r"datum 0: its target_tokens have shape \(2,\); reverse_kl compares"):
            losses.reverse_kl(batch([2]), [torch.zeros(2)], [torch.zeros(2)])

    def test_as_many_candidates_everywhere(self) -> None:
        zeros = [torch.zeros(1, 2), torch.zeros(1, 3)]
        with pytest.raises(pn.InputError, match=r"datum 1: .* expected \(N, 2\), as datum 0 has"):
            losses.reverse_kl([datum([[1, 2]]), datum([[1, 2, 3]])], zeros, zeros)

    def test_options_are_checked(self) -> None:
        zeros = [torch.zeros(1, 2)]
        with pytest.raises(pn.OptionError, match="reverse_kl: renormalize="):
            losses.reverse_kl([datum([[1, 2]])], zeros, zeros, renormalize="no")  # type: ignore[arg-type]
        with pytest.raises(pn.OptionError, match="reverse_kl: reduction="):
            losses.reverse_kl([datum([[1, 2]])], zeros, zeros, reduction="none")


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
        with pytest.raises(pn.InputError, match="datum 2: there is nan in its logprobs"):
            self.call(name, [1, 2, 3, 1], logprobs=logprobs)

    def test_what_is_no_datum(self, name: str) -> None:
        with pytest.raises(pn.InputError, match="datum 0: got int; expected a datum"):
            self.call(name, [1], data=[7])

    def test_without_torch(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        real = builtins.__import__

        def without(module: str, *rest: Any, **more: Any) -> Any:
            if module == "torch":
                raise ImportError(module)
            return real(module, *rest, **more)

        monkeypatch.setattr(builtins, "__import__", without)
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


@pytest.mark.parametrize("name", NEEDS_REFERENCE)
class TestReferences:
    def call(self, name: str, reference: Any) -> Any:
        candidates = 3 if name == "reverse_kl" else None
        shapes = [(2,), (3,)] if candidates is None else [(2, 3), (3, 3)]
        return losses.BY_NAME[name](batch([2, 3], candidates), [torch.zeros(shape) for shape in shapes], reference)

    def shaped(self, name: str, *lengths: int) -> list[Any]:
        return [np.zeros((length,) if name == "dpo" else (length, 3)) for length in lengths]

    def test_one_for_each_datum(self, name: str) -> None:
        with pytest.raises(pn.InputError, match=f"datum 1: {name} has 2 data and 1 entries in reference"):
            self.call(name, self.shaped(name, 2))

    def test_none_is_missing(self, name: str) -> None:
        with pytest.raises(pn.InputError, match=f"datum 1: {name} has no reference for it"):
            self.call(name, [*self.shaped(name, 2), None])

    def test_of_the_shape_of_the_targets(self, name: str) -> None:
        with pytest.raises(
            pn.InputError, match=r"datum 1: the shape of its reference is \(4,.* and that of its target_tokens \(3,"
        ):
            self.call(name, self.shaped(name, 2, 4))

    def test_nan_names_the_datum(self, name: str) -> None:
        reference = self.shaped(name, 2, 3)
        reference[1].reshape(-1)[0] = math.nan
        with pytest.raises(pn.InputError, match="datum 1: there is nan in its reference"):
            self.call(name, reference)

    def test_arrays_that_cannot_be_written_to(self, name: str) -> None:
        reference = self.shaped(name, 2, 3)
        for array in reference:
            array.setflags(write=False)
        loss, _ = self.call(name, reference)
        assert loss.isfinite()
