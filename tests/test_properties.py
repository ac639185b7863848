"""What holds for any input: signs, symmetries, bounds, scaling. Inputs are drawn by hypothesis, with a fixed seed."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import penalties as pn
from penalties.backends import owner
from tests.cases import log_softmax
from tests.libraries import call

LN2 = math.log(2)


def reals(bound: float) -> st.SearchStrategy[float]:
    return st.floats(-bound, bound, width=32)


# Few shapes: JAX compiles every operation anew for each.
SHAPES = st.sampled_from([(1,), (7,), (3, 4)])
DISTRIBUTIONS = st.sampled_from([(1, 2), (3, 5)])
MATRICES = st.sampled_from([(1, 3), (4, 4), (3, 6), (6, 3)])


def arrays(bound: float = 100.0) -> st.SearchStrategy[np.ndarray]:
    return SHAPES.flatmap(lambda s: hnp.arrays(np.float64, s, elements=reals(bound)))


def logprobs() -> st.SearchStrategy[np.ndarray]:
    return DISTRIBUTIONS.flatmap(lambda s: hnp.arrays(np.float64, s, elements=reals(5.0))).map(log_softmax)


def pairs() -> st.SearchStrategy[tuple[np.ndarray, np.ndarray]]:
    logits = DISTRIBUTIONS.flatmap(lambda s: hnp.arrays(np.float64, (2, *s), elements=reals(5.0)))
    return logits.map(lambda x: (log_softmax(x[0]), log_softmax(x[1])))


def number(library: Any, name: str, *inputs: Any, **options: Any) -> float:
    return float(library.numpy(call(library, name, *inputs, dtype="float64", **options)))


NORMS = ["l1", "l2", "elastic_net", "smooth_l1"]


@pytest.mark.parametrize("name", NORMS)
@given(x=arrays())
def test_never_negative_and_even(library: Any, name: str, x: np.ndarray) -> None:
    value = number(library, name, x)
    assert value >= 0
    assert math.isclose(number(library, name, -x), value, rel_tol=1e-9, abs_tol=1e-12)


@pytest.mark.parametrize("name", NORMS)
def test_zero_at_zero(library: Any, name: str) -> None:
    assert number(library, name, np.zeros((3, 2))) == 0


@pytest.mark.parametrize("name", NORMS)
@given(x=arrays())
def test_mean_is_the_sum_by_count_and_none_adds_up(library: Any, name: str, x: np.ndarray) -> None:
    total = number(library, name, x)
    assert math.isclose(number(library, name, x, reduction="mean") * x.size, total, rel_tol=1e-9, abs_tol=1e-12)
    each = library.numpy(call(library, name, x, dtype="float64", reduction="none"))
    assert each.shape == x.shape
    assert math.isclose(each.sum(), total, rel_tol=1e-9, abs_tol=1e-12)


@pytest.mark.parametrize("name", NORMS)
@given(x=arrays())
def test_gradient_has_the_shape_of_the_input_and_is_finite(autodiff: Any, name: str, x: np.ndarray) -> None:
    (gradient,) = autodiff.gradients(getattr(pn, name), autodiff.array(x))
    assert gradient.shape == x.shape
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("name", NORMS)
@given(x=arrays(), y=hnp.arrays(np.float64, (3, 4), elements=reals(100.0)))
def test_a_nest_is_the_sum_of_its_leaves(library: Any, name: str, x: np.ndarray, y: np.ndarray) -> None:
    fn = getattr(pn, name)
    nest = {"x": library.array(x, "float64"), "rest": [library.array(y, "float64")]}
    found = float(library.numpy(fn(nest)))
    parts = number(library, name, x) + number(library, name, y)
    assert math.isclose(found, parts, rel_tol=1e-9, abs_tol=1e-12)
    mean = float(library.numpy(fn(nest, reduction="mean")))
    assert math.isclose(mean, parts / (x.size + y.size), rel_tol=1e-9, abs_tol=1e-12)


@given(x=arrays(10.0))
def test_l1_triangle_inequality(library: Any, x: np.ndarray) -> None:
    y = np.roll(x, 1)
    assert number(library, "l1", x + y) <= number(library, "l1", x) + number(library, "l1", y) + 1e-9


@given(x=arrays(), k=st.floats(0.1, 10))
def test_l2_is_quadratic(library: Any, x: np.ndarray, k: float) -> None:
    assert math.isclose(number(library, "l2", k * x), k * k * number(library, "l2", x), rel_tol=1e-9, abs_tol=1e-12)


@given(x=arrays(), ratio=st.floats(0, 1))
def test_elastic_net_lies_between_its_ends(library: Any, x: np.ndarray, ratio: float) -> None:
    ends = number(library, "l1", x), number(library, "l2", x)
    assert math.isclose(number(library, "elastic_net", x, l1_ratio=1.0), ends[0])
    assert math.isclose(number(library, "elastic_net", x, l1_ratio=0.0), ends[1])
    value = number(library, "elastic_net", x, l1_ratio=ratio)
    assert min(ends) - 1e-6 <= value <= max(ends) * (1 + 1e-9) + 1e-9


@given(x=arrays(), delta=st.floats(0.01, 10))
def test_smooth_l1_stays_within_half_delta_below_l1(library: Any, x: np.ndarray, delta: float) -> None:
    gap = number(library, "l1", x) - number(library, "smooth_l1", x, delta=delta)
    assert -1e-6 <= gap <= x.size * delta / 2 + 1e-6


@given(pq=pairs())
def test_kl_is_never_negative(library: Any, pq: tuple[np.ndarray, np.ndarray]) -> None:
    assert number(library, "kl_divergence", *pq) >= -1e-9
    assert abs(number(library, "kl_divergence", pq[0], pq[0])) < 1e-12


@given(pq=pairs())
def test_reverse_is_swapped_and_symmetric_is_their_mean(library: Any, pq: tuple[np.ndarray, np.ndarray]) -> None:
    p, q = pq
    forward, backward = number(library, "kl_divergence", p, q), number(library, "kl_divergence", q, p)
    assert number(library, "kl_divergence", p, q, direction="reverse") == backward
    for direction in ("forward", "reverse"):
        both = number(library, "kl_divergence", p, q, symmetric=True, direction=direction)
        assert math.isclose(both, (forward + backward) / 2, abs_tol=1e-12)
    assert math.isclose(number(library, "consistency", p, q, metric="kl"), (forward + backward) / 2, abs_tol=1e-12)


@given(pq=pairs())
def test_js_is_symmetric_and_bounded(library: Any, pq: tuple[np.ndarray, np.ndarray]) -> None:
    p, q = pq
    value = number(library, "js_divergence", p, q)
    assert -1e-12 <= value <= LN2 + 1e-12
    assert math.isclose(number(library, "js_divergence", q, p), value, abs_tol=1e-12)
    assert abs(number(library, "js_divergence", p, p)) < 1e-12
    assert math.isclose(number(library, "js_divergence", p, q, base=2), value / LN2, abs_tol=1e-12)
    assert 0 <= number(library, "js_divergence", p, q, sqrt=True) <= math.sqrt(LN2) + 1e-9
    assert number(library, "js_divergence", p, p, sqrt=True) == 0


@given(p=logprobs())
def test_entropy_is_bounded_by_the_uniform(library: Any, p: np.ndarray) -> None:
    most = math.log(p.shape[-1])
    value = number(library, "entropy", p)
    assert -1e-12 <= value <= most + 1e-9
    assert 0 <= number(library, "entropy", p, normalize=True) <= 1 + 1e-9
    assert number(library, "entropy", p, mode="bonus") == -value
    assert math.isclose(number(library, "entropy", np.full(p.shape, -most)), most, abs_tol=1e-9)


@given(p=logprobs(), temperature=st.floats(0.2, 5))
def test_temperature_flattens(library: Any, p: np.ndarray, temperature: float) -> None:
    gap = number(library, "entropy", p, temperature=temperature) - number(library, "entropy", p)
    assert gap >= -1e-9 if temperature >= 1 else gap <= 1e-9


@given(pq=pairs())
def test_reductions_agree(library: Any, pq: tuple[np.ndarray, np.ndarray]) -> None:
    for name, inputs in (("kl_divergence", pq), ("js_divergence", pq), ("entropy", pq[:1])):
        each = library.numpy(call(library, name, *inputs, dtype="float64", reduction="none"))
        assert each.shape == pq[0].shape[:-1]
        assert math.isclose(number(library, name, *inputs, reduction="sum"), each.sum(), abs_tol=1e-9)
        assert math.isclose(number(library, name, *inputs), each.mean(), abs_tol=1e-9)


@given(pq=pairs())
def test_logits_are_normalised_inside(library: Any, pq: tuple[np.ndarray, np.ndarray]) -> None:
    shifted = [x + 3.0 for x in pq]
    for name, count in (("kl_divergence", 2), ("js_divergence", 2), ("entropy", 1)):
        inside = number(library, name, *shifted[:count], logits=True)
        assert math.isclose(inside, number(library, name, *pq[:count]), abs_tol=1e-9)


@given(pq=pairs())
def test_gradients_have_the_shape_of_the_inputs(autodiff: Any, pq: tuple[np.ndarray, np.ndarray]) -> None:
    for fn in (pn.kl_divergence, pn.js_divergence):
        for gradient in autodiff.gradients(fn, *[autodiff.array(x) for x in pq]):
            assert gradient.shape == pq[0].shape
            assert np.isfinite(gradient).all()


@given(pq=pairs())
def test_k3_is_never_negative_and_all_are_zero_at_the_reference(
    library: Any, pq: tuple[np.ndarray, np.ndarray]
) -> None:
    p, q = pq
    assert number(library, "kl_estimate", p, q) >= 0
    assert number(library, "kl_estimate", p, q, estimator="k2") >= 0
    assert math.isclose(number(library, "kl_estimate", p, q, estimator="k1"), (p - q).mean(), abs_tol=1e-9)
    for estimator in ("k1", "k2", "k3"):
        assert number(library, "kl_estimate", p, p, estimator=estimator) == 0


@given(pq=pairs())
def test_k1_and_k3_are_unbiased(library: Any, pq: tuple[np.ndarray, np.ndarray]) -> None:
    """Averaged over the policy itself, each row's estimate is the divergence."""
    p, q = pq
    exact = library.numpy(call(library, "kl_divergence", p, q, dtype="float64", reduction="none"))
    for estimator in ("k1", "k3"):
        each = library.numpy(call(library, "kl_estimate", p, q, dtype="float64", estimator=estimator, reduction="none"))
        np.testing.assert_allclose((np.exp(p) * each).sum(-1), exact, atol=1e-9)


