"""Outputs as JAX sees them: pytrees, which can leave a jit and be the auxiliary output of a grad."""

import sys
from dataclasses import fields
from typing import Any

from ...backends import owner
from .data import LossOutput, TermOutput

__all__ = ["register_with_jax"]

_registered = False


def register_with_jax() -> None:
    """Register both classes with JAX, once; call it where JAX is loaded."""
    global _registered
    if _registered:
        return
    _registered = True
    tree_util: Any = sys.modules["jax"].tree_util
    tree_util.register_pytree_node(TermOutput, _flatten_term, _unflatten_term)
    tree_util.register_pytree_node(LossOutput, _flatten_output, _unflatten_output)


def _flatten_term(term: TermOutput) -> tuple[Any, Any]:
    # A weight that is a number stays one: it is part of the structure.
    traced = owner(term.weight) is not None
    # Values in order and keys apart: JAX sorts the keys of a dict.
    norms, metrics = tuple(term.grad_norms.values()), tuple(term.metrics.values())
    children = (term.value, term.weight if traced else None, term.grad_norm, norms, metrics, term.gradient)
    # Without the duration: it differs at every call, and the structure would with it.
    fixed = (term.name, None if traced else term.weight, term.grad_error, term.error)
    return children, (*fixed, tuple(term.grad_norms), tuple(term.metrics))


def _unflatten_term(fixed: Any, children: Any) -> TermOutput:
    value, traced, norm, norms, metrics, gradient = children
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
        gradient,
    )


_PARTS = [entry.name for entry in fields(LossOutput) if entry.name not in ("terms", "record")]


def _flatten_output(output: LossOutput) -> tuple[Any, Any]:
    return (*output.terms.values(), *(getattr(output, name) for name in _PARTS)), tuple(output.terms)


def _unflatten_output(names: tuple[str, ...], children: Any) -> LossOutput:
    terms, others = children[: len(names)], children[len(names) :]
    return LossOutput(terms=dict(zip(names, terms, strict=True)), **dict(zip(_PARTS, others, strict=True)))
