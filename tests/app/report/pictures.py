"""What a picture shows, read back from its SVG."""

import json
import re
from xml.etree import ElementTree

import numpy as np

from penalties.app.report.charts.figure import Figure
from penalties.app.report.charts.sheet import HEIGHT, WIDTH

__all__ = ["Picture"]


class Picture:
    """The shapes of a figure as numbers."""

    def __init__(self, figure: Figure) -> None:
        self.figure = figure
        self.root = ElementTree.fromstring(figure.svg)
        self.data = json.loads(figure.data)
        self.steps = np.cumsum(self.data["steps"])
        self.low, self.high, self.log, self.zeros = self.data["y"]

    def column(self, name: str) -> list:
        """The numbers that the cursor shows of a series."""
        values = next(one["values"] for one in self.data["series"] if one["name"] == name)
        return values if isinstance(values, list) else [values] * len(self.steps)

    def shapes(self, css: str) -> list[ElementTree.Element]:
        return [one for one in self.root.iter() if set(css.split()) <= set(one.get("class", "").split())]

    def line(self, css: str) -> list[list[tuple[float, float]]]:
        """The pieces of a line, as steps and values."""
        (group,) = self.shapes(f"line {css}")
        path = next((one for one in group if one.get("class") is None), None)
        return [] if path is None else self.points(path.get("d"))

    def trend(self, css: str) -> list[list[tuple[float, float]]]:
        (group,) = self.shapes(f"line {css}")
        return [piece for one in group if one.get("class") == "trend" for piece in self.points(one.get("d"))]

    def dots(self, css: str) -> list[tuple[float, float]]:
        (group,) = self.shapes(f"line {css}")
        return [piece[0] for one in group if one.get("class") == "dots" for piece in self.points(one.get("d"))]

    def area(self, css: str) -> list[list[tuple[float, float]]]:
        """The upper, or lower, edges of the areas of a series."""
        return [piece for shape in self.shapes(f"area {css}") for piece in self.points(shape.get("d"))]

    def points(self, way: str) -> list[list[tuple[float, float]]]:
        pieces = []
        for part in way.split("M")[1:]:
            x, y, first, rest = re.fullmatch(r"(-?\d+) (-?\d+)(?:V(-?\d+))?(.*)", part).groups()
            here = [(int(x), int(first or y))]
            moves = rest.removesuffix("Z").split("V")[0].removeprefix("l")
            numbers = [] if moves in ("", "h0") else list(map(int, moves.split()))
            for dx, dy in zip(numbers[::2], numbers[1::2], strict=True):
                here.append((here[-1][0] + dx, here[-1][1] + dy))
            pieces.append([(self.step(x), self.value(y)) for x, y in here])
        return pieces

    def step(self, x: float) -> float:
        left, right = self.data["x"]
        return left + (right - left) * x / WIDTH if right > left else left

    def value(self, y: float) -> float:
        place = 1 - y / HEIGHT
        if self.log and place < self.zeros / 2:
            return 0.0
        if self.log:
            place = (place - self.zeros) / (1 - self.zeros)
            return float(10 ** (np.log10(self.low) + place * (np.log10(self.high) - np.log10(self.low))))
        return self.low + place * (self.high - self.low)

    @property
    def unit(self) -> float:
        """What half a coordinate is on the axis of values."""
        return 0.51 * (self.high - self.low) / HEIGHT
