"""Evaluating a term away from the caller."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import GradientError, PenaltiesError, TermError, said
from ..pipeline.evaluate import evaluate_term
from ..pipeline.evaluation import Evaluation
from ..pipeline.term import Term

__all__ = ["evaluate_away"]


def evaluate_away(
    term: Term, inputs: Mapping[str, Any], wrt: Sequence[str], *, step: int | None, state: Any
) -> Evaluation:
    """The evaluation of a term; one that JAX cannot trace is called with plain arrays, and may bring its gradient."""
    try:
        return evaluate_term(term, inputs, wrt, step=step, state=state)
    except TermError as error:
        if not wrt or not _untraceable(error.__cause__):
            raise
        reason = "JAX could not trace it, and it brought no gradient"
    except GradientError:
        # NumPy differentiates nothing: a term that brought no gradient is a constant.
        reason = "it brought no gradient, and NumPy has no automatic differentiation"
    except PenaltiesError as error:
        # Its inputs were found before: whatever else it raises is its own.
        raise TermError(term.name, f"raised {said(error)}") from error
    plain = evaluate_term(term, inputs, step=step, state=state)
    if plain.gradient is None:
        plain.grad_error = reason
    return plain


def _untraceable(cause: BaseException | None) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(cause, jax.errors.JAXTypeError)
