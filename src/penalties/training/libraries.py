"""Optional libraries, imported when they are needed."""

import importlib
from typing import Any

from ..errors import MissingLibraryError

__all__ = ["library"]


def library(what: str, package: str, extra: str) -> Any:
    """Import a library, or say what to install for `what`."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingLibraryError(what, package, extra=extra) from error
