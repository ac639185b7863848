"""Runs side by side: which is next, what an error means, and what an interruption leaves."""

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from penalties.app.config import load
from penalties.app.parallel import Failure, Task, one_by_one, side_by_side
from penalties.app.parallel.board import Board
from penalties.app.parallel.worker import train_folder
from penalties.app.runs import Run
from penalties.app.runs.disk import RunError
from penalties.app.train import Interrupted
from penalties.app.train.progress import SILENT

from ..stand_ins import comparable, events, weights_of, write_config

pytestmark = pytest.mark.usefixtures("backends")

FAILING = '[[term]]\nfn = "tests.app.terms:failing"\n'


class Inline:
    """Workers that train a run when they are waited for, the last one first."""

    def __init__(self, count: int = 2, answers: Sequence[Failure | None] = ()) -> None:
        self.count = count
        self.answers = list(answers)
        self.running: list[Path] = []
        self.most = 0
        self.interrupted = 0
        self.closed = False

    @property
    def free(self) -> int:
        return self.count - len(self.running)

    def submit(self, folder: Path) -> None:
        self.running.append(folder)
        self.most = max(self.most, len(self.running))

    def wait(self, seconds: float) -> list[tuple[Path, Failure | None]]:
        folder = self.running.pop()
        if self.answers:
            return [(folder, self.answers.pop(0))]
        answer = train_folder(str(folder))
        return [(folder, Failure(**answer) if answer else None)]

    def interrupt(self) -> None:
        self.interrupted += 1

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def tasks(tmp_path: Path) -> list[Task]:
    config = write_config(tmp_path, steps=4)
    return [
        Task(f"seed {seed}", tmp_path / "side" / f"seed-{seed}", load(config, [f"train.seed={seed}"]))
        for seed in range(4)
    ]


def ended(tasks: Any, workers: Inline) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    side_by_side(tasks, workers, Board(4), lambda task, error: found.append((task.name, error)))
    return found


class TestSideBySide:
    def test_results_are_those_of_one_after_the_other(self, tasks: list[Task], tmp_path: Path) -> None:
        workers = Inline()
        assert sorted(ended(tasks, workers)) == [(f"seed {seed}", None) for seed in range(4)]
        assert (workers.most, workers.closed) == (2, True)
        again = [task._replace(folder=tmp_path / "sequence" / task.folder.name) for task in tasks]
        one_by_one(again, lambda *_: None, lambda _: SILENT)
        for one, other in zip(tasks, again, strict=True):
            assert weights_of(one.folder, 4) == weights_of(other.folder, 4)
            assert events(Run(one.folder)) == events(Run(other.folder))
            assert comparable(list(Run(one.folder).records())) == comparable(list(Run(other.folder).records()))

    def test_a_run_is_asked_for_when_there_is_room(self, tasks: list[Task]) -> None:
        workers = Inline()
        running: list[int] = []

        def asked() -> Iterator[Task]:
            for task in tasks:
                running.append(len(workers.running))
                yield task

        ended(asked(), workers)
        assert max(running) == 1

    def test_one_that_fails_does_not_stop_the_others(self, tasks: list[Task]) -> None:
        workers = Inline(answers=[None, Failure("its process ended")])
        Run.create(tasks[0].folder, tasks[0].config).close()
        found = ended(tasks, workers)
        assert [error for _, error in found] == [None, "its process ended", None, None]

    def test_what_would_stop_all_stops_all(self, tasks: list[Task]) -> None:
        workers = Inline(answers=[Failure("the disk is full", 1)])
        found: list[Any] = []
        with pytest.raises(RunError, match="the disk is full"):
            side_by_side(tasks, workers, Board(4), lambda *one: found.append(one))
        # The other goes on until it has a checkpoint, or is done.
        assert [task.name for task, _ in found] == ["seed 0"]
        assert (workers.interrupted, workers.closed) == (1, True)

    def test_a_config_that_cannot_be_trained_stops_all(self, tasks: list[Task], tmp_path: Path) -> None:
        (tmp_path / "data.jsonl").write_text("no json\n")
        with pytest.raises(RunError, match="line 1"):
            ended(tasks, Inline())
        assert not (tasks[2].folder).exists()

    def test_a_term_that_fails_later_stops_its_run_alone(self, tmp_path: Path) -> None:
        path = write_config(tmp_path, terms=FAILING)
        names = ["failing", "fine"]
        steps = [f"train.steps={count}" for count in (6, 3)]
        tasks = [Task(name, tmp_path / name, load(path, [step])) for name, step in zip(names, steps, strict=True)]
        found = dict(ended(tasks, Inline()))
        assert found["fine"] is None
        assert "as the test wants it" in str(found["failing"])

    def test_an_interruption_waits_for_what_runs_and_starts_nothing_more(self, tasks: list[Task]) -> None:
        workers = Inline(answers=[None, Failure("interrupted", interrupted=True)])
        found: list[Any] = []

        def finished(*one: Any) -> None:
            found.append(one)
            os.kill(os.getpid(), signal.SIGINT)

        workers.submit = lambda folder: workers.running.insert(0, folder)  # type: ignore[method-assign]
        with pytest.raises(Interrupted, match="^interrupted after 1 run$"):
            side_by_side(tasks, workers, Board(4), finished)
        assert (len(found), workers.interrupted, workers.closed) == (1, 1, True)
        assert not tasks[2].folder.exists()

    def test_a_second_interruption_stops_at_once(self, tasks: list[Task]) -> None:
        class Stubborn(Inline):
            def wait(self, seconds: float) -> list[tuple[Path, Failure | None]]:
                os.kill(os.getpid(), signal.SIGINT)
                return []

        workers = Stubborn()
        with pytest.raises(Interrupted, match="stopped immediately"):
            ended(tasks, workers)
        assert workers.closed

    def test_what_is_left_is_finished_and_what_is_done_is_kept(self, tasks: list[Task]) -> None:
        first = Inline(1, answers=[])
        with pytest.raises(RunError, match="full"):
            side_by_side(tasks, Inline(1, [Failure("full", 1)]), Board(4), lambda *_: None)
        ended(tasks[:2], first)
        before = [(task.folder / "metrics.jsonl").read_bytes() for task in tasks[:2]]
        assert len(ended(tasks, Inline(2))) == 4
        assert [(task.folder / "metrics.jsonl").read_bytes() for task in tasks[:2]] == before


class TestFolders:
    def test_a_folder_that_is_no_run_is_an_error(self, tmp_path: Path) -> None:
        assert train_folder(str(tmp_path)) == {
            "message": f"{tmp_path} is not the folder of a run: it has no config.json",
            "status": 2,
        }
