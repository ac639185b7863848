"""Value and gradient where expressions usually break: zeros, −inf, zero vectors, ties, bounds, empty, masked."""

from typing import Any

import numpy as np
import pytest
from scipy.special import entr, rel_entr

import penalties as pn
from tests.cases import log_softmax
from tests.libraries import EPSILON, call

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


def close(found: Any, expected: Any, precision: str) -> None:
    tolerance = EPSILON[precision]
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def check(autodiff: Any, precision: str, fn: Any, inputs: Any, value: Any, gradients: Any) -> None:
    """The function and its gradients are the given numbers."""
    arrays = [autodiff.array(x, precision) for x in inputs]
    close(autodiff.numpy(fn(*arrays)), value, precision)
    for found, right in zip(autodiff.gradients(fn, *arrays), gradients, strict=True):
        close(found, right, precision)


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
        check(
            autodiff, precision, lambda a, b: pn.kl_divergence(a, b, direction="reverse"), (p, q), value, (by_p, by_q)
        )

    def test_symmetric_kl_and_consistency(self, autodiff: Any, edge: str, precision: str) -> None:
        p, q = DISTRIBUTIONS[edge]
        one, one_p, one_q = kl(p, q)
        two, two_q, two_p = kl(q, p)
        expected = (one + two) / 2, ((one_p + two_p) / 2, (one_q + two_q) / 2)
        check(autodiff, precision, lambda a, b: pn.kl_divergence(a, b, symmetric=True), (p, q), *expected)
        check(autodiff, precision, lambda a, b: pn.consistency(a, b, metric="kl"), (p, q), *expected)

    def test_floored_kl_is_finite(self, autodiff: Any, edge: str, precision: str) -> None:
        p, q = DISTRIBUTIONS[edge]
        value, by_p, by_q = kl(p, np.maximum(q, -3.0))
        fn = lambda a, b: pn.kl_divergence(a, b, floor=-3.0)  # noqa: E731
        assert np.isfinite(value)
        check(autodiff, precision, fn, (p, q), value, (by_p, np.where(q >= -3.0, by_q, 0.0)))

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

    @pytest.mark.parametrize("name", ["kl_divergence", "js_divergence", "entropy"])
    def test_masked_logits(self, autodiff: Any, edge: str, precision: str, name: str) -> None:
        """−inf among logits (a masked vocabulary) leaves gradients finite, whatever the temperature."""
        p, q = DISTRIBUTIONS[edge]
        if name == "kl_divergence" and not np.isfinite(kl(p, q)[0]):
            p, q = q, q
        inputs = (p,) if name == "entropy" else (p, q)
        options = {"temperature": 2.0} if name == "entropy" else {}
        arrays = [autodiff.array(x, precision) for x in inputs]
        for found in autodiff.gradients(lambda *x: getattr(pn, name)(*x, logits=True, **options), *arrays):
            assert np.isfinite(found).all()


PADDING = {"nan": np.nan, "inf": INF, "-inf": -INF, "zero": 0.0}
BATCH = np.stack([SPREAD, OTHER, P_ZERO])


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("logits", [False, True])
@pytest.mark.parametrize("name", ["kl_divergence", "js_divergence", "entropy", "consistency"])
def test_padding_never_reaches_value_or_gradient(autodiff: Any, name: str, logits: bool, padding: str) -> None:
    options: dict[str, Any] = {"metric": "cosine"} if name == "consistency" else {"logits": logits}
    padded = np.concatenate([np.stack([SPREAD, OTHER, SPREAD]), np.full((2, 4), PADDING[padding])])
    other = np.concatenate([np.stack([OTHER, OTHER, OTHER]), np.full((2, 4), PADDING[padding])])
    inputs = (padded,) if name == "entropy" else (padded, other)
    mask = autodiff.array(np.array([1.0, 1.0, 1.0, 0.0, 0.0]))
    fn = lambda *x: getattr(pn, name)(*x, mask=mask, **options)  # noqa: E731
    bare = lambda *x: getattr(pn, name)(*x, **options)  # noqa: E731
    full, part = [autodiff.array(x) for x in inputs], [autodiff.array(x[:3]) for x in inputs]
    close(autodiff.numpy(fn(*full)), autodiff.numpy(bare(*part)), "float64")
    for found, right in zip(autodiff.gradients(fn, *full), autodiff.gradients(bare, *part), strict=True):
        close(found[:3], right, "float64")
        close(found[3:], 0.0, "float64")


