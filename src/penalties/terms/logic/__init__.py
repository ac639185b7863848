"""Logic in an objective: soft rules, semantic loss, and hard constraints that Z3 decides.

- `soft_rules`: rules as fuzzy logic, differentiable everywhere.
- `semantic_loss`: how many of some variables are true, by their exact probability.
- `hard_rules`: constraints on decisions, with unsat cores and the nearest decisions that satisfy them, which `explain`
  names.
- `Var`, `parse`: rules in Python, and as strings.

Only `hard_rules` and `explain` need a library: `pip install "penalties[logic]"`.
"""

from .errors import ContradictionError, UndecidedError
from .hard import explain, hard_rules
from .reading import parse
from .rules import Rule, Var
from .semantic import semantic_loss
from .soft import soft_rules
from .solving import Finding

__all__ = [
    "ContradictionError",
    "Finding",
    "Rule",
    "UndecidedError",
    "Var",
    "explain",
    "hard_rules",
    "parse",
    "semantic_loss",
    "soft_rules",
]
