"""What a pipeline's call returns: the total, and everything about every term."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, cast

from ... import encoding
from ...backends import owner
from ...errors import CheckError, InputError, NonFiniteError, OptionError, unknown_term
from ...functional.options import check_flag
from ...trees import map_arrays
from .. import checks
from ..term import same
from . import rendering
from .reading import is_batched, is_traced, read_output, read_terms

if TYPE_CHECKING:
    from ..checks import Record
    from ..table import Table

__all__ = ["BASE", "LossOutput", "TermOutput"]

BASE: Final = "base_loss"
"""The name that the base loss has in metrics and in the order of cosines."""

Style: TypeAlias = Literal["flat", "slash"]


def _nothing() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TermOutput:
    """One term of one call. Values are 0-d arrays on their device until they are read.

    >>> import penalties as pn
    >>> out = pn.TermOutput("l1", value=22.4, weight=0.01, grad_norm=7.48)
    >>> round(out.contribution, 6), round(out.grad_norm_weighted, 6)
    (0.224, 0.0748)
    """

    name: str
    value: Any
    """None where the term was skipped."""
    weight: Any = 1.0
    grad_norm: Any = None
    """The norm of the unscaled gradient over all inputs; None if it was not requested, or there is no gradient."""
    grad_error: str | None = None
    """Why there is no gradient, where one was requested."""
    grad_norms: Mapping[str, Any] = field(default_factory=_nothing)
    """The same for each input alone, where there are several."""
    metrics: Mapping[str, Any] = field(default_factory=_nothing)
    duration: float | None = None
    """Seconds; None inside a compiler. On an accelerator it is the time to launch."""
    error: BaseException | None = None
    gradient: Any = None
    """The unscaled gradient, with `keep=True`: in the form of `LossOutput.gradient`."""

    @property
    def contribution(self) -> Any:
        """`weight · value`: what it adds to the total; None where the term was skipped."""
        return None if self.value is None else self.weight * self.value

    @property
    def grad_norm_weighted(self) -> Any:
        """`weight · grad_norm`; None where there is no norm."""
        return None if self.grad_norm is None else self.weight * self.grad_norm

    def to_dict(self) -> dict[str, Any]:
        """The nested form, in numbers."""
        return rendering.nested_term(read_terms([self])[0])

    def __eq__(self, other: object) -> bool:
        """Equal in every part but the duration; arrays by their elements, errors by their text."""
        return _equal(self, other)

    def __hash__(self) -> int:
        """By the name."""
        return hash(self.name)

    def __repr__(self) -> str:
        """The parts that are there."""
        # Inside a compiler there are no numbers, and the arrays describe themselves.
        plain = self if is_traced(self.value, self.weight) or is_batched(self.value) else read_terms([self])[0]
        there = {key: value for key, value in rendering.nested_term(plain).items() if value is not None}
        if not plain.metrics:
            del there["custom"]
        parts = [f"{key}={rendering.shown(value)}" for key, value in there.items()]
        return f"TermOutput({self.name!r}, {', '.join(parts)})"

    def __copy__(self) -> Self:
        """Itself: it is immutable."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the parts, without the graph behind them."""
        return type(self), tuple(_detached(getattr(self, entry.name)) for entry in fields(self))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LossOutput:
    """The result of a pipeline: `total` to differentiate, and every term to look at.

    Values stay on their device until `metrics()`, `to_dict()` or `to_json()` reads them all, in one transfer.

    >>> import numpy as np
    >>> import penalties as pn
    >>> out = pn.Pipeline([pn.Term(pn.l1, weight=0.1), pn.Term(pn.l2, weight=0.01)])(np.array([1.0, -2.0]))
    >>> out
    LossOutput, total 0.35
      term  value  weight  contribution  share
      l1    3      0.1     0.3           86 %
      l2    5      0.01    0.05          14 %
    >>> out["l1"].value
    np.float64(3.0)
    """

    total: Any
    terms: Mapping[str, TermOutput] = field(default_factory=_nothing)
    """By name, in the order of the pipeline."""
    base: TermOutput | None = None
    regularizer_total: Any = 0.0
    """The total without the base loss."""
    total_grad_norm: Any = None
    gradient: Any = None
    """`{input: gradient}` with the structure of each input, or the gradient itself of a single positional input."""
    cosines: Any = None
    """The matrix of cosines between the gradients, in the order of `names`; NaN for a term whose gradient is 0."""
    state: Mapping[str, Any] = field(default_factory=_nothing)
    """What the stateful terms are to be given at the next call."""
    gram: Any = None
    """The matrix of inner products of the unscaled gradients, in the order of `names`; with `cosines` or `keep`."""
    record: "Record | None" = None
    """What `check` needs besides the values: names and weak references, never the inputs themselves."""

    @classmethod
    def of(
        cls,
        terms: Sequence[TermOutput],
        *,
        base: TermOutput | None = None,
        total_grad_norm: Any = None,
    ) -> "LossOutput":
        """The output that these terms make: totals are the sums of their contributions.

        >>> import penalties as pn
        >>> out = pn.LossOutput.of([pn.TermOutput("l1", 22.4, 0.01)], base=pn.TermOutput("base_loss", 2.5))
        >>> round(out.total, 6), round(out.regularizer_total, 6)
        (2.724, 0.224)
        """
        regularizers = sum((term.contribution for term in terms if term.value is not None), 0.0)
        total = regularizers if base is None or base.value is None else base.value + regularizers
        return cls(total, {term.name: term for term in terms}, base, regularizers, total_grad_norm)

    @property
    def names(self) -> tuple[str, ...]:
        """The base loss, if there is one, and the terms: the order of `cosines` and `gram`."""
        return (*([BASE] if self.base is not None else []), *self.terms)

    @property
    def all(self) -> tuple[TermOutput, ...]:
        """The base loss, if there is one, and the terms."""
        return (*([self.base] if self.base is not None else []), *self.terms.values())

    def __getitem__(self, name: str) -> TermOutput:
        """A term by name; `"base_loss"` is the base."""
        if name == BASE and self.base is not None:
            return self.base
        try:
            return self.terms[name]
        except KeyError:
            raise unknown_term("", name, self.names) from None

    def __iter__(self) -> Iterator[TermOutput]:
        """The terms in order, without the base."""
        return iter(self.terms.values())

    def __len__(self) -> int:
        """How many terms, without the base."""
        return len(self.terms)

    def read(self) -> "LossOutput":
        """The same with numbers in place of arrays, read in one transfer; without gradients and state."""
        return read_output(self)

    def metrics(self, style: Style = "flat", *, device: bool = False) -> dict[str, Any]:
        """Everything as flat numbers, for a log.

        "flat" has `l1`, `l1_weighted`, `l1_grad_norm`, `l1/own_metric`, `base_loss`, `total`, `total_grad_norm`;
        "slash" groups for loggers: `loss/l1`, `loss/l1/weighted`, `loss/l1/share`, `grad_norm/l1`, `grad_share/l1`,
        `grad_cos/l1__l2`, `weight/l1`, `time/l1`.

        Numbers are floats, read in one transfer. With `device=True` nothing is read: what is an array stays one, on its
        device and without its graph, for loggers that read later, or add up over steps and processes.

        >>> import numpy as np
        >>> import penalties as pn
        >>> out = pn.Pipeline([pn.Term(pn.l1, weight=0.5)])(np.array([1.0, -2.0]))
        >>> out.metrics()
        {'l1': 3.0, 'l1_weighted': 1.5, 'total': 1.5}
        """
        if style not in ("flat", "slash"):
            raise OptionError("metrics", "style", style, '"flat" or "slash"')
        check_flag("metrics", "device", device)
        plain = self if device else read_output(self)
        numbers = rendering.flat_metrics(plain) if style == "flat" else rendering.slash_metrics(plain)
        return {name: _detach(number) if device else float(number) for name, number in numbers.items()}

    def to_dict(self) -> dict[str, Any]:
        """Everything as nested numbers; what was not requested is None."""
        return rendering.nested(read_output(self))

    def to_json(self) -> str:
        """`to_dict` as JSON; NaN and infinities are the strings "NaN", "Infinity" and "-Infinity"."""
        return encoding.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, nested: Mapping[str, Any]) -> "LossOutput":
        """The output that `to_dict` or (once parsed) `to_json` described, with numbers in place of arrays.

        >>> import numpy as np
        >>> import penalties as pn
        >>> out = pn.Pipeline([pn.Term(pn.l1)])(np.array([1.0, np.nan]))
        >>> import json
        >>> pn.LossOutput.from_dict(json.loads(out.to_json())).metrics()
        {'l1': nan, 'l1_weighted': nan, 'total': nan}
        """
        known = {"loss_total", "base_loss", "regularizers", "regularizer_total", "total_grad_norm", "cosines"}
        for key in ("loss_total", "regularizers", "regularizer_total"):
            if key not in nested:
                raise InputError(
                    f'from_dict: the key "{key}" is missing; given: {", ".join(map(str, nested)) or "none"}'
                )
        for key in nested:
            if key not in known:
                raise InputError(f'from_dict: unknown key "{key}"; expected only {", ".join(sorted(known))}')
        plain = cast("dict[str, Any]", encoding.decode(dict(nested)))
        base = plain.get("base_loss")
        return cls(
            plain["loss_total"],
            {
                name: TermOutput(**rendering.term_arguments(name, entry))
                for name, entry in plain["regularizers"].items()
            },
            None if base is None else TermOutput(**rendering.term_arguments(BASE, base)),
            plain["regularizer_total"],
            plain.get("total_grad_norm"),
            cosines=plain.get("cosines"),
        )

    def check(self) -> "LossOutput":
        """Itself, or an error that says what is wrong. Reads the values.

        `NonFiniteError` names the first term that is NaN or infinite. `CheckError` lists what is finite and yet
        suspicious: log-probabilities that do not sum to one, inputs that no term reads, state that was returned and
        not passed in again. Inputs that are gone by now are not looked at: `with pn.debug():` checks every call
        before its terms are evaluated.

        >>> import numpy as np
        >>> import penalties as pn
        >>> try:
        ...     pn.Pipeline([pn.Term(pn.l1)])(np.array([1.0, np.inf])).check()
        ... except pn.NonFiniteError as error:
        ...     print(error)
        l1: the value is inf
        """
        plain = self.read()
        for term in plain.all:
            for what, number, phase in (
                ("value", term.value, "value"),
                ("weight", term.weight, "value"),
                ("gradient norm", term.grad_norm, "gradient"),
            ):
                if number is not None and not math.isfinite(number):
                    raise NonFiniteError.of(number, f"the {what} is {number:g}", term.name, phase)
        if not math.isfinite(plain.total):
            message = f"the total is {plain.total:g}, though every term is finite: the sum overflows"
            raise NonFiniteError.of(plain.total, message)
        findings = [] if self.record is None else checks.findings(self.record)
        if findings:
            raise CheckError(findings)
        return self

    def __eq__(self, other: object) -> bool:
        """Equal in every part but the duration; arrays by their elements, errors by their text."""
        return _equal(self, other)

    def __hash__(self) -> int:
        """By the names."""
        return hash(self.names)

    def __repr__(self) -> str:
        """A small table. Reads the values."""
        return self._table().text()

    def _repr_html_(self) -> str:
        """The table in a notebook."""
        return self._table().html()

    def _table(self) -> "Table":
        # Inside a compiler there are no numbers, and the arrays describe themselves.
        return rendering.output_table(self if is_traced(self.total) or is_batched(self.total) else self.read())

    def __copy__(self) -> Self:
        """Itself: it is immutable."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the parts, without the graph behind them."""
        # The terms detach themselves.
        as_is = {"record": None, "terms": dict(self.terms), "base": self.base}
        names = [entry.name for entry in fields(self)]
        return type(self), tuple(as_is[n] if n in as_is else _detached(getattr(self, n)) for n in names)


_NOT_COMPARED: Final = ("duration", "record")
"""The same result, however long it took."""


def _equal(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return NotImplemented
    for name in (entry.name for entry in fields(a) if entry.name not in _NOT_COMPARED):
        one, other = getattr(a, name), getattr(b, name)
        if name == "error":
            one, other = repr(one), repr(other)
        if not same(one, other):
            return False
    return True


def _detached(part: Any) -> Any:
    """A part without the graph behind its arrays."""
    return map_arrays(_detach, part)


def _detach(array: Any) -> Any:
    ops = owner(array)
    return array if ops is None else ops.stop_gradient(array)
