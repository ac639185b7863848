"""Several processes that train one model: the first runs the program, the others pass their rows through a copy."""

from .client import ParallelTrainingClient
from .group import Group, LostError, current, join
from .serving import serve

__all__ = ["Group", "LostError", "ParallelTrainingClient", "current", "join", "serve"]
