"""Known values and gradients, on every library."""

from typing import Any

import numpy as np
import pytest

import penalties as pn
from tests.cases import log_softmax
from tests.golden import GRADIENTS, PENALTIES, VALUES
from tests.libraries import call, value_and_gradients

SCALARS = {"sum": lambda z: z.sum(), "squares": lambda z: (z * z).sum()}


@pytest.mark.parametrize(
    ("name", "inputs", "options", "factor", "expected"), [r[1:] for r in VALUES], ids=[r[0] for r in VALUES]
)
def test_value(
    library: Any, name: str, inputs: list[Any], options: dict[str, Any], factor: float, expected: Any
) -> None:
    value = library.numpy(call(library, name, *inputs, dtype="float64", **options))
    # A tiny number is compared by its digits: anything is within 1e-8 of it.
    tiny = np.ndim(expected) == 0 and 0 < abs(expected) < 1e-6
    np.testing.assert_allclose(factor * value, expected, rtol=1e-6, atol=0 if tiny else 1e-8)


@pytest.mark.parametrize(
    ("name", "inputs", "options", "factor", "expected"), [r[1:] for r in GRADIENTS], ids=[r[0] for r in GRADIENTS]
)
def test_gradient(
    autodiff: Any, name: str, inputs: list[Any], options: dict[str, Any], factor: float, expected: Any
) -> None:
    arrays = [autodiff.array(x, "float64") for x in inputs]
    found = autodiff.gradients(lambda *leaves: factor * getattr(pn, name)(*leaves, **options), *arrays)
    for gradient, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(gradient, right, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("fn", "x", "target", "expected"), [r[1:] for r in PENALTIES], ids=[r[0] for r in PENALTIES])
def test_gradient_penalty(autodiff: Any, fn: str, x: list[float], target: float, expected: float) -> None:
    point = autodiff.array(x, "float64")
    value = pn.gradient_penalty(SCALARS[fn], point, target_norm=target)
    np.testing.assert_allclose(autodiff.numpy(value), expected, rtol=1e-8, atol=1e-12)


def test_gradient_of_the_gradient_penalty(autodiff: Any) -> None:
    (found,) = autodiff.gradients(lambda z: pn.gradient_penalty(SCALARS["squares"], z), autodiff.array([1.0, 2.0]))
    np.testing.assert_allclose(found, [6.21114562, 12.42229124], rtol=1e-6)


def test_interpolated_penalty_of_a_linear_function_does_not_depend_on_the_draw(autodiff: Any) -> None:
    rng = np.random.default_rng(0)
    for n in (3, 7):
        x, reference = autodiff.array(rng.normal(size=n)), autodiff.array(rng.normal(size=n))
        for seed in (0, 1):
            value = pn.interpolated_gradient_penalty(SCALARS["sum"], x, reference, seed=seed)
            np.testing.assert_allclose(autodiff.numpy(value), (n**0.5 - 1) ** 2, rtol=1e-6)


@pytest.mark.parametrize("shape", [(2, 4, 8), (2, 3, 4, 8), (8,)])
@pytest.mark.parametrize("mode", ["soft", "hard", "spectral"])
@pytest.mark.parametrize("axis", ["rows", "sequence", "vocabulary"])
def test_orthogonality_takes_every_rank(library: Any, shape: tuple[int, ...], mode: str, axis: str) -> None:
    x = np.random.default_rng(1).normal(size=shape)
    fn = lambda z: pn.orthogonality(z, mode=mode, axis=axis)
    if library.differentiates:
        value, (gradient,) = value_and_gradients(library, fn)(library.array(x))
        assert gradient.shape == shape
        assert np.isfinite(library.numpy(gradient)).all()
    else:
        value = fn(library.array(x))
    assert value.shape == ()
    assert np.isfinite(library.numpy(value))


