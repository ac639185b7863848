"""What a pipeline's call gives: the total, and everything about every term."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, Self, TypeAlias, cast

from .. import encoding
from ..errors import InputError, NonFiniteError, OptionError, TermError
from .reading import NOTHING, Row, as_numbers, batched, detached, one_at_a_time, parts_of, refilled, show, traced
from .table import table
from .term import same

__all__ = ["BASE", "LossOutput", "TermOutput", "Terms"]

BASE: Final = "base_loss"
"""The name that the base loss has in metrics and in the order of cosines."""

Style: TypeAlias = Literal["flat", "slash"]


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
    """Of the value, not weighted, over all inputs together; None where it was not asked for, or there is none."""
    grad_error: str | None = None
    """Why there is no gradient, where one was asked for."""
    grad_norms: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    """The same for each input alone, where there are several."""
    metrics: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    duration: float | None = None
    """Seconds; None inside a compiler. On an accelerator it is the time to launch."""
    error: BaseException | None = None

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
        return _term_dict(_read_term(self))

    def __eq__(self, other: object) -> bool:
        """Equal in every part but the duration; arrays by their elements, errors by what they say."""
        return _equal(self, other)

    def __hash__(self) -> int:
        """By the name."""
        return hash(self.name)

    def __repr__(self) -> str:
        """The parts that are there."""
        # Inside a compiler there are no numbers, and the arrays say what they are.
        plain = self if traced(self.value, self.weight) or batched(self.value) else _read_term(self)
        there = {key: value for key, value in _term_dict(plain).items() if value is not None}
        if not plain.metrics:
            del there["custom"]
        shown = [f"{key}={show(value)}" for key, value in there.items()]
        return f"TermOutput({self.name!r}, {', '.join(shown)})"

    def __copy__(self) -> Self:
        """Itself: it never changes."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the parts, without the graph behind them."""
        return type(self), tuple(detached(getattr(self, entry.name)) for entry in fields(self))


