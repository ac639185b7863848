"""The forms of an output that people and programs read: nested, flat, a table."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...errors import TermError, said
from ..table import table

if TYPE_CHECKING:
    from .data import LossOutput, TermOutput

__all__ = ["flat_metrics", "nested", "nested_term", "output_table", "shown", "slash_metrics", "term_arguments"]


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


def flat_metrics(plain: "LossOutput") -> dict[str, float]:
    """Everything as flat numbers: `l1`, `l1_weighted`, `l1_grad_norm`, `l1/own_metric`, `total`."""
    numbers: dict[str, float] = {}
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
            numbers[f"{name}/{key}"] = float(metric)
    numbers["total"] = plain.total
    if plain.total_grad_norm is not None:
        numbers["total_grad_norm"] = plain.total_grad_norm
    return numbers


def slash_metrics(plain: "LossOutput") -> dict[str, float]:
    """The same grouped for loggers: `loss/l1`, `loss/l1/weighted`, `grad_norm/l1`, `weight/l1`, `time/l1`."""
    numbers: dict[str, float] = {"loss/total": plain.total}
    for term in plain.all:
        if term.value is None:
            continue
        name = term.name
        numbers[f"loss/{name}"] = term.value
        if term is not plain.base:
            numbers |= {f"loss/{name}/weighted": term.contribution, f"weight/{name}": term.weight}
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
    return {key: float(number) for key, number in numbers.items()}


def output_table(plain: "LossOutput") -> str:
    """A line for each term: value, weight, contribution, its share, and its gradient where there is one."""
    terms = plain.all
    norms = any(term.grad_norm is not None or term.grad_error is not None for term in terms)
    scale = sum(abs(term.contribution) for term in terms if _is_number(term.contribution))
    header = ["term", "value", "weight", "contribution", "share", *(["gradient"] if norms else [])]
    lines: list[list[str]] = []
    for term in terms:
        if term.error is not None:
            message = str(term.error).removeprefix(f"{term.name}: ")
            cells = [term.name, "skipped", shown(term.weight), message, ""]
        else:
            amount = term.contribution
            share = f"{abs(amount) / scale:.0%}".replace("%", " %") if scale and _is_number(amount) else ""
            cells = [term.name, shown(term.value), shown(term.weight), shown(amount), share]
        norm = shown(term.grad_norm) if term.error is None else ""
        lines.append([*cells, *([norm] if norms else [])])
    norm = "" if plain.total_grad_norm is None else f", gradient {shown(plain.total_grad_norm)}"
    title = f"LossOutput, total {shown(plain.total)}{norm}"
    return "\n".join([title, *table(header, lines, indent="  ")]) if lines else title


def shown(value: Any) -> str:
    """A number for people; an array as its library shows it."""
    if value is None:
        return "-"
    return f"{value:.6g}" if _is_number(value) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int)
