"""Several processes under `torchrun` or `accelerate launch`: the first runs the command, the others work for it."""

import contextlib
import os
import signal
import warnings
from collections.abc import Callable, Generator
from typing import Final

__all__ = ["count", "launched", "together"]

_SIGNALS: Final = ("SIGINT", "SIGTERM", "SIGHUP")
"""Windows has no SIGHUP."""


def count() -> int:
    """How many processes a launcher started; 1 if there was none."""
    given = os.environ.get("WORLD_SIZE", "") if "RANK" in os.environ else ""
    return int(given) if given.isdecimal() else 1


def launched() -> bool:
    """Whether a launcher started this process as one of several."""
    return count() > 1


def together(command: Callable[[], int]) -> int:
    """Run a command in the first process, with the help of the others; returns the exit status of this one.

    That of the command is the first's. The others print nothing, and leave signals to the first, which may have a
    checkpoint to save.
    """
    from ..training.local.processes import LostError, join, serve

    group = join()
    try:
        if group.leads:
            return command()
        with _in_the_background():
            serve(group)
    except LostError:
        if group.leads:
            raise
        # The first process has said why, or was killed.
        return 1
    finally:
        group.end()
    return 0


@contextlib.contextmanager
def _in_the_background() -> Generator[None]:
    """Neither signals nor output."""
    for name in _SIGNALS:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield
