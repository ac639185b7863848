"""The adapters' values: numbers on record, whole batches, masks."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import penalties as pn
from penalties.training import adapters
from tests.libraries import DTYPE, JAX, LIBRARIES, TORCH, close
from tests.pipeline.test_golden import LOGPROBS, PAIR, REFERENCE
from tests.training.adapters.cases import LENGTHS, NAMES, SAMPLED, call, drawn, slope

eager = pytest.mark.parametrize("kind", [one for one in LIBRARIES if one is not JAX], ids=lambda kind: kind.name)
"""JAX compiles each operation for each shape; that it agrees with PyTorch is tested with the terms."""


class TestNumbersOnRecord:
    @eager
    def test_l1(self, kind: Any) -> None:
        value, metrics = adapters.l1([kind.array(np.log([[0.5, 0.25, 0.25]]))])
        close(kind.numpy(value), 3.465735903)
        close(kind.numpy(metrics["l1_raw"]), 3.465735903)
        close(kind.numpy(metrics["l1_mean"]), 1.155245301)

    @eager
    def test_l2(self, kind: Any) -> None:
        x = np.log([[0.4, 0.3, 0.3]])
        value, metrics = adapters.l2([kind.array(x)], center="mean")
        close(kind.numpy(value), 0.055173983)
        close(kind.numpy(metrics["l2_mean"]), 1.246229911)
        close(kind.numpy(metrics["center"]), x.mean())

    @eager
    def test_elastic_net(self, kind: Any) -> None:
        value, metrics = adapters.elastic_net([kind.array(np.log([[0.6, 0.4]]))])
        close(kind.numpy(value), 1.263823939)
        assert metrics["l1_ratio"] == 0.5

    @eager
    def test_entropy(self, kind: Any) -> None:
        uniform = [kind.array(np.log([[0.25] * 4]))]
        close(kind.numpy(adapters.entropy(uniform)[0]), 1.386294361)
        value, metrics = adapters.entropy(uniform, mode="bonus")
        close(kind.numpy(value), -1.386294361)
        close(kind.numpy(metrics["entropy"]), 1.386294361)

    @eager
    def test_consistency(self, kind: Any) -> None:
        a, b = ([kind.array(np.log([p]))] for p in ([0.5, 0.5], [0.4, 0.6]))
        close(kind.numpy(adapters.consistency(a, b)[0]), 0.041517097)

    def test_gradient_penalty(self) -> None:
        x, y = [TORCH.array([-1.0, -2.0])], [TORCH.array([-3.0, -1.0])]
        close(TORCH.numpy(adapters.gradient_penalty(x)[0]), 0.171572875)
        close(TORCH.numpy(adapters.gradient_penalty(x, y)[0]), 0.171572875)

    def test_eleven_terms_with_their_true_norms(self) -> None:
        """A run on record, whose published norms left out the divergences; its log-probabilities sum to no one."""
        reads, loose = "logprobs", {"renormalize": False}
        bonus = {"mode": "bonus", "renormalize": False}
        both = {"logprobs": "logprobs", "reference": "teacher"}
        terms = [
            pn.Term(adapters.l1, 0.01, "l1_sparsity", inputs=reads),
            pn.Term(adapters.entropy, 0.001, inputs=reads, options=bonus),
            pn.Term(adapters.entropy, 0.001, "sharp", inputs=reads, options={**bonus, "temperature": 0.5}),
            pn.Term(adapters.l2, 0.005, inputs=reads, options={"center": "mean"}),
            pn.Term(adapters.elastic_net, 0.002, inputs=reads, options={"l1_ratio": 0.6}),
            *[
                pn.Term(adapters.kl, 0.01, f"kl_{way}", inputs=both, options={**loose, "direction": way})
                for way in ("forward", "reverse", "symmetric")
            ],
            pn.Term(adapters.consistency, 0.02, inputs=("logprobs", "pair")),
            pn.Term(adapters.orthogonality, 0.003, inputs=reads),
            pn.Term(adapters.gradient_penalty, 0.001, inputs=reads),
        ]
        pipeline = pn.Pipeline(terms, base=lambda logprobs: -logprobs[0].mean())
        out = pipeline.value_and_grad(
            logprobs=[TORCH.array([LOGPROBS])],
            teacher=[TORCH.array([REFERENCE])],
            pair=[TORCH.array([PAIR])],
            wrt="logprobs",
        ).read()
        expected = {
            "base_loss": (1.08, 0.316227766),
            "l1_sparsity": (10.8, 3.16227766),
            "entropy": (-3.197156627, 0.686748012),
            "sharp": (-1.935401189, 0.483287793),
            "l2": (3.036, 3.484824243),
            "elastic_net": (12.36, 4.834873318),
            "kl_forward": (6.086950997, 3.782184511),
            "kl_reverse": (-1.156868989, 0.360277671),
            "kl_symmetric": (2.465041004, 1.768713485),
            "consistency": (0.0085, 0.058309519),
            "orthogonality": (0.0, 0.0),
            "gradient_penalty": (4.67544468, None),
        }
        tolerance = {"float64": 5e-9, "float32": 2e-5}[DTYPE]
        for name, (value, norm) in expected.items():
            np.testing.assert_allclose(out[name].value, value, rtol=tolerance, atol=tolerance)
            if norm is not None:
                np.testing.assert_allclose(out[name].grad_norm, norm, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(out.total, 1.301564117, rtol=tolerance)
        np.testing.assert_allclose(out.total_grad_norm, 0.319460153, rtol=tolerance)


class TestWholeBatch:
    """A batch is what its data are together, never one of them."""

    @given(lengths=LENGTHS, seed=st.integers(0, 50))
    def test_norms_are_of_all_elements(self, lengths: list[int], seed: int) -> None:
        arrays = drawn(lengths, seed=seed)
        flat = np.concatenate(arrays)
        for reduction, reduced in (("sum", np.sum), ("mean", np.mean)):
            options: Any = {"reduction": reduction}
            close(adapters.l1(arrays, **options)[0], reduced(abs(flat)))
            close(
                adapters.l2(arrays, **options, center="mean", clip=0.5)[0],
                reduced((flat - flat.mean()).clip(-0.5, 0.5) ** 2),
            )
            close(adapters.l2(arrays, **options, center=-1.0)[0], reduced((flat + 1) ** 2))
            expected = 0.3 * reduced(abs(flat)) + 0.7 * reduced(flat**2)
            value, metrics = adapters.elastic_net(arrays, **options, l1_ratio=0.3)
            close(value, expected)
            close(0.3 * metrics["l1_component"] + 0.7 * metrics["l2_component"], expected)
            close(adapters.l1(arrays, **options, target="probs")[0], reduced(np.exp(flat)))
        assert adapters.l2(arrays, center=-1.0)[1]["center"] == -1.0
        assert "center" not in adapters.l2(arrays)[1]

    @given(lengths=LENGTHS, seed=st.integers(0, 50), estimator=st.sampled_from(["k1", "k2", "k3"]))
    def test_estimates_are_over_all_tokens(self, lengths: list[int], seed: int, estimator: Any) -> None:
        policy, reference = drawn(lengths, seed=seed), drawn(lengths, seed=seed + 100)
        flat, other = np.concatenate(policy), np.concatenate(reference)
        d = other - flat
        values = {"k1": -d, "k2": d**2 / 2, "k3": np.exp(d) - 1 - d}[estimator]
        value, metrics = adapters.kl(policy, reference, estimator=estimator)
        close(
            [value, metrics["kl"], metrics["kl_max"], metrics["kl_min"]],
            [values.mean()] * 2 + [values.max(), values.min()],
        )
        close(adapters.kl(policy, reference, estimator=estimator, reduction="sum")[0], values.sum())
        close(adapters.entropy(policy)[0], -flat.mean())
        value, metrics = adapters.entropy(policy, mode="bonus", reduction="sum")
        close([value, metrics["entropy_max"], metrics["entropy_min"]], [flat.sum(), (-flat).max(), (-flat).min()])

    @given(lengths=LENGTHS, seed=st.integers(0, 50), renormalize=st.booleans())
    def test_divergences_are_over_all_positions(self, lengths: list[int], seed: int, renormalize: bool) -> None:
        policy, reference = drawn(lengths, 3, seed), drawn(lengths, 3, seed + 100)
        p, q = np.exp(np.concatenate(policy)), np.exp(np.concatenate(reference))
        if renormalize:
            p, q = p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)
        forward = (p * np.log(p / q)).sum(-1)
        reverse = (q * np.log(q / p)).sum(-1)
        ways: dict[Any, Any] = {"forward": forward, "reverse": reverse, "symmetric": (forward + reverse) / 2}
        for direction, values in ways.items():
            value, metrics = adapters.kl(policy, reference, direction=direction, renormalize=renormalize)
            close([value, metrics["kl_max"], metrics["kl_min"]], [values.mean(), values.max(), values.min()])
        value, _ = adapters.consistency(policy, reference, metric="kl", reduction="sum", renormalize=renormalize)
        close(value, ways["symmetric"].sum())
        entropies = -(p * np.log(p)).sum(-1)
        close(adapters.entropy(policy, renormalize=renormalize)[0], entropies.mean())
        close(adapters.entropy(policy, renormalize=renormalize, normalize=True)[0], entropies.mean() / math.log(3))

    def test_divergence_is_forward_and_renormalised_unless_named(self) -> None:
        p, q = drawn([2, 3], 3), drawn([2, 3], 3, 1)
        close(adapters.kl(p, q)[0], adapters.kl(p, q, direction="forward", renormalize=True)[0])

    @pytest.mark.parametrize(("metric", "distance"), [("mse", lambda d: d**2), ("l1", abs)])
    @pytest.mark.parametrize("candidates", [None, 2])
    def test_distances_are_over_all_elements(self, metric: Any, distance: Any, candidates: int | None) -> None:
        a, b = drawn([2, 3, 1], candidates), drawn([2, 3, 1], candidates, 1)
        values = distance(np.concatenate(a) - np.concatenate(b))
        value, metrics = adapters.consistency(a, b, metric=metric)
        close(
            [value, metrics["consistency_max"], metrics["consistency_min"]], [values.mean(), values.max(), values.min()]
        )

    def test_cosine_is_per_sequence_or_per_position(self) -> None:
        def distance(x: Any, y: Any) -> Any:
            return 1 - x @ y / np.linalg.norm(x) / np.linalg.norm(y)

        a, b = drawn([2, 3, 1]), drawn([2, 3, 1], seed=1)
        close(adapters.consistency(a, b, metric="cosine")[0], np.mean([*map(distance, a, b)]))
        a, b = drawn([2, 3], 3), drawn([2, 3], 3, 1)
        rows = [distance(x, y) for x, y in zip(np.concatenate(a), np.concatenate(b), strict=True)]
        close(adapters.consistency(a, b, metric="cosine", reduction="sum")[0], np.sum(rows))

    @pytest.mark.parametrize("reduction", ["sum", "mean"])
    @pytest.mark.parametrize("mode", ["soft", "hard"])
    def test_orthogonality_of_the_rows_of_each_datum(self, mode: Any, reduction: Any) -> None:
        arrays = [*drawn([2, 3], 3), *drawn([4], 2)]
        each = [float(pn.orthogonality(array, mode=mode, reduction=reduction)) for array in arrays]
        value, metrics = adapters.orthogonality(arrays, mode=mode, reduction=reduction)
        close(value, np.sum(each) if reduction == "sum" else np.mean(each))
        close(metrics["orthogonality_max"], max(each))

    def test_orthogonality_of_matrices_by_name(self) -> None:
        a, b = drawn([2, 3], 3)
        close(adapters.orthogonality({"a": a, "b": b})[0], adapters.orthogonality([a, b])[0])

    def test_orthogonality_of_sequences_among_each_other(self) -> None:
        a, b = np.array([-1.0, -2.0]), np.array([-3.0, -1.0, -1.0])
        cosine = a @ b[:2] / np.linalg.norm(a) / np.linalg.norm(b)
        close(adapters.orthogonality([a, b])[0], 2 * cosine**2)
        close(adapters.orthogonality([a])[0], 0.0)

    def test_gradient_penalty_of_each_datum(self) -> None:
        arrays = [torch.tensor(array) for array in drawn([2, 3, 1])]
        each = [(3 * (array**2).norm().item() - 0.5) ** 2 for array in arrays]
        value, metrics = adapters.gradient_penalty(arrays, fn=slope, target_norm=0.5)
        close(value.item(), np.mean(each))
        close(metrics["gradient_penalty_max"].item(), max(each))
        close(adapters.gradient_penalty(arrays, fn=slope, target_norm=0.5, reduction="sum")[0].item(), np.sum(each))

    def test_function_by_its_path(self) -> None:
        x = [torch.tensor([-1.0, -2.0])]
        value, _ = adapters.gradient_penalty(x, fn=f"{__name__}:slope")
        close(value.item(), adapters.gradient_penalty(x, fn=slope)[0].item(), "float32")

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("candidates", [None, 3])
    def test_order_of_the_data_does_not_matter(self, name: str, candidates: int | None) -> None:
        a = [torch.tensor(array) for array in drawn([2, 3, 3], candidates)]
        b = [torch.tensor(array) for array in drawn([2, 3, 3], candidates, 1)]
        close(call(name, a, b)[0].item(), call(name, a[::-1], b[::-1])[0].item())

    @pytest.mark.parametrize("name", [name for name in SAMPLED if name != "gradient_penalty"])
    @pytest.mark.parametrize("candidates", [None, 3])
    def test_packed_in_one_array_is_the_same(self, name: str, candidates: int | None) -> None:
        a, b, m = drawn([2, 3, 1], candidates), drawn([2, 3, 1], candidates, 1), [np.ones(n) for n in (2, 3, 1)]
        m[1][0] = 0
        one = call(name, np.concatenate(a), np.concatenate(b), mask=np.concatenate(m))
        many = call(name, a, b, mask=m)
        close(one[0], many[0])
        assert list(one[1]) == list(many[1])
        close(list(one[1].values()), list(many[1].values()))


class TestMask:
    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("candidates", [None, 3])
    @pytest.mark.parametrize("hidden", [0.5, math.nan, math.inf])
    def test_what_does_not_count_may_be_anything(self, name: str, candidates: int | None, hidden: float) -> None:
        lengths = [2, 3, 1]
        a, b = drawn(lengths, candidates), drawn(lengths, candidates, 1)
        masks, longer, other = [], [], []
        for x, y in zip(a, b, strict=True):
            # After the sequences, so that they still line up: prompts come first, and are as many for both.
            end = np.full((2, *x.shape[1:]), hidden)
            longer.append(torch.tensor(np.concatenate([x, end])).requires_grad_())
            other.append(torch.tensor(np.concatenate([y, end])))
            masks.append(torch.tensor([True] * len(x) + [False] * 2))
        short = [torch.tensor(array).requires_grad_() for array in a]
        value, metrics = call(name, longer, other, mask=masks)
        expected, right = call(name, short, [torch.tensor(array) for array in b])
        close(value.item(), expected.item())
        assert {k: float(v) for k, v in metrics.items()} == pytest.approx({k: float(v) for k, v in right.items()})
        found = torch.autograd.grad(value, longer)
        wanted = torch.autograd.grad(expected, short)
        for gradient, other_gradient, array in zip(found, wanted, a, strict=True):
            close(gradient[: len(array)], other_gradient)
            assert (gradient[len(array) :] == 0).all()

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("candidates", [None, 3])
    def test_prompts_come_first(self, name: str, candidates: int | None) -> None:
        a, b = drawn([3, 3], candidates), drawn([3, 3], candidates, 1)
        masks = [np.array([0, 1, 1]), np.array([0, 1, 1])]
        wrap: Any = lambda arrays: [torch.tensor(array) for array in arrays]
        value, _ = call(name, wrap(a), wrap(b), mask=masks)
        close(value.item(), call(name, wrap([x[1:] for x in a]), wrap([x[1:] for x in b]))[0].item())

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("candidates", [None, 3])
    def test_nothing_counts(self, name: str, candidates: int | None) -> None:
        a = [torch.tensor(array).requires_grad_() for array in drawn([2, 1], candidates)]
        value, metrics = call(name, a, [x.detach() for x in a], mask=[torch.zeros(2), torch.zeros(1)])
        # A penalty on slopes is there whatever counts: the slope of nothing is 0, and 1 away from its target.
        assert value.item() == (1.0 if name == "gradient_penalty" else 0.0)
        assert all(math.isfinite(float(metric)) for metric in metrics.values())

    @pytest.mark.parametrize("name", ["l1", "l2", "elastic_net", "entropy", "kl"])
    @pytest.mark.parametrize("candidates", [None, 3])
    def test_numbers_weigh(self, name: str, candidates: int | None) -> None:
        """Twice the mask counts as the place twice."""
        a, b = drawn([2], candidates), drawn([2], candidates, 1)
        twice = [[np.concatenate([x, x[:1]]) for x in arrays] for arrays in (a, b)]
        for reduction in ("sum", "mean"):
            value, _ = call(name, a, b, mask=[np.array([2.0, 1.0])], reduction=reduction)
            close(value, call(name, *twice, reduction=reduction)[0])

    def test_mean_that_is_subtracted_is_of_what_counts(self) -> None:
        value, metrics = adapters.l2([np.array([1.0, 3.0, 100.0])], [np.array([1, 1, 0])], center="mean")
        assert (value, metrics["center"]) == (2.0, 2.0)

    @pytest.mark.parametrize("name", ["entropy", "kl"])
    def test_a_candidate_that_does_not_count_is_left_out(self, name: str) -> None:
        a, b = (torch.tensor(x, requires_grad=True) for x in (drawn([2], 3)[0], drawn([2], 3, 1)[0]))
        mask = [np.array([[1, 1, 0], [0, 0, 0]])]
        value, _ = call(name, [a], [b], mask=mask)
        expected, _ = call(name, [a[:1, :2]], [b[:1, :2]])
        close(value.item(), expected.item())
        (gradient,) = torch.autograd.grad(value, [a])
        assert gradient.isfinite().all()
        assert (gradient[mask[0] == 0] == 0).all()

    @pytest.mark.parametrize("metric", ["mse", "l1", "cosine", "kl"])
    def test_a_candidate_that_does_not_count_is_not_compared(self, metric: Any) -> None:
        a, b = drawn([2], 3)[0], drawn([2], 3, 1)[0]
        value, _ = adapters.consistency([a], [b], [np.array([[1, 1, 0], [0, 0, 0]])], metric=metric)
        close(value, adapters.consistency([a[:1, :2]], [b[:1, :2]], metric=metric)[0])

    def test_orthogonality_takes_the_rows_that_have_a_candidate(self) -> None:
        x = drawn([3], 2)[0]
        value, _ = adapters.orthogonality([x], [np.array([[1, 1], [0, 0], [0, 1]])], mode="hard")
        close(value, pn.orthogonality(x[[0, 2]], mode="hard"))
