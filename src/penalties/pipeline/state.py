"""Terms that remember: a running mean, and a running scale."""

import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from ..backends import Backend, owner
from ..errors import OptionError
from ..functional.options import check_number
from ..trees import map_arrays
from .binding import Enclosing, signature_of
from .evaluate import compute
from .evaluation import Evaluation
from .inputs import CallInputs
from .term import Term

__all__ = ["EMA", "WRAPPERS", "Normalized", "Wrapper"]


class Wrapper(Enclosing):
    """A function around a term: it has the parameters of that term's function, and changes its evaluation."""

    kind: str
    """Its word in a configuration."""
    title: str
    """The name of the public function."""

    def __init__(self, term: Term, decay: float) -> None:
        """Keep the inner term, and how slowly the state moves."""
        expected = "a number from 0 to 1, without 1"
        self.term = term
        self.decay: float = check_number(self.title, "decay", decay, expected, low=0.0, high=1.0 - 2**-53)

    def inside(self, name: str, parameters: Sequence[str], options: Mapping[str, Any]) -> "Wrapper":
        """The same around a term of this name, that reads each parameter under its own name and has these options."""
        nameless = any(parameter.startswith("*") for parameter in parameters)
        inputs = tuple(parameters) if nameless else {parameter: parameter for parameter in parameters}
        return type(self)(self.term.replace(name=name, inputs=inputs, options=options), self.decay)

    @property
    def __signature__(self) -> inspect.Signature:
        """That of the inner term's function, with `state` and `step`."""
        return signature_of(self.term.fn, ("state", "step"))

    @property
    def label(self) -> str:
        """How a term shows what it is."""
        inner = getattr(self.term.fn, "label", None) or self.term.name
        return f"{self.title}({inner}, decay={self.decay:g})"

    def __call__(self, *inputs: Any, state: Any = None, step: Any = None, **named: Any) -> Evaluation:
        """The inner term's evaluation, changed by the state that came before."""
        before, inner = (None, None) if state is None else (state["before"], state["inner"])
        given = dict(zip(self.term.positional, inputs, strict=True)) | named
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

    def __eq__(self, other: object) -> bool:
        """Equal where the kind, the decay and the inner terms are."""
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        """By the inner term."""
        return hash((type(self), self.term))


class _Average(Wrapper):
    kind = "ema"
    title = "EMA"

    def changed(self, ops: Backend, value: Any, before: Any) -> tuple[Any, Any, Any]:
        if before is None:
            return value, _lasting(ops, value, value, None), 1.0
        # NaN where there is no value yet: a traced term that has not run so far.
        begun = before == before
        smooth = ops.where(begun, self.decay * before + (1.0 - self.decay) * value, value)
        return smooth, _lasting(ops, value, smooth, before), ops.where(begun, 1.0 - self.decay, 1.0)


class _Scaled(Wrapper):
    kind = "normalized"
    title = "Normalized"

    def changed(self, ops: Backend, value: Any, before: Any) -> tuple[Any, Any, Any]:
        scale = size = ops.stop_gradient(ops.abs(value))
        if before is not None:
            scale = ops.where(before == before, self.decay * before + (1.0 - self.decay) * size, size)
        divisor = ops.where(scale > 0, scale, 1.0)
        return value / divisor, _lasting(ops, value, scale, before), 1.0 / divisor


def _lasting(ops: Backend, value: Any, after: Any, before: Any) -> Any:
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
    return _wrapped(term, _Average, decay)


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
    return _wrapped(term, _Scaled, decay)


def _wrapped(term: Term, kind: type[Wrapper], decay: float) -> Term:
    """A term of the same name around this one."""
    if not isinstance(cast("object", term), Term):
        raise OptionError(kind.title, "term", term, "a Term")
    if term.asynchronous:
        raise OptionError(kind.title, "term", term, "a term that is not asynchronous: its value is needed immediately")
    # The outer term decides when, where and with which inputs; the inner one is the function and how it is computed.
    arguments = term.arguments()
    inner = {key: value for key, value in arguments.items() if key in _INNER}
    outer = {key: value for key, value in arguments.items() if key not in ("fn", "chunk", "compile")}
    return Term(kind(Term(**inner), decay), **outer)


WRAPPERS: Final[dict[str, Callable[..., Term]]] = {"ema": EMA, "normalized": Normalized}
"""What can go around a term, by its word in a configuration."""

_INNER: Final = ("fn", "name", "inputs", "options", "differentiable", "chunk", "compile")
