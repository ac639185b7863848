"""Tables of text: in a terminal, and in a notebook."""

import html
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Table", "table"]


class Table(NamedTuple):
    """A title, columns, and lines of text after it."""

    title: str
    header: Sequence[str]
    lines: Sequence[Sequence[str]]
    remarks: Sequence[str] = ()

    def text(self, indent: str = "  ") -> str:
        """For a terminal."""
        shown = table(self.header, self.lines, indent) if self.lines else []
        return "\n".join([self.title, *shown, *self.remarks])

    def html(self) -> str:
        """For a notebook: a share is drawn behind its number, too, in colours that suit a dark page as well."""
        header = "".join(f"<th>{html.escape(cell)}</th>" for cell in self.header)
        lines = "".join(f"<tr>{''.join(map(_cell, line))}</tr>" for line in self.lines)
        shown = f"<table><thead><tr>{header}</tr></thead><tbody>{lines}</tbody></table>" if self.lines else ""
        remarks = "".join(f"<div>{html.escape(remark)}</div>" for remark in self.remarks)
        return f"<div><div>{html.escape(self.title)}</div>{shown}{remarks}</div>"


def _cell(text: str) -> str:
    number, _, percent = text.partition(" %")
    try:
        part = float(number) if text.endswith(" %") and not percent else None
    except ValueError:
        part = None
    if part is None:
        return f"<td>{html.escape(text)}</td>"
    bar = f"linear-gradient(90deg,#4c8bf566 {part:g}%,transparent {part:g}%)"
    return f'<td style="background:{bar}">{html.escape(text)}</td>'


def table(header: Sequence[str], lines: Sequence[Sequence[str]], indent: str = "") -> list[str]:
    """The lines of a table, with columns as wide as their longest cell."""
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    return [
        indent + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (header, *lines)
    ]
