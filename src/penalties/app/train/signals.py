"""Ctrl-C: the first one stops after the step, the second one at once."""

import contextlib
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

__all__ = ["Interruption"]

_NAMES: Final = ("SIGINT", "SIGTERM", "SIGHUP")
"""Windows has no SIGHUP."""


class Interruption:
    """Whether the user wants the run to stop; signals are caught inside the `with` block.

    The first signal is remembered, and `notify` is called, whose errors are ignored; a second one raises
    `KeyboardInterrupt` wherever the program is. Outside the main thread, where Python handles no signals, nothing
    changes.

    >>> with Interruption(lambda: print("after this step")) as interruption:
    ...     signal.raise_signal(signal.SIGINT)
    ...     bool(interruption)
    after this step
    True
    """

    def __init__(self, notify: Callable[[], None]) -> None:
        """No signal yet."""
        self._notify = notify
        self._came = False
        self._before: dict[int, Any] = {}

    def __bool__(self) -> bool:
        """Whether a signal came."""
        return self._came

    def __enter__(self) -> "Interruption":
        """Catch signals from now on."""
        if threading.current_thread() is threading.main_thread():
            for name in _NAMES:
                number = getattr(signal, name, None)
                # An ignored signal stays ignored, like SIGHUP under nohup.
                if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *exception: object) -> None:
        """Restore the handlers."""
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._came:
            raise KeyboardInterrupt
        self._came = True
        # It may write to a closed terminal: an error here would end the step without a checkpoint.
        with contextlib.suppress(Exception):
            self._notify()
