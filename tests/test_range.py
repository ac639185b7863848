"""Numbers at the ends of a dtype's range: correct, or one of our own errors."""

from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from tests.libraries import DEVICE


@pytest.mark.parametrize("delta", [1e-30, 1e-15, 1e15, 1e30, 5e37])
def test_smooth_l1_far_from_one(library: Any, delta: float) -> None:
    elements = [0.0, delta / 4, -delta / 2, 2 * delta]
    found = pn.smooth_l1(library.array(elements, "float32"), delta=delta, reduction="none")
    expected = np.array([0.0, 1 / 32, 1 / 8, 3 / 2]) * delta
    np.testing.assert_allclose(library.numpy(found), expected, rtol=1e-6)


@pytest.mark.parametrize("delta", [1e-30, 1e30])
def test_gradients_of_smooth_l1_far_from_one(autodiff: Any, delta: float) -> None:
    elements = np.array([0.0, delta / 4, -2 * delta, 1e-37, 1e37])
    (gradient,) = autodiff.gradients(lambda x: pn.smooth_l1(x, delta=delta), autodiff.array(elements, "float32"))
    np.testing.assert_allclose(gradient, np.clip(elements / delta, -1, 1), rtol=1e-6, atol=1e-37)


def test_the_gradient_of_a_mean_at_the_smallest_delta(autodiff: Any) -> None:
    with pytest.raises(pn.OptionError, match=r"smooth_l1: delta=1e-37; expected a number from 1\.97e-31 to"):
        pn.smooth_l1(autodiff.array([1.0], "float32"), delta=1e-37)
    elements = np.full(400_000, 5e-32)
    x = autodiff.array(elements, "float32")
    (gradient,) = autodiff.gradients(lambda x: pn.smooth_l1(x, delta=2e-31, reduction="mean"), x)
    np.testing.assert_allclose(gradient, elements / 2e-31 / len(elements), rtol=1e-5)


def test_smooth_l1_of_a_large_tensor_far_below_delta() -> None:
    x = torch.full((400_000,), 1e-7, device=DEVICE)
    out = pn.Pipeline([pn.Term("smooth_l1", options={"delta": 1e20})]).value_and_grad(x, wrt="input")
    assert float(out.total) == pytest.approx(4e5 * 1e-14 / 2e20, rel=1e-5, abs=0.0)


def test_the_curvature_of_smooth_l1_at_zero(autodiff: Any) -> None:
    def slopes(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return torch.autograd.grad(pn.smooth_l1(x, delta=0.5), x, create_graph=True)[0].sum()
        return autodiff.raw_gradients(lambda x: pn.smooth_l1(x, delta=0.5), x)[0].sum()

    (curvature,) = autodiff.gradients(slopes, autodiff.array([0.0, 0.25, 2.0]))
    np.testing.assert_allclose(curvature, [2.0, 2.0, 0.0])


def test_the_curvature_of_js_divergence_at_tiny_probabilities(autodiff: Any) -> None:
    p = autodiff.array([-60.0, -1.0], "float32")
    q = autodiff.array([-62.0, -2.0], "float32")

    def slope(p: Any) -> Any:
        if isinstance(p, torch.Tensor):
            return torch.autograd.grad(pn.js_divergence(p, q), p, create_graph=True)[0].sum()
        return autodiff.raw_gradients(lambda p: pn.js_divergence(p, q), p)[0].sum()

    (curvature,) = autodiff.gradients(slope, p)
    a, b = np.exp([-60.0, -1.0]), np.exp([-62.0, -2.0])
    expected = 0.5 * a * (np.log(2 * a / (a + b)) + b / (a + b))
    np.testing.assert_allclose(curvature, expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("function", "option"),
    [(pn.l2, "clip"), (pn.l2, "center"), (pn.output_magnitude, "target"), (pn.smooth_l1, "delta")],
)
def test_options_that_the_dtype_cannot_hold(library: Any, function: Any, option: str) -> None:
    with pytest.raises(pn.OptionError, match=f"{option}=1e\\+300; expected a number .*float32"):
        function(library.array([1.0, 2.0], "float32"), **{option: 1e300})


@pytest.mark.parametrize("temperature", [1e-320, 1e-40, 1e300])
def test_temperatures_that_the_dtype_cannot_hold(library: Any, temperature: float) -> None:
    with pytest.raises(pn.OptionError, match=r"temperature=.*; expected a number that .*float32 can hold"):
        pn.entropy(library.array([1.0, 2.0], "float32"), temperature=temperature)


def test_a_share_that_the_dtype_takes_for_zero_does_not_make_a_sum_nan(library: Any) -> None:
    x = library.array([3e38, -3e38], "float32")
    with np.errstate(over="ignore"):
        assert float(pn.elastic_net(x, l1_ratio=1e-300)) == float("inf")


def test_the_largest_numbers_have_a_direction(library: Any) -> None:
    largest = float(np.finfo("float32").max)
    x = library.array([[largest, 0.0], [1.0, 0.0], [0.0, 2.0]], "float32")
    assert float(pn.orthogonality(x)) == pytest.approx(2.0)


def test_the_slope_of_a_logarithm_keeps_its_digits(autodiff: Any) -> None:
    x = np.array([1e-30, 1e-5, 1.0, 1e30], np.float32)
    (slope,) = autodiff.gradients(lambda x: pn.safe_log(x).sum(), autodiff.array(x, "float32"))
    np.testing.assert_allclose(slope, 1 / x.astype(np.float64), rtol=3e-7)


def test_half_precisions_mixed_in_one_nest() -> None:
    nest = [torch.ones(2, dtype=torch.float16, device=DEVICE), torch.ones(2, dtype=torch.bfloat16, device=DEVICE)]
    out = pn.Pipeline(["l2"]).value_and_grad(x=nest, wrt="x")
    assert (out.read().total, out.total.dtype) == (4.0, torch.float32)
    assert [(part.dtype, part.tolist()) for part in out.gradient["x"]] == [(one.dtype, [2.0, 2.0]) for one in nest]


def test_precisions_mixed_in_one_nest_have_one_scale(autodiff: Any) -> None:
    weight = 128.0
    nest = [autodiff.array([1.0], dtype) for dtype in ("float16", "bfloat16", "float32", "float64")]
    out = pn.Pipeline([pn.Term("l2", weight)]).value_and_grad(x=nest, wrt="x", keep=True)
    assert [float(part[0]) for part in out.gradient["x"]] == [2 * weight] * 4
    assert [float(part[0]) for part in out["l2"].gradient["x"]] == [2.0] * 4
    assert float(out["l2"].grad_norm) == 4.0


def test_a_default_dtype_of_half_precision() -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        # bfloat16 has no 100 000: the next number is 100 352.
        assert float(pn.l2(torch.tensor([100, 300]))) == 100_000.0
        assert pn.Pipeline([])(x=torch.ones(2)).total.dtype == torch.float32
    finally:
        torch.set_default_dtype(before)