@pytest.mark.parametrize(
    ("axis", "matrix"),
    [
        ("rows", lambda x: x.reshape(-1, 8)),
        ("sequence", lambda x: np.moveaxis(x, -2, 0).reshape(4, -1)),
        ("vocabulary", lambda x: np.moveaxis(x, -1, 0).reshape(8, -1)),
    ],
)
@pytest.mark.parametrize("shape", [(4, 8), (2, 4, 8), (3, 2, 4, 8)])
def test_axis_says_what_a_row_is(library: Any, axis: str, matrix: Any, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(2).normal(size=shape)
    found = library.numpy(call(library, "orthogonality", x, axis=axis))
    np.testing.assert_allclose(found, library.numpy(call(library, "orthogonality", matrix(x))), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("kl_divergence", {}),
        ("kl_divergence", {"direction": "reverse"}),
        ("kl_divergence", {"symmetric": True}),
        ("js_divergence", {}),
        ("js_divergence", {"sqrt": True}),
    ],
)
@pytest.mark.parametrize(
    ("shape", "reduction", "expected"), [((2, 4), "none", (2,)), ((2, 4, 9), "mean", ()), ((4,), "none", ())]
)
def test_divergence_shapes(
    library: Any, name: str, options: dict[str, Any], shape: tuple[int, ...], reduction: str, expected: tuple[int, ...]
) -> None:
    x = np.random.default_rng(3).normal(size=shape)
    assert call(library, name, x, x[::-1], reduction=reduction, logits=True, **options).shape == expected


@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
@pytest.mark.parametrize("options", [{}, {"normalize": True}, {"temperature": 0.5}, {"logits": True}])
def test_an_entropy_bonus_is_minus_the_penalty(library: Any, reduction: str, options: dict[str, Any]) -> None:
    x = log_softmax(np.random.default_rng(5).normal(size=(3, 6)))
    penalty = library.numpy(call(library, "entropy", x, reduction=reduction, **options))
    bonus = library.numpy(call(library, "entropy", x, mode="bonus", reduction=reduction, **options))
    assert (penalty > 0.1).all()
    np.testing.assert_array_equal(bonus, -penalty)


@pytest.mark.parametrize("name", ["kl_divergence", "js_divergence"])
@pytest.mark.parametrize("logits", [False, True])
def test_temperature_divides_both_inputs(library: Any, name: str, logits: bool) -> None:
    a, b = np.random.default_rng(6).normal(size=(2, 3, 5))
    found = library.numpy(call(library, name, a, b, temperature=2.5, logits=logits))
    expected = library.numpy(call(library, name, log_softmax(a / 2.5), log_softmax(b / 2.5)))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_confident_distributions_stay_finite(library: Any) -> None:
    """D34: probabilities as small as e⁻²⁰ beside one of almost 1."""
    p = log_softmax(np.array([-0.01, -10.0, -10.0, -10.0]))
    q = log_softmax(np.random.default_rng(18).normal(size=4))
    assert np.isfinite(library.numpy(call(library, "kl_divergence", p, q)))
    assert np.isfinite(library.numpy(call(library, "entropy", np.array([-0.01, -20.0, -20.0, -20.0]))))


def test_consistency_by_kl_adds_up(library: Any) -> None:
    """K12: the sum is that of the positions, of which there are as many as rows."""
    rng = np.random.default_rng(19)
    pair = log_softmax(rng.normal(size=(4, 16))), log_softmax(rng.normal(size=(4, 16)))
    each = library.numpy(call(library, "consistency", *pair, metric="kl", reduction="none"))
    assert each.shape == (4,)
    assert each.min() >= -1e-6
    total = library.numpy(call(library, "consistency", *pair, metric="kl", reduction="sum"))
    np.testing.assert_allclose(total, each.sum(), rtol=1e-5)


def test_entropy_mode_is_named_by_its_effect_on_a_minimised_loss(autodiff: Any) -> None:
    """A step down the gradient of the penalty lowers entropy; of the bonus, raises it."""
    logits = np.random.default_rng(4).normal(size=(3, 6))
    before = autodiff.numpy(call(autodiff, "entropy", logits, logits=True))
    for mode, sign in (("penalty", -1), ("bonus", 1)):
        (gradient,) = autodiff.gradients(lambda z, m=mode: pn.entropy(z, mode=m, logits=True), autodiff.array(logits))
        after = autodiff.numpy(call(autodiff, "entropy", logits - 0.1 * gradient, logits=True))
        assert sign * (after - before) > 1e-4
