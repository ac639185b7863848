"""Optional libraries, imported when they are needed."""

import contextlib
import importlib
import logging
from collections.abc import Generator
from typing import Any

from ..errors import MissingLibraryError

__all__ = ["library", "without_remarks"]


def library(what: str, package: str, extra: str) -> Any:
    """Import a library, or say what to install for `what`."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingLibraryError(what, package, extra=extra) from error


@contextlib.contextmanager
def without_remarks() -> Generator[None]:
    """Keep bitsandbytes quiet, which peft imports where it is installed: it warns of kernels that nobody here needs."""
    logger = logging.getLogger("bitsandbytes")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
