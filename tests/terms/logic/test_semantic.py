"""The semantic loss: against enumeration, the models that Z3 finds, finite differences and closed forms."""

import functools
import itertools
import math
from typing import Any

import jax
import numpy as np
import pytest
import torch
import z3

import penalties as pn
from penalties.terms.logic import semantic_loss
from tests.libraries import NUMPY, TORCH, check, close, value_and_gradients

RANGES = [{"exactly": 1}, {"exactly": 0}, {"exactly": 3}, {"at_least": 1}, {"at_least": 2}, {"at_most": 1}]
RANGES += [{"at_most": 3}, {"at_least": 2, "at_most": 3}, {"at_least": 4}, {"at_least": 0, "at_most": 5}]


def probabilities(rows: int = 3, size: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.05, 0.95, (rows, size))


def bounds(size: int, options: dict[str, int]) -> tuple[int, int]:
    exactly = options.get("exactly")
    return (options.get("at_least", 0), options.get("at_most", size)) if exactly is None else (exactly, exactly)


def enumerated(p: np.ndarray, low: int, high: int) -> float:
    """`−log P` by adding up all worlds."""
    worlds = itertools.product([False, True], repeat=len(p))
    return -math.log(sum(np.prod(np.where(world, p, 1 - p)) for world in worlds if low <= sum(world) <= high))


@pytest.mark.parametrize("options", RANGES, ids=str)
def test_it_is_the_sum_over_all_worlds(options: dict[str, int]) -> None:
    p = probabilities()
    value, metrics = semantic_loss(p, **options, reduction="none")
    right = [enumerated(row, *bounds(5, options)) for row in p]
    np.testing.assert_allclose(value, right, atol=1e-12)
    assert metrics["probability"] == pytest.approx(np.exp(-np.array(right)).mean())


@pytest.mark.parametrize("size", [1, 2, 3, 6, 7, 9])
def test_every_count_of_every_size_is_right(size: int) -> None:
    (p,) = probabilities(1, size, seed=size)
    for low, high in itertools.combinations_with_replacement(range(size + 1), 2):
        found = semantic_loss(p, at_least=low, at_most=high)[0]
        assert found == pytest.approx(enumerated(p, low, high), abs=1e-12)


def test_its_worlds_are_the_models_of_z3() -> None:
    (p,) = probabilities(1, 6)
    variables = z3.Bools("a b c d e f")
    for constraint, options in ((z3.PbEq, {"exactly": 2}), (z3.PbGe, {"at_least": 4}), (z3.PbLe, {"at_most": 1})):
        (number,) = options.values()
        solver = z3.Solver()
        solver.add(constraint([(variable, 1) for variable in variables], number))
        total = 0.0
        while solver.check() == z3.sat:
            model = solver.model()
            world = [z3.is_true(model.eval(variable, model_completion=True)) for variable in variables]
            total += np.prod(np.where(world, p, 1 - p))
            solver.add(z3.Or([variable != value for variable, value in zip(variables, world, strict=True)]))
        assert semantic_loss(p, **options)[0] == pytest.approx(-math.log(total))


def test_exactly_one_has_its_closed_form() -> None:
    p = probabilities(4, 12)
    closed = -np.log1p(-p).sum(-1) - np.log((p / (1 - p)).sum(-1))
    np.testing.assert_allclose(semantic_loss(p, exactly=1, reduction="none")[0], closed, rtol=1e-12)


def test_counts_may_differ_from_row_to_row() -> None:
    p = probabilities(6)
    value, _ = semantic_loss(p, exactly=np.arange(6), reduction="none")
    np.testing.assert_allclose(value, [enumerated(row, k, k) for k, row in enumerate(p)], atol=1e-12)


@pytest.mark.parametrize("options", [{"exactly": 2}, pytest.param({"at_least": 2}, marks=pytest.mark.slow)], ids=str)
def test_libraries_logits_and_finite_differences_agree(library: Any, options: dict[str, int]) -> None:
    p = probabilities()
    x, step = np.log(p) - np.log1p(-p), 1e-6
    fn = functools.partial(semantic_loss, **options)
    expected, numbers = fn(p)
    value, metrics = library.compiled(functools.partial(fn, logits=True))(library.array(x))
    close(library.numpy(value), expected)
    for name, number in numbers.items():
        close(library.numpy(metrics[name]), number)
    if library.differentiates:
        slope = library.numpy(value_and_gradients(library, lambda p: fn(p)[0])(library.array(p, "float64"))[1][0])
        for index in np.ndindex(p.shape):
            nudge = np.zeros_like(p)
            nudge[index] = step
            assert slope[index] == pytest.approx((fn(p + nudge)[0] - fn(p - nudge)[0]) / (2 * step), abs=1e-6)


