"""The model that a run trained: found by its checkpoints, sampled from, and exported."""

from .finding import Trained, find

__all__ = ["Trained", "find"]
