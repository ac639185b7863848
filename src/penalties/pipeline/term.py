"""A term: a function with a name, a weight, the inputs it reads, and where it runs."""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np

from ..backends import owner
from ..errors import OptionError
from ..functional.options import check_choice, check_count, check_flag, check_number, unknown_option
from .catalogue import BUILT_IN, DRAWING, SEPARABLE, TRIABLE, find
from .kinds import compiling, is_mapping, is_row

__all__ = ["ARGUMENTS", "CALL_ARGUMENTS", "Inputs", "Place", "Regularizer", "Term", "Weight", "check_weight", "same"]

Place: TypeAlias = Literal["inline", "thread", "process", "async", "ray"]
"""Where a term runs."""

Weight: TypeAlias = Any
"""A number of at least 0, or a 0-d array: then it may be learned, scheduled or traced."""

Inputs: TypeAlias = str | Sequence[str] | Mapping[str, str] | None
"""Which inputs a term reads: one name, names in order, or `{parameter: input}`."""

_PLACES: Final = ("inline", "thread", "process", "async", "ray")
_LONGEST: Final = 300.0
"""Seconds that a timeout may be."""

# Arguments of a pipeline's call, and keys of its metrics: no input and no term may be called so.
CALL_ARGUMENTS: Final = ("weights", "wrt", "cosines", "step", "state")
_TAKEN: Final = ("total", "regularizer_total")
_SUFFIXES: Final = ("_weighted", "_grad_norm", "_grad_norm_error")