@pytest.mark.parametrize("precision", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_the_slope_at_zero_and_one_is_that_of_the_polynomial(autodiff: Any, precision: str) -> None:
    fn = lambda p: semantic_loss(p, exactly=1)[0]
    # P = a(1−b)(1−c) + (1−a)b(1−c) + (1−a)(1−b)c, which is ½ at (0, ½, 1).
    check(autodiff, precision, fn, [[[0.0, 0.5, 1.0]]], math.log(2), [[[1.0, 2.0, 0.0]]])


def test_no_probability_is_too_small(autodiff: Any) -> None:
    # Five of twenty, each e⁻²⁰⁰: far below what float32 can hold.
    fn = lambda x: semantic_loss(x, exactly=5, logits=True)[0]
    right = 1000 - math.log(math.comb(20, 5))
    check(autodiff, "float32", fn, [np.full((1, 20), -200.0)], right, [np.full((1, 20), -5 / 20)])


@pytest.mark.parametrize(
    ("p", "options"),
    [([0.0, 0.0, 0.4], {"at_least": 2}), ([1.0, 1.0, 0.4], {"exactly": 1}), ([1.0, 0.0, 0.0], {"at_most": 0})],
)
def test_what_cannot_be_is_infinite_without_a_gradient(autodiff: Any, p: list[float], options: dict[str, int]) -> None:
    fn = lambda p: semantic_loss(p, **options)[0]
    value, (slope,) = value_and_gradients(autodiff, fn)(autodiff.array([p]))
    assert value == math.inf
    assert not autodiff.numpy(slope).any()


def test_what_is_surely_so_is_zero() -> None:
    for p, options in (([1.0, 0.0, 1.0], {"exactly": 2}), ([0.3, 0.7], {"at_least": 0})):
        value, metrics = semantic_loss(np.array(p), **options)
        assert value == pytest.approx(0, abs=1e-12)
        assert metrics["probability"] == pytest.approx(1)


def test_padding_reaches_nothing(library: Any) -> None:
    p = probabilities()
    padded, counts = p.copy(), np.array([1, -7, 2])
    padded[1] = np.nan
    mask = library.array([1.0, 0.0, 2.0])
    exactly = library.array(counts, "int64")
    fn = lambda x: semantic_loss(x, exactly=exactly, mask=mask)
    value, _ = library.compiled(fn)(library.array(padded))
    close(library.numpy(value), (enumerated(p[0], 1, 1) + 2 * enumerated(p[2], 2, 2)) / 3)
    if library.differentiates:
        slope = library.numpy(value_and_gradients(library, lambda x: fn(x)[0])(library.array(padded))[1][0])
        assert np.isfinite(slope).all()
        assert not slope[1].any()


@pytest.mark.parametrize("options", [{"exactly": 2}, pytest.param({"at_least": 1}, marks=pytest.mark.slow)], ids=str)
def test_compilers_see_the_same(options: dict[str, int]) -> None:
    p = probabilities(size=4)
    fn = functools.partial(semantic_loss, **options)
    expected = fn(p)[0]
    found, _ = torch.compile(fn, fullgraph=True, backend="aot_eager")(TORCH.array(p, "float64"))
    close(TORCH.numpy(found), expected, "float64")
    close(NUMPY.numpy(jax.jit(fn)(p)[0]), expected, "float64")


def test_a_term_learns_counts() -> None:
    """Rows of which only the number of true variables is known: the loss finds which ones they are."""
    torch.manual_seed(0)
    x = torch.randn(64, 4, 3)
    truth = x[..., 0] > 0.3
    model = torch.nn.Linear(3, 1)
    inputs = {"p": "logits", "exactly": "counts"}
    term = pn.Term(semantic_loss, inputs=inputs, options={"logits": True})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(150):
        out = pn.Pipeline([term])(logits=model(x)[..., 0], counts=truth.sum(-1))
        optimizer.zero_grad()
        out.total.backward()
        optimizer.step()
    assert ((model(x)[..., 0] > 0) == truth).double().mean() > 0.97


def test_what_is_wrong_is_said() -> None:
    p = probabilities()
    wrong: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        (p, {}, pn.OptionError, "how many are true, or at_least or at_most"),
        (p, {"exactly": 1, "at_least": 1}, pn.OptionError, "None, with at_least or at_most"),
        (p, {"exactly": np.ones(3, int), "at_most": 1}, pn.OptionError, "None, with at_least or at_most"),
        (p, {"exactly": 6}, pn.OptionError, "a whole number from 0 to 5"),
        (p, {"at_least": 1.5}, pn.OptionError, "a whole number from 0 to 5"),
        (p, {"at_least": 3, "at_most": 2}, pn.OptionError, "at most at_most=2"),
        (p, {"exactly": np.array([1, 6, 0])}, pn.OptionError, "exactly=6; expected a whole number from 0 to 5"),
        (p, {"exactly": np.array([1, 2])}, pn.ShapeError, "one number for each row"),
        (p, {"exactly": np.array([1.0, 2.0, 3.0])}, pn.BackendError, "whole numbers"),
        (p, {"exactly": 1, "mask": np.ones(4)}, pn.ShapeError, "mask has shape"),
        (p, {"exactly": 1, "reduction": "avg"}, pn.OptionError, "reduction"),
        (p - 1, {"exactly": 1}, pn.OptionError, "probabilities, from 0 to 1, or logits=True"),
        (np.ones((3, 0)), {"exactly": 0}, pn.ShapeError, "a last axis of variables"),
        (np.float64(0.5), {"exactly": 0}, pn.ShapeError, "a last axis of variables"),
    ]
    for x, options, kind, message in wrong:
        with pytest.raises(kind, match=message):
            semantic_loss(x, **options)


def test_where_values_cannot_be_looked_at_no_count_is_nan() -> None:
    found = jax.jit(lambda p, k: semantic_loss(p, exactly=k)[0])(probabilities(2), np.array([1, 9]))
    assert np.isnan(found)
