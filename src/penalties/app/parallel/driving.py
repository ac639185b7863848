"""What all ways to train many runs share: which run is next, what an error means, and how all of it is interrupted."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from ...errors import said
from ..privacy import hide
from ..problems import counted
from ..runs.disk import RunError
from ..runs.run import Run
from ..train import Interrupted, train
from ..train.progress import Progress
from ..train.signals import Interruption
from .board import Board

if TYPE_CHECKING:
    from ..config import Config

__all__ = ["Failure", "Task", "Workers", "one_by_one", "side_by_side"]

_LOOK: Final = 0.5
"""Seconds between looks at the logs of runs that go on."""


class Task(NamedTuple):
    """A run that is to be trained."""

    name: str
    """What the display calls it."""
    folder: Path
    config: "Config"


class Failure(NamedTuple):
    """How a run failed."""

    message: str
    status: int | None = None
    """If the others would fail for the same reason, such as a full disk: the exit status of the program."""
    interrupted: bool = False
    """Whether it stopped because the user interrupted it."""


class Workers(Protocol):
    """Where runs are trained side by side; each folder has its config already."""

    @property
    def free(self) -> int:
        """How many more runs could start now."""
        ...

    def submit(self, folder: Path) -> None:
        """Train the run of a folder, from its last checkpoint if there is one."""
        ...

    def wait(self, seconds: float) -> Sequence[tuple[Path, Failure | None]]:
        """The runs that ended since the last call, waiting for one for at most so long."""
        ...

    def interrupt(self) -> None:
        """Let each run finish its step and save a checkpoint."""
        ...

    def close(self) -> None:
        """End every process at once."""
        ...


_Ended: TypeAlias = Callable[[Task, str | None], None]
"""Called with a run that ended, and the message if it failed."""


def one_by_one(tasks: Iterable[Task], ended: _Ended, progress: Callable[[Task], Progress]) -> None:
    """Train runs in this process; one that fails does not stop the others."""
    first = True
    for task in tasks:
        ended(task, _trained(task, progress(task), first=first))
        first = False


def _trained(task: Task, progress: Progress, *, first: bool) -> str | None:
    try:
        train(task.config, task.folder, resume=True, progress=progress)
    except RunError:
        # An interruption, a disk, a key: the others would fail for the same reason.
        raise
    except Exception as error:
        if first and not Run(task.folder).begun():
            # The config itself cannot be trained.
            raise
        return hide(said(error))
    return None


def side_by_side(tasks: Iterable[Task], workers: Workers, board: Board, ended: _Ended) -> None:
    """Train runs with some workers, which are closed at the end; one that fails does not stop the others.

    Ctrl-C lets every run finish its step and save a checkpoint; a second one ends all at once.
    """
    with contextlib.ExitStack() as ending:
        ending.callback(board.end)
        ending.callback(workers.close)
        # After the first signal nothing starts.
        stop = ending.enter_context(Interruption(board.stopping))
        try:
            _Side(workers, board, ended, stop).run(iter(tasks))
        except KeyboardInterrupt:
            raise Interrupted("stopped immediately") from None


class _Side:
    """The runs that go on side by side."""

    def __init__(self, workers: Workers, board: Board, ended: _Ended, stop: Interruption) -> None:
        self._workers = workers
        self._board = board
        self._ended = ended
        self._stop = stop
        self._running: dict[Path, Task] = {}
        self._fatal: Failure | None = None
        self._told = False
        self._began = False
        """Whether any run ever finished a step, or the whole."""
        self._done = 0

    def run(self, tasks: Iterator[Task]) -> None:
        more = True
        while True:
            ending = bool(self._stop) or self._fatal is not None
            while more and not ending and self._workers.free:
                task = next(tasks, None)
                more = task is not None
                if task is not None:
                    self._start(task)
            if ending and not self._told:
                self._workers.interrupt()
                self._told = True
            if not self._running:
                break
            for folder, failure in self._workers.wait(_LOOK):
                self._end(self._running.pop(folder), failure)
            self._board.look()
        if self._fatal is not None:
            raise RunError(self._fatal.message, self._fatal.status or 1)
        if self._stop:
            raise Interrupted(f"interrupted after {counted(self._done, 'run')}")

    def _start(self, task: Task) -> None:
        if not Run(task.folder).begun():
            Run.create(task.folder, task.config).close()
        self._running[task.folder] = task
        self._board.start(task.name, task.folder, task.config.train.steps)
        self._workers.submit(task.folder)

    def _end(self, task: Task, failure: Failure | None) -> None:
        if failure is not None and (failure.interrupted or (self._told and failure.status is None)):
            self._board.stop(task.folder)
            return
        self._began = self._began or failure is None or Run(task.folder).begun()
        if failure is not None and failure.status is None and not self._began:
            # The config itself cannot be trained.
            failure = failure._replace(status=1)
        if failure is not None and failure.status is not None:
            self._fatal = self._fatal or failure
            self._board.stop(task.folder)
            return
        self._done += 1
        message = None if failure is None else failure.message
        self._board.finish(task.folder, message)
        self._ended(task, message)
