"""Numbers that pipelines must give, computed independently."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import penalties as pn
from penalties import schedules
from tests.libraries import DTYPE, close

LOGPROBS = [-0.5, -1.2, -0.8, -2.1, -0.3, -1.5, -0.9, -1.8, -0.6, -1.1]
REFERENCE = np.log([0.22, 0.18, 0.12, 0.1, 0.08, 0.07, 0.06, 0.06, 0.06, 0.05])
PAIR = [-0.45, -1.05, -0.75, -2.05, -0.25, -1.35, -0.85, -1.65, -0.55, -1.05]


def two(first: float, second: float) -> pn.Pipeline:
    return pn.Pipeline([pn.Term(pn.l1, weight=first), pn.Term(pn.l2, weight=second)])


def agree(found: Mapping[str, float], expected: Mapping[str, float]) -> None:
    assert set(found) == set(expected)
    for key, number in expected.items():
        close(found[key], number)


@pytest.mark.parametrize(
    ("pipeline", "x", "metrics"),
    [
        (pn.Pipeline([pn.Term(pn.l1, weight=0.1)]), [1, -2, 3], {"l1": 6.0, "l1_weighted": 0.6, "total": 0.6}),
        (two(0.1, 0.01), [1, 2], {"l1": 3, "l1_weighted": 0.3, "l2": 5, "l2_weighted": 0.05, "total": 0.35}),
        (two(0.1, 0.01).disable("l2"), [1, 2], {"l1": 3, "l1_weighted": 0.3, "total": 0.3}),
        (two(1.0, 1.0), [2.0], {"l1": 2, "l1_weighted": 2, "l2": 4, "l2_weighted": 4, "total": 6}),
        (two(0.1, 0.2), [1.0], {"l1": 1, "l1_weighted": 0.1, "l2": 1, "l2_weighted": 0.2, "total": 0.3}),
        (
            pn.Pipeline([pn.Term(pn.entropy, weight=0.1, options={"mode": "bonus"})]),
            np.log([0.25] * 4),
            {"entropy": -1.386294361119891, "entropy_weighted": -0.138629436111989, "total": -0.138629436111989},
        ),
    ],
)
def test_single_input(library: Any, pipeline: pn.Pipeline, x: Any, metrics: dict[str, float]) -> None:
    agree(pipeline(library.array(x)).metrics(), metrics)


def test_five_times_the_weight_is_five_times_the_contribution(library: Any) -> None:
    pipeline, x = two(0.1, 0.0), library.array([1.0])
    before, after = pipeline(x), pipeline.with_weights({"l1": 0.5})(x)
    close(after.metrics()["l1_weighted"], 5 * before.metrics()["l1_weighted"])


def test_gradient_of_the_total(autodiff: Any) -> None:
    decay = pn.Pipeline([pn.Term(pn.l2, weight=0.01)])
    for x, gradient in (([1, 2, 3], [0.02, 0.04, 0.06]), ([[1, 2], [3, 4]], [[0.02, 0.04], [0.06, 0.08]])):
        (found,) = autodiff.gradients(decay.total, autodiff.array(x))
        close(found, gradient)
        close(autodiff.numpy(decay.value_and_grad(autodiff.array(x), wrt="input").gradient), gradient)


@pytest.mark.parametrize(
    ("pipeline", "x", "norms"),
    [
        (two(1.0, 0.0).disable("l2"), [1, 1, 1], {"l1": math.sqrt(3), "total": math.sqrt(3)}),
        (two(0.001, 0.01), [1, 2, 3], {"l1": 1.7320508075688772, "l2": 7.483314773547883, "total": 0.0764395185750}),
        (two(0.001, 0.01), [1, 2, 3, 4], {"l1": 2.0, "l2": 10.954451150103322, "total": 0.111373246332505}),
        (two(0.5, 0.5), [1, 1], {"l1": math.sqrt(2), "l2": math.sqrt(8), "total": math.sqrt(4.5)}),
    ],
)
def test_norms_of_gradients(autodiff: Any, pipeline: pn.Pipeline, x: Any, norms: dict[str, float]) -> None:
    found = pipeline.value_and_grad(autodiff.array(x), wrt="input").metrics()
    agree({k.removesuffix("_grad_norm"): v for k, v in found.items() if k.endswith("_grad_norm")}, norms)


def test_an_array_as_weight_is_kept_as_it_is(autodiff: Any) -> None:
    weight = autodiff.array(0.3)
    assert two(0.1, 0.1).with_weights({"l1": weight})["l1"].weight is weight


def test_no_norms_unless_asked_for(library: Any) -> None:
    assert not [key for key in two(0.1, 0.1)(library.array([1.0])).metrics() if "grad" in key]


class TestSeveralInputs:
    CLEAN, NOISY = [1.0, 2.0, 3.0], [1.1, 2.1, 3.1]

    def test_consistency(self, library: Any) -> None:
        pipeline = pn.Pipeline([pn.Term(pn.consistency, inputs=("clean", "noisy"))])
        out = pipeline(clean=library.array(self.CLEAN), noisy=library.array(self.NOISY))
        close(out.metrics()["total"], 0.01)

    def test_total_is_the_sum_of_contributions(self, library: Any) -> None:
        terms = [
            pn.Term(pn.kl_divergence, weight=0.1, inputs=("clean", "noisy"), options={"logits": True}),
            pn.Term(pn.consistency, inputs=("clean", "noisy")),
        ]
        found = pn.Pipeline(terms)(clean=library.array(self.CLEAN), noisy=library.array(self.NOISY)).metrics()
        close(found["total"], found["kl_divergence_weighted"] + found["consistency_weighted"])

    def test_gradients_of_each_input_and_both(self, autodiff: Any) -> None:
        pipeline = pn.Pipeline([pn.Term(pn.consistency, inputs=("clean", "noisy"))])
        out = pipeline.value_and_grad(
            clean=autodiff.array(self.CLEAN), noisy=autodiff.array(self.NOISY), wrt=("clean", "noisy")
        )
        close(autodiff.numpy(out.gradient["clean"]), [-0.2 / 3] * 3)
        close(autodiff.numpy(out.gradient["noisy"]), [0.2 / 3] * 3)
        each = 2 * 0.1 * math.sqrt(3) / 3
        agree(out.read()["consistency"].grad_norms, {"clean": each, "noisy": each})
        close(out.metrics()["consistency_grad_norm"], each * math.sqrt(2))
        alone = pipeline.value_and_grad(
            clean=autodiff.array(self.CLEAN), noisy=autodiff.array(self.NOISY), wrt="clean"
        ).metrics()
        close(alone["consistency_grad_norm"], 0.115470053837925)
        close(alone["total_grad_norm"], 0.115470053837925)

    def test_a_term_that_is_not_differentiable_counts_and_has_no_norm(self, autodiff: Any) -> None:
        pipeline = pn.Pipeline(
            [pn.Term(pn.consistency, inputs=("clean", "noisy"), differentiable=False), pn.Term(pn.l1, inputs="clean")]
        )
        out = pipeline.value_and_grad(clean=autodiff.array(self.CLEAN), noisy=autodiff.array(self.NOISY), wrt="clean")
        found = out.metrics()
        assert "consistency_grad_norm" not in found
        close(found["total"], 6.01)
        close(found["total_grad_norm"], math.sqrt(3))


class TestSingleFunction:
    @pytest.mark.parametrize(
        ("fn", "x", "norm"),
        [
            (lambda x: abs(x).sum(), [1, -2, 3], 1.7320508075688772),
            (lambda x: abs(x).sum(), [[1, -2], [-3, 4]], 2.0),
            (lambda x: (x**2).sum(), [1, 2, 3], math.sqrt(56)),
            (lambda x: 0 * x.sum(), [1, 2, 3], 0.0),
            (lambda x: x**2, 3.0, 6.0),
            (lambda x: (x**3).sum(), [1, 2, 3, 4], math.sqrt(3186)),
            (lambda x: x.sum(), [1, 2, 3], math.sqrt(3)),
            (lambda x: x.mean(), [1, 2, 3], math.sqrt(1 / 3)),
            (lambda x: 2 * x, 5.0, 2.0),
            (lambda x: x.sum(), [[1, 2], [3, 4]], 2.0),
            (lambda x: x.sum() + 0.5 * (x**2).sum(), [1, 2, 3], math.sqrt(29)),
            (lambda x: x.mean() + x.sum() + x.sum(), [1, 2, 3], 7 / 3 * math.sqrt(3)),
        ],
    )
    def test_norm(self, autodiff: Any, fn: Any, x: Any, norm: float) -> None:
        close(pn.gradients.norm(fn, autodiff.array(x)), norm)

    def test_a_constant_has_length_zero(self, autodiff: Any) -> None:
        assert pn.gradients.norm(lambda x: autodiff.array(0.0), autodiff.array([1.0])) == 0.0


@pytest.mark.parametrize(
    ("schedule", "weights"),
    [
        (schedules.linear(0.0, 1.0, 10), {0: 0.0, 4: 4 / 9, 9: 1.0, 12: 1.0}),
        (schedules.linear(0.0, 1.0, 1), {0: 0.0, 1: 1.0, 5: 1.0}),
        (schedules.warmup(1.0, 5), {2: 0.4, 5: 1.0, 8: 1.0}),
        (schedules.warmup(1.0, 0), {0: 1.0}),
        (schedules.exponential(1.0, 0.5), {0: 1.0, 1: 0.5, 2: 0.25}),
        (schedules.constant(0.5), {0: 0.5, 99: 0.5}),
        (schedules.linear(0.0, 0.01, 100), {5: 0.000505050505}),
        (schedules.warmup(0.1, 10), {5: 0.05}),
    ],
)
def test_schedules(schedule: schedules.Schedule, weights: dict[int, float]) -> None:
    for step, weight in weights.items():
        assert schedule(step) == pytest.approx(weight)


class TestOutputs:
    def test_contribution_and_weighted_norm(self) -> None:
        out = pn.TermOutput("l1_sparsity", 22.4, 0.01, grad_norm=7.48)
        assert out.contribution == pytest.approx(0.224)
        assert out.grad_norm_weighted == pytest.approx(0.0748)

    def test_without_norms(self) -> None:
        out = pn.TermOutput("term", 1.5, 0.001)
        assert out.contribution == pytest.approx(0.0015)
        assert out.grad_norm is None
        assert out.grad_norm_weighted is None

    def test_weight_zero(self) -> None:
        assert pn.TermOutput("term", 100.0, 0).contribution == 0.0

    def test_a_norm_of_zero_is_not_missing(self) -> None:
        assert pn.TermOutput("term", 1.0, 0.5, grad_norm=0.0).grad_norm_weighted == 0.0

    def test_base_alone(self) -> None:
        out = pn.LossOutput.of([], base=pn.TermOutput("base_loss", 2.5, metrics={"ppl": 12.0}))
        assert (out.total, out.regularizer_total, len(out.terms), out.total_grad_norm) == (2.5, 0, 0, None)

    def test_base_and_terms(self) -> None:
        terms = [pn.TermOutput("a", 22.4, 0.01), pn.TermOutput("b", 1.5, 0.1)]
        out = pn.LossOutput.of(terms, base=pn.TermOutput("base_loss", 2.5))
        assert out.regularizer_total == pytest.approx(0.374)
        assert out.total == pytest.approx(2.874)

    def test_json(self) -> None:
        base = pn.TermOutput("base_loss", 1.0, grad_norm=3.14)
        out = pn.LossOutput.of([pn.TermOutput("a", 1.0)], base=base, total_grad_norm=5.67)
        nested = out.to_dict()
        assert (nested["loss_total"], nested["regularizer_total"]) == (2.0, 1.0)
        assert (nested["base_loss"]["grad_norm"], nested["total_grad_norm"]) == (3.14, 5.67)

    def test_weights_add_up(self) -> None:
        out = pn.LossOutput.of([pn.TermOutput("topology", 1.23, 0.1), pn.TermOutput("sparsity", 22.4, 0.01)])
        assert out.regularizer_total == pytest.approx(0.347)


class TestBaseLoss:
    def test_mean(self, library: Any) -> None:
        out = pn.Pipeline(base=lambda logprobs: -logprobs.mean())(logprobs=library.array([-1.0, -2.0, -3.0]))
        assert out.metrics() == {"base_loss": 2.0, "total": 2.0}
        assert float(out.regularizer_total) == 0

    def test_terms_on_top(self, library: Any) -> None:
        x = library.array([1.0])
        terms = [pn.Term(lambda x: 10 * x.sum(), 0.1, "ten"), pn.Term(lambda x: 20 * x.sum(), 0.5, "twenty")]
        one = pn.Pipeline(terms[:1], base=lambda x: x.sum())(x).read()
        both = pn.Pipeline(terms, base=lambda x: x.sum())(x).read()
        assert (one.total, one.regularizer_total) == (2.0, 1.0)
        assert (both.total, both.regularizer_total) == (12.0, 11.0)
        assert [term.contribution for term in both] == [1.0, 10.0]

    def test_norms(self, autodiff: Any) -> None:
        pipeline = pn.Pipeline([pn.Term(pn.l2, weight=0.5)], base=lambda x: x.sum())
        out = pipeline.value_and_grad(autodiff.array([1.0, 2.0, 3.0]), wrt="input")
        close(out.metrics()["base_loss_grad_norm"], math.sqrt(3))
        close(out.metrics()["total_grad_norm"], math.sqrt(29))


def test_eleven_terms_with_their_true_norms(autodiff: Any) -> None:
    """A run on record, whose published norms left out the divergences."""
    terms = [
        pn.Term("l1", 0.01, "l1_sparsity", inputs="logprobs"),
        pn.Term("entropy", 0.001, inputs="logprobs", options={"mode": "bonus"}),
        pn.Term("entropy", 0.001, "entropy_sharp", inputs="logprobs", options={"mode": "bonus", "temperature": 0.5}),
        pn.Term("l2", 0.005, inputs="logprobs", options={"center": "mean"}),
        pn.Term("elastic_net", 0.002, inputs="logprobs", options={"l1_ratio": 0.6}),
        pn.Term("kl_divergence", 0.01, "kl_forward", inputs=("logprobs", "reference")),
        pn.Term(
            "kl_divergence", 0.01, "kl_reverse", inputs=("logprobs", "reference"), options={"direction": "reverse"}
        ),
        pn.Term("kl_divergence", 0.01, "kl_symmetric", inputs=("logprobs", "reference"), options={"symmetric": True}),
        pn.Term("consistency", 0.02, inputs=("logprobs", "pair")),
        pn.Term("orthogonality", 0.003, inputs="logprobs"),
        pn.Term("gradient_penalty", 0.001, inputs="logprobs", options={"fn": lambda x: x.sum()}),
    ]
    pipeline = pn.Pipeline(terms, base=lambda logprobs: -logprobs.mean())
    out = pipeline.value_and_grad(
        logprobs=autodiff.array(LOGPROBS),
        reference=autodiff.array(REFERENCE),
        pair=autodiff.array(PAIR),
        wrt="logprobs",
    ).read()
    expected = {
        "base_loss": (1.08, 0.316227766),
        "l1_sparsity": (10.8, 3.16227766),
        "entropy": (-3.197156627, 0.686748012),
        "entropy_sharp": (-1.935401189, 0.483287793),
        "l2": (3.036, 3.484824243),
        "elastic_net": (12.36, 4.834873318),
        "kl_forward": (6.086950997, 3.782184511),
        "kl_reverse": (-1.156868989, 0.360277671),
        "kl_symmetric": (2.465041004, 1.768713485),
        "consistency": (0.0085, 0.058309519),
        "orthogonality": (0.0, 0.0),
        "gradient_penalty": (4.67544468, 0.0),
    }
    tolerance = {"float64": 5e-9, "float32": 2e-5}[DTYPE]
    for name, (value, norm) in expected.items():
        np.testing.assert_allclose(out[name].value, value, rtol=tolerance, atol=tolerance)
        if out[name].grad_norm is None:
            assert name == "gradient_penalty"  # the penalty of a linear function does not depend on its input
            assert out[name].grad_error is not None
        else:
            np.testing.assert_allclose(out[name].grad_norm, norm, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(out.total, 1.301564117, rtol=tolerance)
    np.testing.assert_allclose(out.regularizer_total, 0.221564117, rtol=tolerance)
    np.testing.assert_allclose(out.total_grad_norm, 0.319460153, rtol=tolerance)
