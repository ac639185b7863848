"""The program from Python: `penalties.train`, `penalties.runs` to read what it wrote, and `penalties.report`."""

from . import runs
from .reporting import report
from .training import train

__all__ = ["report", "runs", "train"]
