"""Value and gradient where expressions usually break: zeros, −inf, zero vectors, ties, bounds, empty, masked."""

import functools
from typing import Any

import jax
import numpy as np
import pytest
import torch
from scipy.special import entr, rel_entr

import penalties as pn
from tests.cases import log_softmax
from tests.libraries import call, check, close, value_and_gradients

INF = np.inf
PRECISIONS = ("float64", "float32")

SPREAD = log_softmax(np.array([0.3, -1.0, 0.5, -2.0]))
OTHER = log_softmax(np.array([-0.7, 0.2, 0.1, -0.4]))
P_ZERO = np.append(log_softmax(np.array([0.3, -1.0, 0.5])), -INF)
Q_ZERO = np.append(log_softmax(np.array([-0.7, 0.2, 0.1])), -INF)
ONE_HOT = np.array([0.0, -INF, -INF, -INF])
OTHER_HOT = np.array([-INF, 0.0, -INF, -INF])
TINY = np.append(log_softmax(np.array([0.3, -1.0, 0.5])), -800.0)

DISTRIBUTIONS = {
    "generic": (SPREAD, OTHER),
    "identical": (SPREAD, SPREAD),
    "p has a zero": (P_ZERO, OTHER),
    "q has a zero": (SPREAD, Q_ZERO),
    "shared zero": (P_ZERO, Q_ZERO),
    "p one-hot": (ONE_HOT, OTHER),
    "q one-hot": (OTHER, ONE_HOT),
    "same one-hot": (ONE_HOT, ONE_HOT),
    "disjoint one-hots": (ONE_HOT, OTHER_HOT),
    "p at -800": (TINY, OTHER),
    "q at -800": (SPREAD, TINY),
    "both at -800": (TINY, TINY),
    "p at -800, q zero": (TINY, Q_ZERO),
}


def log_ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """`log a − log b` where a > 0, else 0."""
    with np.errstate(invalid="ignore"):
        return np.where(np.exp(a) > 0, a - b, 0.0)


