"""One term computed once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Evaluation"]


def _nothing() -> Mapping[str, Any]:
    return {}


@dataclass(slots=True)
class Evaluation:
    """One term computed once: the value, the unscaled gradient and all else. Plain data: it can come from anywhere.

    A term returns one to bring its own gradient, or its new state.

    >>> import numpy as np
    >>> import penalties as pn
    >>> def count(x):
    ...     return pn.Evaluation(np.float64((x != 0).sum()), gradient={"x": np.sign(x)}, metrics={"size": x.size})
    >>> out = pn.Pipeline([pn.Term(count, weight=0.1)]).value_and_grad(np.array([2.0, 0.0, -1.0]))
    >>> out.gradient
    array([ 0.1,  0. , -0.1])
    """

    value: Any
    """A 0-d array; None where the term failed."""
    gradient: Mapping[str, Any] | None = None
    """`{input: gradient}`, each with the structure of that input, not multiplied by any weight."""
    metrics: Mapping[str, Any] = field(default_factory=_nothing)
    state: Any = None
    """What the term is to be given at the next call."""
    duration: float | None = None
    """Seconds; None where it was not measured."""
    grad_error: str | None = None
    """Why there is no gradient, where one was requested."""
    grad_norm: Any = None
    """The norm of the gradient over all inputs that were requested."""
    grad_norms: Mapping[str, Any] = field(default_factory=_nothing)
    """The same for each input alone, where there are several."""
    error: BaseException | None = None
    """Why there is no value."""