@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
@pytest.mark.parametrize(
    "name", ["kl_divergence", "js_divergence", "entropy", "consistency", "kl_estimate", "entropy_estimate"]
)
def test_fully_masked_is_zero(autodiff: Any, name: str, reduction: str) -> None:
    inputs = (BATCH,) if name.startswith("entropy") else (BATCH, BATCH[::-1].copy())
    mask = autodiff.array(np.zeros(BATCH.shape if name.endswith("estimate") else BATCH.shape[:-1]))
    fn = lambda *x: getattr(pn, name)(*x, mask=mask, reduction=reduction)  # noqa: E731
    arrays = [autodiff.array(x) for x in inputs]
    close(autodiff.numpy(fn(*arrays)), 0.0, "float64")
    for found in autodiff.gradients(lambda *x: fn(*x).sum(), *arrays):
        close(found, 0.0, "float64")


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
        close(found, expected, "float64")


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
        fn = lambda x, y: pn.consistency(x, y, metric="cosine", reduction="sum")  # noqa: E731
        check(autodiff, precision, fn, (a, b), 3.0, (np.zeros((3, 2)), np.zeros((3, 2))))

    @pytest.mark.parametrize("scale", [1e-25, 1e25])
    def test_cosine_at_extreme_scales(self, autodiff: Any, precision: str, scale: float) -> None:
        a, b = np.array([3.0, 4.0]), np.array([4.0, 3.0])
        arrays = [autodiff.array(scale * x, precision) for x in (a, b)]
        fn = lambda x, y: pn.consistency(x, y, metric="cosine")  # noqa: E731
        close(autodiff.numpy(fn(*arrays)), 0.04, precision)
        expected = -(b / 25 - 0.96 * a / 25)
        close(scale * autodiff.gradients(fn, *arrays)[0], expected, precision)

    @pytest.mark.parametrize("mode", ["soft", "hard", "spectral"])
    def test_orthogonality_with_a_zero_row(self, autodiff: Any, precision: str, mode: str) -> None:
        x = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.6, 0.8, 0.0]])
        value = {"soft": 0.72, "hard": 1.72, "spectral": 1.0}[mode]
        fn = lambda z: pn.orthogonality(z, mode=mode)  # noqa: E731
        close(autodiff.numpy(fn(autodiff.array(x, precision))), value, precision)
        (gradient,) = autodiff.gradients(fn, autodiff.array(x, precision))
        assert np.isfinite(gradient).all()
        close(gradient[1], 0.0, precision)

    @pytest.mark.parametrize("exact", [False, True])
    def test_spectral_of_zero_and_orthonormal_matrices(self, autodiff: Any, precision: str, exact: bool) -> None:
        fn = lambda z: pn.orthogonality(z, mode="spectral", normalize=False, exact=exact)  # noqa: E731
        check(autodiff, precision, fn, (np.zeros((2, 3)),), 1.0, (np.zeros((2, 3)),))
        (gradient,) = autodiff.gradients(fn, autodiff.array(np.eye(3), precision))
        assert np.isfinite(gradient).all()
        close(autodiff.numpy(fn(autodiff.array(np.eye(3), precision))), 0.0, precision)

    def test_spectral_with_eigenvalues_of_both_signs(self, autodiff: Any, precision: str) -> None:
        """Two unit rows have G − I = ±c: a Rayleigh quotient fails here, and any mixture is a valid subgradient."""
        x = np.array([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0]])
        fn = lambda z: pn.orthogonality(z, mode="spectral")  # noqa: E731
        check(autodiff, precision, fn, (x,), 0.6, ([[0.0, 0.8, 0.0], [0.64, -0.48, 0.0]],))

    @pytest.mark.parametrize("exact", [False, True])
    def test_spectral_at_repeated_singular_values_gives_a_valid_subgradient(
        self, autodiff: Any, precision: str, exact: bool
    ) -> None:
        """σ = (2, 2, 1): every subgradient is 2σ·u·vᵀ averaged over the tied pairs, so its trace here is 2σ = 4."""
        fn = lambda z: pn.orthogonality(z, mode="spectral", normalize=False, exact=exact)  # noqa: E731
        x = autodiff.array(np.diag([2.0, 2.0, 1.0]), precision)
        close(autodiff.numpy(fn(x)), 3.0, precision)
        (gradient,) = autodiff.gradients(fn, x)
        close(np.trace(gradient), 4.0, precision)
        close(gradient[2], 0.0, precision)
        assert np.linalg.eigvalsh((gradient + gradient.T) / 2).min() > -1e-4

    def test_output_magnitude_at_zero(self, autodiff: Any, precision: str) -> None:
        for reduction in ("mean", "sum"):
            fn = lambda y, r=reduction: pn.output_magnitude(y, target=2.0, reduction=r)  # noqa: E731
            check(autodiff, precision, fn, (np.zeros(4),), 4.0, (np.zeros(4),))

    def test_gradient_penalty_where_the_gradient_is_zero(self, autodiff: Any, precision: str) -> None:
        fn = lambda x: pn.gradient_penalty(lambda z: (z * z).sum(-1), x)  # noqa: E731
        x = np.array([[0.0, 0.0], [3.0, 4.0]])
        check(autodiff, precision, fn, (x,), (1 + 81) / 2, ([[0.0, 0.0], [10.8, 14.4]],))