class Terms(Mapping[str, TermOutput]):
    """The terms of a call by name, in order. Each becomes an object when somebody looks at it."""

    __slots__ = ("made", "rows")

    def __init__(self, rows: Sequence[Row]) -> None:
        """Keep the arguments of the outputs."""
        self.rows: Sequence[Row] = rows
        self.made: dict[str, TermOutput] | None = None

    @classmethod
    def of(cls, terms: Sequence[TermOutput]) -> "Terms":
        """Of outputs that are objects already."""
        return cls([_row(term) for term in terms])

    def _outputs(self) -> dict[str, TermOutput]:
        if self.made is None:
            self.made = {row[0]: TermOutput(*row) for row in self.rows}
        return self.made

    def __getitem__(self, name: str) -> TermOutput:
        """A term by name."""
        return self._outputs()[name]

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter([row[0] for row in self.rows])

    def __len__(self) -> int:
        """How many."""
        return len(self.rows)

    def __repr__(self) -> str:
        """As a dict."""
        return repr(self._outputs())


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
    terms: Mapping[str, TermOutput] = field(default_factory=lambda: Terms(()))
    """By name, in the order of the pipeline."""
    base: TermOutput | None = None
    regularizer_total: Any = 0.0
    """The total without the base loss."""
    total_grad_norm: Any = None
    gradient: Any = None
    """`{input: gradient}` with the structure of each input, or the gradient itself of a single positional input."""
    cosines: Any = None
    """The matrix of cosines between the gradients, in the order of `names`; NaN for a term whose gradient is 0."""
    state: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    """What the stateful terms want to be given at the next call."""

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
        return cls(total, Terms.of(terms), base, regularizers, total_grad_norm)

    @property
    def names(self) -> tuple[str, ...]:
        """The base loss, if there is one, and the terms: the order of `cosines`."""
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
            there = ", ".join(f'"{known}"' for known in self.names) or "none"
            raise InputError(f'no term is named "{name}"; there is {there}') from None

    def __iter__(self) -> Iterator[TermOutput]:
        """The terms in order, without the base."""
        return iter(self.terms.values())

    def __len__(self) -> int:
        """How many terms, without the base."""
        return len(self.terms)

    def read(self) -> "LossOutput":
        """The same with numbers in place of arrays, read in one transfer; without gradient and state."""
        return _read(self)

    def metrics(self, style: Style = "flat") -> dict[str, float]:
        """Everything as flat numbers, for a log.

        "flat" has `l1`, `l1_weighted`, `l1_grad_norm`, `l1/own_metric`, `base_loss`, `total`, `total_grad_norm`;
        "slash" groups for loggers: `loss/l1`, `loss/l1/weighted`, `grad_norm/l1`, `weight/l1`, `time/l1`.

        >>> import numpy as np
        >>> import penalties as pn
        >>> out = pn.Pipeline([pn.Term(pn.l1, weight=0.5)])(np.array([1.0, -2.0]))
        >>> out.metrics()
        {'l1': 3.0, 'l1_weighted': 1.5, 'total': 1.5}
        """
        if style not in ("flat", "slash"):
            raise OptionError("metrics", "style", style, '"flat" or "slash"')
        if batched(self.total):
            raise one_at_a_time(self.total)
        return _flat(self) if style == "flat" else _slash(self.read())

    def to_dict(self) -> dict[str, Any]:
        """Everything as nested numbers; what was not asked for is None."""
        plain = self.read()
        nested: dict[str, Any] = {"loss_total": plain.total}
        if plain.base is not None:
            base = plain.base
            nested["base_loss"] = {"value": base.value, "grad_norm": base.grad_norm, "custom": dict(base.metrics)}
            nested["base_loss"] |= _when_there(
                grad_norms=dict(base.grad_norms) or None,
                grad_error=base.grad_error,
                duration=base.duration,
                error=_said(base.error),
            )
        nested["regularizers"] = {term.name: _term_dict(term) for term in plain}
        nested["regularizer_total"] = plain.regularizer_total
        nested["total_grad_norm"] = plain.total_grad_norm
        if plain.cosines is not None:
            nested["cosines"] = plain.cosines
        return nested

    def to_json(self) -> str:
        """`to_dict` as JSON; NaN and infinities are the strings "NaN", "Infinity" and "-Infinity"."""
        return encoding.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, nested: Mapping[str, Any]) -> "LossOutput":
        """The output that `to_dict` described, or `to_json`, once that is parsed; with numbers in place of arrays.

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
                raise InputError(f'from_dict: no key "{key}"; given: {", ".join(map(str, nested)) or "none"}')
        for key in nested:
            if key not in known:
                raise InputError(f'from_dict: unknown key "{key}"; expected only {", ".join(sorted(known))}')
        plain = cast("dict[str, Any]", encoding.decode(dict(nested)))
        base = plain.get("base_loss")
        terms = Terms.of([_from_dict(name, part) for name, part in plain["regularizers"].items()])
        return cls(
            plain["loss_total"],
            terms,
            None if base is None else _from_dict(BASE, base),
            plain["regularizer_total"],
            plain.get("total_grad_norm"),
            cosines=plain.get("cosines"),
        )

    def check(self) -> "LossOutput":
        """Itself, or `NonFiniteError` that names the first term that is NaN or infinite. Reads the values.

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
            for what, number in (("value", term.value), ("weight", term.weight), ("gradient norm", term.grad_norm)):
                if number is not None and not math.isfinite(number):
                    kind = "nan" if math.isnan(number) else "inf"
                    raise NonFiniteError(kind, f"{term.name}: the {what} is {number:g}")
        if not math.isfinite(plain.total):
            kind = "nan" if math.isnan(plain.total) else "inf"
            raise NonFiniteError(kind, f"the total is {plain.total:g}, though every term is finite: the sum overflows")
        return self

    def __eq__(self, other: object) -> bool:
        """Equal in every part but the duration; arrays by their elements, errors by what they say."""
        return _equal(self, other)

    def __hash__(self) -> int:
        """By the names."""
        return hash(self.names)

    def __repr__(self) -> str:
        """A small table. Reads the values."""
        # Inside a compiler there are no numbers, and the arrays say what they are.
        plain = self if traced(self.total) or batched(self.total) else _read(self)
        rows = plain.all
        parts = [abs(row.contribution) for row in rows if isinstance(row.contribution, float | int)]
        scale = sum(parts)
        norms = any(row.grad_norm is not None or row.grad_error is not None for row in rows)
        header = ["term", "value", "weight", "contribution", "share", *(["gradient"] if norms else [])]
        lines: list[list[str]] = []
        for row in rows:
            if row.error is not None:
                said = str(row.error).removeprefix(f"{row.name}: ")
                lines.append([row.name, "skipped", show(row.weight), said, "", *([""] if norms else [])])
                continue
            amount = row.contribution
            share = f"{abs(amount) / scale:.0%}".replace("%", " %") if scale and isinstance(amount, float | int) else ""
            cells = [row.name, show(row.value), show(row.weight), show(amount), share]
            lines.append([*cells, *([show(row.grad_norm)] if norms else [])])
        norm = "" if plain.total_grad_norm is None else f", gradient {show(plain.total_grad_norm)}"
        title = f"LossOutput, total {show(plain.total)}{norm}"
        return "\n".join([title, *table(header, lines, indent="  ")]) if lines else title

    def __copy__(self) -> Self:
        """Itself: it never changes."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the parts, without the graph behind them."""
        return type(self), tuple(detached(getattr(self, entry.name)) for entry in fields(self))


