"""`penalties list`."""

import json
from collections.abc import Sequence
from typing import Any, Final

import click

from ..catalogue.entries import KINDS, Entry, entries
from ..console import say, table
from ..problems import joined, nearest
from .options import as_json, debug

__all__ = ["LISTED", "command", "show"]

LISTED: Final = [kind for kind in KINDS if kind not in ("key", "function")]
"""The kinds that are listed."""


def _completed(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [kind for kind in LISTED if kind.startswith(incomplete)]


def _known(ctx: click.Context, param: click.Parameter, kind: Any) -> Any:
    if kind is not None and kind not in LISTED:
        there = joined(LISTED, "and")
        raise click.BadParameter(f'there is no "{kind}"{nearest(kind, LISTED)} ({there})', param_hint="KIND")
    return kind


@click.command("list")
@click.argument("kind", metavar="[KIND]", required=False, callback=_known, shell_complete=_completed)
@as_json
@debug
def command(kind: str | None, as_json: bool) -> None:
    """List penalties, losses, schedules and everything else that a config may name.

    KIND is what to list; everything by default.
    """
    found = [entry for entry in entries() if kind in (None, entry.kind)]
    if as_json:
        say(json.dumps([{"kind": one.kind, "name": one.name, "summary": one.summary} for one in found]))
        return
    show(found)


def show(found: Sequence[Entry]) -> None:
    """Print a table for each kind."""
    for name in dict.fromkeys(entry.kind for entry in found):
        rows = [(one.name, one.summary) for one in found if one.kind == name]
        table(f"{name}: {KINDS[name]}", ("name", "what it is"), rows)
        say("")
    say("`penalties describe NAME` shows more about each.")
