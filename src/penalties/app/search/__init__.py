"""A search for the best values of a config: which values are tried, by what they are judged, and what came of it."""

from .goals import Constraint, Goal, constraint_of
from .results import Found, Trial, ended_in, found_in, headline, holds_search, shown
from .searching import Search, search
from .space import Range, range_of

__all__ = [
    "Constraint",
    "Found",
    "Goal",
    "Range",
    "Search",
    "Trial",
    "constraint_of",
    "ended_in",
    "found_in",
    "headline",
    "holds_search",
    "range_of",
    "search",
    "shown",
]
