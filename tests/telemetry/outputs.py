"""What a pipeline gives with its stop, as plain data, and a handler that remembers."""

import math
from collections.abc import Mapping
from typing import Any

from penalties.telemetry import events


class Output:
    """An output of one term, which counts how often somebody makes it read its device."""

    base = None
    total_grad_norm = None
    cosines = None

    def __init__(self, value: float = 6.0) -> None:
        self.value = value
        self.transfers = 0

    def metrics(self, style: str = "flat") -> dict[str, float]:
        self.transfers += 1
        if style == "flat":
            return {"l1": self.value, "l1_weighted": self.value / 2, "total": self.value / 2}
        return {"loss/l1": self.value, "loss/l1/weighted": self.value / 2, "loss/total": self.value / 2}

    def to_dict(self) -> dict[str, Any]:
        self.transfers += 1
        term = {"value": self.value, "weight": 0.5, "contribution": self.value / 2, "grad_norm": None}
        total = self.value / 2
        return {"loss_total": total, "regularizers": {"l1": term}, "regularizer_total": total, "total_grad_norm": None}


class Unread:
    """A 0-d array on a device, that must not be read."""

    ndim = 0

    def item(self) -> float:
        raise AssertionError("read")


class Explanation:
    def to_dict(self) -> dict[str, Any]:
        return {"dominant": ["l1"], "share": math.nan}

    def __str__(self) -> str:
        return "l1 dominates:\n  90 % of the loss\n"


class Remember:
    """A handler that keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = []

    def __call__(self, event: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        self.heard.append((event, measurements, metadata))

    @property
    def names(self) -> list[str]:
        return [event for event, _, _ in self.heard]


def stop(output: Output, *, call: int = 1, step: Any = None, event: str = "pipeline.stop") -> None:
    """Emit a stop as a pipeline does: numbers as they are on the device, and the output that reads them."""
    measurements = {"duration": 0.25, "loss_total": Unread(), "regularizer_total": Unread(), "total_grad_norm": None}
    metadata = {"call": call, "pipeline": "main", "term_count": 1, "step": step, "output": output}
    events.emit(event, measurements, metadata)


def fail(error: Exception, *, call: int = 1, step: Any = None, event: str = "pipeline.exception") -> None:
    metadata = {"call": call, "pipeline": None, "step": step, "error": error, "term": "l1"}
    events.emit(event, {"duration": 0.25}, metadata)
