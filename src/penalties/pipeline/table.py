"""Columns of text."""

from collections.abc import Sequence

__all__ = ["table"]


def table(header: Sequence[str], lines: Sequence[Sequence[str]], indent: str = "") -> list[str]:
    """The lines of a table, with columns as wide as their longest cell."""
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    return [
        indent + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (header, *lines)
    ]
