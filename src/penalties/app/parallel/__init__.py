"""Training many runs: one after the other, in several processes, or on a cluster."""

from . import board
from .driving import Failure, Task, Workers, one_by_one, side_by_side

__all__ = ["Failure", "Task", "Workers", "board", "one_by_one", "side_by_side"]