class TestNonFinite:
    def test_nan_propagates_from_p(self, library: Any) -> None:
        p = np.array([-0.5, np.nan, -2.0])
        for name, inputs in (
            ("kl_divergence", (p, p[::-1].copy())),
            ("js_divergence", (p, OTHER[:3])),
            ("entropy", (p,)),
        ):
            assert np.isnan(library.numpy(call(library, name, *inputs)))
        for name in ("l1", "l2", "elastic_net", "smooth_l1", "output_magnitude", "orthogonality"):
            assert np.isnan(library.numpy(call(library, name, np.stack([p, OTHER[:3]]))))

    def test_nan_in_q_counts_where_p_is_positive(self, library: Any) -> None:
        q = np.array([-0.5, -1.0, np.nan])
        assert np.isnan(library.numpy(call(library, "kl_divergence", OTHER[:3], q)))
        p = np.array([-0.5, -1.0, -INF])
        close(library.numpy(call(library, "kl_divergence", p, q)), 0.0, "float64")

    @pytest.mark.parametrize("name", ["l1", "l2", "elastic_net", "smooth_l1", "output_magnitude"])
    def test_infinity_propagates(self, library: Any, name: str) -> None:
        assert np.isposinf(library.numpy(call(library, name, np.array([1.0, -INF]))))

    @pytest.mark.parametrize("bound", [1e-10, 1.0, 1e6, 1e30])
    @pytest.mark.parametrize("name", ["l1", "l2", "elastic_net", "smooth_l1", "output_magnitude", "orthogonality"])
    def test_samples_of_any_size_stay_finite(self, library: Any, name: str, bound: float) -> None:
        x = np.random.default_rng(5).uniform(-bound, bound, size=(100, 10))
        found = library.numpy(call(library, name, x, dtype="float64"))
        assert np.isfinite(found)
        if library.differentiates:
            (gradient,) = library.gradients(getattr(pn, name), library.array(x, "float64"))
            assert np.isfinite(gradient).all()


class TestEmpty:
    @pytest.mark.parametrize("reduction", ["sum", "mean"])
    @pytest.mark.parametrize("name", ["l1", "l2", "elastic_net", "smooth_l1"])
    def test_norms(self, library: Any, name: str, reduction: str) -> None:
        for empty in (library.array(np.zeros((0, 3))), [library.array(np.zeros(0)), library.array(np.zeros((2, 0)))]):
            close(library.numpy(getattr(pn, name)(empty, reduction=reduction)), 0.0, "float64")
        close(library.numpy(call(library, "l2", np.zeros(0), center="mean", reduction=reduction)), 0.0, "float64")

    @pytest.mark.parametrize("shape", [(0, 3), (0,), (2, 0)])
    @pytest.mark.parametrize("logits", [False, True])
    def test_divergences(self, library: Any, shape: tuple[int, ...], logits: bool) -> None:
        empty = np.zeros(shape)
        for name in ("kl_divergence", "js_divergence"):
            close(library.numpy(call(library, name, empty, empty, logits=logits)), 0.0, "float64")
        close(library.numpy(call(library, "entropy", empty, logits=logits, normalize=True)), 0.0, "float64")

    @pytest.mark.parametrize("metric", ["mse", "l1", "cosine", "kl"])
    def test_consistency(self, library: Any, metric: str) -> None:
        empty = np.zeros((0, 3))
        close(library.numpy(call(library, "consistency", empty, empty, metric=metric)), 0.0, "float64")
        close(
            library.numpy(call(library, "consistency", empty, empty, metric=metric, mask=np.zeros(0))), 0.0, "float64"
        )

    @pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,)])
    @pytest.mark.parametrize("mode", ["soft", "spectral"])
    def test_orthogonality(self, library: Any, shape: tuple[int, ...], mode: str) -> None:
        for reduction in ("sum", "mean") if mode == "soft" else ("sum",):
            found = call(library, "orthogonality", np.zeros(shape), mode=mode, reduction=reduction)
            close(library.numpy(found), 0.0, "float64")

    def test_output_magnitude_is_that_of_zero(self, library: Any) -> None:
        close(library.numpy(call(library, "output_magnitude", np.zeros((0, 2)), target=3.0)), 9.0, "float64")

    def test_estimates(self, library: Any) -> None:
        for reduction in ("sum", "mean"):
            close(
                library.numpy(call(library, "kl_estimate", np.zeros(0), np.zeros(0), reduction=reduction)),
                0.0,
                "float64",
            )
            close(library.numpy(call(library, "entropy_estimate", np.zeros(0), reduction=reduction)), 0.0, "float64")


