"""What wrappers add to the calls of the term inside: estimates of gradients, and results that are read or reused.

The plain side evaluates a term that returns its own gradient, and makes the further calls of the function that the
wrapper makes; the difference is the wrapper's own time.
"""

import itertools
import tempfile
from collections.abc import Callable
from typing import Any

import torch

import penalties as pn
from penalties.pipeline.evaluate import compute, evaluate_term
from penalties.pipeline.inputs import CallInputs

from .harness import Row, compare

ELEMENTS = 100
LIMIT = 100.0
"""Microseconds."""


def squares(x: Any) -> Any:
    return (x * x).sum()


def with_gradient(x: Any) -> Any:
    return pn.Evaluation((x * x).sum().detach(), gradient={"x": x.detach()})


def each(x: Any) -> Any:
    return x * x


def run(scale: float) -> list[Row]:
    x = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(0))
    inputs = {"x": x, "logprobs": x.log_softmax(-1)}
    pair = pn.SPSA(pn.Term(squares), samples=1)
    four = pn.SPSA(pn.Term(squares), samples=4)
    noise = pn.EvolutionStrategies(pn.Term(squares), population=8)
    score = pn.ScoreFunction(pn.Term(each), logprobs="logprobs")
    return [
        _row("SPSA, 3 calls", 3, pair, inputs, scale),
        _row("SPSA, 9 calls", 9, four, inputs, scale),
        _row("evolution strategies, 9 calls", 9, noise, inputs, scale),
        _row("score function, 1 call", 1, score, inputs, scale, wrt="logprobs"),
        compare(
            "straight-through, with its gradient",
            _evaluation(pn.Term(squares), inputs, "x"),
            _evaluation(pn.StraightThrough(pn.Term(squares), "round"), inputs, "x"),
            seconds=2.0 * scale,
            most_more=LIMIT,
        ),
        *_slow(inputs, scale),
    ]


def _row(case: str, calls: int, term: pn.Term, inputs: Any, scale: float, wrt: str = "x") -> Row:
    first, inner = pn.Term(with_gradient), pn.Term(squares, differentiable=False)
    given = CallInputs.of({"x": inputs["x"]})

    def alone() -> None:
        evaluate_term(first, inputs, ("x",))
        for _ in itertools.repeat(None, calls - 1):
            compute(inner, given, 0)

    return compare(case, alone, _evaluation(term, inputs, wrt), seconds=2.0 * scale, most_more=LIMIT)


def _evaluation(term: pn.Term, inputs: Any, wrt: str) -> Callable[[], Any]:
    return lambda: evaluate_term(term, inputs, (wrt,), step=0)


def _slow(inputs: Any, scale: float) -> list[Row]:
    stale = pn.Stale(pn.Term(squares), steps=5, wrt="x")
    state = evaluate_term(stale, inputs, ("x",), step=0).state
    reused = compare(
        "a stale gradient",
        lambda: None,
        lambda: evaluate_term(stale, inputs, ("x",), step=3, state=state),
        seconds=2.0 * scale,
        unit="ms",
        most=1.0,
    )
    with tempfile.TemporaryDirectory() as folder:
        cached = pn.Cached(pn.Term(squares), folder)
        evaluate_term(cached, inputs)

        def hit() -> None:
            assert evaluate_term(cached, inputs).metrics["cached"] == 1

        found = compare("a hit in a cache", lambda: None, hit, seconds=2.0 * scale, unit="ms", most=1.0)
    return [reused, found]
