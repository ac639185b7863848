"""Straight-through: a term sees rounded inputs, and its gradient passes as if they had not been."""

import math
from collections.abc import Callable
from typing import Any, Final

from ... import trees
from ...backends import Backend, owner
from ...errors import OptionError, TermError
from ..catalogue import find, path_of
from ..evaluate import compute
from ..evaluation import Evaluation
from ..inputs import CallInputs
from ..term import Term
from .wrapper import Wrapper, around, parameters_of

__all__ = ["Discretized", "StraightThrough"]


def _round(ops: Backend, x: Any) -> Any:
    return x.round()


def _sign(ops: Backend, x: Any) -> Any:
    return ops.where(x < 0, ops.zeros_like(x) - 1.0, ops.where(x == x, 1.0, x))


def _one_hot(ops: Backend, x: Any) -> Any:
    largest = x.argmax(-1)
    # NaN stays: no choice can be made among such numbers.
    return ops.where(x == x, ops.cast(ops.arange(x.shape[-1], x) == largest[..., None], x), x)


_BY_NAME: Final[dict[str, Callable[[Backend, Any], Any]]] = {"round": _round, "sign": _sign, "argmax": _one_hot}


class Discretized(Wrapper):
    """A term that reads discrete inputs."""

    kind = "straight_through"
    title = "StraightThrough"

    def __init__(self, term: Term, discretize: Any = "round", wrt: tuple[str, ...] | None = None) -> None:
        """Find the function."""
        if isinstance(discretize, str) and ":" in discretize:
            discretize = find(discretize)
        self.function: Callable[[Backend, Any], Any] = _function(self.title, discretize)
        self.wrt = wrt
        super().__init__(term, discretize=discretize, wrt=wrt)

    def layer(self, inputs: Any) -> tuple[dict[str, Any], Any]:
        """With the path of your own function."""
        layer, inputs = super().layer(inputs)
        if callable(layer["discretize"]):
            path = path_of(layer["discretize"])
            if path is None:
                expected = "a function that can be imported by its path; any other cannot be saved"
                raise OptionError(self.title, "discretize", layer["discretize"], expected)
            layer["discretize"] = path
        return layer, inputs

    def evaluated(self, given: dict[str, Any], step: Any, state: Any) -> Evaluation:
        """The term at the discrete inputs, on the graph of the inputs."""
        read = {name: given[name] for name in self.term.inputs.values()}
        for name in self.wrt or list(read):
            read[name] = trees.map_arrays(lambda x, name=name: self._passed(name, x), read[name])
        found = compute(self.term, CallInputs.of(read), step, state)
        # The libraries that differentiate carry the gradient by their graph.
        ops = owner(found.value)
        own = found.gradient if ops is not None and ops.LIBRARY == "NumPy" else None
        return Evaluation(found.value, own, found.metrics, found.state)

    def _passed(self, name: str, x: Any) -> Any:
        """The discrete array, with the gradient of `x`."""
        ops = owner(x)
        if ops is None or not ops.differentiable(x, requested=True):
            return x
        plain = ops.stop_gradient(x)
        discrete = self.function(ops, plain)
        if owner(discrete) is not ops or tuple(discrete.shape) != tuple(x.shape):
            found = f"an array of shape {tuple(discrete.shape)}" if owner(discrete) is ops else type(discrete).__name__
            raise TermError(
                self.term.name,
                f'discretize returned {found} for "{name}"; expected a {ops.LIBRARY} array of shape {tuple(x.shape)}',
            )
        # What is added is exactly 0, and has the slope 1. An infinite input, as a masked logit, has none.
        finite = ops.where(ops.abs(plain) < math.inf, x, ops.zeros_like(x))
        return ops.stop_gradient(discrete) + (finite - ops.stop_gradient(finite))


def _function(title: str, given: Any) -> Callable[[Backend, Any], Any]:
    if isinstance(given, str) and given in _BY_NAME:
        return _BY_NAME[given]
    if not callable(given):
        names = ", ".join(f'"{name}"' for name in _BY_NAME)
        raise OptionError(title, "discretize", given, f'{names}, a function of an array, or "package.module:function"')
    return _Own(given)


class _Own:
    """Your own function of an array."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, ops: Backend, x: Any) -> Any:
        return self.function(x)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Own) and other.function == self.function

    def __hash__(self) -> int:
        return hash(self.function)


def StraightThrough(
    term: Term,
    discretize: str | Callable[[Any], Any] = "round",
    wrt: str | tuple[str, ...] | list[str] | None = None,
) -> Term:
    """The term at discrete inputs, with the gradient that it has there passed on as if they were the inputs themselves.

        value    = f(q(x))
        gradient = ∇f at q(x)                                   (Bengio, Léonard and Courville, 2013)

    The gradient is biased: it ignores what q does between the steps. The term is evaluated once.

    - `discretize`: what q is. `"round"`: to the nearest whole number, halves to the even one. `"sign"`: −1 below 0, and
      1 from 0 on. `"argmax"`: 1 at the first of the largest elements along the last axis, 0 at the others. Or your own
      function from an array to one of the same shape, or its path.
    - `wrt`: the inputs that are made discrete; by default all floats. An element that is infinite has gradient 0.

    >>> import torch
    >>> import penalties as pn
    >>> x = torch.tensor([0.4, 1.6])
    >>> out = pn.Pipeline([pn.StraightThrough(pn.Term(pn.l2), "round")]).value_and_grad(x, wrt="input")
    >>> out.total.item(), out.gradient
    (4.0, tensor([0., 4.]))
    """
    return around(Discretized, term, discretize=discretize, wrt=parameters_of("StraightThrough", term, wrt))
