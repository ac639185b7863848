"""A term: a function with a name, a weight, the inputs it reads, and where it runs."""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, ParamSpec, TypeAlias, cast

from ..backends import owner
from ..errors import InputError, OptionError, did_you_mean
from ..functional.options import check_choice, check_count, check_flag, check_number
from ..functional.penalty import Classwise, Elementwise, Facts, facts_of
from .binding import CALL_ARGUMENTS, Bound, Enclosing, Inputs, Regularizer, bind
from .catalogue import find
from .groups.compiled import Compiled
from .kinds import compiling, is_mapping, is_row

__all__ = [
    "ARGUMENTS",
    "CALL_ARGUMENTS",
    "LONGEST_TIMEOUT",
    "Inputs",
    "Regularizer",
    "Runs",
    "Scope",
    "Term",
    "Weight",
    "check_step",
    "check_weight",
    "same",
    "weight_at",
]

Runs: TypeAlias = Literal["inline", "thread", "process", "async", "ray"]
"""Where a term runs."""

Scope: TypeAlias = Literal["mean", "sum", "step"]
"""How a term adds up over the micro-batches and ranks of an optimizer step: averaged, added, or counted once."""

Weight: TypeAlias = Any
"""A number of at least 0, or a 0-d array, which may be learned or traced. That of a term may be a schedule too."""

_RUNS: Final = ("inline", "thread", "process", "async", "ray")
_SCOPES: Final = ("mean", "sum", "step")
LONGEST_TIMEOUT: Final = 300.0
"""The longest timeout, in seconds."""

# Keys of the metrics: a term cannot have one of these names.
_TAKEN: Final = ("total", "regularizer_total")
_SUFFIXES: Final = ("_weighted", "_grad_norm", "_grad_norm_error")


P = ParamSpec("P")


def _known_arguments(make: Callable[P, None]) -> Callable[P, None]:
    """Say of an argument that does not exist which was meant, or that it is an option of the function."""
    known = tuple(inspect.signature(make).parameters)[1:]

    @functools.wraps(make)
    def init(*args: P.args, **kwargs: P.kwargs) -> None:
        for given, value in kwargs.items():
            if given not in known:
                near = did_you_mean(given, known)
                hint = near or f"; an option of its function goes into options={{{given!r}: …}}"
                raise OptionError("Term", given, value, f"an argument of Term{hint}")
        make(*args, **kwargs)

    return init