def test_one_class_has_normalised_entropy_zero(autodiff: Any) -> None:
    check(autodiff, "float64", lambda x: pn.entropy(x, normalize=True), (np.zeros((2, 1)),), 0.0, (np.zeros((2, 1)),))


def test_cosine_of_scalars_is_that_of_their_signs(library: Any) -> None:
    for a, b, expected in ((2.0, 3.0, 0.0), (2.0, -3.0, 2.0), (0.0, 3.0, 1.0)):
        close(library.numpy(call(library, "consistency", a, b, metric="cosine")), expected, "float64")


def test_safe_log_has_gradient_zero_at_zero(autodiff: Any) -> None:
    """Probabilities with a zero, through safe_log into a divergence: the right number and no NaN."""
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.2, 0.5, 0.3])
    fn = lambda a, b: pn.kl_divergence(pn.safe_log(a), pn.safe_log(b))  # noqa: E731
    with np.errstate(divide="ignore"):
        by_p = np.where(p > 0, np.log(p / q) + 1, 0.0)
    check(autodiff, "float64", fn, (p, q), rel_entr(p, q).sum(), (by_p, -p / q))
    check(autodiff, "float64", lambda a: pn.entropy(pn.safe_log(a)), (p,), np.log(2), ([np.log(2) - 1] * 2 + [0.0],))


def test_renormalize_keeps_zeros_and_sums_to_one(autodiff: Any) -> None:
    x = np.array([[-1.0, -3.0, -INF], [-5.0, -5.0, -5.0]])
    found = autodiff.numpy(pn.renormalize(autodiff.array(x)))
    close(np.exp(found).sum(-1), 1.0, "float64")
    assert np.isneginf(found[0, 2])
    (gradient,) = autodiff.gradients(lambda z: pn.entropy(pn.renormalize(z)), autodiff.array(x))
    assert np.isfinite(gradient).all()


def test_valid_logprobs_tells_rows_apart(library: Any) -> None:
    rows = np.array([[0.0, -INF], [-INF, -INF], [np.nan, 0.0], [INF, 0.0], [-0.7, -0.7]])
    found = pn.valid_logprobs(library.array(rows))
    assert library.dtype(found) == "bool"
    assert np.asarray(library.numpy(found)).tolist() == [True, False, False, False, True]


def test_replace_nonfinite_has_gradient_zero_where_it_replaced(autodiff: Any) -> None:
    x = np.array([1.0, np.nan, INF, -INF])
    fn = lambda z: pn.l1(pn.replace_nonfinite(z, nan=2.0, inf=5.0))  # noqa: E731
    check(autodiff, "float64", fn, (x,), 13.0, ([1.0, 0.0, 0.0, 0.0],))


@pytest.mark.parametrize(
    ("x", "kind"),
    [
        ([np.nan, 1], "nan"),
        ([INF], "inf"),
        ([-INF, 0], "inf"),
        ([[1, np.nan], [INF, 1]], "nan"),
        ([[1, 2], [INF, 1]], "inf"),
    ],
)
def test_validate_says_what_it_found(library: Any, x: Any, kind: str) -> None:
    with pytest.raises(pn.NonFiniteError, match=f"^validate: {kind} in 1 of {np.size(x)} values") as caught:
        pn.validate({"a": [library.array(x)]})
    assert caught.value.kind == kind


def test_validate_gives_back_what_it_was_given(library: Any) -> None:
    x = library.array([1.0, 2.0])
    assert pn.validate(x) is x
    nest = {"a": [x]}
    assert pn.validate(nest) is nest
    assert pn.validate(iter([x])) == (x,)
