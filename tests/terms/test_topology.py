"""Diagrams, total persistence and metrics: Gudhi's numbers, and what holds for any input."""

from typing import Any

import gudhi
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist, pdist, squareform

from penalties.terms import topology
from penalties.terms.topology.stopping import last_birth
from tests.terms.topologies import FILTRATIONS, circle, cloud, field, lives, of

CLOUDS = ("rips", "alpha")


def rows(diagram: Any) -> Any:
    """A diagram in an order of its own, without features that do not live."""
    diagram = np.asarray(diagram, float).reshape(-1, 2)
    diagram = diagram[diagram[:, 0] != diagram[:, 1]]
    return diagram[np.lexsort((diagram[:, 1], diagram[:, 0]))]


def by_simplices(points: Any, dimension: int) -> Any:
    """The Vietoris-Rips diagram from the whole simplicial complex."""
    tree = gudhi.RipsComplex(points=points).create_simplex_tree(max_dimension=dimension + 1)
    tree.compute_persistence(homology_coeff_field=2)
    return rows(tree.persistence_intervals_in_dimension(dimension))


@pytest.mark.parametrize("dimension", [0, 1, 2])
@pytest.mark.parametrize("coordinates", [1, 2, 3, 8])
def test_rips_has_the_diagrams_of_the_whole_complex(coordinates: int, dimension: int):
    points = cloud(30, coordinates)
    np.testing.assert_allclose(rows(topology.diagram(points, dimension=dimension)), by_simplices(points, dimension))


def test_rips_is_right_where_many_edges_are_equally_long():
    grid = np.stack(np.meshgrid(np.arange(4.0), np.arange(5.0)), -1).reshape(-1, 2)
    for dimension in (0, 1):
        diagram = rows(topology.diagram(grid, dimension=dimension))
        np.testing.assert_allclose(diagram, by_simplices(grid, dimension))


@pytest.mark.parametrize("dimension", [0, 1, 2])
@pytest.mark.parametrize("coordinates", [2, 3])
def test_alpha_has_the_square_roots_of_the_squared_radii(coordinates: int, dimension: int):
    points = cloud(40, coordinates)
    tree = gudhi.AlphaComplex(points=points).create_simplex_tree()
    tree.compute_persistence(homology_coeff_field=2)
    expected = rows(np.sqrt(np.reshape(tree.persistence_intervals_in_dimension(dimension), (-1, 2))))
    found = rows(topology.diagram(points, filtration="alpha", dimension=dimension))
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_alpha_is_right_where_many_points_lie_on_a_sphere():
    grid = np.stack(np.meshgrid(np.arange(4.0), np.arange(4.0), np.arange(3.0)), -1).reshape(-1, 3)
    np.testing.assert_allclose(lives(grid, 0, filtration="alpha"), np.full(47, 0.5))
    loops = topology.diagram(grid, filtration="alpha", dimension=1)
    np.testing.assert_allclose(loops, np.tile([0.5, np.sqrt(0.5)], (len(loops), 1)))
    voids = topology.diagram(grid, filtration="alpha", dimension=2)
    np.testing.assert_allclose(voids, np.tile([np.sqrt(0.5), np.sqrt(0.75)], (3 * 3 * 2, 1)))


@pytest.mark.parametrize("shape", [(20,), (1, 9), (2, 9), (6, 8), (4, 5, 3)])
@pytest.mark.parametrize("falling", [False, True])
def test_levels_have_the_diagrams_of_the_whole_complex(shape: tuple[int, ...], falling: bool):
    x = field(*shape)
    sign = -1 if falling else 1
    cells = gudhi.CubicalComplex(top_dimensional_cells=sign * x)
    cells.compute_persistence(homology_coeff_field=2)
    for dimension in range(3):
        found = topology.diagram(x, filtration="superlevel" if falling else "sublevel", dimension=dimension)
        expected = rows(cells.persistence_intervals_in_dimension(dimension))
        np.testing.assert_array_equal(rows(sign * np.asarray(found)), expected)


@pytest.mark.parametrize("seed", range(4))
def test_no_loop_is_born_after_the_longest_edge_without_a_nearer_third_point(seed: int):
    points = [cloud(40, 2, seed), circle(60, seed), cloud(50, 8, seed), circle(9, seed)][seed]
    ranks = squareform(np.argsort(np.argsort(pdist(points))).astype(np.uint32) + 1, force="tomatrix")
    pairs = np.transpose(np.triu_indices(len(points), 1))
    alone = [ranks[a, b] for a, b in pairs if not (np.maximum(ranks[a], ranks[b]) < ranks[a, b]).any()]
    assert last_birth(ranks) == max(alone)
    np.testing.assert_allclose(rows(topology.diagram(points)), by_simplices(points, 1))


@pytest.mark.parametrize("noise", [0, 0.1])
def test_a_loop_that_outlives_the_early_stops_is_complete(noise: float):
    points = circle(80, noise=noise)
    np.testing.assert_allclose(rows(topology.diagram(points)), by_simplices(points, 1))


def test_superlevels_are_born_above_where_they_die():
    hill = np.array([0.0, 3.0, 1.0, 2.0, 0.0])
    found = topology.diagram(hill, filtration="superlevel", dimension=0)
    np.testing.assert_array_equal(found, [[3.0, -np.inf], [2.0, 1.0]])


