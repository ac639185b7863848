"""The three libraries give the same numbers, values and gradients, in both precisions."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases import CASES, Case, sampled
from tests.libraries import DIFFERENTIABLE, EPSILON, LIBRARIES, NUMPY

SEEDS = st.integers(0, 2**32 - 1)


def total(library: Any, case: Case, dtype: str) -> Any:
    """The case as a scalar function, so that it has one gradient."""
    fn = case.on(library)

    def scalar(*arrays: Any) -> Any:
        value = fn(*arrays)
        weights = library.array(np.cos(np.arange(np.prod(value.shape))).reshape(value.shape), dtype)
        return value if value.shape == () else (weights * value).sum()

    return scalar


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("case", sampled(CASES))
@settings(max_examples=2)
@given(seed=SEEDS)
def test_libraries_agree(case: Case, precision: str, seed: int) -> None:
    if case.needs_gradient and not DIFFERENTIABLE:
        pytest.skip("NumPy alone has no gradients")
    rng = np.random.default_rng(seed)
    inputs = [x.astype(precision).astype(np.float64) for x in case.make(rng)]
    reference = DIFFERENTIABLE[0] if case.needs_gradient else NUMPY
    exact = [reference.array(x, "float64") for x in inputs]
    expected = reference.numpy(total(reference, case, "float64")(*exact))
    size = max(case.scale(reference.numpy(case.on(reference)(*exact)), *inputs), 1e-3)
    tolerance = EPSILON[precision] * size
    for library in LIBRARIES:
        if case.needs_gradient and not library.differentiates:
            continue
        found = total(library, case, precision)(*[library.array(x, precision) for x in inputs])
        assert library.dtype(found) == precision
        np.testing.assert_allclose(library.numpy(found), expected, rtol=0, atol=tolerance)

    if not DIFFERENTIABLE:
        return
    slopes = DIFFERENTIABLE[0].gradients(
        total(DIFFERENTIABLE[0], case, "float64"), *[DIFFERENTIABLE[0].array(x, "float64") for x in inputs]
    )
    steepest = max(float(np.max(np.abs(slope))) for slope in slopes)
    for library in DIFFERENTIABLE:
        found = library.gradients(total(library, case, precision), *[library.array(x, precision) for x in inputs])
        for gradient, slope in zip(found, slopes, strict=True):
            np.testing.assert_allclose(gradient, slope, rtol=0, atol=EPSILON[precision] * max(steepest, size))
