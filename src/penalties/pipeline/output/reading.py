"""Reading the arrays of an output: all of them, in one transfer."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...backends import Backend, owner
from ...errors import ShapeError

if TYPE_CHECKING:
    from .data import LossOutput, TermOutput

__all__ = ["as_numbers", "check_single", "is_batched", "is_traced", "read_output", "read_terms"]


def as_numbers(values: Sequence[Any]) -> list[Any]:
    """The values with numbers in place of arrays; one transfer for each library among them."""
    numbers = list(values)
    by_library: dict[int, tuple[Backend, list[int]]] = {}
    for index, value in enumerate(numbers):
        ops = None if value is None or type(value) is float else owner(value)
        if ops is not None:
            by_library.setdefault(id(ops), (ops, []))[1].append(index)
    for ops, indices in by_library.values():
        for index, number in zip(indices, ops.read([numbers[index] for index in indices]), strict=True):
            numbers[index] = number
    return numbers


def read_output(output: "LossOutput") -> "LossOutput":
    """The output with numbers in place of arrays, without gradient and state."""
    check_single(output)
    whole = [output.total, output.regularizer_total, output.total_grad_norm, output.cosines, output.gram]
    parts = iter(as_numbers([*whole, *_parts(output.all)]))
    total, regularizers, norm, cosines, gram = (next(parts) for _ in whole)
    terms = _refilled(output.all, parts)
    base = terms.pop(0) if output.base is not None else None
    return type(output)(
        total,
        {term.name: term for term in terms},
        base,
        regularizers,
        norm,
        cosines=cosines,
        gram=gram,
    )


def read_terms(terms: "Sequence[TermOutput]") -> "list[TermOutput]":
    """The terms with numbers in place of arrays, without their gradients."""
    return _refilled(terms, iter(as_numbers(_parts(terms))))


def _parts(terms: "Sequence[TermOutput]") -> list[Any]:
    """Everything in these terms that may be an array, in the order that `_refilled` expects."""
    parts: list[Any] = []
    for term in terms:
        parts += (term.value, term.weight, term.grad_norm, *term.grad_norms.values(), *term.metrics.values())
    return parts


def _refilled(terms: "Sequence[TermOutput]", parts: Iterator[Any]) -> "list[TermOutput]":
    return [
        type(term)(
            term.name,
            value=next(parts),
            weight=next(parts),
            grad_norm=next(parts),
            grad_error=term.grad_error,
            grad_norms={key: next(parts) for key in term.grad_norms} if term.grad_norms else {},
            metrics={key: next(parts) for key in term.metrics} if term.metrics else {},
            duration=term.duration,
            error=term.error,
        )
        for term in terms
    ]


def is_batched(total: Any) -> bool:
    """Whether this is the output of many calls, as `vmap` and `scan` return."""
    return len(getattr(total, "shape", ())) > 0


def check_single(output: "LossOutput") -> None:
    """Raise where the output holds many calls: there is no single number to read."""
    if is_batched(output.total):
        raise ShapeError(
            f"this output holds many calls: its total has shape {tuple(output.total.shape)}; "
            "select one before reading it, as by jax.tree.map(lambda part: part[0], out)"
        )


def is_traced(*values: Any) -> bool:
    """Whether a compiler is tracing one of them: then there are no numbers to read."""
    return any((ops := owner(value)) is not None and ops.tracing(value) for value in values)
