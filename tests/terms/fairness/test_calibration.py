"""Calibration by group: the error by its definition, gradients, groups without rows."""

import functools
from typing import Any

import jax
import numpy as np
import pytest
import torch

import penalties as pn
from penalties.terms.fairness import calibration
from tests.libraries import TORCH, close, value_and_gradients
from tests.terms.fairness.test_parity import batch


def error(p: np.ndarray, labels: np.ndarray, bins: int) -> float:
    """The expected calibration error, bin by bin."""
    index = np.minimum((p * bins).astype(int), bins - 1)
    parts = [(index == b).mean() * abs(p[index == b].mean() - labels[index == b].mean()) for b in np.unique(index)]
    return float(np.sum(parts))


@pytest.mark.parametrize("bins", [1, 5, 10])
def test_it_is_the_calibration_error_of_each_group(bins: int) -> None:
    p, labels, groups = batch(200)
    p[:4] = [0.0, 1.0, 0.5, 0.2]
    errors = [error(p[groups == g], labels[groups == g], bins) for g in range(3)]
    value, metrics = calibration(p, labels, groups, bins=bins)
    assert value == pytest.approx(max(errors))
    assert [metrics[f"error/{g}"] for g in range(3)] == pytest.approx(errors)
    assert metrics["gap"] == pytest.approx(max(errors) - min(errors))
    assert calibration(p, labels, groups, bins=bins, violation="mean")[0] == pytest.approx(np.mean(errors))


@pytest.mark.parametrize("violation", ["max", pytest.param("mean", marks=pytest.mark.slow)])
def test_libraries_agree_and_gradients_are_finite_differences(library: Any, violation: Any) -> None:
    p, labels, groups = batch(12)
    fn = functools.partial(calibration, violation=violation, count=3, bins=4)
    expected, _ = fn(p, labels, groups)
    y, g = library.array(labels, "int64"), library.array(groups, "int64")
    close(library.numpy(library.compiled(fn)(library.array(p), y, g)[0]), expected)
    if library.differentiates:
        slope = value_and_gradients(library, lambda x: fn(x, y, g)[0])(library.array(p, "float64"))[1][0]
        for row, step in enumerate(1e-6 * np.eye(12)):
            difference = (fn(p + step, labels, groups)[0] - fn(p - step, labels, groups)[0]) / 2e-6
            assert library.numpy(slope)[row] == pytest.approx(difference, abs=1e-6)


def test_a_group_without_rows_is_left_out_and_said_to_be() -> None:
    p, labels, groups = batch()
    groups = 2 * (groups > 0)
    for violation in ("max", "mean"):
        value, metrics = calibration(p, labels, groups, violation=violation, count=3)
        assert value == pytest.approx(calibration(p, labels, groups // 2, violation=violation)[0])
    assert metrics["error/1"] == -1
    assert metrics["groups"] == 2
    value, metrics = calibration(p[:0], labels[:0], groups[:0], count=2)
    assert value == 0
    assert metrics["evidence"] == 0


def test_nan_is_not_hidden() -> None:
    p, labels, groups = batch()
    p[0] = np.nan
    assert np.isnan(calibration(p, labels, groups)[0])


@pytest.mark.slow
def test_compilers_see_the_same() -> None:
    p, labels, groups = batch()
    fn = functools.partial(calibration, count=3, permutations=10)
    expected, metrics = fn(p, labels, groups)
    arrays = [TORCH.array(p, "float64"), TORCH.array(labels, "int64"), TORCH.array(groups, "int64")]
    found, traced = torch.compile(fn, fullgraph=True, backend="aot_eager")(*arrays)
    close(TORCH.numpy(found), expected, "float64")
    close(np.asarray(jax.jit(fn)(p, labels, groups)[0]), expected, "float64")
    assert set(metrics) - set(traced) == {"p_value"}


def test_training_on_it_calibrates_every_group() -> None:
    """Scores that are twice too confident in one group, and a temperature for each."""
    rng = np.random.default_rng(0)
    logits, groups = torch.tensor(rng.normal(size=4000)), torch.tensor(rng.integers(0, 2, 4000))
    labels = torch.tensor(rng.random(4000)) < torch.sigmoid(logits)
    shown = logits * torch.where(groups == 0, 1.0, 3.0)
    scale = torch.ones(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([scale], lr=0.02)
    errors = []
    for _ in range(100):
        value, metrics = calibration(shown * scale[groups], labels, groups, logits=True, violation="mean")
        errors.append(metrics["error/1"].item())
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    assert errors[0] > 0.15 > 0.04 > errors[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bins": 0}, "a whole number of at least 1"),
        ({"violation": "norm"}, "max"),
        ({"permutations": 1.5}, "a whole number of at least 0"),
        ({"seed": -1}, "a whole number of at least 0"),
        ({"bin": 3}, "did you mean bins"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises(pn.OptionError, match=message):
        calibration(*batch(), **options)
