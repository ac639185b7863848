"""What listening to a step of five terms costs: a handler that ignores every event, and a file of JSON lines.

A step is a call of `value_and_grad`, so its events are real, and its output holds the values and norms of all terms.
"""

import itertools
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penalties import telemetry

from .harness import Row, compare
from .terms import FIVES, Five, logprobs


def ignore(event: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    pass


def run(scale: float) -> list[Row]:
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
        compare(f"{case}, all events ignored", step, heard_by(ignore), seconds=seconds),
        compare(f"{case}, a JSON line", step, heard_by(sink), seconds=seconds, most_more=150.0),
    ]
