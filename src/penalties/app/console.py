"""What commands print: tables with rich on a terminal, plain lines in a pipe."""

import sys
from collections.abc import Sequence

__all__ = ["highlighted", "on_terminal", "problem", "table"]


def on_terminal() -> bool:
    """Whether the output is a terminal."""
    return sys.stdout.isatty()


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns, under a title."""
    if on_terminal():
        _rich(title, header, rows)
        return
    print(title)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print(f"  {'  '.join(cells).rstrip()}")


def _rich(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(header):
        made.add_column(name, style="cyan" if index == 0 else None, overflow="fold", no_wrap=index == 0)
    for row in rows:
        made.add_row(*map(Text, row))
    Console().print(made)


def highlighted(name: str, what: str) -> None:
    """Print a heading: a name, and what it is."""
    if not on_terminal():
        print(f"{name} ({what})")
        return
    from rich.console import Console
    from rich.text import Text

    Console().print(Text.assemble((name, "bold cyan"), (f"  ({what})", "dim")))


def problem(source: str, where: str, message: str) -> None:
    """Print a problem with a file to the standard error."""
    if not sys.stderr.isatty():
        print(f"{source}: {where}: {message}", file=sys.stderr)
        return
    from rich.console import Console
    from rich.text import Text

    text = Text.assemble((f"{source}: ", "dim"), (where, "bold red"), f": {message}")
    Console(stderr=True).print(text, soft_wrap=True)
