"""What commands print: with rich on a terminal, plain lines in a pipe."""

import sys
from collections.abc import Sequence

__all__ = ["styled", "table"]


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns, under a title."""
    if sys.stdout.isatty():
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


def styled(*pieces: tuple[str, str], err: bool = False) -> None:
    """Print a line of texts, each with its style, to the standard output or error."""
    stream = sys.stderr if err else sys.stdout
    if not stream.isatty():
        print("".join(text for text, _ in pieces), file=stream)
        return
    from rich.console import Console
    from rich.text import Text

    Console(stderr=err).print(Text.assemble(*pieces), soft_wrap=True)
