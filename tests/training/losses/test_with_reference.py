"""Base losses that compare with a reference."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import penalties as pn
from penalties.training import Datum, losses
from tests.training.losses.cases import LENGTHS, batch, check_gradients, datum, drawn, numpy, some

NEEDS_REFERENCE = {"dpo": (2,), "reverse_kl": (2, 3)}


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
        with pytest.raises(pn.InputError, match="datum 2: has no partner; dpo takes pairs"):
            losses.dpo(data, zeros, zeros)

    def test_needs_one_target_per_position(self) -> None:
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

    def test_a_position_without_candidates_has_no_gradient_and_no_nan(self) -> None:
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

    def test_weights_that_are_probabilities_raise(self) -> None:
        data = [datum([[1, 2]]), datum([[1, 2], [1, 2]], weights=[[1.0, 1.0], [0.7, 0.3]])]
        zeros = [torch.zeros(1, 2), torch.zeros(2, 2)]
        with pytest.raises(pn.InputError, match="datum 1: the weights of the candidates at one position differ, 0.3"):
            losses.reverse_kl(data, zeros, zeros)

    def test_sampled_tokens_raise(self) -> None:
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
        with pytest.raises(pn.InputError, match=f"datum 1: {name}: reference is None"):
            self.call(name, [*self.shaped(name, 2), None])

    def test_of_the_shape_of_the_targets(self, name: str) -> None:
        with pytest.raises(pn.InputError, match=r"datum 1: its reference has shape \(4,.* and its target_tokens \(3,"):
            self.call(name, self.shaped(name, 2, 4))

    def test_nan_names_the_datum(self, name: str) -> None:
        reference = self.shaped(name, 2, 3)
        reference[1].reshape(-1)[0] = math.nan
        with pytest.raises(pn.InputError, match="datum 1: found nan in its reference"):
            self.call(name, reference)

    def test_arrays_that_cannot_be_written_to(self, name: str) -> None:
        reference = self.shaped(name, 2, 3)
        for array in reference:
            array.setflags(write=False)
        loss, _ = self.call(name, reference)
        assert loss.isfinite()
