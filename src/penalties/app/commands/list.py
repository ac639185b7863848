"""`penalties list`."""

import json

import click

from ..catalogue import KINDS, entries
from ..console import table
from .options import as_json, debug

__all__ = ["command"]


@click.command("list")
@click.argument("kind", required=False, type=click.Choice([kind for kind in KINDS if kind not in ("key", "function")]))
@as_json
@debug
def command(kind: str | None, as_json: bool) -> None:
    """List penalties, losses, schedules and whatever else a config may name.

    KIND is what to list; everything by default.
    """
    found = [entry for entry in entries() if kind in (None, entry.kind)]
    if as_json:
        click.echo(json.dumps([{"kind": one.kind, "name": one.name, "summary": one.summary} for one in found]))
        return
    for name in dict.fromkeys(entry.kind for entry in found):
        rows = [(one.name, one.summary) for one in found if one.kind == name]
        table(f"{name}: {KINDS[name]}", ("name", "what it is"), rows)
        click.echo()
    click.echo("`penalties describe NAME` says more about each.")
