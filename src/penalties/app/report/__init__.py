"""The report: one HTML page about one or several runs, which works offline."""

from .page import Report, make
from .reading import read
from .runlog import RunLog

__all__ = ["Report", "RunLog", "make", "read"]
