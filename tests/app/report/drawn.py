"""What a page draws: the charts and the numbers in its scripts."""

import html
import itertools
import json
import re
from dataclasses import dataclass
from typing import Any

__all__ = ["Drawing", "drawings", "numbers"]


@dataclass(frozen=True)
class Drawing:
    """A chart of a page."""

    title: str
    spec: dict[str, Any]
    runs: dict[str, dict[str, Any]]

    @property
    def names(self) -> list[str]:
        return [line["name"] for line in self.spec["lines"]]

    def line(self, name: str) -> dict[int, Any]:
        """The numbers of a line by step: what its cursor shows."""
        (line,) = [one for one in self.spec["lines"] if one["name"] == name]
        return numbers(self.runs[line["run"]], line["column"], line["times"])


def numbers(run: dict[str, Any], column: int, times: float = 1.0) -> dict[int, Any]:
    at, values, *_ = run["columns"][column]
    steps = list(itertools.accumulate(run["steps"][at]))
    whole = values if isinstance(values, list) else [values] * len(steps)
    scaled = [value if isinstance(value, str | None) else times * value for value in whole]
    return {step: value for step, value in zip(steps, scaled, strict=True) if value is not None}


def drawings(page: str) -> dict[str, Drawing]:
    """The charts of a page by title, the first one of each; small lines are left out."""
    runs = {
        letter: json.loads(text)
        for letter, text in re.findall(r'class="numbers" id="numbers-(\w+)">(.*?)</script>', page, re.DOTALL)
    }
    found: dict[str, Drawing] = {}
    for figure in re.findall(r'<figure class="chart (?!spark).*?</figure>', page, re.DOTALL):
        title = html.unescape(re.search(r"<strong[^>]*>(.*?)</strong>", figure)[1])
        spec = json.loads(re.search(r'<script type="application/json">(.*?)</script>', figure, re.DOTALL)[1])
        found.setdefault(title, Drawing(title, spec, runs))
    return found
