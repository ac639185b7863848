"""Run folders: the config, the log, checkpoints, references and the report of one run."""

from .disk import RunError
from .run import Run

__all__ = ["Run", "RunError"]
