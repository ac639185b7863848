"""Runs of other loops: outputs that a program kept, or the log that `telemetry.JSONLines` wrote."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from ...encoding import dumps
from ...files import read_plain
from ...pipeline.output import LossOutput
from ..privacy import hide
from ..runs.disk import RunError, reason
from .reading import Lines, run_of
from .runlog import RunLog

__all__ = ["read_history", "read_sink"]

_OUTPUTS: Final = ("pipeline.stop", "custom_loss.stop", "gradients.stop")
"""The events with an output; a later one of a step has what the first has, and gradients."""
_FAILURES: Final = ("pipeline.exception", "custom_loss.exception")


def read_history(outputs: Mapping[int, LossOutput]) -> RunLog:
    """The run of these outputs by step."""
    log = Lines()
    for step, output in sorted(outputs.items()):
        log.add(dumps(_step(step, output.read().to_dict())))
    return run_of(log)


def read_sink(path: Path) -> RunLog:
    """The run that a log by `telemetry.JSONLines` has.

    Events that are not outputs of a pipeline are passed over. Lines that cannot be read are counted.
    """
    try:
        text = hide(read_plain(path).decode("utf-8", "replace"))
    except OSError as error:
        raise RunError(f"{path} cannot be read: {reason(error)}") from error
    *complete, rest = text.split("\n")
    log, clock = Lines(), _Clock()
    unreadable = [at for at, line in enumerate(complete, 1) if line and not _add(log, clock, line)]
    run = run_of(log, unreadable=unreadable, torn=bool(rest) and not _add(log, clock, rest))
    if not len(run.steps) and not run.events:
        raise RunError(f"{path} has no output of a pipeline; expected a log by telemetry.JSONLines", 2)
    return run


class _Clock:
    """The time of the last step that is finished."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.before: float | None = None
        self.last: float | None = None

    def took(self, step: int, time: Any) -> float | None:
        """The seconds since the step before this one; None if they are not known."""
        now = float(time) if isinstance(time, int | float) and not isinstance(time, bool) else None
        if step != self.step:
            self.step, self.before = step, self.last
        self.last = now
        return None if now is None or self.before is None else max(0.0, now - self.before)


def _add(log: Lines, clock: _Clock, line: str) -> bool:
    """Add what a line has; returns False if it is not one of the sink."""
    try:
        entry: Any = json.loads(line)
        event, step = entry["event"], entry.get("step")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
    if event in _FAILURES and isinstance(step, int):
        error: Any = entry.get("error")
        message = str(cast("dict[str, Any]", error).get("message", "")) if isinstance(error, dict) else ""
        return log.add(json.dumps({"kind": "event", "step": step, "event": "warning", "message": message}))
    if event not in _OUTPUTS:
        return isinstance(event, str)
    output: Any = entry.get("output")
    if not isinstance(output, dict) or not isinstance(step, int):
        return False
    record = _step(step, cast("dict[str, Any]", output))
    took = clock.took(step, entry.get("time"))
    return log.add(json.dumps(record if took is None else {**record, "seconds": took}))


def _step(step: int, output: dict[str, Any]) -> dict[str, Any]:
    """The record of a step, as training writes it."""
    parts: dict[str, Any] = {"base_loss": output.get("base_loss"), **(output.get("regularizers") or {})}
    known = {name: cast("dict[str, Any]", part) for name, part in parts.items() if isinstance(part, dict)}
    durations = {name: part["duration"] for name, part in known.items() if part.get("duration") is not None}
    errors = {name: _said(part["error"]) for name, part in known.items() if part.get("error") is not None}
    return {"kind": "step", "step": step, "loss": output, "durations": durations, "errors": errors}


def _said(error: Any) -> str:
    return str(cast("dict[str, Any]", error).get("message", error)) if isinstance(error, dict) else str(error)
