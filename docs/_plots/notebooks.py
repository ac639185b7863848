"""Runs the notebooks and writes their pages: `python -m docs._plots.notebooks` renders all, or those it is given.

A notebook is a plain program in the percent format of jupytext, `docs/notebooks/<name>.py`: `# %%` begins a cell of
code, `# %% [markdown]` one of words. Jupyter opens it, `python` runs it, and here its cells run in one namespace, in
order. The page, `<name>.md`, has words, code and what the code printed. A line `![title](plot:curves)` in the words
becomes a drawing of the variable `curves`, a dict from names to numbers, as they are when the page comes to it;
`plot:curves:place` says "place" below it, and not "step".
"""

import contextlib
import io
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
    """Words or code, and the line of the file that it begins at, from 0."""

    kind: str
    text: str
    line: int


def cells(text: str) -> Iterator[Cell]:
    """The cells of a notebook; words without the `#` before each line."""
    marks = list(CELL.finditer(text))
    if not marks or text[: marks[0].start()].strip():
        raise ValueError("a notebook begins with a line # %% or # %% [markdown]")
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        body = text[mark.end() : following.start() if following else len(text)].strip("\n")
        kind = mark["kind"] or "code"
        if kind == "markdown":
            body = "\n".join(line.removeprefix("#").removeprefix(" ") for line in body.splitlines())
        yield Cell(kind, body, text.count("\n", 0, mark.end()))


def render(source: Path, folder: Path) -> None:
    """Run a notebook and write its page, and its drawings beside it, to a folder."""
    namespace: dict[str, Any] = {"__name__": "__notebook__"}
    parts: list[str] = []
    for cell in cells(source.read_text()):
        if cell.kind == "markdown":
            parts.append(PLOT.sub(lambda found: _drawn(found, namespace, source.stem, folder), cell.text))
            continue
        # Empty lines in front: a traceback then shows the line of the file.
        program = compile("\n" * cell.line + cell.text, str(source), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(program, namespace)
        parts.append(f"```python\n{cell.text}\n```")
        if printed.getvalue():
            parts.append(f"```text\n{printed.getvalue().rstrip()}\n```")
    title, *rest = parts
    heading, _, lead = title.partition("\n")
    about = f"*A notebook: [`{source.name}`]({source.name}) is its source, for Jupyter (by jupytext) and for `python`.*"
    text = "\n\n".join([heading, about, *([lead.strip()] if lead.strip() else []), *rest])
    (folder / f"{source.stem}.md").write_text(text + "\n")


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
    across = [round(gap * place) for place in range(math.floor(steps / gap) + 1)]
    panel.axes("", across, {(tick - low) / (high - low): f"{tick:g}" for tick in ticks})
    figure.text(panel.left + panel.width / 2, 282, axis)
    for place, ((name, numbers), color) in enumerate(zip(curves.items(), PALETTE, strict=False)):
        figure.swatch(panel.left + 170 * place, 22, color, name)
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
    return [round(gap * place, 10) for place in range(first, last + 1)]


def main(names: Sequence[str]) -> None:
    """Render the notebooks of these names, or all."""
    for source in SOURCES:
        if not names or source.stem in names:
            render(source, FOLDER)
            print(source.stem)


if __name__ == "__main__":
    main(sys.argv[1:])
