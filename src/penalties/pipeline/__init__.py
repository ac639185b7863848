"""Composition: terms, pipelines, their outputs and gradients, schedules, state."""

from . import gradients, schedules
from .evaluation import Evaluation
from .explanation import Explanation, Finding, Monitor, Share, explain
from .output import LossOutput, TermOutput
from .pipeline import Pipeline
from .state import EMA, Normalized, load_state, save_state
from .term import Regularizer, Term

__all__ = [
    "EMA",
    "Evaluation",
    "Explanation",
    "Finding",
    "LossOutput",
    "Monitor",
    "Normalized",
    "Pipeline",
    "Regularizer",
    "Share",
    "Term",
    "TermOutput",
    "explain",
    "gradients",
    "load_state",
    "save_state",
    "schedules",
]