def _equal(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return NotImplemented
    one: Any
    other: Any
    for entry in fields(a):
        if entry.name == "duration":
            # The same result, whatever time it took.
            continue
        one, other = getattr(a, entry.name), getattr(b, entry.name)
        if entry.name == "error":
            one, other = repr(one), repr(other)
        if not same(one, other):
            return False
    return True


# Reading: every array of an output, in one transfer.


def _row(term: TermOutput) -> Row:
    return (
        term.name,
        term.value,
        term.weight,
        term.grad_norm,
        term.grad_error,
        term.grad_norms,
        term.metrics,
        term.duration,
        term.error,
    )


def _rows(terms: Mapping[str, TermOutput]) -> Sequence[Row]:
    return terms.rows if isinstance(terms, Terms) else [_row(term) for term in terms.values()]


def _read_term(term: TermOutput) -> TermOutput:
    rows = [_row(term)]
    return TermOutput(*refilled(rows, iter(as_numbers(parts_of(rows))))[0])


def _read(output: LossOutput) -> LossOutput:
    if batched(output.total):
        raise one_at_a_time(output.total)
    rows = [*([] if output.base is None else [_row(output.base)]), *_rows(output.terms)]
    whole = (output.total, output.regularizer_total, output.total_grad_norm, output.cosines)
    parts = iter(as_numbers([*whole, *parts_of(rows)]))
    total, regularizers, norm, cosines = next(parts), next(parts), next(parts), next(parts)
    plain = refilled(rows, parts)
    base = None if output.base is None else TermOutput(*plain.pop(0))
    return LossOutput(total, Terms(plain), base, regularizers, norm, cosines=cosines)


# The forms that people and programs read.


def _term_dict(term: TermOutput) -> dict[str, Any]:
    nested = {
        "value": term.value,
        "weight": term.weight,
        "contribution": term.contribution,
        "grad_norm": term.grad_norm,
        "grad_norm_weighted": term.grad_norm_weighted,
        "custom": dict(term.metrics),
    }
    return nested | _when_there(
        grad_norms=dict(term.grad_norms) or None,
        grad_error=term.grad_error,
        duration=term.duration,
        error=_said(term.error),
    )


def _said(error: BaseException | None) -> str | None:
    return None if error is None else f"{type(error).__name__}: {error}"


def _when_there(**parts: Any) -> dict[str, Any]:
    return {key: value for key, value in parts.items() if value is not None}


def _from_dict(name: str, nested: Mapping[str, Any]) -> TermOutput:
    error = nested.get("error")
    return TermOutput(
        name,
        nested["value"],
        nested.get("weight", 1.0),
        nested.get("grad_norm"),
        nested.get("grad_error"),
        nested.get("grad_norms") or {},
        nested.get("custom") or {},
        nested.get("duration"),
        None if error is None else _restored(name, error),
    )


def _restored(name: str, said: str) -> TermError:
    """The error that a record speaks of, to be recorded again in the same words."""
    return TermError(name, said.removeprefix(f"TermError: {name}: "))


def _flat(output: LossOutput) -> dict[str, float]:
    rows = _rows(output.terms)
    numbers: dict[str, float] = {}
    if output.base is None and output.total_grad_norm is None and all(map(_simple, rows)):
        # Values and numbers for weights alone: the common case, by the shortest way, since it is read at every step.
        read = as_numbers([output.total, *[row[1] for row in rows]])
        for row, value in zip(rows, read[1:], strict=True):
            name = row[0]
            numbers[name] = value
            numbers[name + "_weighted"] = row[2] * value
        numbers["total"] = read[0]
        return numbers
    everything = rows if output.base is None else [*rows, _row(output.base)]
    parts = iter(as_numbers([output.total, output.total_grad_norm, *parts_of(everything)]))
    total, norm = next(parts), next(parts)
    for name, _, _, _, grad_error, inputs, metrics, _, _ in everything:
        value, weight, grad_norm = next(parts), next(parts), next(parts)
        norms = {f"{name}_grad_norm/{key}": next(parts) for key in inputs}
        own = {f"{name}/{key}": float(next(parts)) for key in metrics}
        if value is None:
            continue
        numbers[name] = value
        if name != BASE:
            numbers[f"{name}_weighted"] = weight * value
        if grad_norm is not None:
            numbers[f"{name}_grad_norm"] = grad_norm
        if grad_error is not None:
            numbers[f"{name}_grad_norm_error"] = 1.0
        numbers |= norms | own
    numbers["total"] = total
    if norm is not None:
        numbers["total_grad_norm"] = norm
    return numbers


def _simple(row: Row) -> bool:
    _, value, weight, grad_norm, grad_error, _, metrics, _, _ = row
    return type(weight) is float and not metrics and value is not None and grad_norm is None and grad_error is None


def _slash(plain: LossOutput) -> dict[str, float]:
    numbers: dict[str, float] = {"loss/total": plain.total}
    for term in plain.all:
        if term.value is None:
            continue
        numbers[f"loss/{term.name}"] = term.value
        if term is not plain.base:
            numbers |= {f"loss/{term.name}/weighted": term.contribution, f"weight/{term.name}": term.weight}
        if term.grad_norm is not None:
            numbers[f"grad_norm/{term.name}"] = term.grad_norm
            numbers |= {f"grad_norm/{term.name}/{key}": norm for key, norm in term.grad_norms.items()}
        if term.duration is not None:
            numbers[f"time/{term.name}"] = term.duration
        numbers |= {f"metrics/{term.name}/{key}": metric for key, metric in term.metrics.items()}
    if plain.total_grad_norm is not None:
        numbers["grad_norm/total"] = plain.total_grad_norm
    if plain.cosines is not None:
        names = plain.names
        for i, first in enumerate(names):
            numbers |= {f"grad_cos/{first}__{names[j]}": plain.cosines[i][j] for j in range(i + 1, len(names))}
    return {key: float(number) for key, number in numbers.items()}
