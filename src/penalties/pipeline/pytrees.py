"""Outputs as JAX sees them: pytrees, which can leave a jit and be the auxiliary output of a grad."""

import sys
from dataclasses import fields
from typing import Any

from ..backends import owner
from .output import LossOutput, TermOutput, Terms

__all__ = ["known_to_jax"]

_known = False


def known_to_jax() -> None:
    """Register both classes with JAX; to be called where JAX is loaded, as often as one likes."""
    global _known
    if _known:
        return
    _known = True
    tree_util: Any = sys.modules["jax"].tree_util
    tree_util.register_pytree_node(TermOutput, _apart, _together)
    tree_util.register_pytree_node(LossOutput, _output_apart, _output_together)


def _apart(term: TermOutput) -> tuple[Any, Any]:
    # A weight that is a number stays one: it is part of the structure.
    traced = owner(term.weight) is not None
    parts = (term.value, term.weight if traced else None, term.grad_norm, tuple(term.grad_norms.values()))
    # Without the duration: it differs at every call, and the structure would with it.
    fixed = (term.name, None if traced else term.weight, term.grad_error, term.error)
    return (*parts, tuple(term.metrics.values())), (*fixed, tuple(term.grad_norms), tuple(term.metrics))


def _together(fixed: Any, parts: Any) -> TermOutput:
    value, traced, norm, norms, metrics = parts
    name, weight, grad_error, error, inputs, keys = fixed
    return TermOutput(
        name,
        value,
        traced if weight is None else weight,
        norm,
        grad_error,
        dict(zip(inputs, norms, strict=True)),
        dict(zip(keys, metrics, strict=True)),
        None,
        error,
    )


def _output_apart(output: LossOutput) -> tuple[Any, Any]:
    parts = [getattr(output, entry.name) for entry in fields(output) if entry.name != "terms"]
    return (tuple(output.terms.values()), *parts), None


def _output_together(_: None, parts: Any) -> LossOutput:
    terms, total, *others = parts
    # JAX also calls this with placeholders, which have no names.
    return LossOutput(total, Terms.of(terms) if _real(terms) else terms, *others)


def _real(terms: Any) -> bool:
    return all(isinstance(term, TermOutput) for term in terms)
