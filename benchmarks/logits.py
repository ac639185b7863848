"""Penalties over the same logits: sharing a log_softmax, in chunks, and over logits that need never exist; on a CPU."""

from collections.abc import Callable
from typing import Any

import torch

import penalties as pn

from .harness import Row, compare

LOGITS = {"logits": True}
PIPELINE = pn.Pipeline(
    [
        pn.Term(pn.kl_divergence, weight=0.3, inputs=("student", "teacher"), options=LOGITS),
        pn.Term(pn.js_divergence, weight=0.5, inputs=("student", "teacher"), options=LOGITS),
        pn.Term(pn.entropy, weight=0.2, inputs="student", options=LOGITS),
    ]
)


def run(scale: float) -> list[Row]:
    return [*_shared(scale), *_in_chunks(scale), *_from_hidden_states(scale)]


def _shared(scale: float) -> list[Row]:
    given, alone = _logits(scale), [pn.Pipeline([term]) for term in PIPELINE]
    rows: list[Row] = []
    for case, work, most in (("backward", _backward, 1.0), ("with norms", _norms, 1.05)):
        plain, ours = _each(alone, work, given), _each([PIPELINE], work, given)
        case = f"3 terms, 64 x 32000, {case}"
        rows.append(compare(case, plain, ours, seconds=6.0 * scale, most_ratio=most))
    return rows


def _in_chunks(scale: float) -> list[Row]:
    given = _logits(scale)
    alone = [pn.Pipeline([term]) for term in PIPELINE]
    pieces = [pn.Pipeline([term.replace(chunk=16)]) for term in PIPELINE]

    def once_more() -> None:
        for pipeline in alone:
            with torch.no_grad():
                pipeline(**given)
            _backward(pipeline, given)

    case = "3 terms, 64 x 32000, each in chunks of 16, against whole and one more forward"
    return [compare(case, once_more, _each(pieces, _backward, given), seconds=6.0 * scale, most_ratio=1.05)]


def _from_hidden_states(scale: float) -> list[Row]:
    generator = torch.Generator().manual_seed(0)
    rows, width, classes = (1024, 256, 32000) if scale else (8, 4, 100)
    shapes = (rows, width), (classes, width), (rows, width)
    hidden, weight, other = (torch.randn(*shape, generator=generator) for shape in shapes)
    leaves = [x.requires_grad_() for x in (hidden, weight)]

    def total(lazy: bool) -> Callable[[], object]:
        def work() -> object:
            given: dict[str, Any] = {"student": pn.Logits(hidden, weight), "teacher": pn.Logits(other, weight.detach())}
            if not lazy:
                given = {name: logits.materialize() for name, logits in given.items()}
            return torch.autograd.grad(PIPELINE(**given).total, leaves)

        return work

    case = f"from hidden states, {rows} x {width} to {classes}, against whole logits"
    return [compare(case, total(False), total(True), seconds=10.0 * scale, most_ratio=1.1)]


def _logits(scale: float) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(64, 32000 if scale else 100, generator=generator) for _ in range(2))
    return {"student": student.requires_grad_(), "teacher": teacher}


def _each(pipelines: Any, work: Any, given: Any) -> Callable[[], object]:
    return lambda: [work(pipeline, given) for pipeline in pipelines]


def _backward(pipeline: pn.Pipeline, given: Any) -> object:
    return torch.autograd.grad(pipeline(**given).total, given["student"])


def _norms(pipeline: pn.Pipeline, given: Any) -> object:
    return pipeline.value_and_grad(**given)
