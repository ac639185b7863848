"""The best checkpoint and early stopping: decided by evaluations, and by a resumed run as by any other."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from penalties.app.config import ConfigError
from penalties.app.config.tables import TrainTable
from penalties.app.runs import Run
from penalties.app.runs.checkpoints import find, latest
from penalties.app.runs.disk import RunError
from penalties.app.train import Interrupted, train
from penalties.app.train.best import Best

from ..stand_ins import Backend, comparable, events, killing, records, toy_config, trained, weights_of

pytestmark = pytest.mark.usefixtures("backends")

# At this learning rate, the held-out loss of the toy falls for three steps and then rises.
BY = {"best_by": "base_loss", "eval_every": 1, "checkpoint_every": 3, "learning_rate": 1.0}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that nothing happened to, and that ended early."""
    return trained(tmp_path_factory.mktemp("whole"), steps=20, patience=3, keep=1, **BY)


def folders(run: Run) -> list[str]:
    return sorted(path.name for path in run.checkpoints.iterdir())


class TestBest:
    def test_the_lowest_or_the_highest_is_the_best(self) -> None:
        values = [3.0, 2.0, 4.0, 1.0]
        for wanted, steps in (("lowest", [1, 2, 4]), ("highest", [1, 3])):
            best = Best(TrainTable(best_by="loss", best_is=wanted))  # type: ignore[arg-type]
            assert [step for step, value in enumerate(values, 1) if best.look({"loss": value}, step)] == steps
            assert best.step == steps[-1]

    @pytest.mark.parametrize("missing", [{}, {"loss": None}, {"loss": float("nan")}, {"loss": float("-inf")}])
    def test_a_value_that_is_missing_or_not_finite_is_never_the_best(self, missing: dict[str, Any]) -> None:
        best = Best(TrainTable(best_by="loss", patience=1))
        assert not best.look(missing, 1)
        assert best.step is None
        assert best.exhausted
        assert best.look({"loss": 1.0}, 2)
        assert not best.exhausted

    def test_a_small_improvement_does_not_count(self) -> None:
        best = Best(TrainTable(best_by="loss", min_improvement=0.5))
        assert [best.look({"loss": value}, step) for step, value in enumerate([3.0, 2.5, 2.25])] == [True, False, True]

    def test_its_notes_are_all_that_it_knows(self) -> None:
        table = TrainTable(best_by="loss", patience=2)
        whole = Best(table)
        resumed = Best(table)
        for step, value in enumerate([2.0, 3.0, 1.0, 2.0, 2.0]):
            resumed = Best(table, resumed.notes())
            assert whole.look({"loss": value}, step) == resumed.look({"loss": value}, step)
            assert whole.notes() == resumed.notes()
        assert whole.exhausted
        assert resumed.exhausted
        assert not Best(TrainTable(best_by="loss", patience=3), whole.notes()).exhausted

    def test_without_a_metric_nothing_is_the_best(self) -> None:
        best = Best(TrainTable())
        assert not best.look({"loss": 1.0}, 1)
        assert best.notes() == {"step": None, "value": None, "waited": 0}


