"""What `and`, `or` and `not` are for truth values between 0 and 1: three t-norms."""

from typing import Any, Final, Literal, TypeAlias

from ...backends import Backend
from .rules import Connectives
from .truths import Truth, add_logs

__all__ = ["CRISP", "Norm", "godel", "lukasiewicz", "product"]

Norm: TypeAlias = Literal["product", "lukasiewicz", "godel"]

CRISP: Final[Connectives[Any]] = Connectives(lambda a, b: a & b, lambda a, b: a | b, lambda a: ~a)
"""Of arrays of bools."""


def product(ops: Backend) -> Connectives[Truth]:
    """`ab` and `a + b − ab`: what independent events do. Sums of products alone, of which the logarithms are taken."""

    def both(a: Truth, b: Truth) -> Truth:
        return Truth(
            a.log_true + b.log_true,
            add_logs(ops, a.log_false, a.log_true + b.log_false),
            a.possible & b.possible,
            a.refutable | b.refutable,
        )

    def negation(a: Truth) -> Truth:
        return Truth(a.log_false, a.log_true, a.refutable, a.possible)

    return Connectives(both, lambda a, b: negation(both(negation(a), negation(b))), negation)


def lukasiewicz(ops: Backend) -> Connectives[Any]:
    """`max(0, a + b − 1)` and `min(1, a + b)`: of probabilities of any events, the least and the most."""
    return Connectives(
        lambda a, b: ops.clip(a + b - 1.0, 0.0, None), lambda a, b: ops.clip(a + b, None, 1.0), lambda a: 1.0 - a
    )


def godel(ops: Backend) -> Connectives[Any]:
    """`min(a, b)` and `max(a, b)`; a gradient reaches the one that decides, or half of it each of two equal ones."""

    # Not half of a + b − |a − b|, which rounds.
    def larger(a: Any, b: Any) -> Any:
        return ops.where(a == b, 0.5 * (a + b), ops.where(a > b, a, b))

    return Connectives(lambda a, b: 1.0 - larger(1.0 - a, 1.0 - b), larger, lambda a: 1.0 - a)