def kl(a: np.ndarray, b: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Value and both gradients, analytically."""
    p, ratio = np.exp(a), log_ratio(a, b)
    return np.sum(np.where(p > 0, p * ratio, 0.0)), np.where(p > 0, p * (ratio + 1), 0.0), -p


def js(a: np.ndarray, b: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    p, q = np.exp(a), np.exp(b)
    m = (p + q) / 2
    with np.errstate(divide="ignore"):
        log_m = np.log(m)
    value = 0.5 * (rel_entr(p, m) + rel_entr(q, m)).sum()
    return value, 0.5 * p * log_ratio(a, log_m), 0.5 * q * log_ratio(b, log_m)


reverse_kl = functools.partial(pn.kl_divergence, direction="reverse")
symmetric_kl = functools.partial(pn.kl_divergence, symmetric=True)
floored_kl = functools.partial(pn.kl_divergence, floor=-3.0)
consistency_by_kl = functools.partial(pn.consistency, metric="kl")
js_distance = functools.partial(pn.js_divergence, sqrt=True)
cosine = functools.partial(pn.consistency, metric="cosine")
summed_cosine = functools.partial(cosine, reduction="sum")
OF_LOGITS = {
    "kl_divergence": functools.partial(pn.kl_divergence, logits=True),
    "js_divergence": functools.partial(pn.js_divergence, logits=True),
    "entropy": functools.partial(pn.entropy, logits=True, temperature=2.0),
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("edge", DISTRIBUTIONS)
class TestDistributions:
    def test_kl(self, autodiff: Any, edge: str, precision: str) -> None:
        p, q = DISTRIBUTIONS[edge]
        value, by_p, by_q = kl(p, q)
        check(autodiff, precision, pn.kl_divergence, (p, q), value, (by_p, by_q))

    def test_reverse_kl(self, autodiff: Any, edge: str, precision: str) -> None:
        p, q = DISTRIBUTIONS[edge]
        value, by_q, by_p = kl(q, p)
        check(autodiff, precision, reverse_kl, (p, q), value, (by_p, by_q))

    def test_symmetric_kl_and_consistency(self, autodiff: Any, edge: str, precision: str) -> None:
        p, q = DISTRIBUTIONS[edge]
        one, one_p, one_q = kl(p, q)
        two, two_q, two_p = kl(q, p)
        expected = (one + two) / 2, ((one_p + two_p) / 2, (one_q + two_q) / 2)
        check(autodiff, precision, symmetric_kl, (p, q), *expected)
        check(autodiff, precision, consistency_by_kl, (p, q), *expected)

    def test_floored_kl_is_finite(self, autodiff: Any, edge: str, precision: str) -> None:
        p, q = DISTRIBUTIONS[edge]
        value, by_p, by_q = kl(p, np.maximum(q, -3.0))
        assert np.isfinite(value)
        check(autodiff, precision, floored_kl, (p, q), value, (by_p, np.where(q >= -3.0, by_q, 0.0)))

    def test_js(self, autodiff: Any, edge: str, precision: str) -> None:
        p, q = DISTRIBUTIONS[edge]
        value, by_p, by_q = js(p, q)
        check(autodiff, precision, pn.js_divergence, (p, q), value, (by_p, by_q))

    def test_entropy(self, autodiff: Any, edge: str, precision: str) -> None:
        for x in DISTRIBUTIONS[edge]:
            p = np.exp(x)
            gradient = np.where(p > 0, -p * (np.where(p > 0, x, 0.0) + 1), 0.0)
            check(autodiff, precision, pn.entropy, (x,), entr(p).sum(), (gradient,))

    def test_values_without_gradients(self, library: Any, edge: str, precision: str) -> None:
        p, q = DISTRIBUTIONS[edge]
        close(library.numpy(call(library, "kl_divergence", p, q, dtype=precision)), kl(p, q)[0], precision)
        close(library.numpy(call(library, "js_divergence", p, q, dtype=precision)), js(p, q)[0], precision)
        close(library.numpy(call(library, "entropy", p, dtype=precision)), entr(np.exp(p)).sum(), precision)

    @pytest.mark.parametrize("name", OF_LOGITS)
    def test_masked_logits(self, autodiff: Any, edge: str, precision: str, name: str) -> None:
        """−inf among logits (a masked vocabulary) leaves gradients finite, whatever the temperature."""
        p, q = DISTRIBUTIONS[edge]
        if name == "kl_divergence" and not np.isfinite(kl(p, q)[0]):
            p, q = q, q
        inputs = (p,) if name == "entropy" else (p, q)
        arrays = [autodiff.array(x, precision) for x in inputs]
        _, gradients = value_and_gradients(autodiff, OF_LOGITS[name])(*arrays)
        for found in gradients:
            assert np.isfinite(autodiff.numpy(found)).all()


PADDING = {"nan": np.nan, "inf": INF, "-inf": -INF, "zero": 0.0}
PADDED = {
    f"{fn.__name__}-{options}": functools.partial(fn, **options)
    for fn in (pn.kl_divergence, pn.js_divergence, pn.entropy)
    for options in ({"logits": False}, {"logits": True})
} | {"consistency": cosine}
BATCH = np.stack([SPREAD, OTHER, P_ZERO])


@functools.cache
def masked(library: Any, fn: Any) -> Any:
    return functools.partial(fn, mask=library.array(np.array([1.0, 1.0, 1.0, 0.0, 0.0])))


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("fn", PADDED.values(), ids=list(PADDED))
def test_padding_never_reaches_value_or_gradient(autodiff: Any, fn: Any, padding: str) -> None:
    padded = np.concatenate([np.stack([SPREAD, OTHER, SPREAD]), np.full((2, 4), PADDING[padding])])
    other = np.concatenate([np.stack([OTHER, OTHER, OTHER]), np.full((2, 4), PADDING[padding])])
    inputs = (padded,) if fn.func is pn.entropy else (padded, other)
    found, slopes = value_and_gradients(autodiff, masked(autodiff, fn))(*[autodiff.array(x) for x in inputs])
    right, right_slopes = value_and_gradients(autodiff, fn)(*[autodiff.array(x[:3]) for x in inputs])
    close(autodiff.numpy(found), autodiff.numpy(right))
    for slope, right_slope in zip(slopes, right_slopes, strict=True):
        close(autodiff.numpy(slope)[:3], autodiff.numpy(right_slope))
        close(autodiff.numpy(slope)[3:], 0.0)


@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
@pytest.mark.parametrize(
    "name", ["kl_divergence", "js_divergence", "entropy", "consistency", "kl_estimate", "entropy_estimate"]
)
def test_fully_masked_is_zero(autodiff: Any, name: str, reduction: str) -> None:
    inputs = (BATCH,) if name.startswith("entropy") else (BATCH, BATCH[::-1].copy())
    mask = autodiff.array(np.zeros(BATCH.shape if name.endswith("estimate") else BATCH.shape[:-1]))
    fn = lambda *x: getattr(pn, name)(*x, mask=mask, reduction=reduction)
    arrays = [autodiff.array(x) for x in inputs]
    close(autodiff.numpy(fn(*arrays)), 0.0)
    for found in autodiff.gradients(lambda *x: fn(*x).sum(), *arrays):
        close(found, 0.0)


def test_a_fractional_mask_weighs(library: Any) -> None:
    mask = np.array([1.0, 0.5, 0.0])
    per_row = np.array([kl(a, b)[0] for a, b in zip(BATCH, [OTHER, SPREAD, OTHER], strict=True)])
    pair = BATCH, np.stack([OTHER, SPREAD, OTHER])
    for reduction, expected in (
        ("sum", (mask * per_row).sum()),
        ("mean", (mask * per_row).sum() / 1.5),
        ("none", mask * per_row),
    ):
        found = library.numpy(call(library, "kl_divergence", *pair, mask=mask, reduction=reduction))
        close(found, expected)


@pytest.mark.parametrize("metric", ["mse", "l1"])
def test_a_masked_mean_per_element_counts_elements(library: Any, metric: str) -> None:
    a, b = np.arange(6.0).reshape(3, 2), np.ones((3, 2))
    difference = np.abs(a - b) if metric == "l1" else (a - b) ** 2
    mask = np.array([True, False, True])
    for reduction, expected in (
        ("mean", difference[mask].mean()),
        ("sum", difference[mask].sum()),
        ("none", difference * mask[:, None]),
    ):
        close(
            library.numpy(call(library, "consistency", a, b, metric=metric, mask=mask, reduction=reduction)),
            expected,
            "float64",
        )


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_js_distance_has_gradient_zero_between_equals(autodiff: Any, precision: str) -> None:
    """Also where rounding leaves a divergence a little above or below 0, and where a probability is 0."""
    rng = np.random.default_rng(20)
    rows = np.concatenate([np.log(rng.dirichlet(np.ones(5), size=200)), [[0.0, *[-np.inf] * 4]]])
    p = autodiff.array(rows, precision)
    distance = value_and_gradients(autodiff, js_distance)
    for gradient in distance(p, p)[1]:
        np.testing.assert_array_equal(autodiff.numpy(gradient), 0.0)
    close = autodiff.array(rows[:-1] + 1e-7 * rng.normal(size=(200, 5)), precision)
    value = autodiff.numpy(pn.js_divergence(p[:-1], close, sqrt=True, reduction="none"))
    assert (value >= 0).all()
    for gradient in distance(p[:-1], close)[1]:
        assert np.abs(autodiff.numpy(gradient)).max() < 1.0


@pytest.mark.parametrize("precision", PRECISIONS)
class TestKinks:
    def test_norms_at_zero(self, autodiff: Any, precision: str) -> None:
        zeros = np.zeros((2, 3))
        for fn in (pn.l1, pn.l2, pn.elastic_net, pn.smooth_l1):
            check(autodiff, precision, fn, (zeros,), 0.0, (zeros,))

    def test_l1_with_zeros_among_others(self, autodiff: Any, precision: str) -> None:
        x = np.array([0.0, -0.0, 2.0, -3.0])
        check(autodiff, precision, pn.l1, (x,), 5.0, (np.sign(x),))
        check(autodiff, precision, lambda z: pn.consistency(z, 0 * z, metric="l1"), (x,), 1.25, (np.sign(x) / 4,))

    def test_clip_at_its_bound_has_the_gradient_of_the_inside(self, autodiff: Any, precision: str) -> None:
        x = np.array([-2.0, -1.0, 0.5, 1.0, 2.0])
        check(autodiff, precision, lambda z: pn.l2(z, clip=1.0), (x,), 4.25, ([0.0, -2.0, 1.0, 2.0, 0.0],))

    def test_smooth_l1_at_its_seam(self, autodiff: Any, precision: str) -> None:
        x = np.array([-0.5, 0.0, 0.5, 1.0])
        check(autodiff, precision, lambda z: pn.smooth_l1(z, delta=0.5), (x,), 1.25, ([-1.0, 0.0, 1.0, 1.0],))

    @pytest.mark.parametrize("scale", [1.0, 1e-25, 1e25])
    def test_cosine_at_a_zero_vector(self, autodiff: Any, precision: str, scale: float) -> None:
        a = scale * np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
        b = scale * np.array([[3.0, 4.0], [0.0, 0.0], [0.0, 0.0]])
        check(autodiff, precision, summed_cosine, (a, b), 3.0, (np.zeros((3, 2)), np.zeros((3, 2))))

    @pytest.mark.parametrize("scale", [1e-25, 1e25])
    def test_cosine_at_extreme_scales(self, autodiff: Any, precision: str, scale: float) -> None:
        a, b = np.array([3.0, 4.0]), np.array([4.0, 3.0])
        arrays = [autodiff.array(scale * x, precision) for x in (a, b)]
        found, slopes = value_and_gradients(autodiff, cosine)(*arrays)
        close(autodiff.numpy(found), 0.04, precision)
        expected = -(b / 25 - 0.96 * a / 25)
        close(scale * autodiff.numpy(slopes[0]), expected, precision)

    @pytest.mark.parametrize("mode", ["soft", "hard", "spectral"])
    def test_orthogonality_with_a_zero_row(self, autodiff: Any, precision: str, mode: str) -> None:
        x = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.6, 0.8, 0.0]])
        value = {"soft": 0.72, "hard": 1.72, "spectral": 1.0}[mode]
        fn = lambda z: pn.orthogonality(z, mode=mode)
        found, (gradient,) = value_and_gradients(autodiff, fn)(autodiff.array(x, precision))
        close(autodiff.numpy(found), value, precision)
        assert np.isfinite(autodiff.numpy(gradient)).all()
        close(autodiff.numpy(gradient)[1], 0.0, precision)

    @pytest.mark.parametrize("exact", [False, True])
    def test_spectral_of_zero_and_orthonormal_matrices(self, autodiff: Any, precision: str, exact: bool) -> None:
        fn = lambda z: pn.orthogonality(z, mode="spectral", normalize=False, exact=exact)
        check(autodiff, precision, fn, (np.zeros((2, 3)),), 1.0, (np.zeros((2, 3)),))
        found, (gradient,) = value_and_gradients(autodiff, fn)(autodiff.array(np.eye(3), precision))
        assert np.isfinite(autodiff.numpy(gradient)).all()
        close(autodiff.numpy(found), 0.0, precision)

    def test_spectral_with_eigenvalues_of_both_signs(self, autodiff: Any, precision: str) -> None:
        """Two unit rows have G − I = ±c: a Rayleigh quotient fails here, and any mixture is a valid subgradient."""
        x = np.array([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0]])
        fn = lambda z: pn.orthogonality(z, mode="spectral")
        check(autodiff, precision, fn, (x,), 0.6, ([[0.0, 0.8, 0.0], [0.64, -0.48, 0.0]],))

    @pytest.mark.parametrize("exact", [False, True])
    def test_spectral_at_repeated_singular_values_gives_a_valid_subgradient(
        self, autodiff: Any, precision: str, exact: bool
    ) -> None:
        """σ = (2, 2, 1): every subgradient is 2σ·u·vᵀ averaged over the tied pairs, so its trace here is 2σ = 4."""
        fn = lambda z: pn.orthogonality(z, mode="spectral", normalize=False, exact=exact)
        found, slopes = value_and_gradients(autodiff, fn)(autodiff.array(np.diag([2.0, 2.0, 1.0]), precision))
        close(autodiff.numpy(found), 3.0, precision)
        gradient = autodiff.numpy(slopes[0])
        close(np.trace(gradient), 4.0, precision)
        close(gradient[2], 0.0, precision)
        assert np.linalg.eigvalsh((gradient + gradient.T) / 2).min() > -1e-4

    def test_output_magnitude_at_zero(self, autodiff: Any, precision: str) -> None:
        for reduction in ("mean", "sum"):
            fn = lambda y, r=reduction: pn.output_magnitude(y, target=2.0, reduction=r)
            check(autodiff, precision, fn, (np.zeros(4),), 4.0, (np.zeros(4),))

    def test_gradient_penalty_where_the_gradient_is_zero(self, autodiff: Any, precision: str) -> None:
        fn = lambda x: pn.gradient_penalty(lambda z: (z * z).sum(-1), x)
        x = np.array([[0.0, 0.0], [3.0, 4.0]])
        check(autodiff, precision, fn, (x,), (1 + 81) / 2, ([[0.0, 0.0], [10.8, 14.4]],))


@pytest.mark.parametrize("name", ["kl_divergence", "js_divergence"])
def test_second_derivatives_where_both_probabilities_are_tiny(autodiff: Any, name: str) -> None:
    """In float32 1/p² overflows below log p = −45; p² times it is still a number."""
    a, b = np.array([-1e-9, -57.0, -80.0]), np.array([-1e-9, -58.0, -79.0])
    fn = getattr(pn, name)

    def slope_sum(x: Any, y: Any) -> Any:
        if autodiff.name == "torch":
            return sum(g.sum() for g in torch.autograd.grad(fn(x, y), (x, y), create_graph=True))
        return sum(g.sum() for g in jax.grad(fn, argnums=(0, 1))(x, y))

    for found in autodiff.gradients(slope_sum, *[autodiff.array(x, "float32") for x in (a, b)]):
        assert np.isfinite(found).all()


def test_rows_of_very_different_length_keep_their_gradient(autodiff: Any) -> None:
    """The value cancels in float32, and is not below 0 for it; the gradient does not cancel."""
    x = np.array([[1000.3, 0.0], [0.1, 1.0], [0.0, 1.0]])
    fn = lambda z: pn.orthogonality(z, normalize=False)
    assert autodiff.numpy(fn(autodiff.array(x, "float32"))) >= 0
    (found,) = autodiff.gradients(fn, autodiff.array(x, "float32"))
    (right,) = autodiff.gradients(fn, autodiff.array(x, "float64"))
    np.testing.assert_allclose(found[1:], right[1:], rtol=1e-3)


def test_a_mask_whose_weights_cancel_gives_zero(library: Any) -> None:
    mask = np.array([1.0, -1.0, 0.0])
    close(library.numpy(call(library, "entropy", BATCH, mask=mask)), 0.0)
    tokens = np.array([-1.0, -2.0])
    close(library.numpy(call(library, "entropy_estimate", tokens, mask=np.array([1.0, -1.0]))), 0.0)
