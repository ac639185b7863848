"""Which parameters of a function are inputs, which are options, and how a term passes each of them."""

import functools
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast, runtime_checkable

from ..errors import OptionError
from ..functional.options import unknown_option
from ..functional.penalty import facts_of

if TYPE_CHECKING:
    from .term import Term

__all__ = [
    "CALL_ARGUMENTS",
    "Bound",
    "Enclosing",
    "Inputs",
    "Regularizer",
    "bind",
    "innermost",
    "reader_of_logits",
    "signature_of",
]

Inputs: TypeAlias = str | Sequence[str] | Mapping[str, str] | None
"""Which inputs a term reads: one name, names in order, or `{parameter: input}`."""

CALL_ARGUMENTS: Final = ("weights", "wrt", "cosines", "keep", "accumulate", "weighting", "step", "state")
"""The arguments of a pipeline's call: an input cannot have one of these names."""

_GIVEN: Final = ("state", "step")
"""Parameters that the pipeline fills in itself."""

Parameters: TypeAlias = Mapping[str, inspect.Parameter]


@runtime_checkable
class Regularizer(Protocol):
    """An object that computes a term of a batch: for terms that need set-up, or carry their own configuration.

    It may have a `name`, a string or a method that returns one.

    >>> class Length:
    ...     name = "length"
    ...
    ...     def compute(self, data, logprobs, options):
    ...         return abs(logprobs).sum(), {"tokens": len(logprobs)}
    >>> import numpy as np
    >>> import penalties as pn
    >>> pn.Pipeline([pn.Term(Length())])(data=[], logprobs=np.array([-1.0, -2.0])).metrics()
    {'length': 3.0, 'length_weighted': 3.0, 'length/tokens': 2.0, 'total': 3.0}
    """

    def compute(self, data: Any, logprobs: Any, options: Mapping[str, Any], /) -> Any:
        """A 0-d array, alone or with a dict of metrics, as any term returns."""
        ...


class Enclosing(ABC):
    """A callable around another term: it has that term's parameters, and follows the term that calls it."""

    term: "Term"
    """That other term."""
    keeps_logits: bool = False
    """Whether it hands its inputs on as they are, so that `Logits` need not become arrays."""
    apart: str = "a wrapper changes its evaluation"
    """Why no kernel computes it with others."""

    @abstractmethod
    def inside(self, name: str, parameters: Sequence[str], options: Mapping[str, Any]) -> "Enclosing":
        """The same as part of a term of this name, that reads these parameters and has these options."""
        ...


def innermost(term: "Term") -> "Term":
    """The term inside all wrappers, such as `EMA`; the term itself where there are none."""
    while isinstance(term.fn, Enclosing):
        term = term.fn.term
    return term


def reader_of_logits(term: "Term") -> "Term":
    """The term that `Logits` among the inputs are handed on to; the term itself where it has no such wrapper."""
    while isinstance(term.fn, Enclosing) and term.fn.keeps_logits:
        term = term.fn.term
    return term


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Bound:
    """A function with its inputs and options: all that a call needs to know, worked out once."""

    call: Callable[..., Any]
    """The function, or the method of a regularizer."""
    inputs: Mapping[str, str]
    """`{parameter: input}`, whatever form it was given in."""
    positional: tuple[str, ...]
    """The inputs that `call` takes by position, in order."""
    named: tuple[tuple[str, str], ...]
    """`(parameter, input)` for those that it takes by name."""
    keywords: dict[str, Any]
    """The options, which it takes by name."""
    unmapped: frozenset[str]
    """Parameters that neither read an input nor are set by an option. An input of such a name is a mistake."""
    takes_state: bool
    takes_step: bool
    needs_step: bool
    """Whether its parameter `step` has no default."""
    seed: int | None
    """What is folded with the step and passed to a penalty that draws."""
    asynchronous: bool
    """Whether the function is an `async def`."""
    reduction: Any
    """How the function combines rows, by its option or its default; None where it does not say."""


def bind(term: str, fn: Any, inputs: Inputs, options: Mapping[str, Any]) -> Bound:
    """Decide which parameters of `fn` are inputs, and which input each of them reads."""
    regularizer = not callable(fn)
    bound = _bind_regularizer(term, fn, inputs, options) if regularizer else _bind_function(term, fn, inputs, options)
    for name in bound.inputs.values():
        if not isinstance(cast("object", name), str) or not name:
            raise OptionError(term, "inputs", name, "names, each a string")
        if name in CALL_ARGUMENTS:
            expected = f"a name other than {', '.join(CALL_ARGUMENTS)}, which are arguments of the call: rename it"
            raise OptionError(term, "inputs", name, expected)
    return bound


def _bind_regularizer(term: str, fn: Regularizer, inputs: Inputs, options: Mapping[str, Any]) -> Bound:
    read = ["data", "logprobs"]
    bound = _inputs(term, inputs, read, read, collects=False)
    return Bound(
        call=_Compute(fn.compute, dict(options)),
        inputs=MappingProxyType(bound),
        positional=tuple(bound.values()),
        named=(),
        keywords={},
        unmapped=frozenset(),
        takes_state=False,
        takes_step=False,
        needs_step=False,
        seed=None,
        asynchronous=_is_asynchronous(fn.compute),
        reduction=options.get("reduction"),
    )


