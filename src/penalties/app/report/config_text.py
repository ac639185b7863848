"""A resolved config as TOML, and the differences between several."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from ..problems import toml_key, toml_value

__all__ = ["differences", "toml"]

_NONE: Final = "–"


def toml(config: Mapping[str, Any]) -> str:
    """The config as one would write it by hand; a value that is not set becomes a comment.

    >>> print(toml({"train": {"steps": 60, "seed": None}, "term": [{"fn": "l1", "weight": 0.1}]}))
    [train]
    steps = 60
    # seed is not set
    <BLANKLINE>
    [[term]]
    fn = "l1"
    weight = 0.1
    """
    return "\n\n".join("\n".join(block) for block in _blocks(config))


def _blocks(config: Mapping[str, Any]) -> Iterator[list[str]]:
    plain = {key: value for key, value in config.items() if not _table(value) and not _tables(value)}
    if plain:
        yield [_entry(key, value) for key, value in plain.items()]
    for key, value in config.items():
        if _table(value):
            yield [f"[{toml_key(key)}]", *(_entry(name, part) for name, part in value.items())]
        elif _tables(value):
            for table in value:
                yield [f"[[{toml_key(key)}]]", *(_entry(name, part) for name, part in table.items())]


def _table(value: Any) -> bool:
    return isinstance(value, dict)


def _tables(value: Any) -> bool:
    rows = cast("list[Any]", value) if isinstance(value, list) else []
    return bool(rows) and all(map(_table, rows))


def _entry(key: str, value: Any) -> str:
    return f"# {toml_key(key)} is not set" if value is None else f"{toml_key(key)} = {toml_value(value)}"


def differences(configs: Sequence[Mapping[str, Any] | None]) -> dict[str, list[str]]:
    """The keys whose values differ between these configs, with the values.

    "–" stands for a missing or empty value. Terms are matched by name.

    >>> differences([{"train": {"seed": 0, "steps": 9}}, {"train": {"seed": 1, "steps": 9}}])
    {'train.seed': ['0', '1']}
    """
    flat = [dict(_flat(config or {}, "")) for config in configs]
    keys = dict.fromkeys(key for one in flat for key in one)
    found: dict[str, list[str]] = {}
    for key in keys:
        values = [one.get(key, _NONE) for one in flat]
        table = next((other for other in keys if key.startswith(f"{other}.")), None)
        # A missing term is one difference, not one per argument.
        compared = [value for value, one in zip(values, flat, strict=True) if table is None or table in one]
        if len(set(compared)) > 1:
            found[key] = values
    return found


def _flat(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, part in cast("dict[str, Any]", value).items():
            yield from _flat(part, f"{path}.{key}" if path else key)
    elif _tables(value):
        for index, table in enumerate(cast("list[dict[str, Any]]", value)):
            name = table.get("name") or table.get("fn") or index
            yield f"{path}.{name}", "yes"
            yield from _flat({key: part for key, part in table.items() if key != "name"}, f"{path}.{name}")
    elif value not in (None, [], {}):
        yield path, toml_value(value)
