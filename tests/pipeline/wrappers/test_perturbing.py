"""SPSA and evolution strategies: unbiased, repeatable, on each library, wherever they run."""

import math
from typing import Any

import numpy as np
import pytest

import penalties as pn
from penalties.pipeline.wrappers.draws import Draws
from tests.libraries import DTYPE, JAX, LIBRARIES, NUMPY, TORCH, close

from .functions import gradient_of_quadratic, quadratic

POINT = np.array([0.3, -0.7, 1.1])
ESTIMATORS = {
    "spsa": lambda term, **options: pn.SPSA(term, **{"samples": 4, "c": 0.1, **options}),
    "evolution": lambda term, **options: pn.EvolutionStrategies(term, **{"population": 8, "sigma": 0.5, **options}),
}


@pytest.fixture(params=ESTIMATORS)
def estimator(request: Any) -> Any:
    return ESTIMATORS[request.param]


def gradients(pipeline: pn.Pipeline, point: Any, steps: int) -> Any:
    return np.stack([pipeline.value_and_grad(point, step=step, wrt="input").gradient for step in range(steps)])


class TestEstimate:
    def test_mean_is_the_gradient_of_a_quadratic(self, estimator: Any) -> None:
        found = gradients(pn.Pipeline([estimator(pn.Term(quadratic))]), POINT, 1000)
        error = found.std(axis=0, ddof=1) / math.sqrt(len(found))
        assert (error > 0).all()
        assert (abs(found.mean(axis=0) - gradient_of_quadratic(POINT)) < 4 * error).all()

    def test_reported_variance_is_that_of_the_estimate(self, estimator: Any) -> None:
        pipeline = pn.Pipeline([estimator(pn.Term(quadratic))])
        outputs = [pipeline.value_and_grad(POINT, step=step) for step in range(1000)]
        found = np.stack([out.gradient for out in outputs])
        reported = np.mean([out["quadratic"].metrics["gradient_variance"] for out in outputs])
        assert reported == pytest.approx(found.var(axis=0, ddof=1).sum(), rel=0.15)

    def test_value_is_that_of_the_term(self, estimator: Any, library: Any) -> None:
        out = pn.Pipeline([estimator(pn.Term(pn.l2))]).value_and_grad(library.array(POINT), step=0, wrt="input")
        close(out.read().total, float((POINT**2).sum()))

    def test_is_the_same_in_every_library(self, estimator: Any, library: Any) -> None:
        def gradient(of: Any) -> Any:
            out = pn.Pipeline([estimator(pn.Term(pn.l2))]).value_and_grad(of.array(POINT), step=3, wrt="input")
            return of.numpy(out.gradient)

        close(gradient(library), gradient(NUMPY), DTYPE)

    def test_inputs_too_large_to_draw_at_once_are_tried_pair_by_pair(self, estimator: Any) -> None:
        x = np.zeros(40_000)
        out = pn.Pipeline([estimator(pn.Term(lambda x: float(x[:100].sum()), name="first"))]).value_and_grad(x, step=0)
        aligned = out.gradient[:100].mean()
        assert out.gradient.shape == x.shape
        assert aligned == pytest.approx(1.0, abs=4 * math.sqrt(100 / 4) / math.sqrt(100))
        assert abs(out.gradient[100:].mean()) < 0.2

    def test_smoothes_a_function_with_steps(self) -> None:
        def wrong(x: Any) -> int:
            return int((x < 0).sum())

        term = pn.EvolutionStrategies(pn.Term(wrong), population=400, sigma=0.5)
        found = gradients(pn.Pipeline([term]), np.array([0.2]), 50)
        density = math.exp(-0.5 * (0.2 / 0.5) ** 2) / math.sqrt(2 * math.pi) / 0.5
        assert found.mean() == pytest.approx(-density, rel=0.05)

    def test_ranks_ignore_the_scale_of_the_values(self) -> None:
        def big(x: Any) -> float:
            return 1e6 * math.exp(float(x.sum()))

        def small(x: Any) -> float:
            return float(x.sum())

        found = [
            gradients(pn.Pipeline([pn.EvolutionStrategies(pn.Term(fn), ranks=True)]), POINT, 1) for fn in (big, small)
        ]
        close(found[0], found[1])

    def test_ranks_of_equal_values_have_no_gradient(self) -> None:
        term = pn.EvolutionStrategies(pn.Term(lambda x: 3.0, name="flat"), ranks=True)
        close(gradients(pn.Pipeline([term]), POINT, 1), np.zeros((1, 3)))

    def test_ranks_do_not_hide_nan(self, library: Any) -> None:
        def broken(x: Any) -> float:
            return math.nan if float(x[0]) > POINT[0] + 1e-3 else 1.0

        term = pn.EvolutionStrategies(pn.Term(broken), ranks=True)
        out = pn.Pipeline([term]).value_and_grad(library.array(POINT), step=0, wrt="input")
        assert np.isnan(library.numpy(out.gradient)).all()

    def test_half_precision_is_perturbed_in_full(self) -> None:
        if TORCH not in LIBRARIES:
            pytest.skip("needs PyTorch")
        x = TORCH.array([100.0], "float16")
        term = pn.SPSA(pn.Term(lambda x: x.sum(), name="sum"), c=1e-3)
        out = pn.Pipeline([term]).value_and_grad(x, step=0, wrt="input")
        assert TORCH.dtype(out.gradient) == "float16"
        assert TORCH.numpy(out.gradient)[0] == pytest.approx(1.0, rel=0.05)


