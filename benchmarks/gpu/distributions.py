"""KL, Jensen-Shannon and entropy over logits: values, norms and one gradient, against the bytes that must move."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

import penalties as pn

from ..harness import Row
from .measuring import DEVICE, GPU, OURS, machine, measure, memory_row, title

__all__ = ["BACKWARD", "ENTROPY", "JS", "KL", "both", "by_hand", "compiled", "run", "weights_of"]

LOGITS = {"logits": True}
KL = pn.Term(pn.kl_divergence, name="kl", weight=0.3, inputs=("student", "teacher"), options=LOGITS)
JS = pn.Term(pn.js_divergence, name="js", weight=0.5, inputs=("student", "teacher"), options=LOGITS)
ENTROPY = pn.Term(pn.entropy, name="entropy", weight=0.2, inputs="student", options=LOGITS)
BACKWARD = f"{OURS}, call and backward"


def run(scale: float) -> list[Row]:
    """Each set of terms, at the size of a batch of a language model."""
    rows, classes = (4096, 128256) if GPU else (4, 1000)
    title(f"logits, bfloat16, {rows} x {classes}, forward and backward; ours with the norm of each term's gradient")
    student, teacher = (torch.randn(rows, classes, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
    made: list[Row] = []
    # What must move, in arrays of this size; and what a call, and a call with a backward, may take.
    cases = (((KL, JS, ENTROPY), 3, 3.5, 4.0), ((KL,), 3, 2.2, 2.5), ((ENTROPY,), 2, 2.2, 2.5))
    for terms, moved, most, most_backward in cases:
        case = " + ".join(term.name for term in terms)
        limit = machine().moving(moved * student.nbytes)
        sides = {**both(terms, student, teacher), **peers(terms, student, teacher)}
        found, judged = measure(case, limit, sides, {OURS: most, BACKWARD: most_backward})
        made += judged
        if terms == (KL, JS, ENTROPY):
            whole = 3 * student.nbytes / 1e9
            for name in (OURS, BACKWARD):
                peak = 2 * student.nbytes / 1e9 + found[name].gigabytes
                made += memory_row(f"{case}: {name}, with inputs", whole, peak, most_ratio=1.05)
    return made


def both(terms: Sequence[pn.Term], student: Tensor, teacher: Tensor) -> dict[str, Callable[[], object]]:
    """Ours: one call that returns gradients and norms; and a call with a backward after it."""
    pipeline = pn.Pipeline(terms)
    leaf = student.detach().requires_grad_()
    given = {"teacher": teacher} if any("teacher" in term.inputs.values() for term in terms) else {}
    return {
        OURS: lambda: pipeline.value_and_grad(student=student, wrt="student", **given),
        BACKWARD: lambda: torch.autograd.grad(pipeline(student=leaf, **given).total, leaf),
    }


def peers(terms: Sequence[pn.Term], student: Tensor, teacher: Tensor) -> dict[str, Callable[[], object]]:
    """The same without norms, by what else there is."""
    leaf, weights = student.detach().requires_grad_(), weights_of(terms)
    sides: dict[str, Callable[[], object]] = {}
    if GPU:
        sides["torch.compile"] = compiled(terms, leaf, teacher)
    sides["eager"] = lambda: torch.autograd.grad(by_hand(weights, leaf, teacher), leaf)
    if GPU and KL in terms and importlib.util.find_spec("liger_kernel") is not None:
        what = "KL" if len(terms) == 1 else "JS alone"
        loss = liger(what)
        sides[f"Liger, {what}"] = lambda: torch.autograd.grad(
            loss(log_softmax(leaf, -1), log_softmax(teacher, -1)), leaf
        )
    return sides


def compiled(terms: Sequence[pn.Term], leaf: Tensor, teacher: Tensor) -> Callable[[], object]:
    """A graph for these shapes alone."""
    torch.compiler.reset()
    graph, weights = torch.compile(by_hand, dynamic=False), weights_of(terms)
    return lambda: torch.autograd.grad(graph(weights, leaf, teacher), leaf)


def liger(what: str) -> Callable[[Tensor, Tensor], Tensor]:
    """A loss of Liger over log-probabilities."""
    import liger_kernel.transformers as kernels

    return kernels.LigerKLDIVLoss(reduction="batchmean", log_target=True) if what == "KL" else kernels.LigerJSD()


def weights_of(terms: Sequence[pn.Term]) -> dict[str, Any]:
    """By name."""
    return {term.name: term.weight for term in terms}


def by_hand(weights: Mapping[str, float], student: Tensor, teacher: Tensor) -> Tensor:
    """What a user would write for these terms."""
    a = log_softmax(student.float(), -1)
    p = a.exp()
    total = torch.zeros((), device=student.device)
    if "entropy" in weights:
        total = total - weights["entropy"] * (p * a).sum(-1).mean()
    if "kl" in weights or "js" in weights:
        b = log_softmax(teacher.float(), -1)
        if "kl" in weights:
            total = total + weights["kl"] * (p * (a - b)).sum(-1).mean()
        if "js" in weights:
            q = b.exp()
            middle = (0.5 * (p + q)).log()
            total = total + weights["js"] * 0.5 * (p * (a - middle) + q * (b - middle)).sum(-1).mean()
    return total
