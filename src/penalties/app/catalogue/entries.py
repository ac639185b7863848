"""Everything that a config may name, described: for `penalties list` and `penalties describe`."""

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, cast, get_args

from ...functional.penalty import Facts, facts_of
from ...pipeline.catalogue import BUILT_IN, find
from ...training.losses import BY_NAME
from ..config import Config
from ..config.messages import Schema, allowed, child_of, resolved, schema_of
from ..config.objective import BY_RULE, INPUTS, LOCAL_BY_RULE, LOCAL_INPUTS, NONE
from ..config.options import ADAPTERS, inputs_of, options_of
from ..config.schedules import ScheduleTable
from ..config.table import Table
from ..config.tables import ReferenceTable, SinksTable, WrapTable
from ..problems import shown
from .examples import EXAMPLES, adapter_example, loss_example, penalty_example

__all__ = ["KINDS", "Entry", "Value", "entries", "entry_of_path"]

KINDS: Final = {
    "penalty": "fn of a [[term]]",
    "batch": "fn of a [[term]]: over a batch, one array per datum",
    "loss": "loss of [train]",
    "reference": "kind of an entry of [references]",
    "schedule": "kind of the schedule of a [[term]] or of [train]",
    "wrap": "kind of an entry of wrap of a [[term]]",
    "sink": "a key of [sinks]",
    "input": "in inputs of a [[term]]",
    "table": "a table of a config",
    "key": "a key of a table",
    "function": "fn of a [[term]], or loss of [train]",
}
"""The kinds of things, and where each is named in a config."""


class Value(NamedTuple):
    """A key of a table, or an option of a function."""

    name: str
    allowed: str
    default: str
    """Empty if it is required."""
    meaning: str


class Entry(NamedTuple):
    """One thing that a config may name."""

    kind: str
    name: str
    summary: str
    details: str = ""
    reads: tuple[str, ...] = ()
    """The inputs of a function."""
    values: tuple[Value, ...] = ()
    example: str = ""
    """How a config uses it."""


def entries() -> Iterator[Entry]:
    """Everything, kind by kind."""
    for name, function in BUILT_IN.items():
        yield _function("penalty", name, function, penalty_example(name, cast("Facts", facts_of(function))))
    for name, function in ADAPTERS.items():
        yield _function("batch", name, function, adapter_example(name, function))
    for name, function in BY_NAME.items():
        yield _function("loss", name, function, loss_example(name))
    yield Entry("loss", NONE, "No base loss: the terms alone.", example=loss_example(NONE))
    for kind, union in (("reference", ReferenceTable), ("schedule", ScheduleTable), ("wrap", WrapTable)):
        for table in get_args(get_args(union)[0]):
            yield _kind(kind, table)
    yield from _tables("sink", SinksTable)
    for name, summary in {**INPUTS, **BY_RULE}.items():
        yield Entry("input", name, _sentence(summary))
    for name, summary in {**LOCAL_INPUTS, **LOCAL_BY_RULE}.items():
        yield Entry("input", name, f"{_sentence(summary)} Local backend.")
    yield from _tables("table", Config)


def entry_of_path(path: str) -> Entry:
    """Your own function; an `OptionError` if it does not exist."""
    function = find(path)
    text = inspect.getdoc(function) or "It has no docstring."
    summary, _, rest = text.partition("\n")
    parameters = inspect.signature(function).parameters.values()
    example = f'[[term]]\nfn = "{path}"\nweight = 0.1'
    called = parameters
    if isinstance(function, type):
        # A term is an object of it, which a module makes.
        methods = [vars(one)[name] for name in ("__call__", "compute") for one in function.__mro__ if name in vars(one)]
        called = [*inspect.signature(methods[0]).parameters.values()][1:] if methods else []
        example = f'# my_module.py has: term = {function.__name__}(…)\n[[term]]\nfn = "my_module:term"\nweight = 0.1'
    reads = tuple(one.name for one in called if one.default is one.empty and one.kind is not one.KEYWORD_ONLY)
    options = tuple(
        Value(one.name, "", "" if one.default is one.empty else _default(one.default), "")
        for one in parameters
        if one.name not in reads
    )
    return Entry("function", path, summary, _prose(rest), reads, options, example)


def _function(kind: str, name: str, function: Any, example: str) -> Entry:
    summary, _, rest = cast("str", inspect.getdoc(function)).partition("\n")
    options = tuple(
        Value(option.name, option.allowed, _default(option.default), "") for option in options_of(function).values()
    )
    return Entry(kind, name, summary, _prose(rest), tuple(inputs_of(function)), options, example)


def _kind(kind: str, table: type[Table]) -> Entry:
    """A table of a union by kind."""
    schema = schema_of(table)
    node = resolved(schema, schema)
    name = node["properties"]["kind"]["const"]
    values = tuple(value for value in _values(schema, node) if value.name != "kind")
    return Entry(kind, name, node["description"], values=values, example=EXAMPLES[kind, name])


def _tables(kind: str, table: type[Table]) -> Iterator[Entry]:
    """The tables in a table."""
    schema = schema_of(table)
    for name, described in schema["properties"].items():
        node = child_of(schema, schema, name) or {}
        node = (child_of(schema, node, 0) or {}) if name == "term" else node
        example = EXAMPLES.get((kind, name), "")
        yield Entry(
            kind, name, resolved(schema, described)["description"], values=_values(schema, node), example=example
        )


def _values(schema: Schema, node: Schema) -> tuple[Value, ...]:
    """The keys of a table."""
    required = node.get("required", ())
    properties = cast("Mapping[str, Any]", node.get("properties", {}))
    return tuple(
        Value(
            name,
            allowed(schema, one),
            "" if name in required else _default(one.get("default", {})),
            one.get("description", ""),
        )
        for name, one in properties.items()
    )


def _default(value: Any) -> str:
    return "not set" if value is None else shown(value)


def _prose(text: str) -> str:
    """A docstring without the examples that are run."""
    return re.split(r"^>>>", text, maxsplit=1, flags=re.MULTILINE)[0].strip()


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
