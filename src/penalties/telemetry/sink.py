"""What all sinks share: default events, steps, `with`, closing; and how their libraries are loaded."""

import importlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, Self

from ..errors import MissingLibraryError, PenaltiesError
from .events import attach, detach
from .scalars import scalar

__all__ = ["MetricsSink", "Sink", "library"]

_STOPS: Final = ("pipeline.stop", "custom_loss.stop")


class Sink(ABC):
    """A handler that takes events to one place. As a context manager it is attached inside, and closed at the end.

    A subclass says in `record` what becomes of an event, and in `close` what has to be released.
    """

    events: tuple[str, ...] = _STOPS
    """What it hears unless `attach` says otherwise."""

    def __init__(self, place: str) -> None:
        """Keep the place, which `repr` shows."""
        self.place: str = place
        self.closed: bool = False
        self._lock = threading.Lock()
        self._handler_id = ""
        self._steps = 0
        self._stopped: object = None

    @abstractmethod
    def record(self, event: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        """Take one event there."""

    def close(self) -> None:
        """Take no more events. To close twice is to close once."""
        self.closed = True

    def __call__(self, event: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        """The handler: refuse where closed, else record."""
        self.check_open()
        self.record(event, measurements, metadata)

    def check_open(self) -> None:
        """Refuse to go on where closed."""
        if self.closed:
            raise PenaltiesError(f"{self!r} takes no more events; make a new one")

    def step(self, event: str, metadata: Mapping[str, Any]) -> int | None:
        """The event's step; where it has none, the number of calls that have stopped before it."""
        given = metadata.get("step")
        if given is not None:
            return scalar(given)
        with self._lock:
            if event not in _STOPS:
                return self._steps
            call = metadata.get("call")
            if call is None or call != self._stopped:
                self._steps += 1
            self._stopped = call
            return self._steps - 1

    def __enter__(self) -> Self:
        if self._handler_id or self.closed:
            raise PenaltiesError(f"{self!r} cannot be entered again; make a new one")
        self._handler_id = attach(self)
        return self

    def __exit__(self, *error: object) -> None:
        detach(self._handler_id)
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.place}{', closed' if self.closed else ''}>"


class MetricsSink(Sink):
    """A sink of numbers by name and step: it takes stops, and from them the flat metrics in one transfer."""

    def __init__(self, place: str) -> None:
        """Nothing is logged yet."""
        super().__init__(place)
        self._logged: object = None
        self._normed = False

    @abstractmethod
    def log(self, metrics: Mapping[str, float], step: int | None) -> None:
        """Take the numbers of one step there."""

    def record(self, event: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        """Log the output's metrics, once for a call: a custom loss and its pipeline both stop with the same.

        But for norms that only the custom loss has, where they were measured at the parameters: those come second.
        """
        output = metadata.get("output")
        if output is None:
            raise PenaltiesError(f"{self!r} takes {' and '.join(_STOPS)} with their output; got {event}")
        call = metadata.get("call")
        normed = output.total_grad_norm is not None
        again = call is not None and call == self._logged
        if again and (self._normed or not normed):
            return
        self._logged, self._normed = call, normed
        metrics = output.metrics(style="slash")
        if again:
            metrics = {name: value for name, value in metrics.items() if name.startswith("grad_norm/")}
        self.log(metrics, self.step(event, metadata))


def library(what: str, module: str, *, package: str, extra: str) -> Any:
    """Import an optional library, or say what to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # it is there, and something that it needs is not
        raise MissingLibraryError(what, package, extra) from None