@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Term(Bound):
    """A function with a name, a weight, the inputs it reads, and where it runs. It never changes.

    - `fn`: a function, a callable object, a `Regularizer`, the name of a penalty that ships here, or a dotted path:
      `"package.module:function"`. Its parameters without a default are its inputs, found by name; the others are
      options. For a `torch.nn.Module` they are the parameters of `forward`.
    - `weight`: a number, a 0-d array, or a schedule: a function of the step, which the call then gets as `step=`.
    - `name`: unique in its pipeline; by default the function's.
    - `inputs`: which inputs it reads instead: a name, names in order, or `{parameter: input}`.
    - `options`: arguments of the function that are the same at every call.
    - `enabled`: False leaves the term out.
    - `differentiable`: False counts it as a constant; the function may then return a plain number.
    - `runs`: where an executor runs it: `"inline"`, `"thread"`, `"process"`, `"async"` or `"ray"`.
    - `timeout`: seconds before an executor gives up on it; None takes the executor's.
    - `on_error`: `"skip"` leaves a term that fails out of the total, and keeps its error; `"raise"` raises it.
    - `every`: it runs when `step % every == 0`.
    - `idempotent`: True lets an executor run it again after its worker was lost.
    - `chunk`: how many rows to compute at a time, for a sum or mean over more rows than fit into memory.
    - `scope`: how trainers add it up over micro-batches and ranks: `"mean"`, `"sum"` or `"step"`.
    - `separable`: your own function is a sum or mean over rows: True, or over `"tokens"` or `"sequences"`.
    - `compile`: True makes a graph of it by torch.compile; a string names another of its backends.

    >>> import penalties as pn
    >>> pn.Term("kl_divergence", weight=0.1, inputs=("student", "teacher"), options={"direction": "reverse"})
    Term(kl_divergence, weight=0.1, inputs={'p': 'student', 'q': 'teacher'}, options={'direction': 'reverse'})
    """

    fn: Any
    path: str | None
    """The name or dotted path that `fn` was given as."""
    weight: Weight
    name: str
    options: Mapping[str, Any]
    enabled: bool
    differentiable: bool
    """Whether it has a gradient; if not, it counts in the total as a constant."""
    runs: Runs
    timeout: float | None
    """Seconds before an executor gives up on it; None leaves it to the executor."""
    on_error: Literal["raise", "skip"]
    every: int
    """It runs when `step % every == 0`."""
    idempotent: bool
    """Whether an executor may run it again after its worker was lost."""
    chunk: int | None
    """The number of rows that are computed at a time; None takes all at once."""
    scope: Scope | None
    """How trainers add it up over micro-batches and ranks; None leaves it to `scope_of`."""
    separable: bool | Literal["tokens", "sequences"] | None
    """Whether your own function is a sum or mean over rows: of what it reads, or over tokens or sequences."""
    compile: bool | str
    """Whether torch.compile makes a graph of it, alone or together with other terms; or by which of its backends."""
    closed_form: Elementwise | Classwise | None
    """What a penalty sums or averages over elements or positions, where a kernel can compute that."""
    softmax: float | None
    """The temperature of the log_softmax that a penalty takes of its distributions before it sums or averages."""

    @_known_arguments
    def __init__(
        self,
        fn: Callable[..., Any] | Regularizer | str,
        weight: Weight = 1.0,
        name: str | None = None,
        inputs: Inputs = None,
        options: Mapping[str, Any] | None = None,
        enabled: bool = True,
        differentiable: bool = True,
        runs: Runs = "inline",
        timeout: float | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        every: int = 1,
        idempotent: bool = False,
        chunk: int | None = None,
        scope: Scope | None = None,
        separable: bool | Literal["tokens", "sequences"] | None = None,
        compile: bool | str = False,
    ) -> None:
        """Check everything at once; a wrong argument is an error that says what was expected."""
        put = functools.partial(object.__setattr__, self)
        put("path", fn if isinstance(fn, str) else None)
        fn = find(fn) if isinstance(fn, str) else fn
        if not callable(fn) and not isinstance(cast("object", fn), Regularizer):
            raise OptionError("Term", "fn", fn, "a function, a Regularizer, the name of a penalty, or a dotted path")
        if isinstance(fn, type):
            raise OptionError("Term", "fn", fn.__name__, "a function or an object; this is a class: pass an instance")
        if hasattr(fn, "value_and_grad"):
            raise OptionError("Term", "fn", fn, "a function; a pipeline cannot be a term: add its terms instead")
        put("name", _check_name(_default_name(fn) if name is None else name))
        put("weight", _check_own_weight(self.name, weight))
        if options is not None and not is_mapping(cast("Any", options)):
            raise OptionError(self.name, "options", options, "a mapping from options to values")
        put("options", MappingProxyType(dict(options or {})))
        for flag, value in (("enabled", enabled), ("differentiable", differentiable), ("idempotent", idempotent)):
            check_flag(self.name, flag, value)
            put(flag, bool(value))
        check_choice(self.name, "runs", runs, _RUNS)
        put("runs", runs)
        if timeout is not None:
            expected = f"None, or seconds above 0 and up to {LONGEST_TIMEOUT:g}"
            timeout = check_number(self.name, "timeout", timeout, expected, low=math.ulp(0.0), high=LONGEST_TIMEOUT)
        put("timeout", timeout)
        check_choice(self.name, "on_error", on_error, ("raise", "skip"))
        put("on_error", on_error)
        check_count(self.name, "every", every, 1)
        put("every", int(every))
        if chunk is not None:
            check_count(self.name, "chunk", chunk, 1)
        put("chunk", chunk if chunk is None else int(chunk))
        if scope is not None:
            check_choice(self.name, "scope", scope, _SCOPES)
        put("scope", scope)
        bound = bind(self.name, fn, inputs, self.options)
        for slot in _BOUND:
            put(slot, getattr(bound, slot))
        put("fn", self.call if isinstance(fn, Enclosing) else fn)
        facts = facts_of(fn)
        self._check_values(facts)
        self._check_chunk(facts)
        self._check_separable(facts, separable)
        put("separable", separable)
        self._check_compile(compile)
        put("compile", compile)
        if compile:
            put("call", Compiled(self.name, self.call, self.compiler, self.keywords))
        summed = facts is not None and self.reduction in ("sum", "mean")
        put("closed_form", facts.closed_form(self.options) if facts is not None and summed else None)
        put("softmax", facts.softmax(self.options) if facts is not None and summed else None)

    def _check_values(self, facts: Facts | None) -> None:
        """Raise for a value that an option of a penalty cannot take, by trying it on the penalty's example."""
        if facts is None or facts.needs_gradient or compiling():
            return
        plain = {option: value for option, value in self.options.items() if isinstance(value, str | int | float)}
        example = facts.example()
        arrays = list(inspect.signature(facts.function).parameters)[: len(example)]
        for parameter in plain.keys() & arrays:
            expected = f'an array; to read it from an input of the call: inputs={{"{parameter}": …}}'
            raise OptionError(self.name, parameter, plain[parameter], expected)
        try:
            self.call(*example, **plain)
        except OptionError as error:
            raise OptionError(self.name, error.option, error.value, error.expected) from None

    def _check_chunk(self, facts: Facts | None) -> None:
        if self.chunk is None:
            return
        if isinstance(self.fn, Enclosing):
            expected = "None here: give chunk= to the term inside"
        elif facts is not None and not facts.rows:
            expected = "None: this penalty is not a sum over rows"
        elif self.reduction not in ("sum", "mean"):
            expected = 'a function with reduction="sum" or "mean", which says how rows combine'
        elif facts is not None and not facts.separable(self.options):
            expected = "None: with these options this penalty is not a sum over rows"
        else:
            return
        raise OptionError(self.name, "chunk", self.chunk, expected)

    def _check_separable(self, facts: Facts | None, separable: object) -> None:
        if not isinstance(separable, bool | None) and separable not in ("tokens", "sequences"):
            raise OptionError(self.name, "separable", separable, 'True, False, "tokens", "sequences" or None')
        if separable is None or separable is False:
            return
        if isinstance(self.fn, Enclosing):
            expected = "None: a wrapper needs the whole batch"
        elif facts is not None:
            expected = "None: a penalty says so itself"
        elif self.summed is None:
            expected = 'None, or scope="sum" or "mean" too, or a function with reduction=, which says how rows combine'
        else:
            return
        raise OptionError(self.name, "separable", separable, expected)

    @property
    def summed(self) -> Literal["sum", "mean"] | None:
        """How it combines rows, by its scope or the reduction of its function; None where neither says."""
        said = self.scope if self.scope in ("sum", "mean") else self.reduction
        return said if said in ("sum", "mean") else None

    def _check_compile(self, compile: object) -> None:
        if not isinstance(compile, bool) and (not isinstance(compile, str) or not compile):
            raise OptionError(self.name, "compile", compile, "True, False or the name of a backend of torch.compile")
        if not compile:
            return
        if isinstance(self.fn, Enclosing):
            expected = "False here: give compile= to the term inside"
        elif self.runs != "inline" or self.asynchronous:
            where = "an async function" if self.asynchronous else f'runs="{self.runs}"'
            expected = f"False with {where}: a graph runs inline"
        else:
            return
        raise OptionError(self.name, "compile", compile, expected)

    @property
    def compiler(self) -> str:
        """The backend of torch.compile that makes a graph of it."""
        return self.compile if isinstance(self.compile, str) else "inductor"

    def arguments(self) -> dict[str, Any]:
        """The arguments that make this term again."""
        arguments = {name: getattr(self, name) for name in ARGUMENTS}
        # By its path, so that a term that was given by name can be saved by name.
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
        weight = _check_own_weight(self.name, weight)
        new = object.__new__(Term)
        for slot in _SLOTS:
            object.__setattr__(new, slot, getattr(self, slot))
        object.__setattr__(new, "weight", weight)
        return new

    def __repr__(self) -> str:
        """The function and whatever differs from the defaults."""
        label = getattr(self.fn, "label", None)
        shown = [label or _function_name(self.fn) or type(self.fn).__name__]
        if label is None and shown[0] != self.name:
            shown.append(f"name={self.name!r}")
        usual = {parameter: parameter for parameter in self.inputs}
        if hasattr(self.fn, "unchanged"):
            usual = self.fn.unchanged()
        for argument, default in ARGUMENTS.items():
            value = getattr(self, argument)
            if argument in ("fn", "name") or (argument == "inputs" and value == usual):
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