def test_pieces_of_a_cloud_die_with_the_edges_of_its_shortest_tree():
    points = cloud(12)
    distances = cdist(points, points)
    inside, tree = {0}, []
    while len(inside) < len(points):
        length, new = min((distances[a, b], b) for a in inside for b in set(range(len(points))) - inside)
        inside.add(new)
        tree.append(length)
    np.testing.assert_allclose(lives(points, 0), sorted(tree, reverse=True))
    assert topology.total_persistence(points, dimensions=0).value == pytest.approx(sum(tree))


@pytest.mark.parametrize("filtration", FILTRATIONS)
@pytest.mark.parametrize("power", [1, 2.5])
def test_total_is_the_sum_of_powers_of_lives(filtration: str, power: float):
    x = of(filtration)
    evaluation = topology.total_persistence(x, filtration=filtration, power=power)
    expected = sum((lives(x, k, filtration=filtration) ** power).sum() for k in (0, 1))
    assert evaluation.value == pytest.approx(expected)


def test_features_that_do_not_outlive_the_threshold_count_nothing():
    x = cloud()
    life = lives(x, 0)
    cut = float(life[10])
    evaluation = topology.total_persistence(x, dimensions=0, longer_than=cut)
    assert evaluation.value == pytest.approx(life[:10].sum())


def test_where_edges_stop_what_is_alive_never_dies():
    x = circle()
    whole, stopped = (topology.diagram(x, max_edge_length=longest) for longest in (None, 1.0))
    assert np.isfinite(whole).all()
    assert np.isinf(stopped[:, 1]).sum() == 1
    assert stopped[:, 0].max() <= 1.0
    evaluation = topology.total_persistence(x, dimensions=1, max_edge_length=1.0)
    assert evaluation.metrics["betti_1"] == evaluation.metrics["features_1"] + 1
    assert not topology.total_persistence(x, max_edge_length=1e-9).value


def test_a_circle_has_one_piece_and_one_loop_in_its_metrics():
    metrics = topology.total_persistence(circle(), visible=0.5).metrics
    assert (metrics["betti_0"], metrics["betti_1"]) == (1, 1)
    assert metrics["features_0"] == 39
    assert 1 < metrics["longest_1"] < np.sqrt(3)
    assert metrics["total_0"] == pytest.approx(lives(circle(), 0).sum())


def test_a_sphere_has_a_void():
    height = np.linspace(-0.98, 0.98, 60)
    around = np.pi * (3 - np.sqrt(5)) * np.arange(60)
    width = np.sqrt(1 - height**2)
    points = np.stack([width * np.cos(around), width * np.sin(around), height], -1)
    for filtration in CLOUDS:
        metrics = topology.total_persistence(points, filtration=filtration, dimensions=[1, 2], visible=0.3).metrics
        assert (metrics["betti_1"], metrics["betti_2"]) == (0, 1)
    found = topology.diagram(points, filtration="alpha", dimension=2)
    assert len(found) == 1
    assert found[0, 1] == pytest.approx(1)


@pytest.mark.parametrize("filtration", FILTRATIONS)
def test_a_batch_has_the_means_of_its_members(filtration: str):
    members = [of(filtration, seed) for seed in range(3)]
    alone = [topology.total_persistence(x, filtration=filtration) for x in members]
    together = topology.total_persistence(np.stack(members), filtration=filtration, batched=True)
    assert together.value == pytest.approx(np.mean([one.value for one in alone]))
    gradients = np.stack([one.gradient["x"] for one in alone])
    np.testing.assert_allclose(together.gradient["x"], gradients / 3)
    assert together.metrics["longest_0"] == pytest.approx(np.mean([one.metrics["longest_0"] for one in alone]))


@given(seed=st.integers(0, 10**6), angle=st.floats(0, 6.3), scale=st.floats(0.01, 100), data=st.data())
@pytest.mark.parametrize("filtration", CLOUDS)
def test_moving_points_changes_nothing_and_scaling_scales(
    filtration: str, seed: int, angle: float, scale: float, data: st.DataObject
):
    points = cloud(14, seed=seed)
    turned = points @ np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]) + [3.0, -7.0]
    shuffled = turned[data.draw(st.permutations(range(14)))]
    value = topology.total_persistence(points, filtration=filtration).value
    assert topology.total_persistence(shuffled, filtration=filtration).value == pytest.approx(value)
    scaled = topology.total_persistence(scale * points, filtration=filtration, power=2).value
    squares = topology.total_persistence(points, filtration=filtration, power=2).value
    assert scaled == pytest.approx(scale**2 * squares)


@given(seed=st.integers(0, 10**6), shift=st.floats(-10, 10), scale=st.floats(0.01, 100))
def test_shifting_levels_changes_nothing_and_negating_exchanges_them(seed: int, shift: float, scale: float):
    x = field(6, 7, seed=seed)
    value = topology.total_persistence(x, filtration="sublevel").value
    moved = topology.total_persistence(shift + scale * x.T[::-1], filtration="sublevel").value
    assert moved == pytest.approx(scale * value)
    assert topology.total_persistence(-x, filtration="superlevel").value == pytest.approx(value)
