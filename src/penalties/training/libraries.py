"""Optional libraries, imported when they are needed."""

import contextlib
import importlib
import logging
import threading
from collections.abc import Generator
from typing import Any, Final

from ..errors import MissingLibraryError

__all__ = ["library", "without_remarks"]

_lock: Final = threading.Lock()
_levels: Final[list[int]] = []
"""For each block without remarks, the level of bitsandbytes before all of them."""


def library(what: str, package: str, extra: str) -> Any:
    """Import a library, or say what to install for `what`."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingLibraryError(what, package, extra=extra) from error


@contextlib.contextmanager
def without_remarks() -> Generator[None]:
    """Keep bitsandbytes quiet, which peft imports where it is installed: it warns of kernels that nobody here needs.

    With weights of 8 bits it also says in each pass of each layer that it computes in float16.
    """
    logger = logging.getLogger("bitsandbytes")
    with _lock:
        # Threads overlap: the level is restored when the last one is done.
        if not _levels:
            before = logger.level
            logger.setLevel(logging.ERROR)
        else:
            before = _levels[0]
        _levels.append(before)
    try:
        yield
    finally:
        with _lock:
            before = _levels.pop()
            if not _levels:
                logger.setLevel(before)
