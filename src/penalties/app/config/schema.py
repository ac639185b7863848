"""The JSON Schema of a config: with it an editor completes keys, shows what they mean, and marks mistakes."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from ...pipeline.catalogue import BUILT_IN
from .config import Config
from .objective import LOSSES
from .options import ADAPTERS, options_of

__all__ = ["FILE", "schema", "written"]

FILE: Final = Path(__file__).parent / "schema.json"
"""The schema as it ships with the package."""

_OWN: Final = {"type": "string", "pattern": "^[^:]+:[^:]+$", "description": "package.module:function"}


def schema() -> dict[str, Any]:
    """The schema, with the names and options of everything that ships here."""
    made = cast("dict[str, Any]", _plain(copy.deepcopy(Config.model_json_schema())))
    tables = made["$defs"]
    functions = BUILT_IN | ADAPTERS
    term = tables["TermTable"]
    term["properties"]["fn"] |= {"anyOf": [{"enum": list(functions)}, _OWN]}
    term["allOf"] = [
        {
            "if": {"properties": {"fn": {"const": name}}, "required": ["fn"]},
            "then": {"properties": {"options": _options(function)}},
        }
        for name, function in functions.items()
    ]
    tables["TrainTable"]["properties"]["loss"] |= {"anyOf": [{"enum": list(LOSSES)}, _OWN]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A config of penalties",
        **made,
    }


def written() -> str:
    """The schema as it is in its file."""
    return f"{json.dumps(schema(), indent=2, ensure_ascii=False)}\n"


def _options(function: Any) -> dict[str, Any]:
    options = {
        option.name: {**_plain(option.schema), **({} if option.default is None else {"default": option.default})}
        for option in options_of(function).values()
    }
    return {"type": "object", "properties": options, "additionalProperties": False}


def _plain(node: Any) -> Any:
    """A node without titles, which only repeat the keys, and without null, which TOML does not have."""
    if isinstance(node, list):
        return [_plain(one) for one in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    given = cast("dict[str, Any]", node)
    branches: list[Any] = [one for one in given.get("anyOf", ()) if one != {"type": "null"}]
    made: dict[str, Any] = {}
    for key, value in given.items():
        if key == "properties":
            # Its keys are names, of which one may be "title".
            made[key] = {name: _plain(one) for name, one in cast("Mapping[str, Any]", value).items()}
        elif key == "anyOf":
            made |= {key: _plain(branches)} if len(branches) > 1 else _plain(branches[0])
        elif key == "patternProperties":
            made |= {key: _plain(value), "additionalProperties": False}
        elif key != "title" and not (key == "default" and (value is None or isinstance(value, dict))):
            # The defaults of a table are those of its keys.
            made[key] = _plain(value)
    return made
