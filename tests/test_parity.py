"""The three libraries give the same numbers, values and gradients, in both precisions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.cases import CASES, Case, one_of_each, sampled
from tests.libraries import DIFFERENTIABLE, EPSILON, LIBRARIES, NUMPY


def total(library: Any, case: Case, dtype: str) -> Any:
    """The case as a scalar function, so that it has one gradient."""
    fn = case.on(library)

    def scalar(*arrays: Any) -> Any:
        value = fn(*arrays)
        weights = library.array(np.cos(np.arange(np.prod(value.shape))).reshape(value.shape), dtype)
        return value if value.shape == () else (weights * value).sum()

    return scalar


def evaluation(library: Any, case: Case, dtype: str) -> Callable[..., tuple[Any, list[np.ndarray]]]:
    """The value of the case, and its gradients if the library has any, as a function of NumPy arrays."""
    fn = total(library, case, dtype)
    gradients = library.raw_gradients if library.differentiates else lambda fn, *arrays: []
    both = library.compiled(lambda *arrays: (fn(*arrays), gradients(fn, *arrays)))

    def evaluate(*inputs: np.ndarray) -> tuple[Any, list[np.ndarray]]:
        value, slopes = both(*[library.array(x, dtype) for x in inputs])
        return value, [library.numpy(slope) for slope in slopes]

    return evaluate


@pytest.mark.parametrize(
    ("case", "precision"),
    [
        pytest.param(*one.values, precision, id=f"{one.id}-{precision}", marks=one.marks)
        for precision, cases in (("float64", sampled(CASES)), ("float32", one_of_each(CASES)))
        for one in cases
    ],
)
def test_libraries_agree(case: Case, precision: str) -> None:
    if case.needs_gradient and not DIFFERENTIABLE:
        pytest.skip("NumPy alone has no gradients")
    reference = DIFFERENTIABLE[0] if case.needs_gradient else NUMPY
    libraries = [library for library in LIBRARIES if library.differentiates or not case.needs_gradient]
    evaluations = [(library, evaluation(library, case, precision)) for library in libraries]
    for seed in range(2):
        inputs = [x.astype(precision).astype(np.float64) for x in case.make(np.random.default_rng(seed))]
        expected, _ = evaluation(reference, case, "float64")(*inputs)
        each = case.on(reference)(*[reference.array(x, "float64") for x in inputs])
        size = max(case.scale(reference.numpy(each), *inputs), 1e-3)
        slopes = evaluation(DIFFERENTIABLE[0], case, "float64")(*inputs)[1] if DIFFERENTIABLE else []
        steepest = max([size, *(float(np.max(np.abs(slope))) for slope in slopes)])
        for library, evaluate in evaluations:
            found, gradients = evaluate(*inputs)
            assert library.dtype(found) == precision
            np.testing.assert_allclose(
                library.numpy(found), reference.numpy(expected), rtol=0, atol=EPSILON[precision] * size
            )
            if library.differentiates:
                for gradient, slope in zip(gradients, slopes, strict=True):
                    np.testing.assert_allclose(gradient, slope, rtol=0, atol=EPSILON[precision] * steepest)
