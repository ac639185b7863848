"""Pipelines inside other people's training code, and what they read there: parameters, activations, extra losses."""

from .activations import Captured, capture
from .auxiliary import Collected, auxiliary, collect
from .selection import Selection, select
from .torch import TrainStep, WrappedLoss, train_step, wrap_loss

__all__ = [
    "Captured",
    "Collected",
    "Selection",
    "TrainStep",
    "WrappedLoss",
    "auxiliary",
    "capture",
    "collect",
    "select",
    "train_step",
    "wrap_loss",
]
