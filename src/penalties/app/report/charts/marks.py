"""Marks in and above a chart: values that are not finite or off the scale, failures, and events of the run."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np

from ..runlog import Floats, Ints
from .downsample import ranges
from .scales import Scale, shown, steps_shown
from .sheet import HEIGHT, WIDTH, Bools, Sheet

__all__ = ["SIGNS", "Mark", "Moment", "Sign", "beyond", "broken", "failed", "moments"]

Sign: TypeAlias = Literal["broken", "over", "under", "moment", "failed"]

SIGNS: Final[dict[Sign, tuple[str, str]]] = {
    "broken": ("×", "NaN or infinite"),
    "over": ("▲", "off the scale"),
    "under": ("▼", "off the scale"),
    "moment": ("↻", "resumed or interrupted"),
    "failed": ("|", "failed"),
}
"""The sign of each kind, and its meaning."""

_BESIDE: Final = 40
"""How many marks fit side by side; closer ones are merged."""
_SAME: Final = 3.0
"""Marks of runs closer than this, in per cent, are merged."""
_DENSE: Final = 200
"""More ticks than this would touch each other."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened to the run after so many finished steps."""

    step: int
    what: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A sign above a chart; `left` is in per cent."""

    kind: Sign
    left: float
    title: str
    words: str = ""
    """The text beside it."""

    @property
    def sign(self) -> str:
        """The character that is shown."""
        return SIGNS[self.kind][0]


def broken(sheet: Sheet) -> Iterator[Mark]:
    """Bands at steps whose values are NaN or infinite; in a comparison, by run."""
    if not any(line.letter for line in sheet.lines):
        for start, end, words in _bands(sheet, sheet.wrong, ""):
            yield Mark("broken", 50 * (start + end) / WIDTH, f"NaN or infinite: {words}")
        return
    found: list[tuple[float, str, str]] = []
    for line in sheet.lines:
        wrong = line.series.steps[~np.isfinite(line.series.values)]
        for start, end, words in _bands(sheet, wrong, line.css):
            found.append((50 * (start + end) / WIDTH, line.letter, f"NaN or infinite: {line.name}, {words}"))
    found.sort()
    while found:
        left = found[0][0]
        near = [one for one in found if one[0] - left < _SAME]
        found = found[len(near) :]
        letters = ", ".join(dict.fromkeys(letter for _, letter, _ in near))
        yield Mark("broken", left, "\n".join(title for _, _, title in near), letters)


def _bands(sheet: Sheet, wrong: Ints, css: str) -> Iterator[tuple[int, int, str]]:
    """Draw bands over these steps; returns the coordinates and the steps of each."""
    for first, last in ranges(wrong, gap=max(1.0, sheet.frame.span / _BESIDE)):
        start, end = sheet.frame.across([first, last]).tolist()
        kind = f"gap of {css}" if css else "gap"
        sheet.svg.append(f'<path class="{kind}" d="M{start} 0V{HEIGHT}H{end}V0Z"/>')
        words = f"step {steps_shown(first)}" if first == last else f"steps {steps_shown(first)} to {steps_shown(last)}"
        yield start, end, words


def failed(sheet: Sheet) -> bool:
    """Draw ticks at the bottom where terms failed; returns whether there are any."""
    for line in sheet.lines:
        if line.failed:
            across = np.unique(sheet.frame.across(line.failed)).tolist()
            # Ticks that touch would look as if every step failed, so their opacity is the fraction that did.
            part = len(line.failed) / (len(line.failed) + len(line.series))
            opacity = f' opacity="{max(0.2, part):.2f}"' if len(across) > _DENSE else ""
            ticks = "".join(f"M{x} {HEIGHT}v-45" for x in across)
            sheet.svg.append(f'<path class="fail {line.css}"{opacity} d="{ticks}"/>')
    return any(line.failed for line in sheet.lines)


def beyond(sheet: Sheet, scale: Scale, values: Floats) -> Iterator[Mark]:
    """Signs at the edge where a value in these rows is off the scale; the furthest shows its value."""
    high = np.where(np.isnan(values), -np.inf, values).max(axis=0, initial=-np.inf)
    low = np.where(np.isnan(values), np.inf, values).min(axis=0, initial=np.inf)
    # Shares add up to 1 only up to rounding.
    margin = 1e-9 * (scale.high - scale.low)
    sides: Iterable[tuple[Sign, Bools, Floats]] = (
        ("over", high > scale.high + margin, high),
        ("under", low < scale.low - margin, low),
    )
    for kind, off, numbers in sides:
        signed = numbers if kind == "over" else -numbers
        indices: list[int] = []
        for first, last in ranges(sheet.steps[off], gap=sheet.frame.span / _BESIDE):
            inside = np.flatnonzero(off & (sheet.steps >= first) & (sheet.steps <= last))
            indices.append(int(inside[np.argmax(signed[inside])]))
        furthest = max(indices, key=lambda index: signed[index], default=None)
        for index in indices:
            number, step = shown(float(numbers[index])), steps_shown(int(sheet.steps[index]))
            left = 100 * int(sheet.across[index]) / WIDTH
            words = number if index == furthest else ""
            yield Mark(kind, left, f"off the scale: {number} at step {step}", words)


def moments(sheet: Sheet, marked: Sequence[Moment]) -> Iterator[Mark]:
    """Vertical lines where something happened to the run."""
    for moment in marked:
        # Before the first step there is nothing to the left of it.
        if sheet.frame.left - 1 <= moment.step <= sheet.frame.right:
            across = int(sheet.frame.across([max(moment.step, sheet.frame.left)])[0])
            sheet.svg.append(f'<path class="moment" d="M{across} 0V{HEIGHT}"/>')
            when = f"after step {steps_shown(moment.step)}" if moment.step > 0 else "before step 1"
            yield Mark("moment", 100 * across / WIDTH, f"{moment.what} {when}")