@runtime_checkable
class Regularizer(Protocol):
    """An object that computes a term of a batch: for terms that need set-up, or carry their own configuration.

    It may have a `name`, a string or a method that gives one.

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


@dataclass(frozen=True, slots=True, weakref_slot=True, init=False, eq=False, repr=False)
class Term:
    """A function with a name, a weight, the inputs it reads, and where it runs. It never changes.

    `fn` is a function, a callable object, a `Regularizer`, the name of a penalty that ships here, or a dotted path as
    `"package.module:function"`. Its parameters without a default are its inputs, asked for by name; the others are
    options. `inputs` renames them.

    >>> import penalties as pn
    >>> pn.Term("kl_divergence", weight=0.1, inputs=("student", "teacher"), options={"direction": "reverse"})
    Term(kl_divergence, weight=0.1, inputs={'p': 'student', 'q': 'teacher'}, options={'direction': 'reverse'})
    """

    fn: Any
    weight: Weight
    name: str
    inputs: Mapping[str, str]
    """`{parameter: input}`, whatever form it was given in."""
    options: Mapping[str, Any]
    enabled: bool
    differentiable: bool
    """Whether it has a gradient; if not it counts in the total as a constant."""
    runs: Place
    timeout: float | None
    """Seconds before an executor gives up on it; None leaves it to the executor."""
    on_error: Literal["raise", "skip"]
    every: int
    """Run when `step % every == 0`."""
    idempotent: bool
    """Whether an executor may run it again after its worker was lost."""
    chunk: int | None
    """Rows that are computed at a time; None takes all."""

    # Made of the above, once: a call has a microsecond or two for each term.
    path: str | None
    """The name or dotted path that `fn` was given as."""
    call: Callable[..., Any]
    """`fn`, or the method of a regularizer."""
    positional: tuple[str, ...]
    """The inputs that `call` takes by position, in order."""
    named: tuple[tuple[str, str], ...]
    """`(parameter, input)` for those that it takes by name."""
    keywords: dict[str, Any]
    """The options that it takes by name."""
    takes_state: bool
    takes_step: bool
    needs_step: bool
    """Whether its parameter `step` has no default."""
    seed: int | None
    """What is folded with the step before it goes to a penalty that draws."""
    asynchronous: bool
    """Whether `fn` is an `async def`."""
    plain: bool
    """Whether a call needs nothing but its inputs and options."""
    returns_value: bool
    """Whether what it returns may be its value as it is."""
    usual: bool
    """Whether it runs at every step, here, and raises where it fails."""

    def __init__(
        self,
        fn: Callable[..., Any] | Regularizer | str,
        weight: Weight = 1.0,
        name: str | None = None,
        inputs: Inputs = None,
        options: Mapping[str, Any] | None = None,
        enabled: bool = True,
        differentiable: bool = True,
        runs: Place = "inline",
        timeout: float | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        every: int = 1,
        idempotent: bool = False,
        chunk: int | None = None,
    ) -> None:
        """Check everything at once; a wrong argument is an error that says what was expected."""
        put = functools.partial(object.__setattr__, self)
        path = fn if isinstance(fn, str) else None
        fn = find(fn) if isinstance(fn, str) else fn
        if not callable(fn) and not isinstance(cast("object", fn), Regularizer):
            raise OptionError("Term", "fn", fn, "a function, a Regularizer, the name of a penalty, or a dotted path")
        if hasattr(fn, "value_and_grad"):
            raise OptionError("Term", "fn", fn, "a function: a pipeline is no term, add its terms instead")
        put("path", path)
        put("fn", fn)
        put("name", _check_name(_default_name(fn) if name is None else name))
        put("weight", check_weight(self.name, weight))
        if options is not None and not is_mapping(cast("Any", options)):
            raise OptionError(self.name, "options", options, "a mapping from options to values")
        put("options", MappingProxyType(dict(options or {})))
        for flag, value in (("enabled", enabled), ("differentiable", differentiable), ("idempotent", idempotent)):
            check_flag(self.name, flag, value)
            put(flag, bool(value))
        check_choice(self.name, "runs", runs, _PLACES)
        put("runs", runs)
        if timeout is not None:
            expected = f"None, or seconds above 0 and up to {_LONGEST:g}"
            timeout = check_number(self.name, "timeout", timeout, expected, low=math.ulp(0.0), high=_LONGEST)
        put("timeout", timeout)
        check_choice(self.name, "on_error", on_error, ("raise", "skip"))
        put("on_error", on_error)
        check_count(self.name, "every", every, 1)
        put("every", int(every))
        if chunk is not None:
            check_count(self.name, "chunk", chunk, 1)
        put("chunk", chunk if chunk is None else int(chunk))
        self._bind(inputs)
        self._check_values()
        if chunk is not None:
            self._check_separable()

    def _bind(self, inputs: Inputs) -> None:
        """Decide which parameters are inputs, and what each of them reads."""
        put = functools.partial(object.__setattr__, self)
        regularizer = not callable(self.fn)
        call = self.fn.compute if regularizer else self.fn
        parameters = _parameters(call)
        # The options were checked: a penalty is called without its own check of them.
        bare = getattr(call, "__wrapped__", call) if call in BUILT_IN.values() else call
        put("call", _Compute(call, dict(self.options)) if regularizer else bare)
        put("asynchronous", inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(_call_of(call)))
        put("takes_state", not regularizer and "state" in parameters)
        put("takes_step", not regularizer and "step" in parameters)
        put("needs_step", self.takes_step and parameters["step"].default is inspect.Parameter.empty)
        drawn = self.options.get("seed", _default(parameters, "seed")) if call in DRAWING else None
        put("seed", drawn if isinstance(drawn, int) else None)
        if regularizer:
            bound = _bound(self.name, inputs, ["data", "logprobs"], ["data", "logprobs"], collects=False)
            put("positional", tuple(bound.values()))
            put("named", ())
            put("keywords", {})
        else:
            bound = self._bind_function(inputs, parameters)
        put("inputs", MappingProxyType(bound))
        put("returns_value", self.differentiable and not self.takes_state)
        here = self.runs == "inline" and not self.asynchronous
        put("usual", self.enabled and here and self.every == 1 and self.on_error == "raise")
        put("plain", not (self.named or self.takes_state or self.takes_step or self.chunk))
        for name in bound.values():
            if not isinstance(cast("object", name), str) or not name:
                raise OptionError(self.name, "inputs", name, "names, each a string")
            if name in CALL_ARGUMENTS:
                expected = f"a name other than {', '.join(CALL_ARGUMENTS)}, which are arguments of the call: rename it"
                raise OptionError(self.name, "inputs", name, expected)

    def _bind_function(self, inputs: Inputs, parameters: Mapping[str, inspect.Parameter]) -> dict[str, str]:
        put = functools.partial(object.__setattr__, self)
        collects = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
        free = [
            p
            for p in parameters.values()
            if p.name not in ("state", "step") and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        self._check_options(parameters)
        required = [p.name for p in free if p.default is p.empty and p.name not in self.options]
        bound = _bound(self.name, inputs, required, [p.name for p in free], collects)
        for parameter in bound:
            if parameter in self.options:
                raise OptionError(self.name, "inputs", parameter, "either an input or an option, not both")
        # By position as long as the parameters follow one another from the first on, by name from there.
        order: list[str] = []
        for p in free:
            if p.kind is p.KEYWORD_ONLY or p.name not in bound:
                break
            order.append(p.name)
        order += [parameter for parameter in bound if parameter not in parameters]
        put("positional", tuple(bound[parameter] for parameter in order))
        put("named", tuple((parameter, name) for parameter, name in bound.items() if parameter not in order))
        put("keywords", dict(self.options))
        return bound

    def _check_options(self, parameters: Mapping[str, inspect.Parameter]) -> None:
        if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            return
        allowed = [p.name for p in parameters.values() if p.name not in ("state", "step")]
        with_default = [name for name in allowed if parameters[name].default is not inspect.Parameter.empty]
        for option, value in self.options.items():
            if option not in allowed:
                raise unknown_option(self.name, option, value, with_default)

    def _check_values(self) -> None:
        """Refuse at once a value that the option of a penalty cannot take, by trying it on a few zeros."""
        if self.fn not in TRIABLE or compiling():
            return
        plain = {option: value for option, value in self.options.items() if isinstance(value, str | int | float)}
        zeros = [np.zeros((2, 2)) for _ in self.inputs]
        try:
            self.call(*zeros[: len(self.positional)], **plain)
        except OptionError as error:
            raise OptionError(self.name, error.option, error.value, error.expected) from None

    def _check_separable(self) -> None:
        if (self.fn in BUILT_IN.values() and self.fn not in SEPARABLE) or self.options.get("center") == "mean":
            raise OptionError(self.name, "chunk", self.chunk, "None: this penalty is no sum over rows")
        if self.reduction not in ("sum", "mean"):
            raise OptionError(
                self.name, "chunk", self.chunk, 'a function with reduction="sum" or "mean", which says how rows combine'
            )

    @property
    def reduction(self) -> Any:
        """How the function combines rows, by its option or its default; None where it does not say."""
        return self.options.get("reduction", _default(_parameters(self.fn), "reduction"))

    def arguments(self) -> dict[str, Any]:
        """What would make this term again."""
        arguments = {name: getattr(self, name) for name in ARGUMENTS}
        # By its path, so that a term that was named can be named again.
        arguments["fn"] = self.path or self.fn
        arguments["options"] = dict(self.options)
        nameless = any(parameter.startswith("*") for parameter in self.inputs)
        arguments["inputs"] = tuple(self.inputs.values()) if nameless else dict(self.inputs)
        return arguments

    def replace(self, **changes: Any) -> "Term":
        """The same term with other arguments."""
        return Term(**{**self.arguments(), **changes})

    def with_weight(self, weight: Weight) -> "Term":
        """The same term with another weight; does not read the function's signature again."""
        weight = check_weight(self.name, weight)
        new = object.__new__(Term)
        for slot in _SLOTS:
            object.__setattr__(new, slot, getattr(self, slot))
        object.__setattr__(new, "weight", weight)
        return new

    def __repr__(self) -> str:
        """The function and whatever differs from the defaults."""
        shown = [getattr(self.fn, "label", None) or _function_name(self.fn) or type(self.fn).__name__]
        if shown[0] != self.name and not hasattr(self.fn, "label"):
            shown.append(f"name={self.name!r}")
        plain = {parameter: parameter for parameter in self.inputs}
        if hasattr(self.fn, "label"):
            plain = self.fn.unchanged()
        for argument, default in ARGUMENTS.items():
            value = getattr(self, argument)
            if argument in ("fn", "name") or (argument == "inputs" and value == plain):
                continue
            if argument == "weight" or not same(value, default):
                shown.append(f"{argument}={dict(value) if is_mapping(value) else value!r}")
        return f"Term({', '.join(shown)})"

    def __eq__(self, other: object) -> bool:
        """Equal in every argument."""
        if not isinstance(other, Term):
            return NotImplemented
        return all(same(getattr(self, name), getattr(other, name)) for name in ARGUMENTS)

    def __hash__(self) -> int:
        """By what cannot be an array."""
        return hash((self.name, self.runs, self.enabled))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the arguments."""
        return _make, (self.arguments(),)


class _Compute:
    """A regularizer's method with its options as third argument."""

    def __init__(self, compute: Callable[..., Any], options: dict[str, Any]) -> None:
        self.compute = compute
        self.options = options

    def __call__(self, data: Any, logprobs: Any) -> Any:
        return self.compute(data, logprobs, self.options)


