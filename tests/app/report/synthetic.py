"""Made-up runs: folders with the log and the config that training writes, in the library's own words."""

import dataclasses
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penalties.encoding import dumps
from penalties.errors import TermTimeoutError
from penalties.pipeline.output import LossOutput, TermOutput

__all__ = ["Part", "config", "everything", "falling", "noisy", "small", "write_run"]

Course = Callable[[int], float]
"""A number at each step."""


@dataclass(frozen=True)
class Part:
    """A term: its value, weight and gradient norm at each step."""

    value: Course
    weight: Course = lambda step: 0.1
    norm: Course | None = lambda step: 1.0
    every: int = 1
    fails: Mapping[int, str] = field(default_factory=dict)
    seconds: float = 0.002
    grad_error: str | None = None
    place: str | None = None
    """Where its gradient is taken."""
    measured: int = 1
    """Every how many steps the gradient is."""
    metrics: Mapping[str, Course] = field(default_factory=dict)

    def at(self, name: str, step: int) -> TermOutput:
        if step in self.fails:
            return TermOutput(name, None, self.weight(step), error=TermTimeoutError(name, self.fails[step]))
        norm = None if self.norm is None or step % self.measured else self.norm(step)
        places = {} if self.place is None or norm is None else {self.place: norm}
        return TermOutput(
            name,
            self.value(step),
            self.weight(step),
            norm,
            self.grad_error,
            grad_norms=places,
            duration=self.seconds,
            metrics={name: course(step) for name, course in self.metrics.items()},
        )


def falling(start: float, end: float, steps: float) -> Course:
    """An exponential way down."""
    return lambda step: end + (start - end) * math.exp(-3 * step / max(1, steps))


def noisy(course: Course, seed: int, size: float = 0.05) -> Course:
    """The same with noise, always equal for a step."""
    return lambda step: course(step) * (1 + size * random.Random(seed * 1_000_003 + step).gauss(0, 1))


def config(terms: Sequence[str], steps: int, **train: Any) -> dict[str, Any]:
    return {
        "model": {"name": "tiny", "rank": 8},
        "backend": {"kind": "local", "base_url": None},
        "data": {"path": "pig_latin.jsonl", "shuffle": True},
        "train": {"steps": steps, "batch_size": 8, "learning_rate": 0.003, "seed": 0, **train},
        "references": {"initial": {"kind": "initial"}},
        "term": [{"fn": name, "name": name, "weight": 0.1, "schedule": None} for name in terms],
        "sinks": {"tensorboard": False},
    }


