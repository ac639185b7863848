"""Pipelines as lists of dicts, and back."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from ..backends import owner
from ..errors import OptionError
from .catalogue import path_of
from .kinds import is_mapping, is_row
from .state import WRAPPERS, Wrapper
from .term import ARGUMENTS, Term, same

__all__ = ["config_of", "pipeline_of"]

_KEYS: Final = (*ARGUMENTS, "base", "wrap")


def pipeline_of(config: Sequence[Mapping[str, Any]]) -> tuple[list[Term], Term | None]:
    """The terms that a configuration describes, and the base loss."""
    if isinstance(config, str | Mapping) or not isinstance(cast("object", config), Sequence):
        raise OptionError("from_config", "config", config, "a list of dicts, each with the arguments of a term")
    terms: list[Term] = []
    base: Term | None = None
    for index, entry in enumerate(config):
        place = f"from_config: term {index + 1}"
        if not isinstance(cast("object", entry), Mapping):
            raise OptionError(place, "entry", entry, "a dict with the arguments of a term")
        for key in entry:
            if key not in _KEYS:
                near = difflib.get_close_matches(key, _KEYS, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise OptionError(place, key, entry[key], f"only the keys {', '.join(_KEYS)}{hint}")
        if "fn" not in entry:
            raise OptionError(place, "fn", None, "the name of a penalty or a dotted path")
        arguments = {key: value for key, value in entry.items() if key not in ("base", "wrap")}
        is_base = bool(entry.get("base", False))
        if is_base:
            arguments.setdefault("name", "base")
        term = _wrapped(place, Term(**arguments), entry.get("wrap", ()))
        if not is_base:
            terms.append(term)
        elif base is not None:
            raise OptionError(place, "base", True, "at most one base loss")
        else:
            base = term
    return terms, base


def _wrapped(place: str, term: Term, around: Any) -> Term:
    if not is_row(around):
        raise OptionError(place, "wrap", around, 'a list, as [{"kind": "ema", "decay": 0.9}]')
    for layer in around:
        if not is_mapping(layer) or layer.get("kind") not in WRAPPERS:
            raise OptionError(place, "wrap", layer, f"a dict with a kind: {' or '.join(WRAPPERS)}")
        for key in layer:
            if key not in ("kind", "decay"):
                raise OptionError(place, f"wrap: {key}", layer[key], "only the keys kind and decay")
        term = WRAPPERS[layer["kind"]](term, **{key: value for key, value in layer.items() if key != "kind"})
    return term


def config_of(terms: Sequence[Term], base: Term | None) -> list[dict[str, Any]]:
    """The configuration that makes these terms."""
    first = [] if base is None else [{**_entry(base), "base": True}]
    return [*first, *[_entry(term) for term in terms]]


def _entry(term: Term) -> dict[str, Any]:
    layers: list[dict[str, Any]] = []
    inner = term
    while isinstance(inner.fn, Wrapper):
        layers.insert(0, {"kind": inner.fn.kind, "decay": inner.fn.decay})
        inner = inner.fn.term
    path = inner.path or path_of(inner.fn)
    if path is None:
        raise OptionError(term.name, "fn", inner.fn, "a function with a path to import it by: no lambda, no object")
    # What the term around it says counts: it can have been given another weight since.
    arguments: dict[str, Any] = inner.arguments()
    arguments |= {key: getattr(term, key) for key in ARGUMENTS if key not in _INNER}
    plain = Term(path) if inner.name != "base_loss" else None
    entry: dict[str, Any] = {"fn": path}
    for key, default in ARGUMENTS.items():
        value = arguments[key]
        if key == "fn" or same(value, default) or (key == "name" and (plain is None or value == plain.name)):
            continue
        if key == "inputs" and plain is not None and same(value, plain.inputs):
            continue
        if key == "weight" and (ops := owner(value)) is not None:
            value = float(ops.read([value])[0])
        entry[key] = value
    return {**entry, "wrap": layers} if layers else entry


_INNER: Final = ("fn", "inputs", "options", "chunk")
