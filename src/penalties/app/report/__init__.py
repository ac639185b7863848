"""The report: a run, or several, as one page of HTML that works offline."""

from .page import Report, make, write
from .reading import read
from .runlog import RunLog

__all__ = ["Report", "RunLog", "make", "read", "write"]
