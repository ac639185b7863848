"""Half precision in, float32 out; as right as float64 on the same rounded input; no overflow, no underflow."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penalties as pn
from tests.cases import CASES, Case, one_of_each
from tests.libraries import DIFFERENTIABLE, NUMPY, call

HALVES = {"float16": 1e-3, "bfloat16": 1e-2}


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("case", one_of_each([case for case in CASES if not case.needs_gradient]))
def test_half_precision_is_computed_in_float32(library: Any, case: Case, half: str) -> None:
    rounded = [library.array(x, half) for x in case.make(np.random.default_rng(9))]
    exact = [library.numpy(x) for x in rounded]
    found = library.compiled(case.on(library))(*rounded)
    assert library.dtype(found) == "float32"
    expected = NUMPY.numpy(case.on(NUMPY)(*exact))
    np.testing.assert_allclose(
        library.numpy(found), expected, rtol=0, atol=1e-4 * max(case.scale(expected, *exact), 0.1)
    )


def gradients_of_sum(library: Any, case: Case) -> Callable[..., Any]:
    fn = case.on(library)
    return library.compiled(lambda *arrays: library.raw_gradients(lambda *x: fn(*x).sum(), *arrays))


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("case", one_of_each([case for case in CASES if not case.needs_gradient]))
def test_gradients_come_back_in_the_dtype_of_the_input(autodiff: Any, case: Case, half: str) -> None:
    rounded = [autodiff.array(x, half) for x in case.make(np.random.default_rng(9))]
    found = gradients_of_sum(autodiff, case)(*rounded)
    reference = DIFFERENTIABLE[0]
    exact = [reference.array(autodiff.numpy(x), "float64") for x in rounded]
    expected = [reference.numpy(gradient) for gradient in gradients_of_sum(reference, case)(*exact)]
    for gradient, right in zip(found, expected, strict=True):
        assert autodiff.dtype(gradient) == half
        limit = HALVES[half] * max(float(np.abs(right).max()), 0.1)
        np.testing.assert_allclose(autodiff.numpy(gradient), right, rtol=0, atol=limit)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.needs_gradient and not case.options], ids=lambda case: case.id
)
def test_gradient_penalties_leave_the_function_its_precision(autodiff: Any, case: Case, half: str) -> None:
    rounded = [autodiff.array(0.3 * x, half) for x in case.make(np.random.default_rng(9))]
    fn = autodiff.compiled(case.on(autodiff))
    found = fn(*rounded)
    exact = [autodiff.array(autodiff.numpy(x), "float64") for x in rounded]
    expected = autodiff.numpy(fn(*exact))
    np.testing.assert_allclose(autodiff.numpy(found), expected, rtol=10 * HALVES[half])
    if case.name != "with_gradient_penalty":
        assert autodiff.dtype(found) == "float32"


@pytest.mark.parametrize("half", HALVES)
def test_no_overflow_at_a_thousand_times_three_hundred(library: Any, half: str) -> None:
    x = np.full(1000, 300.0)
    np.testing.assert_allclose(library.numpy(call(library, "l2", x, dtype=half)), 9e7, rtol=HALVES[half])
    np.testing.assert_allclose(library.numpy(call(library, "l1", x, dtype=half)), 3e5, rtol=HALVES[half])
    np.testing.assert_allclose(
        library.numpy(call(library, "consistency", x, 0 * x, dtype=half)), 9e4, rtol=HALVES[half]
    )
    np.testing.assert_allclose(
        library.numpy(call(library, "output_magnitude", x, dtype=half)), 299.0**2, rtol=2 * HALVES[half]
    )


@pytest.mark.parametrize("half", HALVES)
def test_no_underflow_at_a_ten_thousandth(library: Any, half: str) -> None:
    x = np.full(1000, 1e-4)
    np.testing.assert_allclose(library.numpy(call(library, "l2", x, dtype=half)), 1e-5, rtol=HALVES[half])
    np.testing.assert_allclose(library.numpy(call(library, "elastic_net", x, dtype=half)), 0.050005, rtol=HALVES[half])
    np.testing.assert_allclose(library.numpy(call(library, "smooth_l1", x, dtype=half)), 5e-6, rtol=HALVES[half])


def test_clip_in_float16_does_what_it_does_in_float32(library: Any) -> None:
    value = library.numpy(call(library, "l2", np.array([1000.0, 2000.0]), dtype="float16", clip=100))
    np.testing.assert_allclose(0.01 * value, 200.0)


@pytest.mark.parametrize("dtype", ["int32", "int64", "bool"])
def test_whole_numbers_become_floats(library: Any, dtype: str) -> None:
    x = np.array([[1, 0], [1, 1]])
    for name in ("l1", "l2", "orthogonality"):
        found = call(library, name, x, dtype=dtype)
        assert library.dtype(found) in ("float32", "float64")
        np.testing.assert_allclose(library.numpy(found), library.numpy(call(library, name, 1.0 * x)), rtol=1e-6)
    mixed = [library.array([1000000], "int64"), library.array([0.5], "float16")]
    assert float(pn.l1(mixed)) == 1000000.5


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_masks_do_not_change_the_dtype(library: Any, precision: str) -> None:
    x = np.log(np.full((2, 4), 0.25))
    for mask in (np.array([True, False]), np.array([1, 0]), np.array([1.0, 0.5])):
        for name, inputs in (("entropy", (x,)), ("kl_divergence", (x, x)), ("consistency", (x, x))):
            assert library.dtype(call(library, name, *inputs, dtype=precision, mask=mask)) == precision
    tokens = call(library, "kl_estimate", x, x, dtype=precision, mask=np.ones((2, 4), dtype=bool))
    assert library.dtype(tokens) == precision


def test_options_of_numpy_types_count_as_python_numbers(library: Any) -> None:
    x = np.array([0.2, -3.0, 0.7])
    for name, options in (
        ("l2", {"clip": 0.5, "center": 0.25}),
        ("smooth_l1", {"delta": 0.5}),
        ("elastic_net", {"l1_ratio": 0.25}),
        ("output_magnitude", {"target": 0.5}),
        ("entropy", {"temperature": 0.5}),
    ):
        plain = call(library, name, x, dtype="float32", **options)
        for kind in (np.float64, np.float32, np.float16, np.longdouble):
            typed = call(library, name, x, dtype="float32", **{key: kind(value) for key, value in options.items()})
            assert library.dtype(typed) == "float32"
            np.testing.assert_array_equal(library.numpy(typed), library.numpy(plain))


def test_long_doubles_are_welcome() -> None:
    p = np.log(np.array([0.25, 0.75], dtype=np.longdouble))
    assert float(pn.kl_divergence(p, p[::-1])) == pytest.approx(0.5 * np.log(3))