class TestDraws:
    def test_step_repeats_its_draw_and_another_has_another(self, estimator: Any) -> None:
        pipeline = pn.Pipeline([estimator(pn.Term(quadratic))])
        first, again = gradients(pipeline, POINT, 2), gradients(pipeline, POINT, 2)
        np.testing.assert_array_equal(first, again)
        assert (first[0] != first[1]).any()

    def test_differ_from_those_of_a_function_that_draws_by_the_step(self) -> None:
        tried: list[Any] = []

        def noisy(x: Any, *, step: int) -> float:
            tried.append((x, np.random.default_rng(step).standard_normal(x.shape)))
            return float(x.sum())

        pipeline = pn.Pipeline([pn.EvolutionStrategies(pn.Term(noisy), population=2, sigma=1.0)])
        pipeline.value_and_grad(POINT, step=5)
        moved, noise = tried[1]
        assert (abs(moved - POINT - noise) > 1e-3).all()

    def test_seed_is_another_draw(self, estimator: Any) -> None:
        found = [gradients(pn.Pipeline([estimator(pn.Term(quadratic), seed=seed)]), POINT, 1) for seed in (0, 1)]
        assert (found[0] != found[1]).any()

    def test_step_is_needed(self, estimator: Any) -> None:
        with pytest.raises(pn.InputError, match="quadratic: takes the step; pass step= to the call"):
            pn.Pipeline([estimator(pn.Term(quadratic))])(POINT)

    @pytest.mark.parametrize("kind", ["signs", "normal"])
    def test_draws_from_a_key_have_mean_0_and_variance_1(self, kind: str) -> None:
        if JAX not in LIBRARIES:
            pytest.skip("needs JAX")
        import jax

        from penalties.backends import owner

        like = JAX.array(np.zeros((100, 20)))
        drawn = JAX.numpy(getattr(Draws(jax.random.key(0)), kind)(owner(like), like, 10))
        assert drawn.shape == (10, 100, 20)
        assert abs(drawn.mean()) < 4 / math.sqrt(drawn.size)
        assert drawn.var() == pytest.approx(1.0, abs=0.05)


