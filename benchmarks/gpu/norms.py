"""Element-wise penalties: of all parameters of a model, added to `.grad`; and five of one tensor, with all norms."""

from collections.abc import Callable

import torch
from torch import Tensor

import penalties as pn

from ..harness import Row
from .measuring import DEVICE, GPU, OURS, machine, measure, title

__all__ = ["run"]

CHEAP = pn.Pipeline(
    [
        pn.Term(pn.l1, weight=0.1),
        pn.Term(pn.l2, weight=0.01),
        pn.Term(pn.elastic_net, weight=0.3),
        pn.Term(pn.smooth_l1, weight=0.2),
        pn.Term(pn.smooth_l1, name="wide", weight=0.5, options={"delta": 2.0}),
    ]
)


def run(scale: float) -> list[Row]:
    """The parameters, then the one tensor."""
    return [*parameters(), *cheap()]


def parameters() -> list[Row]:
    width, depth, vocabulary = (2048, 16, 128256) if GPU else (16, 2, 100)
    block = [(width, width), (width // 4, width), (width // 4, width), (width, width)]
    block += [(4 * width, width), (4 * width, width), (width, 4 * width), (width,), (width,)]
    shapes: list[tuple[int, ...]] = [(vocabulary, width), *[shape for _ in range(depth) for shape in block], (width,)]
    tensors = [(0.02 * torch.randn(shape, device=DEVICE)).requires_grad_() for shape in shapes]
    for x in tensors:
        x.grad = torch.zeros_like(x)
    pipeline = pn.Pipeline([pn.Term(pn.elastic_net, weight=1e-6)])
    count = sum(x.numel() for x in tensors)
    title(f"elastic net of {count / 1e9:.3g}e9 float32 in {len(tensors)} tensors: value, norm, gradient added in place")

    def loop(one: Callable[[Tensor], Tensor]) -> Callable[[], object]:
        return lambda: (1e-6 * torch.stack([one(x) for x in tensors]).sum()).backward()

    sides: dict[str, Callable[[], object]] = {OURS: lambda: pipeline.value_and_grad(tensors, accumulate=True)}
    if GPU:
        torch.compiler.reset()
        sides["torch.compile, a graph for every tensor"] = loop(torch.compile(elastic, dynamic=True))
    sides["loop and backward"] = loop(elastic)
    _, made = measure("elastic net", machine().moving(12 * count), sides, {OURS: 1.15})
    return made


def elastic(x: Tensor) -> Tensor:
    return 0.5 * x.abs().sum() + 0.5 * (x * x).sum()


def cheap() -> list[Row]:
    x = torch.randn(2**26 if GPU else 2**19, device=DEVICE).requires_grad_()
    title(f"five cheap terms of {x.numel()} float32: values, norms, gradient")
    sides: dict[str, Callable[[], object]] = {OURS: lambda: CHEAP.value_and_grad(x)}
    if GPU:
        graph = torch.compile(five, dynamic=False)
        sides["torch.compile, no norms"] = lambda: torch.autograd.grad(graph(x), x)
    sides["eager, no norms"] = lambda: torch.autograd.grad(five(x), x)
    _, made = measure("five terms", machine().moving(2 * x.nbytes), sides, {OURS: 3.0})
    return made


def five(x: Tensor) -> Tensor:
    """The same by hand."""
    size, square = x.abs(), x * x
    narrow = torch.where(size < 1.0, 0.5 * square, size - 0.5)
    wide = torch.where(size < 2.0, 0.25 * square, size - 1.0)
    mixed = 0.5 * size + 0.5 * square
    return (0.1 * size + 0.01 * square + 0.3 * mixed + 0.2 * narrow + 0.5 * wide).sum()
