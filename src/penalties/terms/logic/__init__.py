"""Logic in an objective: soft rules, semantic loss, and hard constraints that Z3 decides.

- `soft_rules`: rules as fuzzy logic, differentiable everywhere.
- `semantic_loss`: how many of some variables are true, by their exact probability.
- `hard_rules`: constraints on decisions, with unsat cores and the nearest decisions that satisfy them; `explain` names both.
- `Var`, `parse`: rules in Python, and as strings.

Only `hard_rules` and `explain` need a library: `pip install "penalties[logic]"`.
"""

from .reading import parse
from .rules import Rule, Var
from .semantic import semantic_loss
from .soft import soft_rules

__all__ = ["Rule", "Var", "parse", "semantic_loss", "soft_rules"]