def _make(arguments: dict[str, Any]) -> Term:
    return Term(**arguments)


ARGUMENTS: Final[dict[str, Any]] = {
    parameter.name: {} if parameter.name == "options" else parameter.default
    for parameter in list(inspect.signature(Term.__init__).parameters.values())[1:]
}
"""The arguments of a term and their defaults."""

_BOUND: Final = tuple(entry.name for entry in dataclasses.fields(Bound))
_SLOTS: Final = tuple(entry.name for entry in dataclasses.fields(Term))


def check_weight(term: str, weight: Weight) -> Weight:
    """The weight of a call: a finite number of at least 0, or a 0-d array as it is."""
    if type(weight) is float and 0.0 <= weight < math.inf:
        return weight
    ops, array = owner(weight), cast("Any", weight)
    if ops is not None and len(array.shape):
        raise OptionError(term, "weight", tuple(array.shape), "a 0-d array, not one of this shape")
    if ops is None or ops.LIBRARY == "NumPy":
        # NumPy's arrays carry no gradient: they are numbers, for pipelines of every library.
        given: Any = array if ops is None else array.item()
        expected = "a finite number of at least 0, or a 0-d array"
        if callable(given):
            expected += "; a schedule goes into Term(weight=schedule), or through schedules.weights(…, step)"
        number = check_number(term, "weight", given, expected, low=0.0)
        # Whole numbers stay whole.
        return given if isinstance(given, int) else number
    return weight