def write_run(
    folder: Path,
    *,
    steps: int | Sequence[int],
    base: Part | None = Part(lambda step: 2.0, lambda step: 1.0),  # noqa: B008 (it never changes)
    parts: Mapping[str, Part] | None = None,
    cosines: Callable[[int, str, str], float] | None = None,
    cosines_every: int = 1,
    evaluate: Mapping[int, float] | None = None,
    events: Sequence[tuple[int, str, str] | tuple[int, str, str, Mapping[str, Any]]] = (),
    settings: Mapping[str, Any] | None = None,
    tail: str = "",
    metrics: int = 0,
    memory: Course | None = None,
) -> Path:
    """A run of these steps, in their order; `evaluate` has base losses, `tail` is what a crash has left."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = parts or {}
    order = range(steps) if isinstance(steps, int) else steps
    lines: list[str] = []
    for step in order:
        active = {name: part for name, part in parts.items() if step % part.every == 0}
        out = LossOutput.of(
            [part.at(name, step) for name, part in active.items()],
            base=None if base is None else base.at("base_loss", step),
            total_grad_norm=_total_norm(base, active, step),
        )
        if cosines is not None and step % cosines_every == 0:
            names = out.names
            matrix = [[1.0 if a == b else cosines(step, *sorted((a, b))) for b in names] for a in names]
            out = dataclasses.replace(out, cosines=matrix)
        record = {
            "kind": "step",
            "step": step,
            "time": "2026-11-15T18:00:00Z",
            "seconds": 0.05 + 0.001 * (step % 7),
            "tokens": 800 + step % 13,
            "learning_rate": 0.003,
            **({} if memory is None else {"memory": memory(step)}),
            "loss": out.to_dict(),
            "durations": {name: part.seconds * (1 + step % 5) for name, part in active.items()},
            "errors": {name: part.fails[step] for name, part in active.items() if step in part.fails},
            "metrics": {f"client_{place}": math.sin(step + place) for place in range(metrics)},
        }
        lines.append(dumps(record))
        for at, kind, message, *details in events:
            if at == step:
                told = {"kind": "event", "step": step, "event": kind, "message": message}
                lines.append(dumps(told | (dict(details[0]) if details else {})))
        if evaluate is not None and step in evaluate:
            lines.append(
                dumps(
                    {
                        "kind": "eval",
                        "step": step,
                        "time": "t",
                        "loss": _held_out(parts, step, evaluate[step]),
                        "tokens": 90,
                    }
                )
            )
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines) + tail)
    if settings is not None:
        (folder / "config.json").write_text(json.dumps(settings))
    return folder


def _total_norm(base: Part | None, parts: Mapping[str, Part], step: int) -> float | None:
    norms = [
        part.norm(step) * part.weight(step)
        for part in ([base] if base else []) + list(parts.values())
        if part.norm and step % part.measured == 0
    ]
    return math.sqrt(sum(norm * norm for norm in norms)) if norms else None


def _held_out(parts: Mapping[str, Part], step: int, loss: float) -> dict[str, Any]:
    terms = [TermOutput(name, part.value(step) * 1.1, part.weight(step)) for name, part in parts.items()]
    return LossOutput.of(terms, base=TermOutput("base_loss", loss)).to_dict()


def small(folder: Path, steps: int = 60, seed: int = 0, **changes: Any) -> Path:
    """An ordinary run of three terms."""
    return write_run(folder, **(_small(steps, seed) | changes))


def _small(steps: int, seed: int) -> dict[str, Any]:
    return {
        "steps": steps,
        "base": Part(
            noisy(falling(4.2, 1.8, steps), seed), lambda step: 1.0, noisy(falling(3.0, 0.8, steps), seed + 1, 0.15)
        ),
        "parts": {
            "kl_estimate": Part(
                noisy(lambda step: 1.6 * (1 - math.exp(-4 * step / steps)) + 0.02, seed + 2),
                lambda step: 0.3 * min(1.0, (step + 1) / (steps / 3)),
                noisy(lambda step: 1.2 + step / steps, seed + 3, 0.15),
            ),
            "entropy": Part(
                noisy(falling(-2.0, -0.8, steps), seed + 4, 0.03),
                lambda step: 0.15,
                noisy(lambda step: 2.0, seed + 5, 0.1),
            ),
            "sparsity": Part(
                noisy(falling(3.0, 2.5, steps), seed + 6, 0.02), lambda step: 1e-3, noisy(lambda step: 0.9, seed + 7)
            ),
        },
        "cosines": lambda step, a, b: _cosine(step / steps, a, b),
        "cosines_every": max(1, steps // 30),
        "evaluate": {
            step: 1.9 + 2.4 * math.exp(-3 * step / steps)
            for step in range(max(1, steps // 6) - 1, steps, max(1, steps // 6))
        },
        "events": [(steps - 1, "finished", "")],
        "settings": config(["kl_estimate", "entropy", "sparsity"], steps, seed=seed),
    }


def _cosine(way: float, a: str, b: str) -> float:
    known = {
        ("base_loss", "kl_estimate"): -0.25 - 0.5 * way,
        ("base_loss", "entropy"): 0.2 - 0.3 * way,
        ("entropy", "kl_estimate"): 0.55 + 0.2 * math.sin(7 * way),
    }
    return known.get((a, b), 0.05 * math.cos(9 * way))


def everything(folder: Path, steps: int = 240) -> Path:
    """A run in which everything happens: failures, rests, a resume, NaN, a spike, a torn last line."""
    made = _small(steps, 3)
    third = steps // 3
    base, parts = made["base"], dict(made["parts"])
    broken = {third + 5, third + 6, 2 * third}
    value, norm = base.value, base.norm
    made["base"] = dataclasses.replace(
        base,
        value=lambda step: math.nan if step in broken else value(step) + (60.0 if step == third // 2 else 0.0),
        norm=lambda step: math.nan if step in broken else norm(step) * (900.0 if step == third // 2 else 1.0),
    )
    late = dict.fromkeys(range(third, steps, 17), "took more than 2 s")
    parts["topology"] = Part(
        noisy(falling(1.0, 0.4, steps), 21, 0.1),
        lambda step: 0.5,
        noisy(lambda step: 0.6, 22, 0.2),
        fails=late,
        seconds=0.02,
    )
    parts["orthogonality"] = Part(
        noisy(falling(0.8, 0.5, steps), 23), lambda step: 0.2, noisy(lambda step: 0.8, 24), every=4
    )
    parts["watched"] = Part(lambda step: 0.3, lambda step: 0.05, None, grad_error="it is not differentiable")
    events = [
        (third - 1, "checkpoint", "checkpoints/000080"),
        (third - 1, "resumed", "from the checkpoint of this step"),
        (2 * third, "warning", "base_loss dominates sparsity: its gradient is 1200 times as long"),
        (2 * third + 10, "checkpoint", "checkpoints/000170"),
    ]
    return write_run(
        folder,
        **(
            made
            | {
                "parts": parts,
                "events": events,
                "tail": '{"kind": "step", "step": 240, "lo',
                "settings": config(list(parts), steps + 60),
            }
        ),
    )
