"""Colours: one for each term in every chart, and a ramp for runs.

The colours of terms were searched for: any two of them, also those that follow each other in dark, differ by at least
0.1 in Oklab for eyes of every kind (a test simulates three kinds of colour blindness), and stand out from the page by
2.8 to 1. Where there are more terms than colours, the colours come again nearer to that of the text, with lines that
are broken. Runs have letters as well, and lines that are broken in different ways.
"""

from collections.abc import Sequence
from typing import Final

__all__ = ["DARK", "LIGHT", "RUN_STOPS", "css", "ramp", "run_class", "term_class"]

LIGHT: Final = ("#8591a5", "#e57a14", "#627bfb", "#007f69", "#78236c", "#e50255", "#6e6600", "#6151b0")
DARK: Final = ("#8e99ab", "#feb169", "#6775fe", "#7df6e2", "#9a46a5", "#ba3433", "#c08a38", "#bcb2ff")
"""The base loss first, in grey; then terms in their order."""

RUN_STOPS: Final = (
    ("#432371", "#2c5aa0", "#15867f", "#6b9a1e", "#c98a00"),
    ("#8f7ae8", "#5c9bf0", "#3fc7b4", "#a5d65a", "#ffd257"),
)
"""The colour ramp for runs, in light and dark mode."""

_DASHES: Final = 3
_AGAIN: Final = (0.35, 0.6)
"""How far repeated colours are shifted towards black, or towards white in dark mode."""


def term_class(index: int, *, base: bool) -> str:
    """The CSS class of a term by its index among the others; repeated colours have a dashed line.

    >>> term_class(0, base=True), term_class(0, base=False), term_class(7, base=False)
    ('t0', 't1', 't1 dash1')
    """
    if base:
        return "t0"
    again, color = divmod(index, len(LIGHT) - 1)
    return f"t{color + 1}" + (f" dash{1 + (again - 1) % (_DASHES - 1)}" if again else "")


def run_class(group: int, member: int = 0) -> str:
    """The CSS class of a run: a colour for its group, and a dash pattern that differs from its neighbours'.

    >>> run_class(0), run_class(1), run_class(1, 1)
    ('r0', 'r1 dash1', 'r1 dash2')
    """
    broken = (group + member) % _DASHES
    return f"r{group}" + (f" dash{broken}" if broken else "")


def ramp(stops: Sequence[str], count: int) -> list[str]:
    """A number of colours, evenly spaced between these stops.

    >>> ramp(["#000000", "#ffffff"], 3)
    ['#000000', '#808080', '#ffffff']
    """
    colors: list[str] = []
    for index in range(count):
        way = index / max(1, count - 1) * (len(stops) - 1)
        first = min(int(way), len(stops) - 2)
        colors.append(_mixed(stops[first], stops[first + 1], way - first))
    return colors


def _rgb(color: str) -> list[int]:
    return [int(color[index : index + 2], 16) for index in (1, 3, 5)]


def css(runs: int) -> str:
    """The CSS rules for the colours of a page with this many groups of runs."""
    # Paper is light: on it, and while the script draws for it, the others hold.
    light, dark = (
        _rules(terms, ramp(stops, runs), ink, where)
        for terms, stops, ink, where in zip(
            (LIGHT, DARK), RUN_STOPS, ("#000000", "#ffffff"), ("", ":root:not(.printing) "), strict=True
        )
    )
    return f"{light}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}"


def _rules(terms: Sequence[str], runs: Sequence[str], ink: str, where: str) -> str:
    rules = [f".t{index}{{--c:{color}}}" for index, color in enumerate(terms)]
    for again, part in enumerate(_AGAIN, 1):
        rules += [f".t{index}.dash{again}{{--c:{_mixed(color, ink, part)}}}" for index, color in enumerate(terms)]
    rules += [f".r{index}{{--c:{color}}}" for index, color in enumerate(runs)]
    return "\n".join(f"{where}{rule}" for rule in rules)


def _mixed(color: str, other: str, part: float) -> str:
    pairs = zip(_rgb(color), _rgb(other), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in pairs)