def _check_own_weight(term: str, weight: Weight) -> Weight:
    """The weight that a term is given, which may also be a schedule."""
    if not callable(weight):
        return check_weight(term, weight)
    if isinstance(weight, type):
        raise OptionError(term, "weight", weight, f"a schedule: {weight.__name__}(…), with its arguments")
    return weight


def weight_at(term: Term, step: Any) -> Weight:
    """The weight of a term at this step: a number or a 0-d array.

    >>> import penalties as pn
    >>> from penalties.pipeline.term import weight_at
    >>> weight_at(pn.Term(pn.l1, weight=pn.schedules.warmup(0.1, steps=10)), step=5)
    0.05
    """
    weight = term.weight
    if not callable(weight):
        return weight
    if step is None:
        raise InputError(f"{term.name}: its weight is a schedule; pass step= to the call")
    return check_weight(term.name, weight(step))


def check_step(term: Term, step: Any) -> None:
    """Raise if the call has no step, and the term or one that it wraps takes it."""
    inside: Any = term
    while step is None and isinstance(inside, Term):
        if inside.needs_step:
            raise InputError(f"{term.name}: takes the step; pass step= to the call")
        inside = getattr(inside.fn, "term", None)


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
            f"a name that cannot be taken for a metric: not {' or '.join(_TAKEN)}, no slash, and no ending "
            f"{', '.join(_SUFFIXES)}",
        )
    return name


def _default_name(fn: Any) -> str:
    if isinstance(fn, functools.partial):
        return _default_name(cast("Any", fn).func)
    name = _function_name(fn)
    if name == "<lambda>":
        raise OptionError("Term", "name", None, "a name, since a lambda has none")
    if name is None:
        own = getattr(fn, "name", None)
        own = own() if callable(own) else own
        name = own if isinstance(own, str) else type(fn).__name__
    return name


def _function_name(fn: Any) -> str | None:
    return getattr(fn, "__name__", None)
