"""Terms over distributions, and a comparison of kernels with the penalties themselves."""

from typing import Any

import pytest
import torch

import penalties as pn
from tests.libraries import DEVICE

INF, NAN = float("inf"), float("nan")
PAIR = ("student", "teacher")
TERMS = [
    pn.Term(pn.kl_divergence, name="kl", weight=0.3, inputs=PAIR),
    pn.Term(pn.kl_divergence, name="reverse", weight=0.4, inputs=PAIR, options={"direction": "reverse"}),
    pn.Term(pn.kl_divergence, name="distill", weight=0.2, inputs=("teacher", "student"), options={"reduction": "sum"}),
    pn.Term(pn.kl_divergence, name="symmetric", weight=0.1, inputs=PAIR, options={"symmetric": True}),
    pn.Term(pn.js_divergence, name="js", weight=0.5, inputs=PAIR),
    pn.Term(pn.js_divergence, name="bits", weight=0.6, inputs=PAIR, options={"base": 2, "reduction": "sum"}),
    pn.Term(pn.entropy, name="entropy", weight=0.2, inputs="student"),
    pn.Term(pn.entropy, name="bonus", weight=0.3, inputs="student", options={"mode": "bonus", "normalize": True}),
]
TIGHT = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
"""Relative to the largest element of a gradient, which is rounded to the dtype."""


def pipeline(*names: str, mask: str | None = None, **options: Any) -> pn.Pipeline:
    chosen = [term for term in TERMS if not names or term.name in names]
    masked = {} if mask is None else {"mask": mask}
    return pn.Pipeline(
        [term.replace(options={**term.options, **options}, inputs={**term.inputs, **masked}) for term in chosen]
    )


def drawn(*shape: int, dtype: torch.dtype = torch.float32, logits: bool = True, seed: int = 0) -> torch.Tensor:
    x = 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return (x if logits else x.log_softmax(-1)).to(DEVICE, dtype)


def both(terms: pn.Pipeline, wrt: Any, monkeypatch: pytest.MonkeyPatch, **inputs: Any) -> tuple[Any, Any]:
    """The outputs of the kernel, and of the penalties themselves in float64."""
    groups = terms.plan(wrt=wrt, **inputs)
    assert all("kernel for distributions" in group.reason for group in groups), groups
    fused = terms.value_and_grad(wrt=wrt, **inputs)
    wide = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}
    with monkeypatch.context() as patch:
        patch.setenv("PENALTIES_KERNELS", "off")
        return fused, terms.value_and_grad(wrt=wrt, **wide)


def assert_same(
    fused: Any, plain: Any, dtype: torch.dtype = torch.float32, tolerance: float = 5e-6, tight: float | None = None
) -> None:
    for one, other in zip(fused, plain, strict=True):
        assert one.value.dtype == torch.float32
        torch.testing.assert_close(one.value.double(), other.value, rtol=tolerance, atol=tolerance, equal_nan=True)
        torch.testing.assert_close(one.grad_norm.double(), other.grad_norm, rtol=1e-4, atol=tolerance, equal_nan=True)
        assert one.grad_norms.keys() == other.grad_norms.keys()
    for name, gradient in fused.gradient.items():
        expected = plain.gradient[name]
        assert gradient.dtype == dtype
        assert gradient.shape == expected.shape
        scale = float(expected.abs().max()) if expected.numel() else 0.0
        atol = (tight or TIGHT[dtype]) * scale + 1e-8
        torch.testing.assert_close(gradient.double(), expected, rtol=0.0, atol=atol, equal_nan=True)
    torch.testing.assert_close(
        fused.total_grad_norm.double(), plain.total_grad_norm, rtol=1e-4, atol=tolerance, equal_nan=True
    )