@given(p=logprobs())
def test_entropy_estimate_averages_to_the_entropy(library: Any, p: np.ndarray) -> None:
    each = library.numpy(call(library, "entropy_estimate", p, dtype="float64", reduction="none"))
    exact = library.numpy(call(library, "entropy", p, dtype="float64", reduction="none"))
    np.testing.assert_allclose((np.exp(p) * each).sum(-1), exact, atol=1e-9)
    assert number(library, "entropy_estimate", p, mode="bonus") == -number(library, "entropy_estimate", p)


@given(x=arrays(10.0))
def test_consistency_is_zero_on_itself_and_symmetric(library: Any, x: np.ndarray) -> None:
    y = np.roll(x, 1) + 0.5
    for metric in ("mse", "l1", "cosine"):
        # A zero vector has no direction, so its distance is 1 even from itself.
        if metric != "cosine" or np.abs(x).max(-1).min() > 0:
            assert abs(number(library, "consistency", x, x, metric=metric)) < 1e-12
        value = number(library, "consistency", x, y, metric=metric)
        assert value >= 0
        assert math.isclose(number(library, "consistency", y, x, metric=metric), value, abs_tol=1e-9)


@settings(max_examples=10)
@given(seed=st.integers(0, 1000), shape=MATRICES)
def test_orthogonality_is_the_plain_gram_expression(library: Any, seed: int, shape: tuple[int, int]) -> None:
    rows, columns = shape
    x = np.random.default_rng(seed).normal(size=(rows, columns))
    for normalize in (False, True):
        m = x / np.linalg.norm(x, axis=1, keepdims=True) if normalize else x
        gram = m @ m.T
        off = gram - np.diag(np.diag(gram))
        deviation = np.abs(np.linalg.svd(m, compute_uv=False) ** 2 - 1).max()
        soft = number(library, "orthogonality", x, normalize=normalize)
        hard = number(library, "orthogonality", x, normalize=normalize, mode="hard")
        exact = number(library, "orthogonality", x, normalize=normalize, mode="spectral", exact=True)
        assert math.isclose(soft, (off**2).sum(), rel_tol=1e-9, abs_tol=1e-9)
        assert math.isclose(hard, ((gram - np.eye(rows)) ** 2).sum(), rel_tol=1e-9, abs_tol=1e-9)
        assert math.isclose(exact, deviation, rel_tol=1e-9, abs_tol=1e-9)
        iterated = number(library, "orthogonality", x, normalize=normalize, mode="spectral", iterations=3000)
        assert math.isclose(iterated, deviation, rel_tol=2e-3, abs_tol=1e-9)
        assert iterated <= deviation + 1e-9


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("mode", ["soft", "hard"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_sampling_rows_is_unbiased(library: Any, mode: str, reduction: str, normalize: bool) -> None:
    """Averaged over every choice of 2 rows out of 5, the sampled value is the full one."""
    x = np.random.default_rng(6).normal(size=(5, 3))
    options = {"mode": mode, "reduction": reduction, "normalize": normalize}
    picks = [np.array([i, j]) for i in range(5) for j in range(i)]
    found = [number(library, "orthogonality", x, sample_size=2, seed=rows, **options) for rows in picks]
    assert math.isclose(np.mean(found), number(library, "orthogonality", x, **options), rel_tol=1e-9)


def test_a_sample_as_large_as_the_matrix_is_the_matrix(library: Any) -> None:
    x = np.random.default_rng(7).normal(size=(5, 3))
    assert number(library, "orthogonality", x, sample_size=5) == number(library, "orthogonality", x)
    assert number(library, "orthogonality", x, sample_size=50) == number(library, "orthogonality", x)


@given(seed=st.integers(0, 1000))
def test_interpolated_penalty_is_never_negative(autodiff: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, reference = autodiff.array(rng.normal(size=(2, 4))), autodiff.array(rng.normal(size=(2, 4)))
    value = pn.interpolated_gradient_penalty(lambda z: (z**3).sum(-1), x, reference, seed=seed)
    assert value.shape == ()
    assert autodiff.numpy(value) >= 0


def test_interpolation_lies_between_its_ends(autodiff: Any) -> None:
    x, reference = autodiff.array(np.ones((3, 2))), autodiff.array(np.zeros((3, 2)))
    epsilon = np.array([0.0, 0.25, 1.0])
    seen = []

    def record(z: Any) -> Any:
        seen.append(autodiff.numpy(z) if autodiff.name == "torch" else None)
        return (z * z).sum(-1)

    value = pn.interpolated_gradient_penalty(record, x, reference, seed=autodiff.array(epsilon))
    norms = 2 * np.sqrt(2) * epsilon
    np.testing.assert_allclose(autodiff.numpy(value), ((norms - 1) ** 2).mean(), rtol=1e-6)
    if autodiff.name == "torch":
        np.testing.assert_allclose(seen[0], np.repeat(epsilon[:, None], 2, 1))


@given(y=arrays(), target=st.floats(0, 10))
def test_output_magnitude_is_the_distance_from_the_target(library: Any, y: np.ndarray, target: float) -> None:
    value = number(library, "output_magnitude", y, target=target)
    assert math.isclose(value, (np.sqrt((y**2).mean()) - target) ** 2, rel_tol=1e-6, abs_tol=1e-9)


@pytest.mark.parametrize("name", NORMS)
def test_packed_or_not_is_the_same(library: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(16)
    leaves = [library.array(rng.normal(size=shape), "float64") for shape in ((3,), (2, 4), (), (0, 2))]
    backend = owner(leaves[0])
    for reduction in ("sum", "mean"):
        found = []
        for packs in (True, False):
            monkeypatch.setattr(backend, "packs", lambda leaves, packs=packs: packs)
            found.append(float(library.numpy(getattr(pn, name)(leaves, reduction=reduction))))
        assert math.isclose(*found, rel_tol=1e-9)
    monkeypatch.undo()
    assert backend.packs(leaves)
    assert not backend.packs([library.array(np.zeros(2**21), "float32")] * 2)
