"""Reading the arrays of an output: all of them, in one transfer."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

from ..backends import Backend, owner
from ..errors import ShapeError
from .kinds import is_mapping, is_row

__all__ = [
    "NOTHING",
    "Row",
    "as_numbers",
    "batched",
    "detached",
    "one_at_a_time",
    "parts_of",
    "refilled",
    "show",
    "traced",
]

NOTHING: Final[Mapping[str, Any]] = {}
"""No metrics; shared, and never written to."""

Row: TypeAlias = tuple[str, Any, Any, Any, str | None, Mapping[str, Any], Mapping[str, Any], float | None, Any]
"""The arguments of a `TermOutput`."""


def as_numbers(values: list[Any]) -> list[Any]:
    """The values with numbers in place of arrays."""
    kind = cast("type[Any]", type(values[0])) if values else float
    if kind is not float and all([type(value) is kind for value in values]):  # noqa: C419 (a generator is slower)
        ops = owner(values[0])
        if ops is not None:
            return ops.read(values)
    places = [place for place, value in enumerate(values) if type(value) is not float and value is not None]
    arrays = [values[place] for place in places]
    ops = owner(arrays[0]) if arrays else None
    if ops is None or len(set(map(type, arrays))) > 1:
        return _mixed_numbers(values)
    for place, number in zip(places, ops.read(arrays), strict=True):
        values[place] = number
    return values


def _mixed_numbers(values: list[Any]) -> list[Any]:
    """The same where there are arrays of several kinds, or whole numbers among them."""
    libraries: dict[int, tuple[Backend, list[int]]] = {}
    for place, value in enumerate(values):
        ops = owner(value)
        if ops is not None:
            libraries.setdefault(id(ops), (ops, []))[1].append(place)
    for ops, mine in libraries.values():
        for place, number in zip(mine, ops.read([values[place] for place in mine]), strict=True):
            values[place] = number
    return values


def parts_of(rows: Sequence[Row]) -> list[Any]:
    """Everything in these rows that may be an array, in an order that `refilled` knows."""
    parts: list[Any] = []
    for _, value, weight, grad_norm, _, grad_norms, metrics, _, _ in rows:
        parts += (value, weight, grad_norm)
        if grad_norms:
            parts += grad_norms.values()
        if metrics:
            parts += metrics.values()
    return parts


def refilled(rows: Sequence[Row], parts: Iterator[Any]) -> list[Row]:
    """The rows with these in place of what `parts_of` gave."""
    return [
        (
            name,
            next(parts),
            next(parts),
            next(parts),
            grad_error,
            {key: next(parts) for key in grad_norms},
            {key: next(parts) for key in metrics},
            duration,
            error,
        )
        for name, _, _, _, grad_error, grad_norms, metrics, duration, error in rows
    ]


def batched(total: Any) -> bool:
    """Whether this is the output of many calls, as `vmap` and `scan` give."""
    return len(getattr(total, "shape", ())) > 0


def one_at_a_time(total: Any) -> ShapeError:
    """The error for reading many calls at once."""
    return ShapeError(
        f"this output holds many calls: its total has shape {tuple(total.shape)}; "
        "take one of them to read, as by jax.tree.map(lambda part: part[0], out)"
    )


def traced(*values: Any) -> bool:
    """Whether a compiler is looking at one of them: then there are no numbers to read."""
    return any((ops := owner(value)) is not None and ops.tracing(value) for value in values)


def show(value: Any) -> str:
    """A number for people; an array says what it is."""
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float | int) else str(value)


def detached(value: Any) -> Any:
    """A nest without the graph behind its arrays."""
    if is_mapping(value):
        return {key: detached(part) for key, part in value.items()}
    if is_row(value):
        kind: Any = type(value)
        return getattr(kind, "_make", kind)([detached(part) for part in value])
    ops = owner(value)
    return value if ops is None else ops.stop_gradient(value)
