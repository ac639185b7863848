"""What telemetry costs: its guard where nobody listens, an event, and a step of five terms that is listened to.

A step is a call of `value_and_grad`, so its events are real, and its output holds the values and norms of all terms.
"""

import itertools
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penalties import telemetry
from penalties.telemetry import events

from .harness import Row, compare
from .terms import FIVES, Five, logprobs

GUARDS = 1000


def ignore(event: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    pass


def idle() -> None:
    for _ in itertools.repeat(None, GUARDS):
        pass


def guarded() -> None:
    """The guard as a pipeline has it."""
    for _ in itertools.repeat(None, GUARDS):
        if events.handlers:
            raise AssertionError("nobody listens")


def emit() -> None:
    """One event of a term."""
    events.emit(
        "term.stop",
        {"duration": 0.1, "value": 0.2, "contribution": 0.3, "grad_norm": None},
        {"call": 1, "name": "l1", "weight": 0.5, "runs": "inline", "async": False, "step": 1},
    )


def run(scale: float) -> list[Row]:
    return [*_alone(3.0 * scale), *_steps(scale)]


def _alone(seconds: float) -> list[Row]:
    guard = compare("a guard, nobody listens", idle, guarded, seconds=seconds, each=GUARDS, most_more=0.1)
    handler_id = telemetry.attach(ignore)
    try:
        return [guard, compare("an event to one handler", lambda: None, emit, seconds=seconds, most_more=5.0)]
    finally:
        telemetry.detach(handler_id)


def _steps(scale: float) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        sink = telemetry.JSONLines(Path(folder, "metrics.jsonl"))
        try:
            return [row for five in FIVES for row in _rows(five, sink, 5.0 * scale)]
        finally:
            sink.close()


def _rows(five: Five, sink: telemetry.JSONLines, seconds: float) -> list[Row]:
    x, pipeline, steps = logprobs(10, 100), five.pipeline(), itertools.count()

    def step() -> None:
        pipeline.value_and_grad(x, step=next(steps))

    def heard_by(handler: Any) -> Callable[[], None]:
        def heard() -> None:
            handler_id = telemetry.attach(handler)
            step()
            telemetry.detach(handler_id)

        return heard

    case = f"5 {five.name} terms"
    return [
        compare(f"{case}, all events ignored", step, heard_by(ignore), seconds=seconds, most_more=60.0),
        compare(f"{case}, a JSON line", step, heard_by(sink), seconds=seconds, most_more=150.0),
    ]
