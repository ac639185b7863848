"""The forms of an output that people and programs read: nested, flat, a table."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import TermError, said
from ..table import Table

if TYPE_CHECKING:
    from .data import LossOutput, TermOutput

__all__ = [
    "flat_metrics",
    "nested",
    "nested_term",
    "output_table",
    "shares",
    "shown",
    "slash_metrics",
    "term_arguments",
]


def nested(plain: "LossOutput") -> dict[str, Any]:
    """An output whose values are numbers, as `to_dict` returns it."""
    made: dict[str, Any] = {"loss_total": plain.total}
    if plain.base is not None:
        base = nested_term(plain.base)
        # It has no weight, and so neither contribution nor weighted norm.
        made["base_loss"] = {
            key: value for key, value in base.items() if key not in ("weight", "contribution", "grad_norm_weighted")
        }
    made["regularizers"] = {name: nested_term(term) for name, term in plain.terms.items()}
    made["regularizer_total"] = plain.regularizer_total
    made["total_grad_norm"] = plain.total_grad_norm
    return made if plain.cosines is None else {**made, "cosines": plain.cosines}


def nested_term(term: "TermOutput") -> dict[str, Any]:
    """A term whose values are numbers, as `to_dict` returns it; further keys where there is something to say."""
    further = {
        "grad_norms": dict(term.grad_norms) or None,
        "grad_error": term.grad_error,
        "duration": term.duration,
        "error": None if term.error is None else said(term.error),
    }
    return {
        "value": term.value,
        "weight": term.weight,
        "contribution": term.contribution,
        "grad_norm": term.grad_norm,
        "grad_norm_weighted": term.grad_norm_weighted,
        "custom": dict(term.metrics),
        **{key: value for key, value in further.items() if value is not None},
    }


def term_arguments(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the `TermOutput` that `nested_term` described."""
    error = entry.get("error")
    return {
        "name": name,
        "value": entry["value"],
        "weight": entry.get("weight", 1.0),
        "grad_norm": entry.get("grad_norm"),
        "grad_error": entry.get("grad_error"),
        "grad_norms": entry.get("grad_norms") or {},
        "metrics": entry.get("custom") or {},
        "duration": entry.get("duration"),
        "error": None if error is None else TermError(name, error.removeprefix(f"TermError: {name}: ")),
    }


def flat_metrics(plain: "LossOutput") -> dict[str, Any]:
    """Everything flat: `l1`, `l1_weighted`, `l1_grad_norm`, `l1/own_metric`, `total`."""
    numbers: dict[str, Any] = {}
    for term in (*plain.terms.values(), *([] if plain.base is None else [plain.base])):
        if term.value is None:
            continue
        name = term.name
        numbers[name] = term.value
        if term is not plain.base:
            numbers[f"{name}_weighted"] = term.weight * term.value
        if term.grad_norm is not None:
            numbers[f"{name}_grad_norm"] = term.grad_norm
        if term.grad_error is not None:
            numbers[f"{name}_grad_norm_error"] = 1.0
        for key, norm in term.grad_norms.items():
            numbers[f"{name}_grad_norm/{key}"] = norm
        for key, metric in term.metrics.items():
            numbers[f"{name}/{key}"] = metric
    numbers["total"] = plain.total
    if plain.total_grad_norm is not None:
        numbers["total_grad_norm"] = plain.total_grad_norm
    return numbers


def slash_metrics(plain: "LossOutput") -> dict[str, Any]:
    """The same grouped for loggers: `loss/l1`, `loss/l1/weighted`, `grad_norm/l1`, `weight/l1`, `time/l1`."""
    numbers: dict[str, Any] = {"loss/total": plain.total}
    terms = plain.all
    of_loss = shares([term.contribution for term in terms])
    of_gradient = shares([term.grad_norm_weighted for term in terms])
    for term, loss_share, grad_share in zip(terms, of_loss, of_gradient, strict=True):
        if term.value is None:
            continue
        name = term.name
        numbers[f"loss/{name}"] = term.value
        if term is not plain.base:
            numbers |= {f"loss/{name}/weighted": term.contribution, f"weight/{name}": term.weight}
        if loss_share is not None:
            numbers[f"loss/{name}/share"] = loss_share
        if grad_share is not None:
            numbers[f"grad_share/{name}"] = grad_share
        if term.grad_norm is not None:
            numbers[f"grad_norm/{name}"] = term.grad_norm
            numbers |= {f"grad_norm/{name}/{key}": norm for key, norm in term.grad_norms.items()}
        if term.duration is not None:
            numbers[f"time/{name}"] = term.duration
        numbers |= {f"metrics/{name}/{key}": metric for key, metric in term.metrics.items()}
    if plain.total_grad_norm is not None:
        numbers["grad_norm/total"] = plain.total_grad_norm
    if plain.cosines is not None:
        names = plain.names
        for i, first in enumerate(names):
            numbers |= {f"grad_cos/{first}__{names[j]}": plain.cosines[i][j] for j in range(i + 1, len(names))}
    return numbers


def shares(amounts: Sequence[Any]) -> list[Any]:
    """What part of the sum of magnitudes each amount is, so that opposite signs do not cancel out.

    None where there is no finite amount, or nothing but zeros. An array cannot be looked at while a device computes it:
    among zeros its share is 0, and one that is not finite spoils all.

    >>> shares([3.0, -1.0, None, float("inf")])
    [0.75, 0.25, None, None]
    """
    looked_at = all(amount is None or _is_number(amount) for amount in amounts)
    sizes = [None if amount is None or (looked_at and not math.isfinite(amount)) else abs(amount) for amount in amounts]
    whole: Any = sum(size for size in sizes if size is not None)
    if looked_at and not whole:
        return [None] * len(sizes)
    return [None if size is None else size / (whole + (whole == 0)) for size in sizes]


def output_table(plain: "LossOutput") -> Table:
    """A line for each term: value, weight, contribution, its share, and its gradient where there is one."""
    terms = plain.all
    norms = any(term.grad_norm is not None or term.grad_error is not None for term in terms)
    parts = shares([term.contribution if _is_number(term.contribution) else None for term in terms])
    header = ["term", "value", "weight", "contribution", "share", *(["gradient"] if norms else [])]
    lines: list[list[str]] = []
    for term, part in zip(terms, parts, strict=True):
        if term.error is not None:
            message = str(term.error).removeprefix(f"{term.name}: ")
            cells = [term.name, "skipped", shown(term.weight), message, ""]
        else:
            share = "" if part is None else f"{part:.0%}".replace("%", " %")
            cells = [term.name, shown(term.value), shown(term.weight), shown(term.contribution), share]
        norm = shown(term.grad_norm) if term.error is None else ""
        lines.append([*cells, *([norm] if norms else [])])
    norm = "" if plain.total_grad_norm is None else f", gradient {shown(plain.total_grad_norm)}"
    return Table(f"LossOutput, total {shown(plain.total)}{norm}", header, lines)


def shown(value: Any) -> str:
    """A number for people; an array as its library shows it."""
    if value is None:
        return "-"
    return f"{value:.6g}" if _is_number(value) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int)
