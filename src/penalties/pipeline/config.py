"""Pipelines as lists of dicts, and back."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from ..backends import owner
from ..errors import OptionError, did_you_mean
from . import schedules
from .catalogue import path_of
from .kinds import is_mapping, is_row
from .term import ARGUMENTS, Term, same
from .wrappers import WRAPPERS, Wrapper

__all__ = ["KEYS", "config_of", "pipeline_of"]

KEYS: Final = (*ARGUMENTS, "schedule", "base", "wrap")
"""The keys of a term in a configuration; in the program, the base loss is `train.loss` instead."""


def pipeline_of(config: Sequence[Mapping[str, Any]]) -> tuple[list[Term], Term | None]:
    """The terms that a configuration describes, and the base loss."""
    if isinstance(config, str | Mapping) or not isinstance(cast("object", config), Sequence):
        raise OptionError("from_config", "config", config, "a list of dicts, each with the arguments of a term")
    terms: list[Term] = []
    base: Term | None = None
    for index, entry in enumerate(config):
        where = f"from_config: term {index + 1}"
        term = _term(where, entry)
        if not entry.get("base", False):
            terms.append(term)
        elif base is not None:
            raise OptionError(where, "base", True, "at most one base loss")
        else:
            base = term
    return terms, base


def _term(where: str, entry: Mapping[str, Any]) -> Term:
    if not isinstance(cast("object", entry), Mapping):
        raise OptionError(where, "entry", entry, "a dict with the arguments of a term")
    for key in entry:
        if key not in KEYS:
            raise OptionError(where, key, entry[key], f"only the keys {', '.join(KEYS)}{did_you_mean(key, KEYS)}")
    if "fn" not in entry:
        raise OptionError(where, "fn", None, "the name of a penalty or a dotted path")
    arguments = {key: value for key, value in entry.items() if key in ARGUMENTS}
    if entry.get("base", False):
        arguments.setdefault("name", "base")
    if entry.get("schedule") is not None:
        arguments["weight"] = _scheduled(where, entry)
    return _wrapped(where, Term(**arguments), entry.get("wrap", ()))


def _scheduled(where: str, entry: Mapping[str, Any]) -> schedules.Schedule:
    try:
        return schedules.from_config(entry["schedule"], entry.get("weight", 1.0))
    except OptionError as error:
        raise OptionError(f"{where}: schedule", error.option, error.value, error.expected) from None


def _wrapped(where: str, term: Term, around: Any) -> Term:
    if not is_row(around):
        raise OptionError(where, "wrap", around, 'a list, such as [{"kind": "ema", "decay": 0.9}]')
    for layer in around:
        if not is_mapping(layer) or layer.get("kind") not in WRAPPERS:
            raise OptionError(where, "wrap", layer, f"a dict with a kind: {' or '.join(WRAPPERS)}")
        term = _in_layer(where, term, layer)
    return term


def _in_layer(where: str, term: Term, layer: Mapping[str, Any]) -> Term:
    wrapper = WRAPPERS[layer["kind"]]
    known = list(inspect.signature(wrapper).parameters.values())[1:]
    names = ["kind", *(one.name for one in known)]
    for key in layer:
        if key not in names:
            expected = f"only the keys {', '.join(names)}{did_you_mean(key, names)}"
            raise OptionError(where, f"wrap: {key}", layer[key], expected)
    for one in known:
        if one.default is one.empty and one.name not in layer:
            raise OptionError(where, "wrap", dict(layer), f"the key {one.name} too")
    return wrapper(term, **{key: value for key, value in layer.items() if key != "kind"})


def config_of(terms: Sequence[Term], base: Term | None) -> list[dict[str, Any]]:
    """The configuration that makes these terms."""
    first = [] if base is None else [{**_entry(base, base=True), "base": True}]
    return [*first, *[_entry(term) for term in terms]]


def _entry(term: Term, *, base: bool = False) -> dict[str, Any]:
    layers: list[dict[str, Any]] = []
    inner = term
    arguments: dict[str, Any] = term.arguments()
    while isinstance(inner.fn, Wrapper):
        layer, arguments["inputs"] = inner.fn.layer(arguments["inputs"])
        layers.insert(0, {key: _plain(value) for key, value in layer.items() if value is not None})
        inner = inner.fn.term
    path = inner.path or path_of(inner.fn)
    if path is None:
        expected = "a function that can be imported by its path; a lambda, a method or an object cannot be saved"
        raise OptionError(term.name, "fn", inner.fn, expected)
    arguments |= {"chunk": inner.chunk, "compile": inner.compile}
    # Without names for its parameters, a function has no inputs to fall back on.
    nameless = isinstance(arguments["inputs"], tuple)
    usual = Term(path, name="base" if base else None, inputs=arguments["inputs"] if nameless else None)
    entry: dict[str, Any] = {"fn": path}
    for key, default in ARGUMENTS.items():
        value = arguments[key]
        if key == "fn" or same(value, default) or (key == "name" and (base or value == usual.name)):
            continue
        if key == "inputs" and not nameless and same(value, dict(usual.inputs)):
            continue
        if key == "weight":
            key, value = _weight(term, value)
        entry[key] = value
    return {**entry, "wrap": layers} if layers else entry


def _plain(value: Any) -> Any:
    return list(value) if is_row(value) else value


def _weight(term: Term, weight: Any) -> tuple[str, Any]:
    """The key and the value that say this weight in a configuration."""
    if callable(weight):
        try:
            return "schedule", schedules.to_config(weight)
        except OptionError as error:
            raise OptionError(term.name, "weight", weight, error.expected) from None
    ops = owner(weight)
    return "weight", weight if ops is None else float(ops.read([weight])[0])
