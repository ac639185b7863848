"""A circuit breaker: a service that fails again and again is left alone for a while.

Not pybreaker: its asynchronous calls need Tornado, and used as a context manager it lets every waiting request try a
service that may just have recovered; here one does.
"""

import math

__all__ = ["Breaker"]


class Breaker:
    """Closed while requests succeed; open after `failures` in a row; half open, for one request, `reset` seconds later.

    All calls come from one thread, that of the event loop.
    """

    def __init__(self, failures: int, reset: float) -> None:
        """Closed."""
        self._most = failures
        self._reset = reset
        self._failed = 0
        self._until = -math.inf
        self._probing = False

    @property
    def is_open(self) -> bool:
        """Whether requests are not made, except for one that finds out whether they can be."""
        return self._failed >= self._most

    def waits(self, now: float) -> float:
        """Seconds until a request may be made: 0 for now, and then its outcome is to be reported."""
        if not self.is_open:
            return 0.0
        if now < self._until:
            return self._until - now
        if self._probing:
            return self._reset
        self._probing = True
        return 0.0

    def succeeded(self) -> None:
        """Close it."""
        self._failed = 0
        self._probing = False

    def failed(self, now: float) -> None:
        """Count a failure; one of several in a row, or of the request that was let through, opens it."""
        self._failed += 1
        self._probing = False
        if self.is_open:
            self._until = now + self._reset

    def given_up(self) -> None:
        """A request was not made after all: its time was over first, or nothing waits for it any more."""
        self._probing = False
