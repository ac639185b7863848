"""Fused kernels for large tensors, against the sums that they stand for."""

from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from tests.fuzz import drawing
from tests.fuzz.cases import try_cases
from tests.libraries import LIBRARIES, TORCH

SIZE = 400_001
"""Beyond what fits the cache, so that a kernel is used, and not a multiple of anything."""

_random = np.random.default_rng(0)
NORMAL = _random.normal(size=SIZE)


def draw_term(rng: np.random.Generator, name: str) -> pn.Term:
    fn = str(rng.choice(["l1", "l2", "elastic_net", "smooth_l1"]))
    options: dict[str, Any] = {"reduction": str(rng.choice(["sum", "mean"]))}
    if fn == "elastic_net":
        options["l1_ratio"] = float(rng.choice([0.0, 0.3, 1.0]))
    if fn == "smooth_l1":
        options["delta"] = 10.0 ** float(rng.choice([0, 0, -1, 3, -8, 8, 20, -20, 29, -29]))
    return pn.Term(fn, float(rng.choice([1.0, 0.0, 1e-3])), name, "x", options)


def by_hand(term: pn.Term, x: np.ndarray) -> tuple[float, np.ndarray]:
    """The value and the gradient of one term in float64."""
    size, delta = np.abs(x), term.options.get("delta", 1.0)
    if term.path == "smooth_l1":
        values, slopes = np.where(size < delta, x / delta * x / 2, size - delta / 2), np.clip(x / delta, -1, 1)
    else:
        ratio = {"l1": 1.0, "l2": 0.0}.get(str(term.path), term.options.get("l1_ratio"))
        values, slopes = ratio * size + (1 - ratio) * x * x, ratio * np.sign(x) + 2 * (1 - ratio) * x
    share = 1 / x.size if term.options["reduction"] == "mean" else 1.0
    return share * values.sum(), share * slopes


def check(rng: np.random.Generator) -> None:
    dtype = str(rng.choice(["float32", "float64"]))
    ends = drawing.limits(dtype)
    x = NORMAL * 10.0 ** rng.integers(-12, 13)
    if rng.integers(2):
        x = np.where(_random.random(SIZE) < 0.1, 0.0, x)
    x = drawing.rounded(x, dtype)
    pipeline = pn.Pipeline([draw_term(rng, f"t{index}") for index in range(rng.integers(1, 4))])
    tensor = TORCH.array(x, dtype).requires_grad_()
    fusable = [term for term in pipeline if 1e-30 < term.options.get("delta", 1.0) < 1e4]
    assert ("kernel for" in repr(pipeline.plan(x=tensor))) == bool(fusable)
    out = pipeline.value_and_grad(x=tensor)
    total = np.zeros(SIZE)
    # Rounding of sums in which nothing cancels, in pieces of 512; and what is too small for the dtype.
    accuracy: dict[str, Any] = {"rtol": 100 * ends.precision, "atol": SIZE * ends.tiny}
    for term in pipeline:
        value, slopes = by_hand(term, x)
        what = f"{term.name}: {term.path} {dict(term.options)} in {dtype}, of size {np.abs(x).max():.1e}"
        with np.errstate(over="ignore"):
            expected = value if value < ends.largest else np.inf
        np.testing.assert_allclose(TORCH.numpy(out[term.name].value), expected, **accuracy, err_msg=what)
        length = np.sqrt((slopes**2).sum())
        np.testing.assert_allclose(TORCH.numpy(out[term.name].grad_norm), length, **accuracy, err_msg=f"norm, {what}")
        total += float(term.weight) * slopes  # type: ignore[arg-type]
    size = np.abs(total).max()
    np.testing.assert_allclose(TORCH.numpy(out.gradient["x"]), total, rtol=1e-5, atol=4 * ends.precision * size)
    np.testing.assert_allclose(TORCH.numpy(out.total_grad_norm), np.sqrt((total**2).sum()), **accuracy)


@pytest.mark.skipif(TORCH not in LIBRARIES, reason="PyTorch was not chosen")
def test_fused_norms_are_those_written_out() -> None:
    assert torch.get_default_dtype() is torch.float32
    try_cases(6, check)
