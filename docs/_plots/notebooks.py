"""Runs the notebooks and writes their pages: `python -m docs._plots.notebooks` renders all, or the named ones.

The source of a notebook is a plain program in the percent format of jupytext, `docs/notebooks/<name>.py`: `# %%` begins
a cell of code, `# %% [markdown]` one of text. `python` runs it, and here its cells run in one namespace, in order. Two
files come of it: a page for this site, `<name>.md`, and a notebook for Jupyter, `<name>.ipynb`, both with the text, the
code and what the code printed. A line `![title](plot:curves)` in the text becomes a drawing of the variable `curves`, a
dict from names to numbers, as it is at that point; `plot:curves:epoch` labels its axis "epoch" instead of "step".
"""

import contextlib
import io
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .draw import COLORS, Figure, Panel

FOLDER = Path(__file__).parents[1] / "notebooks"
SOURCES = sorted(FOLDER.glob("*.py"))

CELL = re.compile(r"^# %%(?: \[(?P<kind>markdown)\])?$\n", re.MULTILINE)
PLOT = re.compile(r"^!\[(?P<title>[^]]+)\]\(plot:(?P<name>\w+)(?::(?P<axis>[^)]+))?\)$", re.MULTILINE)
PALETTE = (COLORS["confidence"], COLORS["sparsity"], COLORS["overlap"], COLORS["base_loss"])


@dataclass(frozen=True)
class Cell:
    """Text or code, and the line of the file that it begins at, from 0."""

    kind: str
    text: str
    line: int


def cells(text: str) -> Iterator[Cell]:
    """The cells of a notebook; text without the `#` before each line."""
    marks = list(CELL.finditer(text))
    if not marks or text[: marks[0].start()].strip():
        raise ValueError("a notebook begins with a line # %% or # %% [markdown]")
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        body = text[mark.end() : following.start() if following else len(text)].strip("\n")
        kind = mark["kind"] or "code"
        if kind == "markdown":
            body = "\n".join(line.removeprefix("#").removeprefix(" ") for line in body.splitlines())
        yield Cell(kind, body, text.count("\n", 0, mark.end()))


@dataclass(frozen=True)
class Ran:
    """A cell that was run: its text, with drawings in place, and what it printed."""

    kind: str
    text: str
    printed: str = ""


def render(source: Path, folder: Path) -> None:
    """Run a notebook, and write its page, its drawings and the notebook for Jupyter to a folder."""
    ran = list(_run(source, folder))
    (folder / f"{source.stem}.md").write_text(_page(source, ran))
    (folder / f"{source.stem}.ipynb").write_text(_for_jupyter(source, ran))


def _run(source: Path, folder: Path) -> Iterator[Ran]:
    namespace: dict[str, Any] = {"__name__": "__notebook__"}
    for cell in cells(source.read_text()):
        if cell.kind == "markdown":
            text = PLOT.sub(lambda found: _drawn(found, namespace, source.stem, folder), cell.text)
            yield Ran("markdown", text)
            continue
        # Empty lines in front: a traceback then shows the line of the file.
        program = compile("\n" * cell.line + cell.text, str(source), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(program, namespace)
        yield Ran("code", cell.text, printed.getvalue())


def _page(source: Path, ran: Sequence[Ran]) -> str:
    parts: list[str] = []
    for cell in ran:
        parts.append(cell.text if cell.kind == "markdown" else f"```python\n{cell.text}\n```")
        if cell.printed:
            parts.append(f"```text\n{cell.printed.rstrip()}\n```")
    title, *rest = parts
    heading, _, lead = title.partition("\n")
    name = source.stem
    about = f"*Download it for Jupyter: [`{name}.ipynb`]({name}.ipynb), or as a program: [`{name}.py`]({name}.py).*"
    return "\n\n".join([heading, about, *([lead.strip()] if lead.strip() else []), *rest]) + "\n"


def _for_jupyter(source: Path, ran: Sequence[Ran]) -> str:
    """The notebook in version 4.5 of Jupyter's format, as Jupyter itself writes it."""
    written: list[dict[str, Any]] = []
    executed = 0
    for number, cell in enumerate(ran):
        common = {"cell_type": cell.kind, "id": f"{source.stem}-{number}", "metadata": {}}
        lines = cell.text.splitlines(keepends=True)
        if cell.kind == "markdown":
            written.append({**common, "source": lines})
            continue
        executed += 1
        printed = cell.printed.splitlines(keepends=True)
        outputs = [{"name": "stdout", "output_type": "stream", "text": printed}] if printed else []
        written.append({**common, "execution_count": executed, "outputs": outputs, "source": lines})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = {
        "cells": written,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _drawn(found: re.Match[str], namespace: Mapping[str, Any], stem: str, folder: Path) -> str:
    name = f"{stem}-{found['name'].replace('_', '-')}.svg"
    # An absolute path: the folder of the other figures does not count.
    draw(found["title"], namespace[found["name"]], found["axis"] or "step").save(str((folder / name).resolve()))
    return f"![{found['title']}]({name})"


def draw(title: str, curves: Mapping[str, Sequence[float]], axis: str) -> Figure:
    """Lines over steps, from the first number of each at the left to the last at the right."""
    steps = max(len(numbers) for numbers in curves.values()) - 1
    ticks = _ticks([number for numbers in curves.values() for number in numbers])
    low, high = ticks[0], ticks[-1]
    figure = Figure(760, 300, title)
    panel = Panel(figure, 70, 50, 660, 190, steps)
    gap = 10 ** math.floor(math.log10(steps))
    gap = next(width for width in (gap / 5, gap / 2, gap, 2 * gap) if width >= 1 and steps / width <= 10)
    across = [round(gap * index) for index in range(math.floor(steps / gap) + 1)]
    panel.axes("", across, {(tick - low) / (high - low): f"{tick:g}" for tick in ticks})
    figure.text(panel.left + panel.width / 2, 282, axis)
    for index, ((name, numbers), color) in enumerate(zip(curves.items(), PALETTE, strict=False)):
        figure.swatch(panel.left + 170 * index, 22, color, name)
        points = [panel.at(step, (number - low) / (high - low)) for step, number in enumerate(numbers)]
        figure.path(points, stroke=color)
    return figure


def _ticks(numbers: Sequence[float]) -> list[float]:
    """A few round numbers, between which all of these lie."""
    low, high = min(numbers), max(numbers)
    rough = (high - low or 1.0) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    gap = next(width * power for width in (1, 2, 5, 10) if width * power >= rough)
    first = math.floor(low / gap)
    last = max(math.ceil(high / gap), first + 1)
    return [round(gap * index, 10) for index in range(first, last + 1)]


def main(names: Sequence[str]) -> None:
    """Render the notebooks of these names, or all."""
    for source in SOURCES:
        if not names or source.stem in names:
            render(source, FOLDER)
            print(source.stem)


if __name__ == "__main__":
    main(sys.argv[1:])
