"""Events: attaching handlers, and emitting events to them.

Code that emits checks `if events.handlers:` first, which takes a few hundredths of a microsecond, so an event that
nobody receives is never built. `handlers` is a tuple that is replaced as a whole: emitting takes no lock, and attaching
or detaching a handler takes effect from the next event on.
"""

import difflib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias, cast

from ..errors import OptionError

__all__ = ["EVENTS", "Attached", "Handler", "are_heard", "attach", "check_events", "detach", "emit", "handlers"]

EVENTS: Final = (
    "custom_loss.start",
    "custom_loss.stop",
    "custom_loss.exception",
    "pipeline.start",
    "pipeline.stop",
    "pipeline.exception",
    "term.start",
    "term.stop",
    "term.exception",
    "gradients.stop",
    "monitor.explain",
)
"""The names of all events."""

Handler: TypeAlias = Callable[[str, Mapping[str, Any], Mapping[str, Any]], None]
"""What can be attached: `handler(event, measurements, metadata)`. Handlers share the mappings: do not modify them."""


class Attached:
    """A handler, the events that it receives, and the id to detach it by."""

    __slots__ = ("events", "failed", "handler", "handler_id")

    def __init__(self, handler_id: str, handler: Handler, events: frozenset[str]) -> None:
        """Store them; the handler has not failed yet."""
        self.handler_id: str = handler_id
        self.handler: Handler = handler
        self.events: frozenset[str] = events
        self.failed: bool = False

    def __repr__(self) -> str:
        return f"<{self.handler_id}: {self.handler!r}>"


handlers: tuple[Attached, ...] = ()
"""The attached handlers. Read it as `events.handlers`: a name imported from here would not see it change."""

_lock = threading.Lock()
_made = 0


def attach(handler: Handler, events: str | Iterable[str] | None = None, *, handler_id: str | None = None) -> str:
    """Call `handler(event, measurements, metadata)` on these events from now on; returns the id to detach it by.

    Without `events`, a handler receives the events in its own `events` attribute, which sinks have, or else all events.
    Handlers are called in the order of attachment, in the thread that emits. One that raises is logged with its
    traceback and detached; the others still get the event, and the caller continues.

    >>> from penalties.telemetry import attach, detach, events
    >>> def show(event, measurements, metadata):
    ...     print(event, metadata["name"], measurements["value"])
    >>> handler_id = attach(show, "term.stop")
    >>> events.emit("term.stop", {"value": 6.0}, {"name": "l1"})
    term.stop l1 6.0
    >>> detach(handler_id)
    True
    """
    global handlers, _made
    if not callable(handler):
        raise OptionError("attach", "handler", handler, "a function of (event, measurements, metadata)")
    if events is None:
        events = getattr(handler, "events", None)
    names = EVENTS if events is None else check_events("attach", events)
    with _lock:
        taken = {attached.handler_id for attached in handlers}
        if handler_id is None:
            while (handler_id := f"handler-{_made}") in taken:
                _made += 1
            _made += 1
        elif handler_id in taken:
            raise OptionError("attach", "handler_id", handler_id, "an id that is not in use; detach that one first")
        handlers = (*handlers, Attached(handler_id, handler, frozenset(names)))
    return handler_id


def detach(handler_id: str) -> bool:
    """Stop calling a handler; returns False if none has this id. The handler itself is not closed.

    >>> from penalties.telemetry import attach, detach
    >>> handler_id = attach(lambda event, measurements, metadata: None)
    >>> detach(handler_id), detach(handler_id)
    (True, False)
    """
    global handlers
    with _lock:
        before = handlers
        handlers = tuple(attached for attached in before if attached.handler_id != handler_id)
        return len(handlers) < len(before)


def are_heard(*names: str) -> bool:
    """Whether a handler receives one of these events: one that nobody receives need not be built."""
    return any(name in attached.events for attached in handlers for name in names)


def emit(event: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Pass an event to every handler that receives it.

    Nothing is copied, read or converted: values may be arrays that a device is still computing.

    >>> from penalties.telemetry import events
    >>> if events.handlers:
    ...     events.emit("pipeline.stop", {"duration": 0.1}, {"call": 1})
    """
    for attached in handlers:
        if event in attached.events:
            try:
                attached.handler(event, measurements, metadata)
            except Exception:
                _fail(attached, event)


def _fail(attached: Attached, event: str) -> None:
    """Detach a handler that raised, and log the error once."""
    global handlers
    with _lock:
        handlers = tuple(other for other in handlers if other is not attached)
        first, attached.failed = not attached.failed, True
    if not first:
        return
    try:
        logging.getLogger("penalties.telemetry").exception(
            "handler %s failed on %s and was detached", attached.handler_id, event
        )
    except RecursionError:
        # A handler that emits recursively: there is no stack left to log here, so the call one level up does it.
        attached.failed = False
        raise


def check_events(function: str, events: Any) -> tuple[str, ...]:
    """The names in `events`, one or several; raises if a name is unknown or there are none."""
    if not isinstance(events, Iterable):
        raise OptionError(function, "events", events, "names of events")
    names = (events,) if isinstance(events, str) else tuple(cast("Iterable[Any]", events))
    for name in names:
        if name not in EVENTS:
            near = difflib.get_close_matches(str(name), EVENTS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the events are {', '.join(EVENTS)}"
            raise OptionError(function, "events", name, f"the name of an event; {hint}")
    if not names:
        raise OptionError(function, "events", names, "at least one name")
    return names
