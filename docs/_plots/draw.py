"""Draws the figures of the documentation as SVG: `python docs/_plots/draw.py` writes them to `docs/assets/`.

Everything is drawn by hand, without a plotting library. The figures have no background, and text in a grey that reads
on white and on black, so that one file serves both schemes of the site.
"""

import runpy
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import torch

import penalties as pn

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "docs" / "assets"

TEXT, RULE = "#80868f", "#80868f66"
COLORS = {"base_loss": "#8f9bb0", "sparsity": "#e2852a", "confidence": "#3d8fd6", "overlap": "#3fa66b"}


class Figure:
    """Pieces of an SVG, and the file they become."""

    def __init__(self, width: int, height: int, title: str) -> None:
        """An empty sheet; the title is what a screen reader says."""
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []

    def text(self, x: float, y: float, words: str, *, anchor: str = "middle", strong: bool = False) -> None:
        """A line of text."""
        weight = ' font-weight="600"' if strong else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{weight}>{escape(words)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """A thin rule."""
        self.parts.append(f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="{RULE}"/>')

    def path(self, points: Sequence[tuple[float, float]], *, fill: str = "none", stroke: str = "none") -> None:
        """A line through points, or the area that they enclose."""
        way = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        closed = "" if fill == "none" else "Z"
        self.parts.append(f'<path d="M{way}{closed}" fill="{fill}" stroke="{stroke}" stroke-width="2"/>')

    def box(self, x: float, y: float, width: float, height: float, title: str, words: str, *, color: str) -> None:
        """A frame with a title and a line of words."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{color}1f" '
            f'stroke="{color}" stroke-width="1.5"/>'
        )
        middle = x + width / 2
        self.text(middle, y + height / 2 - 4, title, strong=True)
        self.text(middle, y + height / 2 + 13, words)

    def arrow(self, points: Sequence[tuple[float, float]], color: str) -> None:
        """A line of straight and upright pieces, with round corners and a head at its end."""
        way = "M{:g} {:g}".format(*points[0])
        for last, (x, y), after in zip(points, points[1:], points[2:], strict=False):
            (x0, y0), (x1, y1) = _toward((x, y), last, 8), _toward((x, y), after, 8)
            way += f"L{x0:g} {y0:g}Q{x:g} {y:g} {x1:g} {y1:g}"
        x, y = _toward(points[-1], points[-2], 9)
        self.parts.append(f'<path d="{way}L{x:g} {y:g}" fill="none" stroke="{color}" stroke-width="2"/>')
        wide, high = (0, 5) if y == points[-1][1] else (5, 0)
        self.path([points[-1], (x + wide, y + high), (x - wide, y - high)], fill=color)

    def swatch(self, x: float, y: float, color: str, words: str) -> None:
        """One entry of a legend."""
        self.parts.append(f'<rect x="{x:g}" y="{y - 10:g}" width="12" height="12" rx="2" fill="{color}"/>')
        self.text(x + 18, y, words, anchor="start")

    def save(self, name: str) -> None:
        """Write the file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'font-family="system-ui, sans-serif" font-size="13" fill="{TEXT}">'
        )
        lines = [head, f"<title>{escape(self.title)}</title>", *self.parts, "</svg>", ""]
        (ASSETS / name).write_text("\n".join(lines))


def _toward(start: tuple[float, float], end: tuple[float, float], distance: float) -> tuple[float, float]:
    """The point so far from the start on the way to the end, which lies straight beside or above it."""
    x, y = (float(b > a) - float(b < a) for a, b in zip(start, end, strict=True))
    return start[0] + distance * x, start[1] + distance * y


class Panel:
    """A rectangle with axes, and the mapping from data to coordinates in it."""

    def __init__(self, figure: Figure, left: float, top: float, width: float, height: float, steps: int) -> None:
        """Steps run from the left, values from 0 to 1 upwards."""
        self.figure, self.left, self.top, self.width, self.height, self.steps = figure, left, top, width, height, steps

    def at(self, step: float, value: float) -> tuple[float, float]:
        """Where a value at a step lies."""
        return self.left + self.width * step / self.steps, self.top + self.height * (1 - value)

    def axes(self, title: str, steps: Sequence[int], values: dict[float, str]) -> None:
        """Rules and numbers, drawn over what is there; values that have no word get a rule alone."""
        self.figure.text(self.left + self.width / 2, self.top - 10, title, strong=True)
        for value, word in values.items():
            _, y = self.at(0, value)
            self.figure.line(self.left, y, self.left + self.width, y)
            if word:
                self.figure.text(self.left - 7, y + 4, word, anchor="end")
        for step in steps:
            x, y = self.at(step, 0)
            self.figure.line(x, y, x, y + 4)
            self.figure.text(x, y + 18, str(step))


def shares() -> tuple[list[int], list[str], dict[str, list[list[float]]]]:
    """Train the classifier of `examples/pytorch_loop.py`, and explain its loss at every step where all terms run."""
    example = runpy.run_path(str(ROOT / "examples" / "pytorch_loop.py"))
    pipeline, objective = example["PIPELINE"], example["objective"]
    x, labels = example["examples"](400, 0.25, torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = example["Classifier"]()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    steps: list[int] = []
    seen: dict[str, list[list[float]]] = {"loss": [], "gradient": []}
    for step in range(example["STEPS"] + 1):
        out, _ = objective(pipeline, model, x, labels, step)
        optimizer.zero_grad()
        if step % 4 == 0:
            out = pn.gradients.track(out, wrt=model.parameters())
            explained = pn.explain(out).shares
            steps.append(step)
            seen["loss"].append([share.loss_share or 0.0 for share in explained])
            seen["gradient"].append([share.grad_share or 0.0 for share in explained])
        out.total.backward()
        optimizer.step()
    return steps, ["base_loss", *pipeline.names], seen


def draw_shares() -> None:
    """What each term is of the loss and of the gradient while a network trains."""
    steps, names, seen = shares()
    figure = Figure(760, 330, "Shares of four terms of the loss and of the gradient over 400 steps of training")
    for index, name in enumerate(names):
        figure.swatch(150 + 130 * index, 18, COLORS[name], name)
    titles = {"loss": "share of the loss", "gradient": "share of the gradient"}
    for column, (kind, rows) in enumerate(seen.items()):
        panel = Panel(figure, 62 + 365 * column, 62, 310, 210, steps[-1])
        floor = [0.0] * len(steps)
        for index, name in enumerate(names):
            roof = [low + row[index] for low, row in zip(floor, rows, strict=True)]
            edge = [panel.at(step, value) for step, value in zip(steps, roof, strict=True)]
            back = [panel.at(step, value) for step, value in zip(steps, floor, strict=True)]
            panel.figure.path([*edge, *reversed(back)], fill=COLORS[name])
            floor = roof
        panel.axes(titles[kind], range(0, 401, 100), {0: "0 %", 0.25: "", 0.5: "50 %", 0.75: "", 1: "100 %"})
        figure.text(panel.left + panel.width / 2, 312, "step")
    figure.save("term_shares.svg")


def draw_schedules() -> None:
    """The shape of every schedule."""
    s = pn.schedules
    plans: dict[str, Callable[[float], Any]] = {
        "constant": s.constant(0.6),
        "linear": s.linear(0.2, 1.0, steps=101),
        "warmup": s.warmup(1.0, steps=40),
        "cosine": s.cosine(1.0, 0.0, steps=101),
        "exponential": s.exponential(1.0, rate=0.96),
        "piecewise": s.piecewise({0: 0.2, 30: 0.6, 70: 1.0}),
        "chain": s.chain((s.warmup(1.0, 20), 20), (s.constant(1.0), 40), s.cosine(1.0, 0.0, steps=41)),
        "product": s.product(s.warmup(1.0, 20), s.exponential(1.0, rate=0.97)),
    }
    figure = Figure(760, 345, "The weight over 100 steps by eight schedules")
    for index, (title, plan) in enumerate(plans.items()):
        row, column = divmod(index, 4)
        panel = Panel(figure, 34 + 185 * column, 34 + 165 * row, 150, 95, 100)
        panel.axes(title, (0, 50, 100), {0: "0", 0.5: "", 1: "1"})
        figure.path([panel.at(step / 2, plan(step / 2)) for step in range(201)], stroke=COLORS["confidence"])
        if row:
            figure.text(panel.left + panel.width / 2, 333, "step")
    figure.save("schedules.svg")


def draw_execution() -> None:
    """One run: inputs go to where the terms run, values and gradients come back, and one backward pass uses them."""
    forward, backward, plain = COLORS["confidence"], COLORS["sparsity"], COLORS["base_loss"]
    figure = Figure(760, 410, "One run: inputs go to where terms run; values and gradients come back")
    figure.parts.append(
        f'<rect x="258" y="206" width="194" height="130" rx="8" fill="none" stroke="{RULE}" stroke-dasharray="5 4"/>'
    )
    figure.text(355, 328, "outside your process")
    runners = {
        "inline": ("on your graph", 20),
        "thread": ("the same memory", 78),
        "async": ("the executor's loop", 136),
        "process": ("shared memory", 214),
        "Ray": ("a cluster", 266),
    }
    for name, (words, top) in runners.items():
        middle = top + 23
        there, back = [(200, 159), (200, middle)], [(566, middle), (566, 159)]
        if middle == 159:
            there = back = []
        figure.arrow([(138, 159), *there, (266, middle)], forward)
        figure.arrow([(444, middle), *back, (618, 159)], forward)
        figure.box(266, top, 178, 46, name, words, color=forward)
        figure.text(510, middle - 6, "value, its graph" if name == "inline" else "value, gradient")
    figure.box(8, 131, 130, 56, "inputs", "from your model", color=plain)
    figure.box(618, 131, 134, 56, "out.total", "in term order", color=plain)
    figure.arrow([(685, 187), (685, 372), (73, 372), (73, 187)], backward)
    figure.text(379, 364, "out.total.backward()", strong=True)
    figure.text(379, 392, "through an inline term by autograd; for the others, weight · the gradient that came back")
    figure.save("execution.svg")


def draw_custom_loss() -> None:
    """One call: log-probabilities come out of a client, terms make a gradient of them, and that goes back in."""
    forward, backward, plain = COLORS["confidence"], COLORS["sparsity"], COLORS["base_loss"]
    figure = Figure(760, 330, "One call: forward, terms, and the gradient of their sum sent back as a backward pass")
    figure.parts.append(
        f'<rect x="150" y="22" width="602" height="82" rx="8" fill="none" stroke="{RULE}" stroke-dasharray="5 4"/>'
    )
    figure.text(451, 15, "the client: a server, or a model in this process")
    terms = {"base loss": ("inline", 146), "a term": ("in a process", 204), "another term": ("behind a service", 262)}
    for name, (words, top) in terms.items():
        middle = top + 23
        figure.arrow([(210, 86), (210, middle - 9), (240, middle - 9)], forward)
        figure.arrow([(128, 236), (182, 236), *([] if top == 204 else [(182, middle + 9)]), (240, middle + 9)], plain)
        figure.arrow([(378, middle), *([] if top == 204 else [(414, middle), (414, 227)]), (442, 227)], forward)
        figure.box(240, top, 138, 46, name, words, color=forward)
    figure.box(8, 35, 110, 56, "data", "one per text", color=plain)
    figure.box(8, 208, 120, 56, "references", "teacher, reward", color=plain)
    figure.arrow([(118, 63), (166, 63)], plain)
    figure.box(166, 40, 130, 46, "forward", "no gradient yet", color=plain)
    figure.text(218, 124, "logprobs", anchor="start")
    figure.box(432, 40, 150, 46, "forward_backward", "a loss of the server", color=plain)
    figure.box(614, 40, 122, 46, "optim_step", "sent next", color=plain)
    figure.arrow([(582, 63), (614, 63)], backward)
    figure.box(442, 199, 130, 56, "total", "base + Σ w·term", color=plain)
    figure.arrow([(507, 199), (507, 86)], backward)
    figure.text(519, 140, "−gradient, as weights", anchor="start", strong=True)
    figure.text(519, 158, "or as advantages, times what the", anchor="start")
    figure.text(519, 174, "server will divide by", anchor="start")
    figure.arrow([(572, 227), (622, 227)], forward)
    figure.box(622, 199, 130, 56, ".custom_loss", "what each did", color=plain)
    figure.text(600, 300, "terms run where they say,")
    figure.text(600, 317, "never on the client's event loop")
    figure.save("custom_loss.svg")


def draw_placement() -> None:
    """Where six libraries have regularizers: which part of a training step they act on, built in or written by hand."""
    built, hand, ours = COLORS["confidence"], COLORS["sparsity"], COLORS["overlap"]
    figure = Figure(760, 486, "Where regularizers live: six libraries and this one, by the part of a step they act on")
    places = ["layer", "loss", "gradient", "update", "weights"]
    words = ["forward", "terms added up", "before scaling", "beside its step", "after the step"]
    for index, (place, note) in enumerate(zip(places, words, strict=True)):
        left = 94 + 134 * index
        figure.box(left, 8, 124, 46, place, note, color=COLORS["base_loss"])
        if index:
            figure.arrow([(left - 10, 31), (left, 31)], COLORS["base_loss"])
    rows: dict[str, dict[str, tuple[str, str]]] = {
        "PyTorch": {
            "layer": ("parametrize", "orthogonal, …"),
            "loss": ("by hand", "loss + w · term"),
            "gradient": ("weight_decay", "SGD, Adam"),
            "update": ("weight_decay", "AdamW"),
            "weights": ("prune", "by magnitude"),
        },
        "JAX, optax": {
            "loss": ("by hand", "loss + w · term"),
            "gradient": ("weight decay", "early in a chain"),
            "update": ("weight decay", "late in a chain"),
            "weights": ("projections", "nonnegative"),
        },
        "Keras": {
            "layer": ("regularizers", "and of activities"),
            "loss": ("add_loss", "has no names"),
            "update": ("weight_decay", "all optimizers"),
            "weights": ("constraints", "Ftrl: L1"),
        },
        "Lightning": {"loss": ("by hand", "training_step"), "weights": ("ModelPruning", "a callback")},
        "Trainer": {"loss": ("by hand", "compute_loss"), "update": ("weight_decay", "AdamW")},
        "TRL": {"loss": ("fixed terms", "KL, entropy, …"), "update": ("weight_decay", "AdamW")},
        "penalties": {
            "layer": ("Penalty", "for Keras"),
            "loss": ("Pipeline", "named terms"),
            "gradient": ("decay", "coupled L1, L2"),
            "update": ("decay", "decoupled"),
            "weights": ("proximal", "exact zeros"),
        },
    }
    for row, (library, cells) in enumerate(rows.items()):
        top = 72 + 54 * row
        figure.text(84, top + 25, library, anchor="end", strong=True)
        for place, (title, note) in cells.items():
            color = ours if library == "penalties" else hand if title == "by hand" else built
            figure.box(94 + 134 * places.index(place), top, 124, 42, title, note, color=color)
    for x, color, entry in ((94, built, "built in"), (228, hand, "written by hand"), (396, ours, "this project")):
        figure.swatch(x, 472, color, entry)
    figure.save("placement.svg")


if __name__ == "__main__":
    ASSETS.mkdir(exist_ok=True)
    draw_shares()
    draw_schedules()
    draw_execution()
    draw_custom_loss()
    draw_placement()