class TestTraining:
    def test_the_best_checkpoint_is_kept_whatever_its_age(self, tmp_path: Path) -> None:
        run = train(toy_config(tmp_path, steps=9, keep=2, **BY), tmp_path / "run")
        losses = {one["step"]: one["loss"]["base_loss"]["value"] for one in records(run, "eval") if one["step"]}
        best = min(losses, key=lambda step: losses[step])
        assert best == 3
        assert folders(run) == [f"{step:06d}" for step in (best, 6, 9)]
        last = latest(run)
        assert last is not None
        assert (last.step, last.best) == (9, best)
        assert last.notes["best"]["value"] == losses[best]
        assert find(run).step == best
        assert find(run, "best").step == best
        assert find(run, "last").step == 9
        assert find(run, 6).step == 6
        saved = [one for one in records(run, "event") if one["event"] == "checkpoint"]
        assert saved[best - 1]["message"].startswith(f"after {best} step")
        assert ", the best so far: base_loss " in saved[best - 1]["message"]
        assert (saved[best - 1]["best"], saved[-1]["best"]) == (best, best)

    @pytest.mark.parametrize(("keep", "kept"), [(1, [6]), (3, [2, 4, 6]), (9, [2, 4, 6])])
    def test_so_many_checkpoints_are_kept(self, tmp_path: Path, keep: int, kept: list[int]) -> None:
        run = train(toy_config(tmp_path, keep=keep), tmp_path / "run")
        assert folders(run) == [f"{step:06d}" for step in kept]

    def test_a_run_that_does_not_improve_ends_early(self, tmp_path: Path, backends: list[Backend]) -> None:
        config = toy_config(tmp_path, steps=20, patience=2, **BY)
        run = train(config, tmp_path / "run")
        last = list(run.records())[-1]
        done = last["step"]
        assert done < 20
        assert last["event"] == "finished"
        assert last["early"] is True
        assert last["message"] == f"early, after {done} steps: base_loss did not improve in 2 evaluations"
        assert find(run, "last").step == done
        assert find(run).step == done - 2
        # It is finished: to resume it changes nothing, also without its checkpoints.
        before = run.metrics.read_bytes()
        train(config, tmp_path / "run", resume=True)
        shutil.rmtree(run.checkpoints)
        train(config, tmp_path / "run", resume=True)
        assert run.metrics.read_bytes() == before
        assert len(backends) == 1

    def test_more_patience_continues_from_the_end(self, tmp_path: Path, whole: Run) -> None:
        first = train(toy_config(tmp_path, steps=20, patience=2, **BY), tmp_path / "run")
        early = list(first.records())[-1]["step"]
        run = train(toy_config(tmp_path, steps=20, patience=3, **BY), tmp_path / "run", resume=True)
        assert list(run.records())[-1]["step"] == list(whole.records())[-1]["step"] == early + 1
        assert comparable(records(run, "step")) == comparable(records(whole, "step"))

    @pytest.mark.parametrize("after", range(1, 6))
    def test_a_killed_run_decides_as_an_uninterrupted_one(self, tmp_path: Path, whole: Run, after: int) -> None:
        config = toy_config(tmp_path, steps=20, patience=3, keep=1, **BY)
        done = list(whole.records())[-1]["step"]
        assert after < done < 20
        with pytest.raises(Interrupted):
            train(config, tmp_path / "run", progress=killing(after))
        run = train(config, tmp_path / "run", resume=True)
        assert comparable(list(run.records())) == comparable(list(whole.records()))
        assert folders(run) == folders(whole)
        for step in (done, done - 3):
            assert weights_of(run.folder, step) == weights_of(whole.folder, step)

    def test_a_missing_end_is_written(self, tmp_path: Path) -> None:
        config = toy_config(tmp_path, steps=20, patience=2, **BY)
        run = train(config, tmp_path / "run")
        lines = run.metrics.read_bytes().splitlines(keepends=True)
        run.metrics.write_bytes(b"".join(lines[:-1]))
        again = train(config, tmp_path / "run", resume=True)
        assert events(again)[-2:] == ["resumed", "finished"]
        assert len(records(again, "step")) == len([line for line in lines if b'"kind": "step"' in line])

    def test_an_unknown_metric_is_an_error_before_the_first_step(self, tmp_path: Path) -> None:
        config = toy_config(tmp_path, **BY | {"best_by": "entropi"})
        with pytest.raises(
            RunError, match=r'train.best_by: found "entropi", which .* did you mean "entropy"\?'
        ) as raised:
            train(config, tmp_path / "run")
        assert raised.value.status == 2
        assert "base_loss/perplexity" in str(raised.value)
        assert records(Run(tmp_path / "run"), "step") == []

    def test_metrics_of_terms_and_of_the_base_loss_count_too(self, tmp_path: Path) -> None:
        for by in ("loss", "kl", "kl_weighted", "base_loss/mean_nll", "counting/seen"):
            run = train(toy_config(tmp_path / by, steps=2, **BY | {"best_by": by}), tmp_path / by / "run")
            assert find(run, "best").step in (1, 2)

    def test_what_needs_evaluations_is_an_error_without_them(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError) as raised:
            toy_config(tmp_path, patience=2, min_improvement=0.1, best_is="highest")
        assert [problem.where for problem in raised.value.problems] == [
            "train.best_is",
            "train.min_improvement",
            "train.patience",
        ]
        assert "there is no train.best_by" in str(raised.value)
