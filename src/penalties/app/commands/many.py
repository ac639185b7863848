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

_HERE: Final = "here"
"""The address of a cluster that is not given."""
_LINES: Final = 5
"""Lines for the steps of each run, in a pipe."""


@dataclass(frozen=True)
class Many:
    """What the options say."""

    jobs: int | None
    ray: str | None

    @property
    def given(self) -> list[str]:
        """The options again, for a command line."""
        jobs = [] if self.jobs is None else ["--jobs", str(self.jobs)]
        ray = [] if self.ray is None else ["--ray"] if self.ray == _HERE else ["--ray", self.ray]
        return [*jobs, *ray]

    def check(self) -> None:
        """Raise if runs cannot be trained like this."""
        if launched() and (self.jobs is not None or self.ray is not None):
            raise click.UsageError("--jobs and --ray cannot be combined with torchrun: every run is one process")
        if self.ray is not None and self.ray.endswith(".toml"):
            raise click.UsageError(f'--ray: found "{self.ray}" as its address; put --ray after CONFIG')

    def training(
        self, folder: Path, configs: "Sequence[Config]", total: int, *, quiet: bool
    ) -> "Callable[[Iterable[Task], Callable[[Task, str | None], None]], None]":
        """What trains runs like this; files about all of them go to a folder."""
        from ..parallel import board, one_by_one, side_by_side
        from ..train.progress import chosen

        if self.jobs in (None, 1) and self.ray is None:
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
        from ..parallel.cluster import Cluster
        from ..parallel.processes import Processes, devices_for

        if self.ray is not None:
            address = None if self.ray == _HERE else self.ray
            return Cluster(address, self.jobs, gpus=all(one.backend.kind == "local" for one in configs))
        return Processes(max(1, min(self.jobs or 1, total)), folder, devices_for(configs))


def several(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--jobs N` and `--ray [ADDRESS]`: the argument `many`."""

    @click.option(
        "--jobs",
        type=click.IntRange(1),
        help="Runs at once: one by default, on Ray as many as fit. With several GPUs each run gets one.",
    )
    @click.option(
        "--ray",
        is_flag=False,
        flag_value=_HERE,
        metavar="[ADDRESS]",
        help="Train on a Ray cluster: the one at RAY_ADDRESS, or else a new one on this machine.",
    )
    @functools.wraps(command)
    def taking(*arguments: Any, jobs: int | None, ray: str | None, **options: Any) -> Any:
        return command(*arguments, many=Many(jobs, ray), **options)

    return taking
