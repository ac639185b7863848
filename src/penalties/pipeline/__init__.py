"""Composition: terms, pipelines, their outputs and gradients, schedules, state."""

from . import gradients, schedules
from .checks import debug
from .evaluation import Evaluation
from .explanation import Explanation, Finding, Share, explain
from .monitor import Monitor
from .output import LossOutput, TermOutput
from .pipeline import Pipeline
from .plotting import plot
from .recordings import recording
from .saving import load_state, save_state
from .term import Regularizer, Term
from .wrappers import (
    EMA,
    SPSA,
    Cached,
    EvolutionStrategies,
    Normalized,
    ScoreFunction,
    Stale,
    StraightThrough,
)

__all__ = [
    "EMA",
    "SPSA",
    "Cached",
    "Evaluation",
    "EvolutionStrategies",
    "Explanation",
    "Finding",
    "LossOutput",
    "Monitor",
    "Normalized",
    "Pipeline",
    "Regularizer",
    "ScoreFunction",
    "Share",
    "Stale",
    "StraightThrough",
    "Term",
    "TermOutput",
    "debug",
    "explain",
    "gradients",
    "load_state",
    "plot",
    "recording",
    "save_state",
    "schedules",
]
