"""Gradients against finite differences, at kinks, and on the way through libraries, precisions and processes."""

import functools
from typing import Any

import jax
import numpy as np
import pytest
import torch

import penalties as pn
from penalties.terms import topology
from penalties.testing import check_term
from tests.terms.topologies import FILTRATIONS, circle, cloud, differences, field, of

TERMS = {
    "total": functools.partial(topology.total_persistence, power=2),
    "betti": functools.partial(topology.target_betti, betti={0: 2, 1: 1}, size=2.0, power=2),
    "distance": functools.partial(topology.wasserstein, reference=np.array([[0.3, 0.9], [0.5, 0.6]])),
}


@pytest.mark.parametrize("filtration", ["rips", "alpha", "sublevel"])
@pytest.mark.parametrize("name", TERMS)
def test_gradient_is_that_of_finite_differences(name: str, filtration: str):
    returned, measured = differences(functools.partial(TERMS[name], filtration=filtration), of(filtration))
    assert np.abs(returned).max() > 0.01
    np.testing.assert_allclose(returned, measured, atol=1e-6)


def test_gradient_of_falling_levels_is_that_of_finite_differences():
    falling = np.array([[0.9, 0.3], [0.6, 0.5]])
    terms = (*(TERMS[name] for name in ("total", "betti")), functools.partial(topology.wasserstein, reference=falling))
    for term in terms:
        returned, measured = differences(functools.partial(term, filtration="superlevel"), field(6, 7))
        assert np.abs(returned).max() > 0.01
        np.testing.assert_allclose(returned, measured, atol=1e-6)


@pytest.mark.parametrize(("filtration", "dimension"), [("alpha", 2), ("alpha", 1), ("alpha", 0)])
def test_gradient_in_space_is_that_of_finite_differences(filtration: str, dimension: int):
    points = cloud(16, 3, seed=2)
    # Around a void.
    points /= 0.2 + np.linalg.norm(points, axis=1, keepdims=True)
    fn = functools.partial(topology.total_persistence, filtration=filtration, dimensions=dimension)
    returned, measured = differences(fn, points)
    assert np.abs(returned).max() > 0.01
    np.testing.assert_allclose(returned, measured, atol=1e-6)


def test_gradient_where_edges_stop_is_that_of_finite_differences():
    fn = functools.partial(topology.target_betti, betti={0: 1, 1: 0}, max_edge_length=0.8)
    returned, measured = differences(fn, cloud())
    np.testing.assert_allclose(returned, measured, atol=1e-6)


def test_gradient_of_a_simplified_complex_belongs_to_the_edges_that_features_have():
    """Dimension 2 is computed after edge collapses, which move features to other edges of the simplified graph."""
    points = cloud(24, 3, seed=2)
    points /= 0.2 + np.linalg.norm(points, axis=1, keepdims=True)
    fn = functools.partial(topology.total_persistence, dimensions=(1, 2), power=2)
    assert fn(points).metrics["features_2"]
    returned, measured = differences(fn, points)
    np.testing.assert_allclose(returned, measured, atol=1e-6)


@pytest.mark.parametrize("filtration", ["rips", "alpha"])
def test_points_that_coincide_have_finite_gradients(filtration: str):
    points = np.concatenate([circle(12), circle(12)[:5], np.zeros((3, 2))])
    for term in TERMS.values():
        evaluation = term(points, filtration=filtration)
        assert np.isfinite(evaluation.gradient["x"]).all()
    nowhere = topology.total_persistence(np.ones((4, 2)), filtration=filtration)
    assert nowhere.value == 0
    assert not nowhere.gradient["x"].any()


@pytest.mark.parametrize("filtration", FILTRATIONS)
def test_gradients_of_a_cloud_sum_to_zero_and_of_a_field_to_the_change_of_lives(filtration: str):
    gradient = topology.total_persistence(of(filtration), filtration=filtration).gradient["x"]
    np.testing.assert_allclose(gradient.sum(0 if filtration in ("rips", "alpha") else None), 0, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_every_library_and_precision_has_the_same_numbers(library: Any, dtype: str):
    exact = library.numpy(library.array(circle(16), dtype))
    reference = topology.target_betti(exact, betti={1: 1}, size=3.0)
    x = library.array(circle(16), dtype)
    term = pn.Term(topology.target_betti, options={"betti": {1: 1}, "size": 3.0})
    out = pn.Pipeline([term]).value_and_grad(x, wrt="input")
    tolerance = {"float64": 1e-9, "float32": 1e-6, "float16": 1e-3}[dtype]
    assert float(library.numpy(out.total)) == pytest.approx(reference.value, rel=max(tolerance, 1e-6))
    np.testing.assert_allclose(library.numpy(out.gradient), reference.gradient["x"], atol=tolerance)
    assert library.dtype(out.gradient) == dtype


def test_gradient_reaches_what_the_points_were_computed_from():
    base = torch.tensor(circle(16), requires_grad=True)
    pipeline = pn.Pipeline([pn.Term(topology.total_persistence, weight=0.5)])
    pipeline(base * 2).total.backward()
    expected = topology.total_persistence(2 * circle(16)).gradient["x"]
    np.testing.assert_allclose(base.grad.numpy(), expected, atol=1e-9)
    traced = jax.grad(lambda x: pipeline(x * 2).total)(jax.numpy.asarray(circle(16)))
    np.testing.assert_allclose(traced, expected, atol=1e-9)


def test_value_is_there_without_gradients():
    x = torch.tensor(circle(16), requires_grad=True)
    with torch.no_grad():
        out = pn.Pipeline([topology.total_persistence])(x)
    assert not out.total.requires_grad
    assert out.total.item() == pytest.approx(topology.total_persistence(circle(16)).value)


def test_inside_a_compiler_there_are_no_values():
    pipeline = pn.Pipeline([topology.total_persistence])
    with pytest.raises(pn.TermError, match="x is being traced by a compiler"):
        jax.jit(lambda x: pipeline(x).total)(jax.numpy.asarray(circle(8)))


@pytest.mark.slow
def test_a_process_has_the_numbers_of_this_one():
    x = torch.tensor(circle(16), requires_grad=True)
    term = pn.Term("penalties.terms.topology:target_betti", options={"betti": {0: 1, 1: 1}}, runs="process", timeout=60)
    with pn.Executor(max_workers=1) as executor:
        out = executor.run(pn.Pipeline([term]), {"x": x})
    out.total.backward()
    here = topology.target_betti(circle(16), betti={0: 1, 1: 1})
    assert out.total.item() == pytest.approx(here.value)
    np.testing.assert_allclose(x.grad.numpy(), here.gradient["x"], atol=1e-12)
    assert out["target_betti"].metrics["betti_1"] == 1


@pytest.mark.parametrize("name", TERMS)
def test_the_checks_for_terms_find_nothing(name: str):
    points = torch.tensor(cloud(12), dtype=torch.float32)
    verdict = check_term(TERMS[name], {"x": points}, wrt="x", compile=False)
    assert verdict.ok


def test_loops_are_opened_and_closed_by_gradient_steps():
    opened = cloud(24, seed=3)
    term = functools.partial(topology.target_betti, betti={1: 1}, size=1.5)
    before = term(opened)
    for _ in range(150):
        opened = opened - 0.05 * term(opened).gradient["x"]
    after = term(opened)
    assert before.metrics["longest_1"] < 0.75 < 1.4 < after.metrics["longest_1"]
    closed = circle(24)
    for _ in range(150):
        closed = closed - 0.05 * topology.total_persistence(closed, dimensions=1).gradient["x"]
    assert topology.total_persistence(closed, dimensions=1).value < 0.2
