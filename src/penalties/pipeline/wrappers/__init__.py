"""What can go around a term: running values, gradients of terms that have none, and slow terms that cost less."""

from collections.abc import Callable
from typing import Final

from ..term import Term
from .cached import Cached
from .evolution import EvolutionStrategies
from .running import EMA, Normalized
from .score_function import ScoreFunction
from .spsa import SPSA
from .stale import Stale
from .straight_through import StraightThrough
from .wrapper import Wrapper

__all__ = [
    "EMA",
    "SPSA",
    "WRAPPERS",
    "Cached",
    "EvolutionStrategies",
    "Normalized",
    "ScoreFunction",
    "Stale",
    "StraightThrough",
    "Wrapper",
]

WRAPPERS: Final[dict[str, Callable[..., Term]]] = {
    "ema": EMA,
    "normalized": Normalized,
    "score_function": ScoreFunction,
    "straight_through": StraightThrough,
    "spsa": SPSA,
    "evolution_strategies": EvolutionStrategies,
    "cached": Cached,
    "stale": Stale,
}
"""What can go around a term, by its word in a configuration; the other keys there are the arguments."""
