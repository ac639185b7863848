"""What tests of ablations share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penalties.app.ablation import Outcome, Recorded, ablate
from penalties.app.config import Config, load
from penalties.app.parallel import Task, one_by_one
from penalties.app.train.progress import SILENT, Progress


def loading(path: Path, *given: str) -> Any:
    def loaded(more: Sequence[str]) -> Config:
        return load(path, [*given, *more])

    return loaded


def in_sequence(*displays: Progress) -> Any:
    """Training in this process; the first runs have these displays."""
    left = list(displays)

    def progress(task: Task) -> Progress:
        return left.pop(0) if left else SILENT

    return lambda tasks, ended: one_by_one(tasks, ended, progress)


def trained(chosen: Sequence[Any], folder: Path, **options: Any) -> list[Outcome]:
    return ablate(chosen, folder, **{"training": in_sequence(), **options}).outcomes


def recorded(*outcomes: Outcome, baseline: str = "all", **facts: Any) -> Recorded:
    return Recorded(baseline, facts, list(outcomes))


def outcome(variant: str, seed: int, loss: float | None, step: int = 10, **terms: float) -> Outcome:
    error = None if loss is not None else "TermError: no"
    return Outcome(variant, seed, Path("x"), loss, terms, error, step if loss is not None else None, True)
