"""NaN and infinity, empty inputs, and the helpers for log-probabilities."""

from typing import Any

import numpy as np
import pytest
from scipy.special import rel_entr

import penalties as pn
from tests.cases import log_softmax
from tests.libraries import call, check, close

INF = np.inf
OTHER = log_softmax(np.array([-0.7, 0.2, 0.1, -0.4]))


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

    @pytest.mark.parametrize(("exact", "bad"), [(False, np.nan), (True, np.nan), (True, np.inf)])
    def test_spectral_lets_them_through(self, library: Any, exact: bool, bad: float) -> None:
        x = np.array([[1.0, bad], [0.5, 2.0]])
        found = call(library, "orthogonality", x, mode="spectral", normalize=False, exact=exact)
        assert not np.isfinite(library.numpy(found))

    def test_nan_in_q_counts_where_p_is_positive(self, library: Any) -> None:
        q = np.array([-0.5, -1.0, np.nan])
        assert np.isnan(library.numpy(call(library, "kl_divergence", OTHER[:3], q)))
        p = np.array([-0.5, -1.0, -INF])
        close(library.numpy(call(library, "kl_divergence", p, q)), 0.0)

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
            close(library.numpy(getattr(pn, name)(empty, reduction=reduction)), 0.0)
        close(library.numpy(call(library, "l2", np.zeros(0), center="mean", reduction=reduction)), 0.0)

    @pytest.mark.parametrize("shape", [(0, 3), (0,), (2, 0)])
    @pytest.mark.parametrize("logits", [False, True])
    def test_divergences(self, library: Any, shape: tuple[int, ...], logits: bool) -> None:
        empty = np.zeros(shape)
        for name in ("kl_divergence", "js_divergence"):
            close(library.numpy(call(library, name, empty, empty, logits=logits)), 0.0)
        close(library.numpy(call(library, "entropy", empty, logits=logits, normalize=True)), 0.0)

    @pytest.mark.parametrize("metric", ["mse", "l1", "cosine", "kl"])
    def test_consistency(self, library: Any, metric: str) -> None:
        empty = np.zeros((0, 3))
        close(library.numpy(call(library, "consistency", empty, empty, metric=metric)), 0.0)
        close(
            library.numpy(call(library, "consistency", empty, empty, metric=metric, mask=np.zeros(0))), 0.0, "float64"
        )

    @pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,)])
    @pytest.mark.parametrize("mode", ["soft", "spectral"])
    def test_orthogonality(self, library: Any, shape: tuple[int, ...], mode: str) -> None:
        for reduction in ("sum", "mean") if mode == "soft" else ("sum",):
            found = call(library, "orthogonality", np.zeros(shape), mode=mode, reduction=reduction)
            close(library.numpy(found), 0.0)

    def test_output_magnitude_is_that_of_zero(self, library: Any) -> None:
        close(library.numpy(call(library, "output_magnitude", np.zeros((0, 2)), target=3.0)), 9.0)

    def test_estimates(self, library: Any) -> None:
        for reduction in ("sum", "mean"):
            close(
                library.numpy(call(library, "kl_estimate", np.zeros(0), np.zeros(0), reduction=reduction)),
                0.0,
                "float64",
            )
            close(library.numpy(call(library, "entropy_estimate", np.zeros(0), reduction=reduction)), 0.0)


def test_one_class_has_normalised_entropy_zero(autodiff: Any) -> None:
    check(autodiff, "float64", lambda x: pn.entropy(x, normalize=True), (np.zeros((2, 1)),), 0.0, (np.zeros((2, 1)),))


def test_cosine_of_scalars_is_that_of_their_signs(library: Any) -> None:
    for a, b, expected in ((2.0, 3.0, 0.0), (2.0, -3.0, 2.0), (0.0, 3.0, 1.0)):
        close(library.numpy(call(library, "consistency", a, b, metric="cosine")), expected)


def test_safe_log_has_gradient_zero_at_zero(autodiff: Any) -> None:
    """Probabilities with a zero, through safe_log into a divergence: the right number and no NaN."""
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.2, 0.5, 0.3])
    fn = lambda a, b: pn.kl_divergence(pn.safe_log(a), pn.safe_log(b))
    with np.errstate(divide="ignore"):
        by_p = np.where(p > 0, np.log(p / q) + 1, 0.0)
    check(autodiff, "float64", fn, (p, q), rel_entr(p, q).sum(), (by_p, -p / q))
    check(autodiff, "float64", lambda a: pn.entropy(pn.safe_log(a)), (p,), np.log(2), ([np.log(2) - 1] * 2 + [0.0],))


def test_renormalize_keeps_zeros_and_sums_to_one(autodiff: Any) -> None:
    x = np.array([[-1.0, -3.0, -INF], [-5.0, -5.0, -5.0]])
    found = autodiff.numpy(pn.renormalize(autodiff.array(x)))
    close(np.exp(found).sum(-1), 1.0)
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
    fn = lambda z: pn.l1(pn.replace_nonfinite(z, nan=2.0, inf=5.0))
    check(autodiff, "float64", fn, (x,), 13.0, ([1.0, 0.0, 0.0, 0.0],))
    wide = autodiff.numpy(pn.replace_nonfinite(autodiff.array(x), nan=7.0, inf=5.0))
    assert wide.tolist() == [1.0, 7.0, 5.0, -5.0]


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