class TestCalls:
    def test_one_without_a_gradient_and_two_more_for_each_pair_with(self, estimator: Any) -> None:
        if TORCH not in LIBRARIES:
            pytest.skip("needs PyTorch")
        seen: list[Any] = []

        def watched(x: Any) -> float:
            seen.append(x)
            return float(x.sum())

        pipeline = pn.Pipeline([estimator(pn.Term(watched))])
        x = TORCH.array(POINT)
        pipeline(x, step=0)
        assert len(seen) == 1
        pipeline(x.requires_grad_(), step=0)
        assert len(seen) == 1 + 1 + 8

    def test_plain_call_and_backward(self, estimator: Any) -> None:
        if TORCH not in LIBRARIES:
            pytest.skip("needs PyTorch")
        pipeline = pn.Pipeline([pn.Term(pn.l1), estimator(pn.Term(pn.l2, weight=0.5))])
        x = TORCH.array(POINT).requires_grad_()
        pipeline(x, step=1).total.backward()
        out = pipeline.value_and_grad(x, step=1)
        close(TORCH.numpy(x.grad), TORCH.numpy(out.gradient))

    def test_grad_of_jax_outside_and_inside_jit(self, estimator: Any) -> None:
        if JAX not in LIBRARIES:
            pytest.skip("needs JAX")
        import jax

        pipeline = pn.Pipeline([estimator(pn.Term(pn.l2))])

        def total(x: Any, step: Any) -> Any:
            return pipeline(x, step=step).total

        x = JAX.array(POINT)
        close(JAX.numpy(jax.grad(total)(x, 2)), JAX.numpy(pipeline.value_and_grad(x, step=2, wrt="input").gradient))
        jitted = jax.jit(jax.grad(total))
        found = np.stack([JAX.numpy(jitted(x, step)) for step in range(300)])
        error = found.std(axis=0, ddof=1) / math.sqrt(len(found))
        assert (abs(found.mean(axis=0) - 2 * POINT) < 4 * error + 1e-9).all()

    def test_only_the_named_inputs_and_trained_leaves_have_a_gradient(self, estimator: Any) -> None:
        if TORCH not in LIBRARIES:
            pytest.skip("needs PyTorch")

        def product(params: Any, scale: Any) -> float:
            return float(scale.sum() * (params["a"].sum() + params["b"].sum()))

        params = {"a": TORCH.array([1.0, 2.0]).requires_grad_(), "b": TORCH.array([3.0])}
        scale = TORCH.array([2.0]).requires_grad_()
        term = estimator(pn.Term(product), wrt="params")
        pn.Pipeline([term])(params=params, scale=scale, step=0).total.backward()
        assert params["a"].grad is not None
        assert params["b"].grad is None
        assert scale.grad is None

    def test_numpy_inside_with_data_beside(self, estimator: Any, autodiff: Any) -> None:
        def misfit(x: Any, data: Any) -> Any:
            return np.square(np.asarray(x) - data).sum()

        pipeline = pn.Pipeline([estimator(pn.Term(misfit), wrt="x"), pn.Term(pn.l2, weight=0.0, inputs="x")])
        inputs = {"x": autodiff.array(POINT), "data": np.ones(3)}
        assert autodiff.numpy(pipeline.value_and_grad(**inputs, wrt="x", step=0).gradient["x"]).shape == (3,)
        close(pipeline(**inputs, step=0).read().total, float(((POINT - 1.0) ** 2).sum()), "float32")

    def test_state_and_metrics_are_those_at_the_inputs(self, estimator: Any) -> None:
        def remembered(x: Any, state: Any) -> Any:
            seen = 0 if state is None else state
            return pn.Evaluation(float(x.sum()), metrics={"at": float(x[0])}, state=seen + 1)

        out = pn.Pipeline([estimator(pn.Term(remembered))]).value_and_grad(POINT, step=0, state={"remembered": 4})
        assert out.state == {"remembered": 5}
        assert out["remembered"].metrics["at"] == POINT[0]

    def test_torch_compile_says_why_it_cannot(self, estimator: Any) -> None:
        if TORCH not in LIBRARIES:
            pytest.skip("needs PyTorch")
        import torch

        pipeline = pn.Pipeline([estimator(pn.Term(pn.l2))])
        compiled = torch.compile(lambda x: pipeline(x, step=3).total, backend="eager", fullgraph=True)
        with pytest.raises(Exception, match=r"SPSA and EvolutionStrategies draw .* outside of torch\.compile"):
            compiled(TORCH.array(POINT).requires_grad_())

    def test_inside_a_running_mean(self, estimator: Any) -> None:
        pipeline = pn.Pipeline([pn.EMA(estimator(pn.Term(quadratic)), decay=0.75)])
        first = pipeline.value_and_grad(POINT, step=0)
        second = pipeline.value_and_grad(POINT, step=0, state=first.state)
        close(second.gradient, 0.25 * first.gradient)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pn.SPSA(pn.Term(quadratic), samples=0), "SPSA: samples=0; expected a whole number of at least 1"),
        (lambda: pn.SPSA(pn.Term(quadratic), c=0.0), "SPSA: c=0.0; expected a finite number above 0"),
        (lambda: pn.SPSA(pn.Term(quadratic), seed=-1), "SPSA: seed=-1; expected a whole number of at least 0"),
        (lambda: pn.SPSA(pn.Term(quadratic), wrt="y"), 'SPSA: wrt="y"; expected None, or names among the inputs of'),
        (lambda: pn.SPSA(pn.Term(quadratic), wrt=()), 'among the inputs of quadratic: "x"'),
        (lambda: pn.SPSA(pn.Term(quadratic, differentiable=False)), "expected a term with differentiable=True"),
        (
            lambda: pn.SPSA(pn.EMA(pn.Stale(pn.Term(quadratic), steps=2, wrt="x"))),
            "expected a term whose values say what its gradient is; put Stale around SPSA",
        ),
        (
            lambda: pn.EvolutionStrategies(pn.Normalized(pn.Term(quadratic))),
            "expected a term whose values say what its gradient is; put Normalized around EvolutionStrategies",
        ),
        (lambda: pn.SPSA(quadratic), "SPSA: term=.* expected a Term"),
        (lambda: pn.EvolutionStrategies(pn.Term(quadratic), population=3), "population=3; expected an even number of"),
        (lambda: pn.EvolutionStrategies(pn.Term(quadratic), sigma=-1.0), "sigma=-1.0; expected a finite number above"),
        (lambda: pn.EvolutionStrategies(pn.Term(quadratic), ranks="yes"), 'ranks="yes"; expected True or False'),
    ],
)
def test_wrong_options(make: Any, message: str) -> None:
    with pytest.raises(pn.OptionError, match=message):
        make()


def test_exact_gradient_of_one_dimension() -> None:
    out = pn.Pipeline([pn.SPSA(pn.Term(lambda x: float(x[0] ** 2), name="square"), samples=1)]).value_and_grad(
        np.array([3.0]), step=0
    )
    close(out.gradient, [6.0])
    assert "gradient_variance" not in out["square"].metrics
