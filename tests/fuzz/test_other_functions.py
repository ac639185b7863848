"""Functions that are no formula of one call: spectral orthogonality, penalties of a critic, checks of values."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from tests.fuzz import drawing
from tests.fuzz.cases import try_cases
from tests.fuzz.mathematics import cubes
from tests.libraries import NUMPY, TORCH

SHAPES = [(1, 1), (2, 3), (3, 2), (4, 4), (1, 5)]
BACKENDS = [pytest.param(one, id=one.name) for one in (NUMPY, TORCH)]


def draw_matrix(rng: np.random.Generator, dtype: str) -> np.ndarray:
    x = rng.normal(size=SHAPES[rng.integers(len(SHAPES))]) * 10.0 ** rng.integers(-3, 4)
    if rng.integers(4) == 0:
        x[0] = 0.0
    return drawing.rounded(x, dtype)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_spectral_mode_is_the_largest_deviation_of_a_singular_value(backend: Any) -> None:
    def check(rng: np.random.Generator) -> None:
        dtype = str(rng.choice(["float32", "float64"]))
        x, normalize = draw_matrix(rng, dtype), bool(rng.integers(2))
        lengths = np.sqrt((x * x).sum(-1, keepdims=True))
        rows = x / np.where(lengths == 0, 1.0, lengths) if normalize else x
        values = np.linalg.svdvals(rows)
        deviations = np.sort(np.abs(values**2 - 1.0))
        # A decomposition is off by the precision times the largest singular value, whichever it is for.
        tolerance = 50 * drawing.limits(dtype).precision * (1 + values[0] ** 2)
        array = backend.array(x, dtype)
        exact = float(pn.orthogonality(array, mode="spectral", normalize=normalize, exact=True))
        assert abs(exact - deviations[-1]) <= tolerance, (x.tolist(), normalize)
        found = float(pn.orthogonality(array, mode="spectral", normalize=normalize))
        assert found <= deviations[-1] + tolerance, (x.tolist(), normalize)
        # Each of 100 turns multiplies what is in the way by the squared ratio, and the length forgives half of it.
        ratio = deviations[-2] / deviations[-1] if len(deviations) > 1 and deviations[-1] > 0 else 0.0
        lost = (1e4 * ratio**400 + 1e-6 * (ratio > 0)) * deviations[-1]
        assert found >= deviations[-1] - lost - tolerance, (x.tolist(), normalize)

    try_cases(30, check)


def test_penalties_of_a_critic_agree() -> None:
    def check(rng: np.random.Generator) -> None:
        x, other = (TORCH.array(rng.normal(size=(3, 2)), "float64").requires_grad_() for _ in range(2))
        epsilon = TORCH.array(rng.random(3), "float64")
        target = float(rng.choice([0.0, 1.0, 5.0]))
        point = (epsilon[:, None] * x + (1 - epsilon[:, None]) * other).detach().requires_grad_()
        plain = pn.gradient_penalty(cubes, point, target_norm=target)
        between = pn.interpolated_gradient_penalty(cubes, x, other, target_norm=target, seed=epsilon)
        output, beside = pn.with_gradient_penalty(cubes, point, target_norm=target)
        assert plain.item() == pytest.approx(between.item(), rel=1e-12)
        assert plain.item() == beside.item()
        assert output.tolist() == cubes(point).tolist()
        (slope,) = torch.autograd.grad(plain, point)
        slopes = torch.autograd.grad(between, [x, other])
        torch.testing.assert_close(slopes[0], epsilon[:, None] * slope)
        torch.testing.assert_close(slopes[1], (1 - epsilon[:, None]) * slope)

    try_cases(10, check)


@pytest.mark.parametrize("backend", BACKENDS)
def test_checks_of_values(backend: Any) -> None:
    def check(rng: np.random.Generator) -> None:
        dtype = str(rng.choice(list(drawing.DTYPES)))
        x = drawing.values(rng, (2, 3), dtype)
        array = backend.array(x, dtype)
        kind = "nan" if np.isnan(x).any() else "inf" if np.isinf(x).any() else None
        if kind is None:
            assert pn.validate(array) is array
        else:
            with pytest.raises(pn.NonFiniteError) as caught:
                pn.validate([{"a": array}])
            assert caught.value.kind == kind
        valid = [not (np.isnan(row).any() or (row == math.inf).any() or (row == -math.inf).all()) for row in x]
        assert backend.numpy(pn.valid_logprobs(array)).tolist() == valid

    try_cases(30, check)
