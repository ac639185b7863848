"""Events: guarded with nobody listening, sent to one handler, written as JSON lines.

The plain side is what stays without telemetry: a loop that does nothing, a call that does nothing, the plain data of a
step. A step's output is a stand-in of five terms, whose `to_dict` builds that data afresh, as a pipeline's does after
its transfer.
"""

import itertools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penalties.telemetry import JSONLines, attach, detach, events

from .harness import Row, compare

_EVENTS = 1000
_TERMS = ("l1", "kl_divergence", "entropy", "orthogonality", "consistency")


class Output:
    """Five terms, 32 numbers, all with as many digits as a float has."""

    def __init__(self, first: float) -> None:
        self.first = first

    def to_dict(self) -> dict[str, Any]:
        x = self.first / 3
        return {
            "loss_total": x,
            "base_loss": {"value": x, "grad_norm": x, "custom": {}},
            "regularizers": {
                name: {
                    "value": x,
                    "weight": 0.1,
                    "contribution": 0.1 * x,
                    "grad_norm": x / 7,
                    "grad_norm_weighted": x / 70,
                    "custom": {},
                }
                for name in _TERMS
            },
            "regularizer_total": x,
            "total_grad_norm": x / 7,
        }


def idle() -> None:
    """Nothing, as often as the guard is asked."""
    for _ in itertools.repeat(None, _EVENTS):
        pass


def guarded() -> None:
    """The guard as a pipeline writes it."""
    for _ in itertools.repeat(None, _EVENTS):
        if events.handlers:
            events.emit("term.stop", {}, {})


def nothing() -> None:
    pass


def send() -> None:
    """One event of a term, built and sent."""
    events.emit(
        "term.stop",
        {"duration": 0.1, "value": 0.2, "contribution": 0.3, "grad_norm": None},
        {"call": 1, "name": "l1", "weight": 0.5, "runs": "inline", "async": False, "step": 1},
    )


def ignore(event: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    pass


def run(scale: float) -> list[Row]:
    seconds = 3.0 * scale
    rows = [compare(f"{_EVENTS} guards, nobody listens", idle, guarded, seconds=seconds, most_more=0.1 * _EVENTS)]

    handler_id = attach(ignore)
    rows.append(compare("an event to one handler", nothing, send, seconds=seconds, most_more=5.0))
    detach(handler_id)

    with tempfile.TemporaryDirectory() as folder:
        for case, first in (("a step as a JSON line", 2.0), ("a step as a JSON line, all NaN", float("nan"))):
            output = Output(first)
            steps = itertools.count()

            def step(output: Output = output, steps: "itertools.count[int]" = steps) -> None:
                number = next(steps)
                total = output.first
                events.emit(
                    "pipeline.stop",
                    {"duration": 0.1, "loss_total": total, "regularizer_total": total, "total_grad_norm": total},
                    {"call": number, "pipeline": "main", "term_count": 5, "step": number, "output": output},
                )

            with JSONLines(Path(folder, "metrics.jsonl")):
                limit = {"most_more": 60.0} if case.endswith("line") else {}
                rows.append(compare(case, output.to_dict, step, seconds=seconds / 3, **limit))
    return rows
