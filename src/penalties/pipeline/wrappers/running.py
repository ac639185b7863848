"""Terms that remember: a running mean, and a running scale."""

import math
from abc import abstractmethod
from typing import Any

from ...backends import Backend, owner
from ...functional.options import check_number
from ...trees import map_arrays
from ..evaluate import compute
from ..evaluation import Evaluation
from ..inputs import CallInputs
from ..term import Term
from .wrapper import Wrapper, around

__all__ = ["EMA", "Average", "Normalized", "Scaled", "check_decay", "lasting"]


class _Running(Wrapper):
    """A value changed by those that came before."""

    keeps_logits = True
    # What its gradient is multiplied by follows from its value.
    apart = "it has a running value"

    def __init__(self, term: Term, decay: float) -> None:
        """Keep how slowly the state moves."""
        self.decay: float = check_decay(self.title, decay)
        super().__init__(term, decay=self.decay)

    @property
    def remark(self) -> str:
        """What a table of terms says of it."""
        return f"{self.title} {self.decay:g}"

    def evaluated(self, given: dict[str, Any], step: Any, state: Any) -> Evaluation:
        """The inner term's evaluation, changed by the state that came before."""
        before, inner = (None, None) if state is None else (state["before"], state["inner"])
        current = compute(self.term, CallInputs.of(given), step, inner)
        ops = owner(current.value)
        assert ops is not None, "a value is an array"
        value, after, slope = self.changed(ops, current.value, before)
        # Where the library cannot carry a gradient that the term returned, it is changed as the value is.
        own = None
        if current.gradient is not None and ops.LIBRARY == "NumPy":
            own = map_arrays(lambda part: slope * part, current.gradient)
        state = {"before": ops.stop_gradient(after), "inner": current.state}
        return Evaluation(value, own, current.metrics, state)

    @abstractmethod
    def changed(self, ops: Backend, value: Any, before: Any) -> tuple[Any, Any, Any]:
        """The new value, what to pass as `before` next time, and the derivative of the new value by the given one."""
        ...


class Average(_Running):
    """A running mean."""

    kind = "ema"
    title = "EMA"

    def changed(self, ops: Backend, value: Any, before: Any) -> tuple[Any, Any, Any]:
        """The running mean."""
        if before is None:
            return value, lasting(ops, value, value, None), 1.0
        # NaN where there is no value yet: a traced term that has not run so far.
        begun = before == before
        smooth = ops.where(begun, self.decay * before + (1.0 - self.decay) * value, value)
        return smooth, lasting(ops, value, smooth, before), ops.where(begun, 1.0 - self.decay, 1.0)


class Scaled(_Running):
    """A value over its running scale."""

    kind = "normalized"
    title = "Normalized"
    # Its scale follows the value, and counts as a constant in the gradient: at first all values are ±1.
    estimable = False

    def changed(self, ops: Backend, value: Any, before: Any) -> tuple[Any, Any, Any]:
        """The value over the scale."""
        scale = size = ops.stop_gradient(ops.abs(value))
        if before is not None:
            scale = ops.where(before == before, self.decay * before + (1.0 - self.decay) * size, size)
        divisor = ops.where(scale > 0, scale, 1.0)
        return value / divisor, lasting(ops, value, scale, before), 1.0 / divisor


def lasting(ops: Backend, value: Any, after: Any, before: Any) -> Any:
    """What is kept: one value that is not finite, as in a step that a loss scaler skips, would stay for ever."""
    return ops.where(ops.abs(value) < math.inf, after, math.nan if before is None else before)


def EMA(term: Term, decay: float = 0.9) -> Term:
    """The term's running mean: `decay · previous + (1 − decay) · current`, starting at the current value.

    The gradient flows through the current value. Pass `state=out.state` of one call to the next.

    >>> import numpy as np
    >>> import penalties as pn
    >>> pipeline = pn.Pipeline([pn.EMA(pn.Term(pn.l1), decay=0.9)])
    >>> first = pipeline(np.array([1.0]))
    >>> second = pipeline(np.array([2.0]), state=first.state)
    >>> float(first.total), round(float(second.total), 6)
    (1.0, 1.1)
    """
    return around(Average, term, decay=decay)


def Normalized(term: Term, decay: float = 0.99) -> Term:
    """The term divided by its running scale, so that terms of any size start at ±1 and weights can be compared.

    The scale is the running mean of `|value|`, including this call, and counts as a constant in the gradient. A term
    that has always been 0 stays 0.

    >>> import numpy as np
    >>> import penalties as pn
    >>> pipeline = pn.Pipeline([pn.Normalized(pn.Term(pn.l2))])
    >>> float(pipeline(np.array([30.0, 40.0])).total)
    1.0
    """
    return around(Scaled, term, decay=decay)


def check_decay(title: str, decay: Any) -> float:
    """The share of the running value that a call keeps."""
    return check_number(title, "decay", decay, "a number from 0 to below 1", low=0.0, high=1.0 - 2**-53)
