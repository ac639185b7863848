"""KL, Jensen-Shannon and entropy from hidden states and two output layers, against the four matrix products alone."""

import importlib.util
import statistics
from collections.abc import Callable

import torch
from torch import Tensor

import penalties as pn

from ..harness import Row
from .distributions import ENTROPY, JS, KL, by_hand, weights_of
from .measuring import DEVICE, GPU, OURS, measure, memory_row, times, title

__all__ = ["run"]

TERMS = (KL, JS, ENTROPY)
MOST, MOST_MEMORY = 1.25, 2.5


def run(scale: float) -> list[Row]:
    """Both sizes, with gradients at the student's hidden states and output layer."""
    sizes = ((8192, 2048, 128256), (4096, 4096, 151936)) if GPU else ((8, 16, 1000),)
    title(
        "kl + js + entropy from hidden states, bfloat16, all gradients; limit: four matrix products; GB: beyond inputs"
    )
    return [row for size in sizes for row in from_hidden_states(*size)]


def from_hidden_states(rows: int, width: int, classes: int) -> list[Row]:
    hidden, other = (torch.randn(rows, width, device=DEVICE).bfloat16() for _ in range(2))
    weight, frozen = ((0.02 * torch.randn(classes, width, device=DEVICE)).bfloat16() for _ in range(2))
    limit = statistics.median(times(products(hidden, weight, other, frozen)))
    leaves = [x.requires_grad_() for x in (hidden, weight)]
    pipeline, weights = pn.Pipeline(TERMS), weights_of(TERMS)

    def lazily() -> None:
        given = {"student": pn.Logits(hidden, weight), "teacher": pn.Logits(other, frozen)}
        torch.autograd.grad(pipeline(**given).total, leaves)

    def at_once() -> None:
        given = {"student": pn.Logits(hidden, weight), "teacher": pn.Logits(other, frozen)}
        pipeline.value_and_grad(**given)

    def backward(loss: Callable[..., Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(loss(weights, hidden @ weight.T, other @ frozen.T), leaves)

    sides: dict[str, Callable[[], object]] = {OURS: at_once, f"{OURS}, call and backward": lazily}
    if GPU:
        torch.compiler.reset()
        sides["torch.compile"] = backward(torch.compile(by_hand, dynamic=False))
    sides["eager"] = backward(by_hand)
    if GPU and importlib.util.find_spec("liger_kernel") is not None:
        sides["Liger, JS alone"] = liger(hidden, weight, other, frozen)
    case = f"{rows} x {width} to {classes}"
    print(f"{case}: four matrix products take {limit:.2f} ms", flush=True)
    ours = (OURS, f"{OURS}, call and backward")
    found, made = measure(case, limit, sides, dict.fromkeys(ours, MOST))
    # The gradients, and the one sum over blocks in float32.
    own = (hidden.nbytes + weight.nbytes + 4 * weight.numel()) / 1e9
    for name in ours:
        above = found[name].gigabytes - own
        made += memory_row(f"{case}: {name}, above gradients and sum", own, above, most=MOST_MEMORY)
    if GPU:
        torch.cuda.empty_cache()
    return made


def products(hidden: Tensor, weight: Tensor, other: Tensor, frozen: Tensor) -> Callable[[], None]:
    """Logits of student and teacher, and what their gradient is multiplied by; nothing else."""
    logits = hidden.new_empty(len(hidden), len(weight))
    states, layer = torch.empty_like(hidden), torch.empty_like(weight)

    def multiply() -> None:
        torch.mm(other, frozen.T, out=logits)
        torch.mm(hidden, weight.T, out=logits)
        torch.mm(logits, weight, out=states)
        torch.mm(logits.T, hidden, out=layer)

    return multiply


def liger(hidden: Tensor, weight: Tensor, other: Tensor, frozen: Tensor) -> Callable[[], object]:
    """The nearest that Liger has: a Jensen-Shannon divergence, fused with both output layers."""
    from liger_kernel.transformers import LigerFusedLinearJSD

    loss = LigerFusedLinearJSD(jsd_beta=0.5)
    return lambda: torch.autograd.grad(loss(hidden, weight, other, frozen, None), [hidden, weight])
