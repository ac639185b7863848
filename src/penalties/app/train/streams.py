"""What worker processes print, on its way to the program's own streams: their descriptors are pipes to here."""

import contextlib
import os
import sys
import threading
from collections.abc import Generator
from typing import Final

from ..privacy import hide

__all__ = ["piped"]

_LONGEST: Final = 2**16
"""Bytes after which a line is passed on before it ends."""
_ENDING: Final = 1.0
"""Seconds to wait for the rest at the end: something that a term started may hold the pipe open."""


@contextlib.contextmanager
def piped() -> Generator[tuple[int, int]]:
    """Two descriptors for processes; what is written to them is printed here by lines, without keys."""
    with contextlib.ExitStack() as ending:
        streams = [_pumped(name, ending) for name in ("stdout", "stderr")]
        yield streams[0], streams[1]


def _pumped(name: str, ending: contextlib.ExitStack) -> int:
    source, descriptor = os.pipe()
    pump = threading.Thread(target=_pump, args=(source, name), name=f"penalties-{name}", daemon=True)
    pump.start()
    ending.callback(pump.join, _ENDING)
    ending.callback(os.close, descriptor)
    return descriptor


def _pump(source: int, name: str) -> None:
    with open(source, "rb") as lines:
        while line := lines.readline(_LONGEST):
            # Looked up each time: a display of progress puts its own stream there. What cannot be printed is dropped,
            # rather than have workers wait for a reader.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream = getattr(sys, name)
                stream.write(hide(line.decode("utf-8", "backslashreplace")))
                stream.flush()
