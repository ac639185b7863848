"""A function around a term: what every kind of it shares."""

import copy
import inspect
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from ... import trees
from ...backends import owner
from ...errors import OptionError
from ...functional.penalty import Facts, facts_of
from ..binding import Enclosing, signature_of
from ..evaluation import Evaluation
from ..kinds import is_row
from ..targets import is_followed
from ..term import Term, same

__all__ = [
    "Wrapper",
    "around",
    "check_term",
    "detached",
    "facts_within",
    "is_estimated",
    "parameters_of",
    "without_jax",
]


class Wrapper(Enclosing):
    """A function around a term: it has the parameters of that term's function, and changes its evaluation."""

    kind: str
    """Its word in a configuration."""
    title: str
    """The name of the public function."""
    wrt: tuple[str, ...] | None = None
    """The parameters that it is about; None is all of them."""
    needs_step: bool = False
    """Whether a call has to say the step."""
    estimable: bool = True
    """Whether its gradient can be estimated from its values."""

    def __init__(self, term: Term, own: Sequence[str] = (), **settings: Any) -> None:
        """Keep the inner term, the parameters that it does not have, and the arguments of the public function."""
        self.term = term
        self.own: tuple[str, ...] = tuple(own)
        self.settings: Mapping[str, Any] = settings

    def inside(self, name: str, parameters: Sequence[str], options: Mapping[str, Any]) -> "Wrapper":
        """The same around a term of this name, that reads each parameter under its own name and has these options."""
        parameters = [parameter for parameter in parameters if parameter not in self.own]
        nameless = any(parameter.startswith("*") for parameter in parameters)
        inputs = tuple(parameters) if nameless else {parameter: parameter for parameter in parameters}
        return self.like(self.term.replace(name=name, inputs=inputs, options=options))

    def like(self, term: Term) -> "Wrapper":
        """The same around another term with these parameters."""
        for name in self.wrt or ():
            if name not in term.inputs:
                expected = f"parameters that read an input: {', '.join(term.inputs)}"
                raise OptionError(self.title, "wrt", self.wrt, expected)
        # Not made again: what was checked then, and found, stays, also in a process that could not find it.
        new = copy.copy(self)
        new.term = term
        return new

    def layer(self, inputs: Any) -> tuple[dict[str, Any], Any]:
        """The entry of a configuration, and the inputs of the term inside; given the inputs of the term outside."""
        return {"kind": self.kind, **self.settings}, inputs

    @property
    def __signature__(self) -> inspect.Signature:
        """That of the inner term's function, with its own parameters, `state` and `step`."""
        required = (*self.own, *(["step"] if self.needs_step else []))
        return signature_of(self.term.fn, ("state", "step"), required)

    @property
    def label(self) -> str:
        """How a term shows what it is."""
        inner = getattr(self.term.fn, "label", None) or self.term.name
        shown = [f"{key}={_shown(value)}" for key, value in self.settings.items() if value is not None]
        return f"{self.title}({', '.join([inner, *shown])})"

    @property
    def remark(self) -> str:
        """What a table of terms says of it."""
        return self.title

    def __call__(self, *inputs: Any, state: Any = None, step: Any = None, **named: Any) -> Evaluation:
        """The evaluation of the term inside, changed."""
        given = dict(zip(self.term.positional, inputs, strict=True)) | named
        return self.evaluated(given, step, state)

    @abstractmethod
    def evaluated(self, given: dict[str, Any], step: Any, state: Any) -> Evaluation:
        """What a call returns, given the inputs by name."""
        ...

    def __eq__(self, other: object) -> bool:
        """Equal where the kind, the settings and the inner terms are."""
        return isinstance(other, Wrapper) and type(self) is type(other) and same(vars(self), vars(other))

    def __hash__(self) -> int:
        """By the inner term."""
        return hash((type(self), self.term))


def around(
    kind: type[Wrapper],
    term: Term,
    *,
    inner: Mapping[str, Any] | None = None,
    reads: Mapping[str, str] | None = None,
    **settings: Any,
) -> Term:
    """A term of the same name around this one, with these settings.

    `inner` changes arguments of the term inside; `reads` has the inputs of the parameters that it does not have.
    """
    check_term(kind.title, term)
    # The outer term decides when, where and with which inputs; the inner one is the function and how it is computed.
    arguments = term.arguments()
    within = {key: value for key, value in arguments.items() if key in _INNER}
    outside = {key: value for key, value in arguments.items() if key not in ("fn", "chunk", "compile")}
    if reads:
        outside["inputs"] = {**outside["inputs"], **reads}
    return Term(kind(Term(**{**within, **(inner or {})}), **settings), **outside)


def facts_within(fn: Any) -> Facts | None:
    """The facts of a penalty, also of one that is wrapped; None for any other function.

    >>> import penalties as pn
    >>> facts_within(pn.EMA(pn.Term(pn.entropy)).fn).function.__name__
    'entropy'
    """
    while isinstance(fn, Wrapper):
        fn = fn.term.fn
    return facts_of(fn)


def check_term(title: str, term: object) -> None:
    """Raise unless something can go around it."""
    if not isinstance(term, Term):
        raise OptionError(title, "term", term, "a Term")
    if term.asynchronous:
        raise OptionError(title, "term", term, "a term that is not asynchronous: its value is needed immediately")


def parameters_of(title: str, term: Term, wrt: Any) -> tuple[str, ...] | None:
    """The parameters that `wrt` names, each by its own name or by that of the input it reads; None is all of them."""
    if wrt is None:
        return None
    check_term(title, term)
    names = (wrt,) if isinstance(wrt, str) else wrt
    known = dict(term.inputs)
    readers = {name: parameter for parameter, name in known.items()}
    if not is_row(names) or not names or not all(name in known or name in readers for name in map(_key, names)):
        words = ", ".join(dict.fromkeys(f'"{name}"' for name in (*known, *known.values())))
        raise OptionError(title, "wrt", wrt, f"None, or names among the inputs of {term.name}: {words}")
    return tuple(dict.fromkeys(name if name in known else readers[name] for name in cast("Sequence[str]", names)))


def _key(name: object) -> str:
    return name if isinstance(name, str) else ""


def detached(given: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs as constants."""
    return {name: trees.map_arrays(_constant, nest) for name, nest in given.items()}


def without_jax(given: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs without JAX's tracing of gradients; inside jit and vmap they stay traced."""
    return {name: trees.map_arrays(_plain, nest) for name, nest in given.items()}


def _constant(array: Any) -> Any:
    ops = owner(array)
    return array if ops is None else ops.stop_gradient(array)


def _plain(array: Any) -> Any:
    ops = owner(array)
    return ops.stop_gradient(array) if ops is not None and ops.LIBRARY == "JAX" else array


def is_estimated(array: Any) -> bool:
    """Whether a gradient at this array is wanted, as far as its library says: NumPy's floats do not, and may be."""
    ops = owner(array)
    if ops is None:
        return False
    return ops.differentiable(array, requested=True) if ops.LIBRARY == "NumPy" else is_followed(array)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return getattr(value, "__name__", None) or repr(value)


_INNER: Final = ("fn", "name", "inputs", "options", "differentiable", "chunk", "compile")
