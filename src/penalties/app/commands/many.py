"""Options of commands that train many runs: how many at once, and where."""

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ..console import say
from ..processes import launched

if TYPE_CHECKING:
    from ..config import Config
    from ..parallel import Task, Workers
    from ..train.progress import Progress

__all__ = ["Many", "several"]

_LINES: Final = 5
"""Lines for the steps of each run, in a pipe."""


@dataclass(frozen=True)
class Many:
    """What the options say."""

    jobs: int
    ray: str | None

    @property
    def given(self) -> list[str]:
        """The options again, for a command line."""
        jobs = ["--jobs", str(self.jobs)] if self.jobs > 1 else []
        return [*jobs, *(["--ray", self.ray] if self.ray else [])]

    def check(self) -> None:
        """Raise if runs cannot be trained like this."""
        if launched() and (self.jobs > 1 or self.ray):
            raise click.UsageError("--jobs and --ray cannot be combined with torchrun: every run is one process")

    def training(
        self, folder: Path, configs: "Sequence[Config]", total: int, *, quiet: bool
    ) -> "Callable[[Iterable[Task], Callable[[Task, str | None], None]], None]":
        """What trains runs like this; files about all of them go to a folder."""
        from ..parallel import board, one_by_one, side_by_side
        from ..train.progress import chosen

        if self.jobs == 1 and self.ray is None:
            number = 0

            def progress(task: "Task") -> "Progress":
                nonlocal number
                number += 1
                if not quiet:
                    say("", f"{number} of {total}: {task.name}")
                return chosen(quiet=quiet, lines=_LINES)

            return lambda tasks, ended: one_by_one(tasks, ended, progress)

        def train(tasks: "Iterable[Task]", ended: "Callable[[Task, str | None], None]") -> None:
            side_by_side(
                tasks, self._workers(folder, configs, total), board.chosen(total, sys.stdout, quiet=quiet), ended
            )

        return train

    def _workers(self, folder: Path, configs: "Sequence[Config]", total: int) -> "Workers":
        from ..parallel.processes import Processes, devices_for

        return Processes(min(self.jobs, total), folder, devices_for(configs))


def several(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--jobs N`: the argument `many`."""

    @click.option(
        "--jobs", type=click.IntRange(1), default=1, show_default=True, help="Runs at once, each on a GPU if there are."
    )
    @functools.wraps(command)
    def taking(*arguments: Any, jobs: int, **options: Any) -> Any:
        return command(*arguments, many=Many(jobs, None), **options)

    return taking
