"""What the program prints: with rich on a terminal, plain lines in a pipe.

Text leaves the program here, and by the log and the report. Keys are hidden in whatever goes to the standard streams.
In what the program itself prints, control characters are shown as escapes, as names and messages may contain them: a
terminal would obey them.
"""

import contextlib
import re
import sys
import warnings
from collections.abc import Generator, Iterable, Sequence
from typing import Any, Final, TextIO, cast

from .privacy import hide

__all__ = ["filtered", "printable", "say", "styled", "table"]

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What moves the cursor, starts another line, reverses the direction of text, or cannot be encoded."""


def printable(text: str) -> str:
    r"""A text as one line that any terminal can show: without keys, and with control characters as escapes.

    >>> print(printable("\x1b[2Jname\n"))
    \x1b[2Jname\n
    """
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], hide(text))


def say(*lines: str, err: bool = False, out: TextIO | None = None) -> None:
    """Print each text as a line, to the standard output or error, or another stream."""
    stream = (sys.stderr if err else sys.stdout) if out is None else out
    print(*map(printable, lines), sep="\n", file=stream, flush=True)


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns, under a title."""
    title, rows = printable(title), [[printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _rich(title, header, rows)
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    say(title, *(f"  {'  '.join(row).rstrip()}" for row in cells))


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
        say("".join(text for text, _ in pieces), err=err)
        return
    from rich.console import Console
    from rich.text import Text

    shown = ((printable(text), style) for text, style in pieces)
    Console(stderr=err).print(Text.assemble(*shown), soft_wrap=True)


class _Hiding:
    """A standard stream that hides keys, whoever writes them, and escapes what it cannot encode."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"write takes a str, not {type(text).__name__}")  # as streams of text do
        encoding = self._stream.encoding or "utf-8"
        self._stream.write(hide(text).encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def filtered() -> Generator[None]:
    """Hide keys in everything that is written to the standard streams, and print warnings as lines of the program."""

    def show(message: Warning | str, category: type[Warning], *_: Any) -> None:
        say(f"{category.__name__}: {message}", err=True)

    before = sys.stdout, sys.stderr
    with warnings.catch_warnings():
        warnings.showwarning = show
        # There is no stream where a program has no console.
        sys.stdout, sys.stderr = (cast("TextIO", stream and _Hiding(stream)) for stream in before)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
