"""What all sinks share: default events, step counting, `with`, closing, and loading of optional libraries."""

import importlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Self

from ..errors import MissingLibraryError, PenaltiesError
from .events import attach, detach
from .scalars import scalar

__all__ = ["MetricsSink", "Sink", "library"]

_STOPS: Final = ("pipeline.stop", "custom_loss.stop", "gradients.stop")

_RECENT: Final = 64


class Sink(ABC):
    """A handler that sends events to one destination. `with sink:` attaches it, and detaches and closes it at the end.

    A subclass sends an event in `record`, and releases its resources in `close`.
    """

    events: tuple[str, ...] = _STOPS
    """The events that it receives by default."""

    def __init__(self, destination: str) -> None:
        """Store the destination, which `repr` shows."""
        self.destination: str = destination
        self.closed: bool = False
        self._lock = threading.Lock()
        self._handler_id = ""
        self._steps = 0
        self._numbered: dict[object, int] = {}
        """The steps of recent calls that have none of their own."""

    @abstractmethod
    def record(self, event: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        """Send one event."""

    def flush(self) -> None:  # noqa: B027 (most sinks buffer nothing)
        """Send what is pending."""

    def close(self) -> None:
        """Accept no more events. Closing twice is the same as closing once."""
        self.closed = True

    def __call__(self, event: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        """The handler: record the event, or raise if the sink is closed."""
        self.check_open()
        self.record(event, measurements, metadata)

    def check_open(self) -> None:
        """Raise if the sink is closed."""
        if self.closed:
            raise PenaltiesError(f"{self!r} accepts no more events; create a new one")

    def step(self, event: str, metadata: Mapping[str, Any]) -> int | None:
        """The event's step; if it has none, the number of calls that stopped before it."""
        given = metadata.get("step")
        if given is not None:
            return scalar(given)
        with self._lock:
            if event not in _STOPS:
                return self._steps
            call = metadata.get("call")
            if call in self._numbered:
                return self._numbered[call]
            step, self._steps = self._steps, self._steps + 1
            if call is not None:
                _remember(self._numbered, call, step)
            return step

    def __enter__(self) -> Self:
        if self._handler_id or self.closed:
            raise PenaltiesError(f"{self!r} cannot be entered again; create a new one")
        self._handler_id = attach(self)
        return self

    def __exit__(self, *error: object) -> None:
        detach(self._handler_id)
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.destination}{', closed' if self.closed else ''}>"


class _Logged(NamedTuple):
    """What was logged of a call."""

    parts: tuple[bool, bool, bool]
    """Whether it had a base loss, gradients and cosines."""
    names: frozenset[str]

    def covers(self, parts: tuple[bool, bool, bool]) -> bool:
        """Whether an output with these parts has nothing new."""
        return all(had or not has for had, has in zip(self.parts, parts, strict=True))


def _remember(known: dict[object, Any], call: object, what: Any) -> None:
    """Keep what is known of recent calls: more than a few are never under way at once."""
    known[call] = what
    while len(known) > _RECENT:
        del known[next(iter(known))]


class MetricsSink(Sink):
    """A sink for numbers by name and step: it reads the metrics of each stop event, in one transfer."""

    def __init__(self, destination: str) -> None:
        """Nothing is logged yet."""
        super().__init__(destination)
        self._logged: dict[object, _Logged] = {}
        """Recent calls."""

    @abstractmethod
    def log(self, metrics: Mapping[str, float], step: int | None) -> None:
        """Send the numbers of one step."""

    def record(self, event: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        """Log the output's metrics once per call: a custom loss and its pipeline both emit a stop, with equal numbers.

        What only the later stop has is added: gradients that were measured after the call, and a base loss.
        """
        output = metadata.get("output")
        if output is None:
            raise PenaltiesError(f"{self!r} got {event}, which has no output; attach it to {' and '.join(_STOPS)}")
        call = metadata.get("call")
        parts = output.base is not None, output.total_grad_norm is not None, output.cosines is not None
        before = self._logged.get(call)
        if before is not None and before.covers(parts):
            return
        metrics = output.metrics(style="slash")
        # With a base loss that was not there before, total and shares are others.
        known: frozenset[str] = before.names if before is not None and before.parts[0] == parts[0] else frozenset()
        if call is not None:
            _remember(self._logged, call, _Logged(parts, frozenset(metrics)))
        self.log({name: value for name, value in metrics.items() if name not in known}, self.step(event, metadata))


def library(what: str, module: str, *, package: str, extra: str) -> Any:
    """Import an optional library, or say what to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # it is installed, but one of its own dependencies is not
        raise MissingLibraryError(what, package, extra) from None
