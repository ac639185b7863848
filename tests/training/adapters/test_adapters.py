"""The adapters: numbers on record, every datum of a batch, masks, gradients, and what they refuse."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import penalties as pn
from penalties.training import TensorData, adapters
from tests.libraries import DTYPE, JAX, TORCH, close
from tests.pipeline.test_golden import LOGPROBS, PAIR, REFERENCE

NAMES = adapters.__all__
PAIRED = {"kl": "reference", "consistency": "pair"}
SAMPLED = [name for name in NAMES if name != "orthogonality"]
LENGTHS = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def slope(x: Any) -> Any:
    """Something with a gradient that depends on where it is."""
    return (x**3).sum()


def drawn(lengths: list[int], candidates: int | None = None, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    generator = np.random.default_rng(seed)
    return [-generator.exponential(1.0, (n,) if candidates is None else (n, candidates)) - 0.01 for n in lengths]


def call(name: str, arrays: Any, others: Any = None, **options: Any) -> Any:
    """An adapter, with a second input where it takes one."""
    if name in PAIRED:
        options[PAIRED[name]] = others
    if name == "gradient_penalty":
        options.setdefault("fn", slope)
    return getattr(adapters, name)(arrays, **options)


class TestNumbersOnRecord:
    def test_l1(self, library: Any) -> None:
        value, metrics = adapters.l1([library.array(np.log([[0.5, 0.25, 0.25]]))])
        close(library.numpy(value), 3.465735903)
        close(library.numpy(metrics["l1_raw"]), 3.465735903)
        close(library.numpy(metrics["l1_mean"]), 1.155245301)

    def test_l2(self, library: Any) -> None:
        x = np.log([[0.4, 0.3, 0.3]])
        value, metrics = adapters.l2([library.array(x)], center="mean")
        close(library.numpy(value), 0.055173983)
        close(library.numpy(metrics["l2_mean"]), 1.246229911)
        close(library.numpy(metrics["center"]), x.mean())

    def test_elastic_net(self, library: Any) -> None:
        value, metrics = adapters.elastic_net([library.array(np.log([[0.6, 0.4]]))])
        close(library.numpy(value), 1.263823939)
        assert metrics["l1_ratio"] == 0.5

    def test_entropy(self, library: Any) -> None:
        uniform = [library.array(np.log([[0.25] * 4]))]
        close(library.numpy(adapters.entropy(uniform)[0]), 1.386294361)
        value, metrics = adapters.entropy(uniform, mode="bonus")
        close(library.numpy(value), -1.386294361)
        close(library.numpy(metrics["entropy"]), 1.386294361)

    def test_consistency(self, library: Any) -> None:
        a, b = ([library.array(np.log([p]))] for p in ([0.5, 0.5], [0.4, 0.6]))
        close(library.numpy(adapters.consistency(a, b)[0]), 0.041517097)

    def test_gradient_penalty(self, autodiff: Any) -> None:
        x, y = [autodiff.array([-1.0, -2.0])], [autodiff.array([-3.0, -1.0])]
        close(autodiff.numpy(adapters.gradient_penalty(x)[0]), 0.171572875)
        close(autodiff.numpy(adapters.gradient_penalty(x, y)[0]), 0.171572875)

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
    def test_divergences_are_over_all_places(self, lengths: list[int], seed: int, renormalize: bool) -> None:
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

    def test_cosine_is_of_each_sequence_or_of_each_place(self) -> None:
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


class TestGradients:
    """The gradients are those of the values: central differences agree."""

    CASES = (
        ("l1", {}),
        ("l1", {"target": "probs", "reduction": "mean"}),
        ("l2", {"center": "mean", "clip": 0.9}),
        ("elastic_net", {"l1_ratio": 0.2}),
        ("entropy", {}),
        ("entropy", {"mode": "bonus", "reduction": "sum"}),
        ("kl", {}),
        ("kl", {"reduction": "sum"}),
        ("consistency", {}),
        ("consistency", {"metric": "l1"}),
        ("consistency", {"metric": "cosine"}),
        ("orthogonality", {}),
        ("orthogonality", {"mode": "hard", "normalize": False}),
        ("gradient_penalty", {}),
    )
    OF_TOKENS = (("kl", {"estimator": "k1"}), ("kl", {"estimator": "k2"}))
    OF_CANDIDATES = (
        ("entropy", {"temperature": 0.5}),
        ("entropy", {"normalize": True, "renormalize": False}),
        ("kl", {"direction": "reverse"}),
        ("kl", {"direction": "symmetric", "renormalize": False}),
        ("consistency", {"metric": "kl"}),
        ("orthogonality", {"axis": "vocabulary"}),
    )

    @pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
    @pytest.mark.parametrize(
        ("candidates", "name", "options"),
        [(None, *case) for case in (*CASES, *OF_TOKENS)] + [(3, *case) for case in (*CASES, *OF_CANDIDATES)],
    )
    def test_finite_differences(self, candidates: int | None, name: str, options: Any, masked: bool) -> None:
        lengths = [2, 3, 1]
        arrays = [torch.tensor(array).requires_grad_() for array in drawn(lengths, candidates, 7)]
        others = [torch.tensor(array) for array in drawn(lengths, candidates, 8)]
        more = dict(options)
        if masked:
            more["mask"] = [np.array([1.0, 1.0]), np.array([0.0, 1.0, 1.0]), np.array([1.0])]
        value = lambda tensors: call(name, tensors, others, **more)[0]
        found = torch.autograd.grad(value(arrays), arrays)
        assert any((gradient != 0).any() for gradient in found)
        step = 1e-6
        for place, array in enumerate(arrays):
            for index in np.ndindex(*array.shape):
                ends = []
                for sign in (1, -1):
                    moved = [one.detach().clone() for one in arrays]
                    moved[place][index] += sign * step
                    ends.append(value(moved).item())
                assert found[place][index].item() == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=2e-6)

    @pytest.mark.parametrize("name", ["l2", "entropy", "kl", "consistency"])
    def test_jax_agrees(self, name: str) -> None:
        a, b = drawn([2, 3], 3, 7), drawn([2, 3], 3, 8)
        found = []
        for library in (TORCH, JAX):
            others = [library.array(array) for array in b]
            fn = lambda *arrays, others=others: call(name, list(arrays), others)[0]
            found.append(library.gradients(fn, *[library.array(array) for array in a]))
        for one, other in zip(*found, strict=True):
            close(one, other)

    def test_entropy_bonus_raises_the_entropy(self) -> None:
        x = torch.tensor([[0.7, 0.2, 0.1]]).log().requires_grad_()
        for mode, sign in (("bonus", 1), ("penalty", -1)):
            value, metrics = adapters.entropy([x], mode=mode)
            (gradient,) = torch.autograd.grad(value, [x])
            _, after = adapters.entropy([x.detach() - 0.1 * gradient])
            assert sign * (after["entropy"] - metrics["entropy"]) > 0

    def test_data_of_different_precision(self) -> None:
        x = [torch.full((2,), -1.0, dtype=kind, requires_grad=True) for kind in (torch.float16, torch.float32)]
        value, _ = adapters.l2(x)
        value.backward()
        assert (value.dtype, value.item()) == (torch.float32, 4.0)
        assert [one.grad.dtype for one in x if one.grad is not None] == [torch.float16, torch.float32]

    def test_half_precision_in_float32_out(self) -> None:
        x = torch.full((3,), -1.0, dtype=torch.bfloat16, requires_grad=True)
        value, _ = adapters.kl([x], [torch.full((3,), -2.0)])
        value.backward()
        assert value.dtype == torch.float32
        assert x.grad is not None
        assert x.grad.dtype == torch.bfloat16


class TestAsTerms:
    INPUTS = ("logprobs", "reference", "pair", "mask")

    def inputs(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            name: [torch.tensor(array) for array in drawn([3, 2], seed=seed)]
            for seed, name in enumerate(self.INPUTS[:3])
        }
        return {**made, "mask": [torch.tensor([False, True, True]), torch.tensor([True, True])]}

    def test_inputs_by_name(self) -> None:
        pipeline = pn.Pipeline([pn.Term(getattr(adapters, name)) for name in NAMES])
        out = pipeline(**self.inputs())
        assert list(pipeline.names) == NAMES
        assert all(isinstance(value, float) for value in out.metrics().values())

    def test_a_named_reference_and_the_mask(self) -> None:
        term = pn.Term(adapters.kl, 0.1, inputs={"logprobs": "logprobs", "reference": "initial", "mask": "mask"})
        inputs = self.inputs()
        inputs["initial"] = inputs.pop("reference")
        out = pn.Pipeline([term]).value_and_grad(**inputs, wrt="logprobs")
        expected, _ = adapters.kl(inputs["logprobs"], inputs["initial"], inputs["mask"])
        close(out["kl"].value.item(), expected.item())
        assert out.gradient["logprobs"][0][0] == 0

    def test_a_norm_of_a_reference(self) -> None:
        out = pn.Pipeline([pn.Term(adapters.l1, inputs="reference")])(**self.inputs())
        close(out["l1"].value.item(), adapters.l1(self.inputs()["reference"])[0].item())

    def test_a_reference_as_an_option_may_be_of_numpy(self) -> None:
        reference = drawn([3, 2], seed=1)
        out = pn.Pipeline([pn.Term(adapters.kl, options={"reference": reference})])(**self.inputs())
        close(out["kl"].value.item(), adapters.kl(self.inputs()["logprobs"], reference)[0].item())

    @pytest.mark.parametrize("name", NAMES)
    def test_by_path_and_back(self, name: str) -> None:
        config: list[dict[str, Any]] = [{"fn": f"penalties.training.adapters:{name}", "weight": 0.5}]
        pipeline = pn.Pipeline.from_config(config)
        assert pipeline[name].fn is getattr(adapters, name)
        again = pn.Pipeline.from_config(pn.Pipeline([pn.Term(getattr(adapters, name), 0.5)]).to_config())
        assert again[name].fn is getattr(adapters, name)

    def test_unknown_options_are_refused_when_the_term_is_made(self) -> None:
        with pytest.raises(pn.OptionError, match="did you mean estimator?"):
            pn.Term(adapters.kl, options={"estimater": "k2"})

    @pytest.mark.parametrize("name", ["orthogonality", "gradient_penalty"])
    def test_draws_are_others_at_each_step_and_datum(self, name: str) -> None:
        generator = np.random.default_rng(0)
        x = [torch.tensor(generator.normal(size=(6, 4))) for _ in range(2)]
        y = [torch.tensor(generator.normal(size=(6, 4))) for _ in range(2)]
        options = {"sample_size": 3} if name == "orthogonality" else {"fn": slope}
        inputs = {"logprobs": "logprobs"} | ({"reference": "reference"} if name == "gradient_penalty" else {})
        pipeline = pn.Pipeline([pn.Term(getattr(adapters, name), inputs=inputs, options=options)])
        values = [pipeline(logprobs=x, reference=y, step=step)[name].value.item() for step in (0, 1, 0)]
        assert values[0] == values[2] != values[1]
        same = pipeline(logprobs=[x[0], x[0]], reference=[y[0], y[0]])
        metrics = same.metrics()
        assert metrics[f"{name}/{name}_max"] != metrics[f"{name}/{name}_min"]

    def test_a_generator_is_drawn_from(self) -> None:
        x = [torch.tensor(drawn([6], 4)[0])]
        seeds = [torch.Generator().manual_seed(1) for _ in range(2)]
        values = [adapters.orthogonality(x, sample_size=3, seed=seed)[0].item() for seed in seeds]
        assert values[0] == values[1]


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "options"),
        [
            ("kl", {"direction": "reverse"}),
            ("kl", {"renormalize": True}),
            ("entropy", {"temperature": 0.5}),
            ("entropy", {"normalize": False}),
            ("entropy", {"renormalize": True}),
            ("consistency", {"metric": "kl"}),
        ],
    )
    def test_sampled_tokens_are_no_distribution(self, name: str, options: Any) -> None:
        a = drawn([2, 3])
        with pytest.raises(pn.OptionError, match=f"{name}: .* one sampled token at each place, which are no distrib"):
            call(name, a, a, **options)

    def test_candidates_are_no_sample(self) -> None:
        a = drawn([2, 3], 3)
        with pytest.raises(
            pn.OptionError, match=r'kl: estimator="k3"; .* K candidates at each place, which are a dist'
        ):
            adapters.kl(a, a, estimator="k3")

    @pytest.mark.parametrize("name", PAIRED)
    def test_shapes_name_the_datum_and_both(self, name: str) -> None:
        message = rf"{name}: datum 1: logprobs has shape \(3,\) and {PAIRED[name]} has shape \(2,\)"
        with pytest.raises(pn.ShapeError, match=message):
            call(name, drawn([2, 3]), drawn([2, 2]))
        with pytest.raises(pn.ShapeError, match=rf"{name}: logprobs has 2 data and {PAIRED[name]} has 1"):
            call(name, drawn([2, 3]), drawn([2]))
        with pytest.raises(pn.InputError, match=f"{name}: datum 1: there is no {PAIRED[name]}"):
            call(name, drawn([2, 3]), [drawn([2])[0], None])

    @pytest.mark.parametrize("name", NAMES)
    def test_what_is_no_batch(self, name: str) -> None:
        one = drawn([2])
        with pytest.raises(pn.InputError, match=f"{name}: logprobs holds no data"):
            call(name, [], [])
        with pytest.raises(pn.BackendError, match=f"{name}: logprobs is a str"):
            call(name, "logprobs", one)
        with pytest.raises(pn.BackendError, match=f"{name}: logprobs is a NoneType"):
            call(name, None, one)
        with pytest.raises(pn.BackendError, match=rf"{name}: logprobs\[0\] is a float"):
            call(name, [1.0], one)
        with pytest.raises(pn.InputError, match=f"{name}: datum 0: there is no logprobs"):
            call(name, [None], one)
        with pytest.raises(pn.BackendError, match=rf"{name}: logprobs\[1\] is a str"):
            call(name, [one[0], "no"], [*one, *one])

    @pytest.mark.parametrize("name", NAMES)
    def test_tokens_or_candidates(self, name: str) -> None:
        mixed = [*drawn([2]), *drawn([2], 3)]
        with pytest.raises(
            pn.ShapeError, match=rf"{name}: datum 1: logprobs has shape \(2, 3\) and that of datum 0 \(2,"
        ):
            call(name, mixed, mixed)
        cube = [np.zeros((2, 2, 2))]
        with pytest.raises(
            pn.ShapeError, match=rf"{name}: datum 0: logprobs has shape \(2, 2, 2\); expected \(N,\) or"
        ):
            call(name, cube, cube)

    @pytest.mark.parametrize("name", ["entropy", "kl", "consistency"])
    def test_as_many_candidates_everywhere(self, name: str) -> None:
        mixed = [*drawn([2], 2), *drawn([2], 3)]
        with pytest.raises(pn.ShapeError, match="datum 1: .* with the same K"):
            call(name, mixed, mixed)

    @pytest.mark.parametrize("name", NAMES)
    def test_masks_that_do_not_fit(self, name: str) -> None:
        a = drawn([2, 3])
        with pytest.raises(
            pn.ShapeError, match=rf"{name}: datum 1: logprobs has shape \(3,\) and mask has shape \(2,\)"
        ):
            call(name, a, a, mask=[np.ones(2), np.ones(2)])
        b = drawn([2, 3], 3)
        with pytest.raises(pn.ShapeError, match=f"{name}: datum 1: .* in all data alike"):
            call(name, b, b, mask=[np.ones(2), np.ones((3, 3))])

    @pytest.mark.parametrize("name", NAMES)
    def test_reductions(self, name: str) -> None:
        a = drawn([2])
        with pytest.raises(pn.OptionError, match=f'{name}: reduction="none"; expected "sum" or "mean"'):
            call(name, a, a, reduction="none")

    @pytest.mark.parametrize(
        ("name", "candidates", "options"),
        [
            ("l1", None, {"target": "logits"}),
            ("l2", None, {"center": "median"}),
            ("l2", None, {"clip": -1}),
            ("elastic_net", None, {"l1_ratio": 2}),
            ("entropy", None, {"mode": "maximize"}),
            ("entropy", 2, {"temperature": 0}),
            ("entropy", 2, {"normalize": "yes"}),
            ("entropy", 2, {"renormalize": "yes"}),
            ("kl", None, {"estimator": "k4"}),
            ("kl", 2, {"direction": "backward"}),
            ("consistency", None, {"metric": "l3"}),
            ("consistency", 2, {"renormalize": True}),
            ("orthogonality", 2, {"mode": "firm"}),
            ("orthogonality", 2, {"seed": -1, "sample_size": 2}),
            ("gradient_penalty", None, {"fn": 3}),
            ("gradient_penalty", None, {"fn": "nowhere:nothing"}),
            ("gradient_penalty", None, {"target_norm": -1}),
            ("l1", None, {"lambda": 0.1}),
        ],
    )
    def test_options(self, name: str, candidates: int | None, options: Any) -> None:
        a = [torch.tensor(array) for array in drawn([2, 3], candidates)]
        with pytest.raises(pn.OptionError):
            call(name, a, a, **options)

    def test_two_libraries(self) -> None:
        x, y = [TORCH.array([-1.0])], [JAX.array([-1.0])]
        with pytest.raises(pn.BackendError, match="PyTorch array and reference.0. is a JAX array"):
            adapters.kl(x, y)

    def test_arrays_that_travel_are_read(self) -> None:
        value, _ = adapters.kl([torch.tensor([-1.0])], [TensorData([-1.0])])
        assert value.item() == 0.0

    def test_places_without_tokens_count_nothing(self) -> None:
        empty = [np.zeros(0), np.zeros(0)]
        value, metrics = adapters.kl(empty, empty)
        assert (float(value), list(metrics)) == (0.0, ["kl"])
