"""Pydantic's errors in words: the table and key, what was found, and what is allowed."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

from ..problems import Problem, joined, nearest, shown
from .elsewhere import instead_of

if TYPE_CHECKING:
    from pydantic import ValidationError

__all__ = ["KeyPath", "Schema", "allowed", "child_of", "found_wrong", "label_of", "resolved", "schema_of"]

Schema: TypeAlias = Mapping[str, Any]
"""A node of a JSON Schema."""

KeyPath: TypeAlias = tuple[str | int, ...]
"""The path to a value through tables and lists."""

_SWITCH: Final = "switch"
"""A key of a node that accepts true and false instead of a table."""

_KEY: Final = ("[key]",)
"""The end of the location of a key that is wrong, rather than its value."""

_SECRETS: Final = ("key", "token", "secret", "password", "credential")
"""Words in the names of keys whose values are never repeated."""


_MANY: Final = {"string": "strings", "number": "numbers"}
"""The entries of a list, by their type."""


class Wrong(NamedTuple):
    """A problem, and the path of the value in what was read."""

    problem: Problem
    path: KeyPath


@cache
def schema_of(table: Any) -> Schema:
    """The JSON Schema of a table."""
    return table.model_json_schema()


def found_wrong(error: "ValidationError", table: Any, raw: Mapping[str, Any]) -> list[Wrong]:
    """Every error of pydantic, one per path."""
    schema = schema_of(table)
    found: dict[str, Wrong] = {}
    for entry in error.errors(include_url=False):
        loc = entry["loc"]
        # A wrong key is reported for its table.
        path, node, rest = _walk(schema, loc[:-2] if loc[-1:] == _KEY else loc)
        message, path = _message(entry, schema, node, path, rest)
        where = _where(path, raw)
        found.setdefault(where, Wrong(Problem(where, message), path))
    return list(found.values())


def _message(entry: Any, schema: Schema, node: Schema, path: KeyPath, rest: Sequence[Any]) -> tuple[str, KeyPath]:
    kind, given = entry["type"], entry["input"]
    if kind == "extra_forbidden":
        key = str(rest[0])
        return _unknown(schema, node, path, key, given), (*path, key)
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        kinds = list(node["discriminator"]["mapping"])
        expected = joined(f'"{one}"' for one in kinds)
        if kind == "union_tag_not_found":
            return f"missing; expected {expected}", (*path, "kind")
        tag = entry["ctx"]["tag"]
        return f"found {shown(given['kind'])}; expected {expected}{nearest(tag, kinds, quoted=True)}", (*path, "kind")
    if kind == "missing":
        return f"missing; expected {allowed(schema, node)}: {node['description']}", path
    if entry["loc"][-1:] == _KEY:
        return f"found the key {shown(given)}; expected others: {node['description']}", path
    message = f"found {shown(given)}; expected {allowed(schema, node)}"
    if kind == "string_unicode":
        return f"{message} of valid Unicode; a file or folder of this name must be renamed", path
    if kind in ("too_short", "string_too_short"):
        return f"{message} that is not empty", path
    if path == ("term",):
        return f"{message}: write [[term]] above each, with two brackets", path
    return f"{message}{nearest(given, _choices(node), quoted=True) if isinstance(given, str) else ''}", path


def _unknown(schema: Schema, node: Schema, path: KeyPath, key: str, given: Any) -> str:
    """An unknown key: the nearest known one, or the table that it is a key of."""
    known = list(node.get("properties", {}))
    ours = instead_of(f"{path[0]}.{key}" if path else key) or instead_of(key)
    if not path:
        hint = f"; use {ours}" if ours else nearest(key, known)
        return f"no such table{hint} (there are {joined(known, 'and')})"
    if any(word in key.lower() for word in _SECRETS):
        # The value is not repeated: it may be a secret.
        return "no such key; API keys are read from the environment (TINKER_API_KEY), never from a config: remove it"
    if ours:
        return f"no such key, found {shown(given)}; use {ours}"
    hint = nearest(key, known)
    if not hint:
        tables = cast("Mapping[str, Any]", schema["properties"])
        elsewhere = [f"[{name}]" for name, one in tables.items() if key in _properties(schema, one)]
        hint = f"; it is a key of {joined(elsewhere)}" if elsewhere else ""
    return f"no such key, found {shown(given)}{hint} (allowed: {', '.join(known) or 'none'})"


def _properties(schema: Schema, node: Schema) -> Mapping[str, Any]:
    node = resolved(schema, node)
    return resolved(schema, node.get("items", node)).get("properties", {})


# Paths are followed through the schema, which leaves out what pydantic inserts for unions.


def _walk(schema: Schema, loc: Sequence[str | int]) -> tuple[KeyPath, Schema, Sequence[str | int]]:
    """Follow a location through the schema: the path, its node, and the rest of the location."""
    path: KeyPath = ()
    node = schema
    for index, part in enumerate(loc):
        branch = _tagged(schema, node, part)
        if branch is not None:
            node = branch
            continue
        child = child_of(schema, node, part)
        if child is None:
            return path, node, loc[index:]
        path, node = (*path, part), child
    return path, node, ()


def resolved(schema: Schema, node: Schema) -> Schema:
    """The node itself: references are followed, and the alternative null is dropped."""
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]] | {k: v for k, v in node.items() if k != "$ref"}
    branches = [one for one in node.get("anyOf", ()) if one.get("type") not in ("null", "boolean")]
    if len(branches) == 1 and "anyOf" in node:
        # Optional: only the other branch matters.
        rest = {key: value for key, value in node.items() if key != "anyOf"}
        switch = {_SWITCH: True} if {"type": "boolean"} in node["anyOf"] else {}
        return {**resolved(schema, branches[0]), **rest, **switch}
    return node


def _tagged(schema: Schema, node: Schema, part: str | int) -> Schema | None:
    """The branch of a union by kind that a part of a location names."""
    mapping = node.get("discriminator", {}).get("mapping", {})
    return resolved(schema, {"$ref": mapping[part]}) if part in mapping else None


def child_of(schema: Schema, node: Schema, part: str | int) -> Schema | None:
    """The node of a key of a table, or of the entries of a list; None if there is none."""
    if isinstance(part, int):
        child = node.get("items")
    else:
        others = [*node.get("patternProperties", {}).values(), node.get("additionalProperties")]
        child = node.get("properties", {}).get(part, others[0])
    # `true` accepts any table.
    return resolved(schema, cast("Schema", child)) if isinstance(child, Mapping) else None


def _where(path: KeyPath, raw: Mapping[str, Any]) -> str:
    """A path as users write it, with terms by name."""
    parts = [str(part + 1) if isinstance(part, int) else part or '""' for part in path]
    if len(path) > 1 and path[0] == "term" and isinstance(path[1], int):
        parts[1] = label_of(raw["term"], path[1])
    return ".".join(parts)


def label_of(terms: Sequence[Any], index: int) -> str:
    """What messages call a term: its name or default name, or its number if that is ambiguous.

    >>> label_of([{"fn": "l1"}, {"fn": "my.terms:topology"}, {"weight": 1}], 1)
    'topology'
    """
    labels = [_label(term) for term in terms]
    label = labels[index]
    return label if label is not None and labels.count(label) == 1 else str(index + 1)


def _label(term: Any) -> str | None:
    if not isinstance(term, Mapping):
        return None
    given = cast("Mapping[str, Any]", term)
    name, fn = given.get("name"), given.get("fn")
    found = name if isinstance(name, str) else fn.rpartition(":")[2] if isinstance(fn, str) else None
    return found or None


# What a node allows, in words.


def allowed(schema: Schema, node: Schema) -> str:
    """What a node of the schema allows.

    >>> allowed({}, {"type": "integer", "minimum": 1})
    'a whole number of at least 1'
    >>> allowed({}, {"enum": ["local", "tinker"]})
    '"local" or "tinker"'
    """
    node = resolved(schema, node)
    if _SWITCH in node:
        return "true, false or a table"
    if "const" in node or "enum" in node:
        return joined(shown(one) for one in _choices(node))
    if "anyOf" in node:
        return joined(allowed(schema, one) for one in node["anyOf"] if one.get("type") != "null")
    kind = node.get("type")
    if kind in ("integer", "number"):
        return f"a {'whole ' if kind == 'integer' else ''}number{_bounds(node)}"
    if kind == "array":
        return f"a list of {_MANY.get(node['items'].get('type'), 'tables')}"
    words = {"boolean": "true or false", "string": "a string", "object": "a table", None: "a table with a kind"}
    return words[kind]


def _choices(node: Schema) -> list[Any]:
    return [node["const"]] if "const" in node else list(node.get("enum", ()))


def _bounds(node: Schema) -> str:
    words = (("minimum", "of at least"), ("exclusiveMinimum", "above"), ("maximum", "up to"))
    said = [f"{word} {node[key]:g}" for key, word in (*words, ("exclusiveMaximum", "below")) if key in node]
    return f" {joined(said, 'and')}" if said else ""