def _make(arguments: dict[str, Any]) -> Term:
    return Term(**arguments)


ARGUMENTS: Final[dict[str, Any]] = {
    parameter.name: {} if parameter.name == "options" else parameter.default
    for parameter in list(inspect.signature(Term.__init__).parameters.values())[1:]
}
"""The arguments of a term and their defaults."""

_SLOTS: Final = tuple(entry.name for entry in dataclasses.fields(Term))


def check_weight(term: str, weight: Weight) -> Weight:
    """A number that is finite and at least 0, or a 0-d array as it is."""
    if type(weight) is float and 0.0 <= weight < math.inf:
        return weight
    ops, array = owner(weight), cast("Any", weight)
    if ops is not None and len(array.shape):
        raise OptionError(term, "weight", tuple(array.shape), "a 0-d array, not one of this shape")
    if ops is None or ops.LIBRARY == "NumPy":
        # NumPy's arrays carry no gradient: they are numbers, for pipelines of every library.
        given: Any = array if ops is None else array.item()
        number = check_number(term, "weight", given, "a finite number of at least 0, or a 0-d array", low=0.0)
        # Whole numbers stay whole.
        return given if isinstance(given, int) else number
    return weight


def same(a: Any, b: Any) -> bool:
    """Whether two arguments are equal, arrays by their elements."""
    if a is b:
        return True
    if is_mapping(a) and is_mapping(b):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if is_row(a) and is_row(b):
        return len(a) == len(b) and all(map(same, a, b))
    one: Any = a
    other: Any = b
    if owner(one) is not None or owner(other) is not None:
        return owner(one) is owner(other) and one.shape == other.shape and bool((one == other).all())
    return bool(one == other)


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise OptionError("Term", "name", name, "a string that is not empty")
    if name in _TAKEN or name.endswith(_SUFFIXES) or "/" in name:
        raise OptionError(
            "Term",
            "name",
            name,
            f"a name that collides with no metric: not {', '.join(_TAKEN)}, no ending "
            f"{', '.join(_SUFFIXES)}, and no slash",
        )
    return name


