"""Training the variants of an ablation, each in its own folder, one after the other or several at once."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from ..parallel import Task
from ..problems import joined
from ..runs.disk import RunError, writing
from ..runs.lock import Lock
from ..runs.run import Run
from ..train import check_config
from .outcomes import ALL, Outcome, Recorded, facts_of, holds_ablation, outcome_of, recorded, write
from .variants import Variant

__all__ = ["Training", "ablate"]

Training: TypeAlias = Callable[[Iterable[Task], Callable[[Task, str | None], None]], None]
"""Trains runs, and calls a function with each that ended, and with the message if it failed."""


def ablate(
    chosen: Sequence[Variant],
    folder: Path,
    *,
    baseline: str = ALL,
    resume: bool = False,
    training: Training,
) -> Recorded:
    """Train every variant in its folder; returns their outcomes. One that fails does not stop the others.

    With `resume`, finished runs are kept and others are resumed; none that is there may be missing among the variants.
    """
    if holds_ablation(folder) and not resume:
        raise RunError(f"{folder} already has an ablation; use --resume, or choose another folder with --run", 2)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as ending:
        ending.callback(Lock(folder / "lock").release)
        tasks = [
            Task(f"{variant.name}, seed {variant.seed}", folder / name, variant.config)
            for variant, name in zip(chosen, _folders(chosen), strict=True)
        ]
        for task in tasks:
            if Run(task.folder).begun():
                # Before the first is trained: no results are lost to a slip.
                check_config(Run(task.folder), task.config)
        of = {task.folder: variant for task, variant in zip(tasks, chosen, strict=True)}
        found: dict[Path, Outcome] = {}

        def record() -> Recorded:
            outcomes = [found[task.folder] for task in tasks if task.folder in found]
            return Recorded(baseline, facts_of(chosen), outcomes, len(tasks))

        def ended(task: Task, error: str | None) -> None:
            variant = of[task.folder]
            failed = Outcome(variant.name, variant.seed, task.folder, None, {}, error)
            found[task.folder] = outcome_of(variant, Run(task.folder)) if error is None else failed
            # A reader sees the outcomes so far.
            write(folder, record())

        if resume:
            _check_kept(folder, chosen)
        else:
            write(folder, record())
        training(tasks, ended)
    return record()


def _check_kept(folder: Path, chosen: Sequence[Variant]) -> None:
    """Raise if an ablation has what these variants lack: those runs, and the comparisons with them, would not count."""
    try:
        before = recorded(folder)
    except RunError:
        # It is written again.
        return
    names, seeds = {one.name for one in chosen}, {one.seed for one in chosen}
    lost = [f'"{name}"' for name in before.variants if name not in names]
    lost += dict.fromkeys(f"seed {outcome.seed}" for outcome in before.outcomes if outcome.seed not in seeds)
    if lost:
        raise RunError(
            f"{folder}: its ablation has {joined(lost, 'and')} as well; resume it with the same options and perhaps "
            "more, or choose another folder with --run",
            2,
        )


def _folders(chosen: Sequence[Variant]) -> list[str]:
    """Unique names for the folders of variants, which may differ only in characters that a name cannot have."""
    found: list[str] = []
    for variant in chosen:
        name, number = variant.folder, 1
        while name in found:
            number += 1
            name = f"{variant.folder}-{number}"
        found.append(name)
    return found