def _bind_function(term: str, fn: Any, inputs: Inputs, options: Mapping[str, Any]) -> Bound:
    parameters = _parameters(fn)
    _check_options(term, options, parameters)
    free = [p for p in parameters.values() if p.name not in _GIVEN and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    required = [p.name for p in free if p.default is p.empty and p.name not in options]
    collects = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    bound = _inputs(term, inputs, required, [p.name for p in free], collects)
    for parameter in bound:
        if parameter in options:
            raise OptionError(term, "inputs", parameter, "either an input or an option, not both")
    # By position as long as the parameters follow one another from the first on, by name from there.
    order: list[str] = []
    for p in free:
        if p.kind is p.KEYWORD_ONLY or p.name not in bound:
            break
        order.append(p.name)
    order += [parameter for parameter in bound if parameter not in parameters]
    call: Any = fn.inside(term, tuple(bound), options) if isinstance(fn, Enclosing) else fn
    facts = facts_of(fn)
    drawn = options.get("seed", _default(parameters, "seed")) if facts is not None and facts.draws else None
    return Bound(
        # The names of the options were checked here: a penalty is called without its own check of them.
        call=call if facts is None or isinstance(fn, functools.partial) else facts.function,
        inputs=MappingProxyType(bound),
        positional=tuple(bound[parameter] for parameter in order),
        named=tuple((parameter, name) for parameter, name in bound.items() if parameter not in order),
        keywords=dict(options),
        unmapped=frozenset(
            p.name
            for p in free
            # A flag or a choice is never meant to be an array.
            if p.name not in bound and p.name not in options and not isinstance(p.default, bool | str)
        ),
        takes_state="state" in parameters,
        takes_step="step" in parameters,
        needs_step="step" in parameters and parameters["step"].default is inspect.Parameter.empty,
        seed=drawn if isinstance(drawn, int) else None,
        asynchronous=_is_asynchronous(fn),
        reduction=options.get("reduction", _default(parameters, "reduction")),
    )


class _Compute:
    """A regularizer's method with its options as third argument."""

    def __init__(self, compute: Callable[..., Any], options: dict[str, Any]) -> None:
        self.compute = compute
        self.options = options

    def __call__(self, data: Any, logprobs: Any) -> Any:
        return self.compute(data, logprobs, self.options)


def _parameters(fn: Any) -> Parameters:
    """The parameters of a callable; of C code that does not declare them, any number by position and by name."""
    if not callable(fn):
        return _BATCH
    torch = sys.modules.get("torch")
    module: Any = fn if torch is not None and isinstance(fn, torch.nn.Module) else None
    try:
        # A module's __call__ is (*args, **kwargs); what it takes is what its forward takes.
        parameters = inspect.signature(fn if module is None else module.forward).parameters
    except ValueError:
        return _ANY
    collects = all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters.values())
    children: list[Any] = list(module.children()) if module is not None and collects else []
    # One around another, as torch.compile and DataParallel make, takes what that takes.
    return _parameters(children[0]) if len(children) == 1 else parameters


_BATCH: Final[Parameters] = {
    "data": inspect.Parameter("data", inspect.Parameter.POSITIONAL_OR_KEYWORD),
    "logprobs": inspect.Parameter("logprobs", inspect.Parameter.POSITIONAL_OR_KEYWORD),
    "options": inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD),
}
"""What a regularizer takes, whatever its method calls it."""

_ANY: Final[Parameters] = {
    "args": inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL),
    "kwargs": inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
}


def signature_of(fn: Any, given: Sequence[str], required: Sequence[str] = ()) -> inspect.Signature:
    """The signature of a function around `fn`: its parameters, and these; those that are `required` have no default."""
    names = tuple(dict.fromkeys((*required, *given)))
    own = [p for p in _parameters(fn).values() if p.name not in names]
    missing = inspect.Parameter.empty
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=missing if name in required else None)
        for name in names
    ]
    last = [p for p in own if p.kind is p.VAR_KEYWORD]
    return inspect.Signature([*[p for p in own if p.kind is not p.VAR_KEYWORD], *more, *last])


def _default(parameters: Parameters, name: str) -> Any:
    parameter = parameters.get(name)
    return None if parameter is None or parameter.default is parameter.empty else parameter.default


def _is_asynchronous(call: Any) -> bool:
    kind: Any = type(cast("object", call))
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(kind.__call__)


def _check_options(term: str, options: Mapping[str, Any], parameters: Parameters) -> None:
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    allowed = [name for name in parameters if name not in _GIVEN]
    with_default = [name for name in allowed if parameters[name].default is not inspect.Parameter.empty]
    for option, value in options.items():
        if option not in allowed:
            raise unknown_option(term, option, value, with_default)


def _inputs(term: str, inputs: Inputs, required: Sequence[str], known: Sequence[str], collects: bool) -> dict[str, str]:
    """`{parameter: input}` of a term, from the forms that a user may give."""
    if inputs is None:
        if collects and not required:
            raise OptionError(term, "inputs", None, "names in order: the function takes any number of arguments")
        return {name: name for name in required}
    if isinstance(inputs, Mapping):
        for parameter in inputs:
            if parameter not in known:
                raise OptionError(term, "inputs", dict(inputs), f"parameters of the function: {', '.join(known)}")
        missing = [name for name in required if name not in inputs]
        if missing:
            raise OptionError(
                term, "inputs", dict(inputs), f"an input for {', '.join(missing)} too, or a value in options"
            )
        return {parameter: inputs[parameter] for parameter in known if parameter in inputs}
    names = (inputs,) if isinstance(inputs, str) else tuple(inputs)
    if len(names) > len(required) and collects:
        further = {f"*{index}": name for index, name in enumerate(names[len(required) :])}
        return dict(zip(required, names, strict=False)) | further
    if len(names) != len(required):
        count = f"{len(required)} names in order" if len(required) > 1 else "1 name"
        wanted = f"{count}, for {', '.join(required)}" if required else "none: it has no inputs"
        raise OptionError(term, "inputs", names[0] if len(names) == 1 else names, wanted)
    return dict(zip(required, names, strict=True))