def _default_name(fn: Any) -> str:
    if isinstance(fn, functools.partial):
        return _default_name(cast("Any", fn).func)
    name = _function_name(fn)
    if name == "<lambda>":
        raise OptionError("Term", "name", None, "a name: a lambda has none of its own")
    if name is None:
        own = getattr(fn, "name", None)
        own = own() if callable(own) else own
        name = own if isinstance(own, str) else type(fn).__name__
    return name


def _function_name(fn: Any) -> str | None:
    return getattr(fn, "__name__", None)


def _call_of(fn: object) -> object:
    """The method that a call of an object runs."""
    return next((vars(kind)["__call__"] for kind in type(fn).__mro__ if "__call__" in vars(kind)), None)


def _parameters(call: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function; of C code that does not say them, any number by position and by name."""
    try:
        return inspect.signature(call).parameters
    except ValueError:
        kinds = inspect.Parameter
        return {
            "args": inspect.Parameter("args", kinds.VAR_POSITIONAL),
            "kwargs": inspect.Parameter("kwargs", kinds.VAR_KEYWORD),
        }


def _default(parameters: Mapping[str, inspect.Parameter], name: str) -> Any:
    parameter = parameters.get(name)
    return None if parameter is None or parameter.default is parameter.empty else parameter.default


def _bound(term: str, inputs: Inputs, required: Sequence[str], known: Sequence[str], collects: bool) -> dict[str, str]:
    """`{parameter: input}` of a term, from the forms that a user may give."""
    if inputs is None:
        return {name: name for name in required}
    if isinstance(inputs, Mapping):
        for parameter in inputs:
            if parameter not in known:
                raise OptionError(term, "inputs", dict(inputs), f"parameters of the function: {', '.join(known)}")
        missing = [name for name in required if name not in inputs]
        if missing:
            raise OptionError(term, "inputs", dict(inputs), f"an input for {', '.join(missing)} too")
        return {parameter: inputs[parameter] for parameter in known if parameter in inputs}
    names = (inputs,) if isinstance(inputs, str) else tuple(inputs)
    if len(names) > len(required) and collects:
        return {
            **dict(zip(required, names, strict=False)),
            **{f"*{i}": n for i, n in enumerate(names[len(required) :])},
        }
    if len(names) != len(required):
        count = f"{len(required)} names in order" if len(required) > 1 else "1 name"
        wanted = f"{count}, for {', '.join(required)}" if required else "none: it has no inputs"
        raise OptionError(term, "inputs", names[0] if len(names) == 1 else names, wanted)
    return dict(zip(required, names, strict=True))
