"""How a term adds up over the micro-batches and ranks of an optimizer step, where its author did not say."""

from typing import Any, Final

from ..functional.penalty import facts_of
from .term import Scope, Term
from .wrappers.wrapper import Wrapper

__all__ = ["PARAMS", "scope_of"]

PARAMS: Final = "params"
"""The input that holds a model's parameters, in every trainer."""


def scope_of(term: Term) -> Scope | None:
    """The scope of a term: its own, or what its inputs and its reduction say; None where neither does.

    A term that reads nothing but `params` is "step", since parameters are the same in every micro-batch. Any other is
    what its `reduction` says, "sum" or "mean". Penalties without a reduction average over samples. A sum over `params`
    together with other inputs may be either: of data, or of constants such as the weights that training started from.

    >>> import penalties as pn
    >>> from penalties.pipeline.scope import scope_of
    >>> [scope_of(pn.Term(pn.l2, inputs=name)) for name in ("params", "params.head", "hidden")]
    ['step', 'step', 'sum']
    >>> scope_of(pn.Term(pn.entropy)), scope_of(pn.Term(pn.entropy, scope="sum")), scope_of(pn.Term(abs, inputs="x"))
    ('mean', 'sum', None)
    """
    if term.scope is not None:
        return term.scope
    inputs = term.inputs.values()
    if inputs and all(path.partition(".")[0] == PARAMS for path in inputs):
        return "step"
    fn: Any = term.fn
    while isinstance(fn, Wrapper):
        if fn.kind in ("normalized", "score_function"):
            # Of about the same size in each part, whatever it divides; a mean over samples.
            return "mean"
        fn = fn.term.fn
    if term.reduction in ("mean", "sum"):
        mixed = any(path.partition(".")[0] == PARAMS for path in inputs)
        return None if mixed and term.reduction == "sum" else term.reduction
    return None if facts_of(fn) is None else "mean"
