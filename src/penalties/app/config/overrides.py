"""Values from the command line: `train.steps=200`, `term.kl.weight=0.1`, or `kl.weight=0.1` for short."""

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from datetime import date, time
from typing import Any, Final, TypeGuard, cast

from ..problems import Problem, nearest
from .messages import label_of

__all__ = ["DEEPEST", "override", "value_of"]

DEEPEST: Final = 50
"""Levels of tables and arrays in a config."""

_EITHER: Final[Mapping[tuple[str, ...], str]] = {("train", "steps"): "epochs", ("train", "epochs"): "steps"}
"""Two keys that exclude each other: the one that is set removes the other."""

_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def override(raw: dict[str, Any], given: Sequence[str], tables: Sequence[str]) -> list[Problem]:
    """Set values, each given as `key=value`, in what was read; returns a problem for each that cannot be set.

    A value is read as TOML; if it is not valid TOML, it is a string. Without a value the key is removed, so that its
    default applies. Terms go by name, or by number from 1. `train.steps` replaces `train.epochs`, and the reverse.

    >>> raw = {"train": {"steps": 60, "seed": 1}, "term": [{"fn": "kl_estimate", "name": "kl"}]}
    >>> override(raw, ["train.steps=200", "train.seed=", "kl.weight=0.1", "model.name=tiny"], ["model", "train"])
    []
    >>> raw
    {'train': {'steps': 200}, 'term': [{'fn': 'kl_estimate', 'name': 'kl', 'weight': 0.1}], 'model': {'name': 'tiny'}}
    """
    problems: list[Problem] = []
    for one in given:
        key, equals, text = one.partition("=")
        path = [part.strip() for part in key.split(".")]
        if not equals or not 2 <= len(path) <= DEEPEST or not all(path):
            problems.append(Problem(f"--set {one}", "expected a key and a value, such as train.steps=200"))
            continue
        message = _put(raw, path, text.strip(), tables)
        if message is None and text.strip() and tuple(path) in _EITHER:
            raw["train"].pop(_EITHER[tuple(path)], None)
        if message is not None:
            problems.append(Problem(f"--set {one}", message))
    return problems


def _put(raw: dict[str, Any], path: list[str], text: str, tables: Sequence[str]) -> str | None:
    """Set the value of a key; returns the problem if there is no such key."""
    given = raw.get("term")
    terms = cast("list[Any]", given) if isinstance(given, list) else []
    labels = {label_of(terms, index): index for index in range(len(terms))}
    if path[0] not in ("term", *tables):
        if path[0] not in labels:
            hint = nearest(path[0], [*labels, *tables])
            return f"no such term or table{hint} (terms: {', '.join(labels) or 'none'}; tables: {', '.join(tables)})"
        path = ["term", *path]
    holder: Any = raw
    if path[0] == "term":
        labels |= {str(index + 1): index for index in range(len(terms))}
        if len(path) < 3 or path[1] not in labels:
            there = ", ".join(label_of(terms, index) for index in range(len(terms))) or "none"
            return f"expected a term and its key, such as term.NAME.weight=0.1; the terms are: {there}"
        holder, path = terms[labels[path[1]]], path[2:]
    *parts, key = path
    for index in range(len(path)):
        if not _is_table(holder):
            return f"{'.'.join(path[:index]) or 'the term'} is not a table, so nothing can be set in it"
        if parts[index:]:
            # `true` stands for a table of defaults.
            holder[parts[index]] = {} if holder.get(parts[index]) in (None, True, False) else holder[parts[index]]
            holder = holder[parts[index]]
    if text:
        holder[key] = value_of(text)
    else:
        holder.pop(key, None)
    return None


def _is_table(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def value_of(text: str) -> Any:
    """A TOML value, or a string if it is not valid TOML.

    >>> value_of("200"), value_of("1e-3"), value_of(".5"), value_of("true"), value_of("tiny"), value_of('["a", "b"]')
    (200, 0.001, 0.5, True, 'tiny', ['a', 'b'])
    """
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        # It is not TOML, has thousands of digits, or is nested too deeply.
        return float(text) if _NUMBER.fullmatch(text) else text
    value = found["value"]
    # A date, or a number such as inf or nan, is meant as a name.
    odd = isinstance(value, date | time) or (isinstance(value, float) and not math.isfinite(value))
    return text if odd or len(found) > 1 else value
