"""Pipelines inside other people's training code."""

from .loop import TrainStep, WrappedLoss, train_step, wrap_loss

__all__ = ["TrainStep", "WrappedLoss", "train_step", "wrap_loss"]
