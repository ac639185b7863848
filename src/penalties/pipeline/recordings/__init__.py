"""A call in which a term failed, on disk: everything it takes to run it again."""

from .recorder import keep, keep_skipped, recording
from .stored import Call, Recorded, load, store

__all__ = ["Call", "Recorded", "keep", "keep_skipped", "load", "recording", "store"]
