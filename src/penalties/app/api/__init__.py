"""The program from Python: `penalties.train`, and `penalties.runs` to read what it wrote."""

from . import runs
from .training import train

__all__ = ["runs", "train"]
