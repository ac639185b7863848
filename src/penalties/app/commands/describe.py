"""`penalties describe`."""

import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import click

from ...errors import OptionError
from ..catalogue.entries import KINDS, Entry, entries, entry_of_path
from ..console import say, styled, table
from ..problems import nearest
from .list import LISTED, show
from .options import as_json, debug

__all__ = ["command"]


@click.command("describe")
@click.argument("name")
@as_json
@debug
def command(name: str, as_json: bool) -> None:
    """Describe anything that a config may name, and each of its tables.

    NAME is a penalty, a loss, a schedule, a reference, a sink, an input, a table such as `train`, a key such as
    `train.steps`, or your own function, `package.module:function`. A kind, such as `schedule`, lists its members.
    """
    everything = list(entries())
    found = _found(name, everything)
    group = [] if found else [entry for entry in everything if entry.kind == name]
    if not found and not group:
        raise _unknown(name, everything)
    if as_json:
        shown = [{**entry._asdict(), "values": [value._asdict() for value in entry.values]} for entry in found or group]
        say(json.dumps(shown))
        return
    if group:
        show(group)
    for index, entry in enumerate(found):
        if index:
            say("")
        _show(entry)


def _found(name: str, everything: Sequence[Entry]) -> list[Entry]:
    """The entries of this name."""
    found = [entry for entry in everything if name in (entry.name, f"[{entry.name}]", f"[[{entry.name}]]")]
    table, _, key = name.partition(".")
    keys = [
        Entry("key", name, value.meaning, values=(value,))
        for entry in everything
        if entry.kind == "table" and entry.name == table
        for value in entry.values
        if value.name == key
    ]
    if found or keys or ":" not in name:
        return [*found, *keys]
    if str(Path.cwd()) not in sys.path:
        # At the end, as for a config: it hides nothing that is installed.
        sys.path.append(str(Path.cwd()))
    try:
        return [entry_of_path(name)]
    except OptionError as error:
        raise click.BadParameter(f'"{name}" is not {error.expected}', param_hint="NAME") from error


def _unknown(name: str, everything: Sequence[Entry]) -> click.BadParameter:
    known = [*(entry.name for entry in everything), *LISTED]
    known += [f"{entry.name}.{value.name}" for entry in everything if entry.kind == "table" for value in entry.values]
    hint = nearest(name, known) or "; `penalties list` shows all names"
    return click.BadParameter(f'there is no "{name}"{hint}', param_hint="NAME")


def _show(entry: Entry) -> None:
    styled((entry.name, "bold cyan"), (f" ({entry.kind}: {KINDS[entry.kind]})", "dim"))
    say(*entry.summary.splitlines())
    if entry.details:
        say("", *entry.details.splitlines())
    if entry.reads:
        say("", f"reads: {', '.join(entry.reads)}")
    if entry.values:
        say("")
        rows = [(value.name, value.default or "(required)", value.allowed, value.meaning) for value in entry.values]
        header = ("name", "default", "allowed", "what it is")
        shown = [index for index in range(4) if any(row[index] for row in rows)]
        title = "options" if entry.reads or entry.kind == "function" else "keys"
        table(title, [header[index] for index in shown], [[row[index] for index in shown] for row in rows])
    if entry.example:
        say("", "in a config:", "", *textwrap.indent(entry.example, "    ").splitlines())
