"""Training a run: the model, the loop, held-out evaluation, progress and sinks."""

from .loop import Interrupted, TermFailed, Training
from .start import check_config, train

__all__ = ["Interrupted", "TermFailed", "Training", "check_config", "train"]
