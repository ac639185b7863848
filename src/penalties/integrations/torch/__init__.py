"""PyTorch: a pipeline as a loss function, one training step, and what attaches to an optimizer."""

from .loss import WrappedLoss, wrap_loss
from .optimizers import Attached, centralize, clip_norm, clip_units, decay, gradient_noise, proximal
from .step import TrainStep, train_step

__all__ = [
    "Attached",
    "TrainStep",
    "WrappedLoss",
    "centralize",
    "clip_norm",
    "clip_units",
    "decay",
    "gradient_noise",
    "proximal",
    "train_step",
    "wrap_loss",
]
