"""Wasserstein distances between diagrams, against Gudhi with POT."""

import functools
import math
from typing import Any

import numpy as np
import ot
import pytest
import torch
from gudhi.wasserstein import wasserstein_distance
from hypothesis import given
from hypothesis import strategies as st

import penalties as pn
from penalties.terms import topology
from penalties.terms.topology.distance import distance
from tests.terms.topologies import circle, field

POWERS = [(1.0, math.inf), (2.0, 2.0), (1.0, 1.0), (3.0, 2.0), (2.0, math.inf), (1.5, 3.0)]


def drawn(count: int, seed: int) -> np.ndarray[Any, Any]:
    """A diagram."""
    rng = np.random.default_rng(seed)
    births = rng.normal(size=count)
    return np.stack([births, births + rng.exponential(size=count)], -1)


@pytest.mark.parametrize(("order", "internal_p"), POWERS)
@pytest.mark.parametrize("counts", [(5, 8), (12, 12), (7, 0), (0, 3), (0, 0), (1, 1)])
def test_distance_is_that_of_gudhi_with_pot(counts: tuple[int, int], order: float, internal_p: float):
    for seed in range(5):
        a, b = drawn(counts[0], seed), drawn(counts[1], 100 + seed)
        expected = wasserstein_distance(a, b, order=order, internal_p=internal_p)
        found = distance(a, b, order=order, internal_p=internal_p, essential=True)
        assert found.value == pytest.approx(expected, abs=1e-12)


def test_distance_is_the_transport_of_pot():
    a, b = drawn(6, 0), drawn(9, 1)
    costs = np.zeros((7, 10))
    costs[:6, :9] = ot.dist(a, b, metric="sqeuclidean")
    costs[:6, 9], costs[6, :9] = ((a[:, 1] - a[:, 0]) ** 2) / 2, ((b[:, 1] - b[:, 0]) ** 2) / 2
    cost = ot.emd2(np.array([1.0] * 6 + [9.0]), np.array([1.0] * 9 + [6.0]), costs)
    found = distance(a, b, order=2, internal_p=2, essential=True)
    assert found.value == pytest.approx(math.sqrt(cost))


def test_features_that_never_die_are_matched_by_their_births():
    a, b = drawn(6, 0), drawn(6, 1)
    a[:3, 1] = b[2:5, 1] = np.inf
    found = distance(a, b, order=2, internal_p=2, essential=True)
    assert found.value == pytest.approx(wasserstein_distance(a, b, order=2, internal_p=2))
    ignored = distance(a, b, order=2, internal_p=2, essential=False)
    expected = wasserstein_distance(a, b, order=2, internal_p=2, keep_essential_parts=False)
    assert ignored.value == pytest.approx(expected)


@pytest.mark.parametrize(("order", "internal_p"), POWERS)
def test_slopes_in_both_diagrams_are_those_of_finite_differences(order: float, internal_p: float):
    both = [drawn(6, 2), drawn(8, 3)]
    for diagram in both:
        diagram[0, 1] = np.inf
    measure = functools.partial(distance, order=order, internal_p=internal_p, essential=True)
    _, *slopes = measure(*both)
    for diagram, slope in zip(both, slopes, strict=True):
        for index in np.argwhere(np.isfinite(diagram)):
            kept, step = diagram[tuple(index)], 1e-6
            diagram[tuple(index)] = kept + step
            above = measure(*both).value
            diagram[tuple(index)] = kept - step
            below = measure(*both).value
            diagram[tuple(index)] = kept
            assert slope[tuple(index)] == pytest.approx((above - below) / (2 * step), abs=1e-7)
        assert not slope[np.isinf(diagram)].any()


@given(seed=st.integers(0, 10**6), counts=st.tuples(*[st.integers(0, 6)] * 3), order=st.sampled_from([1.0, 2.0]))
def test_distance_is_a_metric(seed: int, counts: tuple[int, int, int], order: float):
    a, b, c = (drawn(count, seed + i) for i, count in enumerate(counts))
    measure = functools.partial(distance, order=order, internal_p=2.0, essential=True)
    assert measure(a, a).value == 0
    assert measure(a, b).value == pytest.approx(measure(b, a).value)
    assert measure(a, c).value <= measure(a, b).value + measure(b, c).value + 1e-9


@pytest.mark.parametrize("dimension", [0, 1])
def test_a_cloud_is_at_distance_zero_of_its_own_diagram(library: Any, dimension: int):
    x = library.array(circle(16))
    reference = topology.diagram(x, dimension=dimension)
    assert type(reference) is type(x)
    evaluation = topology.wasserstein(x, reference, dimension=dimension)
    assert evaluation.value == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("filtration", ["sublevel", "superlevel"])
def test_a_field_is_at_distance_zero_of_its_own_diagram(filtration: str):
    x = field(6, 6)
    reference = topology.diagram(x, filtration=filtration, dimension=0)
    assert topology.wasserstein(x, reference, filtration=filtration, dimension=0).value == 0


def test_falling_levels_are_as_far_apart_as_rising_ones_of_the_negative():
    x = field(6, 6)
    reference = topology.diagram(x, filtration="superlevel", dimension=0)
    falling = topology.wasserstein(x + 1, reference, filtration="superlevel", dimension=0)
    rising = topology.wasserstein(-x - 1, -reference, filtration="sublevel", dimension=0)
    assert falling.value == pytest.approx(rising.value)
    assert falling.value > 1


def test_the_reference_has_a_gradient_too():
    x, reference = torch.tensor(circle(16)), torch.tensor([[0.4, 1.2]], dtype=torch.float64, requires_grad=True)
    pn.Pipeline([topology.wasserstein])(x=x, reference=reference).total.backward()
    (b, d) = np.asarray(topology.diagram(circle(16)))[0]
    away = np.array([[0.4 - b, 1.2 - d]])
    np.testing.assert_allclose(reference.grad.numpy(), away / np.linalg.norm(away))


def test_the_gradient_of_a_reference_is_the_mean_over_a_batch():
    members, reference = np.stack([circle(12, seed) for seed in range(3)]), np.array([[0.4, 1.2]])
    alone = [topology.wasserstein(x, reference).gradient["reference"] for x in members]
    together = topology.wasserstein(members, reference, batched=True)
    np.testing.assert_allclose(together.gradient["reference"], np.mean(alone, 0))


def test_a_reference_may_belong_to_another_library():
    x = torch.tensor(circle(16), requires_grad=True)
    reference = np.array([[0.4, 1.2]])
    out = pn.Pipeline([topology.wasserstein])(x=x, reference=reference)
    out.total.backward()
    np.testing.assert_allclose(x.grad, topology.wasserstein(circle(16), reference).gradient["x"], atol=1e-9)


def test_a_cloud_learns_the_diagram_of_another():
    target = topology.diagram(circle(24) * 1.5)
    x = circle(24, seed=1, noise=0.2)
    before = topology.wasserstein(x, target).value
    for _ in range(150):
        x = x - 0.05 * topology.wasserstein(x, target).gradient["x"]
    assert topology.wasserstein(x, target).value < 0.1 < 0.5 < before
