"""Searching: what is proposed is trained and told, and a search that was killed goes on."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from penalties.app import cli
from penalties.app.config import ConfigError
from penalties.app.runs import Run
from penalties.app.runs.disk import RunError
from penalties.app.search import Found, Goal, Search, constraint_of, found_in, range_of, search
from penalties.app.train import Interrupted
from penalties.app.train.progress import SILENT

from ..ablation.records import in_sequence, loading
from ..stand_ins import Backend, killing, write_config

pytestmark = pytest.mark.usefixtures("backends")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_config(tmp_path, steps=4)


def wanted(path: Path, *ranges: str, goals: Any = ("base_loss",), limits: Any = (), trials: int = 4) -> Search:
    over = [range_of(one) for one in ranges or ("kl.weight=log(1e-3,1)",)]
    chosen = [one if isinstance(one, Goal) else Goal(one) for one in goals]
    return Search(loading(path), over, chosen, [constraint_of(one) for one in limits], trials)


def found(made: Search, folder: Path, **options: Any) -> Found:
    return search(made, folder, **{"training": in_sequence(), **options})


class TestTrials:
    def test_each_is_a_run_with_the_values_that_were_proposed(self, path: Path, tmp_path: Path) -> None:
        ranges = "kl.weight=log(1e-3,1)", "train.batch_size=int(2,4)", "entropy.enabled=true,false"
        made = found(wanted(path, *ranges), tmp_path / "out")
        assert [trial.folder.name for trial in made.trials] == [f"trial-{number:04d}" for number in range(4)]
        for trial in made.trials:
            config: Any = Run(trial.folder).config()
            assert config["term"][0]["weight"] == trial.settings["kl.weight"]
            assert config["train"]["batch_size"] == trial.settings["train.batch_size"]
            assert config["term"][1]["enabled"] is trial.settings["entropy.enabled"]
            evaluated = [record for record in Run(trial.folder).records() if record["kind"] == "eval"][-1]
            assert trial.metrics == {"base_loss": evaluated["loss"]["base_loss"]["value"]}
        assert found_in(tmp_path / "out") == made

    @pytest.mark.slow
    def test_a_seed_proposes_the_same(self, path: Path, tmp_path: Path) -> None:
        one, other = (found(wanted(path), tmp_path / name) for name in ("one", "other"))
        assert [trial.settings for trial in one.trials] == [trial.settings for trial in other.trials]
        assert len({trial.settings["kl.weight"] for trial in one.trials}) == 4

    @pytest.mark.slow
    def test_what_was_measured_leads_to_better_values(self, path: Path, tmp_path: Path) -> None:
        made = found(wanted(path, "train.learning_rate=log(1e-4,1e-1)", trials=20), tmp_path / "out")
        losses = [trial.metrics["base_loss"] for trial in made.trials]
        assert sum(losses[12:]) / 8 < sum(losses[:10]) / 10

    def test_constraints_and_several_metrics_are_told(self, path: Path, tmp_path: Path) -> None:
        goals = ("base_loss", Goal("counting/seen", highest=True))
        made = found(wanted(path, goals=goals, limits=["kl<0.01"]), tmp_path / "out")
        assert set(made.trials[0].metrics) == {"base_loss", "counting/seen", "kl"}
        optuna: Any = importlib.import_module("optuna")
        storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path / 'out' / 'study.db'}")
        study = optuna.load_study(study_name=None, storage=storage)
        for trial, told in zip(made.trials, study.trials, strict=True):
            assert told.values == [trial.metrics["base_loss"], trial.metrics["counting/seen"]]
            assert list(told.constraints.values()) == [trial.metrics["kl"] - 0.01]
        storage.remove_session()
        storage.engine.dispose()

    def test_one_that_fails_does_not_stop_the_others(self, path: Path, tmp_path: Path) -> None:
        made = found(
            wanted(path, trials=3),
            tmp_path / "out",
            training=in_sequence(SILENT, _breaking()),
        )
        assert [trial.error for trial in made.trials] == [None, "RuntimeError: as the test wants it", None]
        assert made.trials[1].metrics == {}


def _breaking() -> Any:
    class Breaking:
        def record(self, record: Any, line: str) -> None:
            if record["kind"] == "step":
                raise RuntimeError("as the test wants it")

        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

    return Breaking()


class TestResume:
    def test_what_is_left_is_finished_with_the_same_runs(
        self, path: Path, tmp_path: Path, backends: list[Backend]
    ) -> None:
        out = tmp_path / "out"
        with pytest.raises(Interrupted):
            found(wanted(path), out, training=in_sequence(SILENT, SILENT, killing(3)))
        begun = {one.name: Run(one).config() for one in out.glob("trial-*")}
        assert len(begun) == 3
        assert len(found_in(out).trials) == 2
        made = found(wanted(path), out, resume=True)
        assert [trial.folder.name for trial in made.trials] == ["trial-0000", "trial-0001", "trial-0002", *_last(made)]
        assert len(made.trials) == 4
        assert {name: Run(out / name).config() for name in begun} == begun
        assert len(backends) == 5
        # With more trials it goes on.
        assert len(found(wanted(path, trials=5), out, resume=True).trials) == 5

    def test_a_study_that_is_damaged_is_an_error(self, path: Path, tmp_path: Path) -> None:
        found(wanted(path, trials=1), tmp_path / "out")
        (tmp_path / "out" / "study.db").write_bytes(b"none of SQLite's" * 500)
        with pytest.raises(RunError, match=r"study\.db cannot be read: .*not a database; restore the file, or choose"):
            found(wanted(path), tmp_path / "out", resume=True)

    def test_another_search_is_an_error(self, path: Path, tmp_path: Path) -> None:
        found(wanted(path, trials=1), tmp_path / "out")
        with pytest.raises(RunError, match="already has a search; use --resume"):
            found(wanted(path), tmp_path / "out")
        other = wanted(path, "kl.weight=log(1e-2,1)", limits=["kl<1"])
        told = r"the search changed: over was kl.weight=log\(0.001,1.0\); constraints was empty; resume it as it was"
        with pytest.raises(RunError, match=told) as raised:
            found(other, tmp_path / "out", resume=True)
        assert raised.value.status == 2


def _last(made: Found) -> list[str]:
    return [trial.folder.name for trial in made.trials[3:]]


class TestChecks:
    def test_a_value_that_a_config_cannot_have_is_found_first(self, path: Path) -> None:
        with pytest.raises(ConfigError, match="weight"):
            wanted(path, "kl.weight=uniform(-1,1)").check()
        with pytest.raises(ConfigError, match="kll"):
            wanted(path, "kll.weight=uniform(0,1)").check()

    def test_a_key_with_two_ranges_is_an_error(self, path: Path) -> None:
        with pytest.raises(RunError, match="--over kl.weight: given twice"):
            wanted(path, "kl.weight=1,2", "kl.weight=uniform(0,1)").check()

    def test_a_folder_that_no_database_can_name_is_an_error(self, path: Path, tmp_path: Path) -> None:
        with pytest.raises(RunError, match=r"under a path with a \?"):
            found(wanted(path), tmp_path / "what?")


class TestCommand:
    SEARCH = ("--over", "kl.weight=log(1e-3,1)", "--trials", "3", "--constraint", "kl<100")

    @pytest.fixture(autouse=True)
    def here(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(path.parent)

    def test_ends_in_a_table_and_a_report(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["search", "toy.toml", *self.SEARCH]) == 0
        shown = capsys.readouterr().out
        assert "3 of 3: trial-0002: kl.weight " in shown
        assert "The lowest base_loss with kl<100 of 3 trials is " in shown
        assert shown.splitlines()[-1] == "report: runs/toy-search/report.html"
        page = Path("runs/toy-search/report.html").read_text()
        assert 'aria-label="Search"' in page
        assert "Pareto front" in page

    def test_json_is_the_result_alone(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["search", "toy.toml", *self.SEARCH, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["kind"], len(told["trials"])) == ("search", 3)
        assert told["best"] in told["front"]

    def test_ctrl_c_shows_a_command_that_resumes(
        self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from penalties.app.train import progress

        with monkeypatch.context() as broken:
            broken.setattr(progress, "chosen", lambda **_: killing(2))
            assert cli.main(["search", "toy.toml", *self.SEARCH, "--quiet", "--maximize", "entropy"]) == 1
        told = capfd.readouterr().err.splitlines()[-1]
        again = (
            "--over 'kl.weight=log(1e-3,1)' --maximize entropy --constraint 'kl<100' --trials 3 --run runs/toy-search"
        )
        assert told == f"penalties search toy.toml {again} --resume"

    def test_without_optuna_one_line_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setitem(sys.modules, "optuna", None)
        assert cli.main(["search", "toy.toml", *self.SEARCH]) == 2
        assert capsys.readouterr().err == 'error: penalties search needs optuna: pip install "penalties[search]"\n'
        assert not Path("runs").exists()

    def test_resume_without_a_search_is_an_error(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["search", "toy.toml", *self.SEARCH, "--resume"]) == 2
        assert "runs/toy-search holds no search; start one without --resume" in capsys.readouterr().err
