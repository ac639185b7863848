"""Ctrl-C: the first one asks, the second one insists."""

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
    """Whether somebody wants the run to stop, while it is entered.

    The first signal is remembered, and told to `asked`, whose errors count for nothing; a second one raises
    `KeyboardInterrupt` wherever the program is. Outside the main thread, where Python takes no signals, nothing is
    changed.

    >>> with Interruption(lambda: print("after this step")) as interruption:
    ...     signal.raise_signal(signal.SIGINT)
    ...     bool(interruption)
    after this step
    True
    """

    def __init__(self, asked: Callable[[], None]) -> None:
        """Nobody has asked yet."""
        self._asked = asked
        self._came = False
        self._before: dict[int, Any] = {}

    def __bool__(self) -> bool:
        """Whether a signal came."""
        return self._came

    def __enter__(self) -> "Interruption":
        """From now on signals are remembered."""
        if threading.current_thread() is threading.main_thread():
            for name in _NAMES:
                number = getattr(signal, name, None)
                # One that is ignored stays so: as SIGHUP is under nohup.
                if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *exception: object) -> None:
        """As before."""
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._came:
            raise KeyboardInterrupt
        self._came = True
        # It may write to a terminal that is gone: an error here would end the step, and there would be no checkpoint.
        with contextlib.suppress(Exception):
            self._asked()
