"""Resuming a run: it continues as if nothing had happened, or says why it cannot."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from penalties.app.config import Config
from penalties.app.runs import Run
from penalties.app.runs.disk import RunError
from penalties.app.train import Interrupted, train
from penalties.app.train import start as start_module
from penalties.app.train.progress import Progress
from penalties.errors import InputError

from ..configs import lines
from ..data.test_sources import FORMS
from ..stand_ins import (
    TERMS,
    Backend,
    Client,
    comparable,
    events,
    killing,
    killing_at_load,
    records,
    toy_config,
    trained,
    weights_of,
)

pytestmark = pytest.mark.usefixtures("backends")


@pytest.fixture(scope="module")
def seven(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of seven steps."""
    return trained(tmp_path_factory.mktemp("seven"), steps=7)


@pytest.fixture(scope="module")
def after_five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was stopped in its fifth step of six."""
    folder = tmp_path_factory.mktemp("interrupted")
    with pytest.raises(Interrupted):
        trained(folder, progress=killing(5))
    return folder / "run"


@pytest.fixture
def interrupted(tmp_path: Path, after_five: Path) -> Config:
    """The config of that run, of which there is a copy in the folder `run`."""
    shutil.copytree(after_five, tmp_path / "run")
    return toy_config(tmp_path)


@pytest.mark.parametrize("form", ["list", "weights", "messages", "text", "parquet", "datasets"])
def test_every_form_of_data_is_resumed_with_the_same_numbers(tmp_path: Path, form: str) -> None:
    config = toy_config(tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "data.jsonl").read_text().splitlines()]
    if form == "messages":
        talk = [[{"role": "user", "content": one["prompt"]}, {"role": "assistant", "content": "ok"}] for one in rows]
        name = lines(tmp_path / "chat.jsonl", [{"messages": one} for one in talk]).name
    elif form == "text":
        name = lines(tmp_path / "mine.txt", [one["completion"] for one in rows]).name
    elif form in FORMS:
        name = FORMS[form](tmp_path / "mine", rows)
    else:
        name = lines(tmp_path / "more.jsonl", rows[:3]).name
    path: Any = str(tmp_path / name)
    changes: dict[str, Any] = {"path": path}
    if form in ("list", "weights"):
        changes = {"path": [config.data.path, path], "weights": [1.0, 2.0] if form == "weights" else None}
    config = config.model_copy(update={"data": config.data.model_copy(update=changes)})
    whole = train(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", progress=killing(3))
    run = train(config, tmp_path / "run", resume=True)
    assert comparable(list(run.records())) == comparable(list(whole.records()))
    assert weights_of(run.folder, 6) == weights_of(whole.folder, 6)


class TestResume:
    @pytest.mark.parametrize("after", [1, 2, 3, 4, 5, 6])
    def test_has_the_same_log_and_weights_as_an_uninterrupted_run(self, tmp_path: Path, seven: Run, after: int) -> None:
        config = toy_config(tmp_path, steps=7)
        with pytest.raises(Interrupted):
            train(config, tmp_path / "run", progress=killing(after))
        run = train(config, tmp_path / "run", resume=True)
        assert comparable(list(run.records())) == comparable(list(seven.records()))
        assert weights_of(run.folder, 7) == weights_of(seven.folder, 7)
        assert "resumed" in events(run)

    def test_the_state_of_terms_is_restored_in_its_own_library(self, tmp_path: Path, interrupted: Config) -> None:
        run = train(interrupted, tmp_path / "run", resume=True)
        seen = [record["loss"]["regularizers"].get("counting", {}).get("custom") for record in records(run, "step")]
        assert seen == [{"seen": 0.0}, None, {"seen": 1.0}, None, {"seen": 2.0}, None]

    def test_a_run_that_does_not_exist_begins(self, tmp_path: Path) -> None:
        run = train(toy_config(tmp_path), tmp_path / "run", resume=True)
        assert events(run)[-1] == "finished"
        assert "resumed" not in events(run)

    def test_a_finished_run_is_left_as_it_is(self, tmp_path: Path, finished: Run, backends: list[Backend]) -> None:
        before = finished.metrics.read_bytes()
        said: list[str] = []
        progress = Progress()
        progress.say = said.append  # type: ignore[method-assign]
        again = train(toy_config(tmp_path), finished.folder, resume=True, progress=progress)
        assert again.metrics.read_bytes() == before
        assert backends == []
        assert said == ["the run is already finished"]

    def test_a_missing_finished_event_is_written(self, tmp_path: Path, finished: Run) -> None:
        run = Run(shutil.copytree(finished.folder, tmp_path / "run"))
        lines = run.metrics.read_bytes().splitlines(keepends=True)
        run.metrics.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
        again = train(toy_config(tmp_path), tmp_path / "run", resume=True)
        assert events(again)[-2:] == ["resumed", "finished"]

    def test_more_steps_continue_from_the_end(self, tmp_path: Path, finished: Run) -> None:
        long = toy_config(tmp_path, steps=9, gradients_every=10)
        # Everything that will be needed is asked for at the beginning.
        whole = train(long, tmp_path / "whole")
        shutil.copytree(finished.folder, tmp_path / "run")
        run = train(long, tmp_path / "run", resume=True)
        assert comparable(records(run, "step")) == comparable(records(whole, "step"))
        assert run.config()["train"]["steps"] == 9

    def test_more_steps_with_a_schedule_over_the_run_are_an_error(self, tmp_path: Path) -> None:
        terms = TERMS.replace('{ kind = "warmup", steps = 4 }', '{ kind = "linear" }')
        train(toy_config(tmp_path, terms), tmp_path / "run")
        with pytest.raises(RunError, match="train.steps was 6 and is 9"):
            train(toy_config(tmp_path, terms, steps=9), tmp_path / "run", resume=True)

    def test_another_config_is_an_error_that_names_the_difference(self, tmp_path: Path, finished: Run) -> None:
        with pytest.raises(RunError, match="train.learning_rate was 0.05 and is 0.1") as raised:
            train(toy_config(tmp_path, learning_rate=0.1), finished.folder, resume=True)
        assert raised.value.status == 2

    def test_a_run_that_never_began_may_begin_with_another_config(self, tmp_path: Path) -> None:
        config = toy_config(tmp_path)
        with pytest.raises(Interrupted):
            train(config, tmp_path / "run", progress=killing_at_load())
        other = toy_config(tmp_path, learning_rate=0.1)
        run = train(other, tmp_path / "run", resume=True)
        assert run.config()["train"]["learning_rate"] == 0.1
        assert "resumed" not in events(run)

    def test_other_data_are_an_error(self, tmp_path: Path, interrupted: Config) -> None:
        with (tmp_path / "data.jsonl").open("a") as file:
            file.write('{"prompt": "a", "completion": "b"}\n')
        with pytest.raises(RunError, match="the data changed"):
            train(interrupted, tmp_path / "run", resume=True)

    def test_a_failed_resume_changes_nothing(
        self, tmp_path: Path, interrupted: Config, finished: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = Run(tmp_path / "run")
        before = records(run, "step")
        assert len(before) == 5

        def unreachable(*_: Any) -> Any:
            raise RunError("could not get a model")

        with monkeypatch.context() as broken:
            broken.setattr(start_module, "connect", unreachable)
            with pytest.raises(RunError, match="could not get a model"):
                train(interrupted, tmp_path / "run", resume=True)
        assert records(run, "step") == before
        assert records(run, "event")[-1]["step"] == 4
        again = train(interrupted, tmp_path / "run", resume=True)
        assert comparable(records(again, "step")) == comparable(records(finished, "step"))

    def test_a_stop_while_loading_changes_nothing(self, tmp_path: Path, interrupted: Config) -> None:
        progress = killing_at_load()
        with pytest.raises(Interrupted, match="immediately after 4 steps; the last checkpoint is after 4 steps"):
            train(interrupted, tmp_path / "run", resume=True, progress=progress)

    def test_data_may_have_moved(self, tmp_path: Path) -> None:
        config = toy_config(tmp_path / "here")
        with pytest.raises(Interrupted):
            train(config, tmp_path / "run", progress=killing(5))
        (tmp_path / "here").rename(tmp_path / "there")
        run = train(toy_config(tmp_path / "there"), tmp_path / "run", resume=True)
        assert events(run)[-1] == "finished"
        assert "there" in run.config()["data"]["path"]

    def test_options_that_are_newer_than_the_run_have_their_defaults(self, tmp_path: Path, interrupted: Config) -> None:
        path = tmp_path / "run" / "config.json"
        older = json.loads(path.read_text())
        del older["train"]["weight_decay"]
        path.write_text(json.dumps(older))
        assert events(train(interrupted, tmp_path / "run", resume=True))[-1] == "finished"

    def test_options_of_another_version_are_an_error(self, tmp_path: Path, interrupted: Config) -> None:
        path = tmp_path / "run" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"gone": {"x": 1}}))
        with pytest.raises(RunError, match="another version of penalties: gone: no such table") as raised:
            train(interrupted, tmp_path / "run", resume=True)
        assert raised.value.status == 2

    @pytest.mark.parametrize("which", ["finished", "interrupted"])
    def test_fewer_steps_than_are_done_are_an_error(
        self, tmp_path: Path, which: str, finished: Run, interrupted: Config
    ) -> None:
        folder = finished.folder if which == "finished" else tmp_path / "run"
        with pytest.raises(RunError, match="steps are done; train.steps is 3") as raised:
            train(toy_config(tmp_path, steps=3), folder, resume=True)
        assert raised.value.status == 2
        assert Run(folder).config()["train"]["steps"] == 6

    def test_a_damaged_checkpoint_is_reported(self, tmp_path: Path, interrupted: Config, finished: Run) -> None:
        (tmp_path / "run" / "checkpoints" / "000004" / "client" / "toy.safetensors").write_bytes(b"no")
        run = train(interrupted, tmp_path / "run", resume=True)
        (warning,) = [record for record in records(run, "event") if record["event"] == "warning"]
        assert "a later checkpoint is damaged" in warning["message"]
        assert weights_of(run.folder, 6) == weights_of(finished.folder, 6)

    def test_a_log_that_lost_lines_is_reported(self, tmp_path: Path, interrupted: Config) -> None:
        (tmp_path / "run" / "metrics.jsonl").unlink()
        run = train(interrupted, tmp_path / "run", resume=True)
        assert [record["step"] for record in records(run, "step")] == [5, 6]
        assert events(run)[:2] == ["resumed", "warning"]
        assert "the log is not as it was at that checkpoint" in records(run, "event")[1]["message"]

    def test_so_is_one_that_gained_some_and_every_line_is_a_record(self, tmp_path: Path, interrupted: Config) -> None:
        path = tmp_path / "run" / "metrics.jsonl"
        path.write_text('{"kind": "note"}\n' + path.read_text())
        run = train(interrupted, tmp_path / "run", resume=True)
        assert [record["step"] for record in records(run, "step")] == list(range(1, 7))
        assert events(run).count("warning") == 1

    def test_random_terms_draw_the_same_numbers(self, tmp_path: Path) -> None:
        config = toy_config(tmp_path, '[[term]]\nfn = "tests.app.terms:drawing"\n')
        whole = train(config, tmp_path / "whole")
        with pytest.raises(Interrupted):
            train(config, tmp_path / "run", progress=killing(5))
        run = train(config, tmp_path / "run", resume=True)
        assert comparable(list(run.records())) == comparable(list(whole.records()))
        assert weights_of(run.folder, 6) == weights_of(whole.folder, 6)
        other = train(toy_config(tmp_path, '[[term]]\nfn = "tests.app.terms:drawing"\n', seed=1), tmp_path / "other")
        assert comparable(records(other, "step")) != comparable(records(whole, "step"))

    def test_random_terms_on_a_gpu_draw_the_same_numbers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        seeds: list[int] = []
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
        train(toy_config(tmp_path, steps=2), tmp_path / "run")
        again = list(seeds)
        seeds.clear()
        train(toy_config(tmp_path, steps=2), tmp_path / "again")
        assert seeds == again
        assert len(set(seeds)) == 3

    def test_without_its_file_the_model_before_training_is_an_error(self, tmp_path: Path, interrupted: Config) -> None:
        (tmp_path / "run" / "references" / "initial.npz").unlink()
        with pytest.raises(RunError, match="initial.npz is missing"):
            train(interrupted, tmp_path / "run", resume=True)

    def test_an_error_of_the_server_names_its_cause(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def deaf(*_: Any) -> Any:
            raise ConnectionError("nobody there")

        monkeypatch.setattr(Client, "forward", deaf)
        with pytest.raises(InputError, match="initial: its forward raised .*nobody there"):
            train(toy_config(tmp_path), tmp_path / "run")

    def test_more_steps_than_were_evaluated_before_training_are_an_error(self, tmp_path: Path) -> None:
        train(toy_config(tmp_path, steps=1), tmp_path / "run")
        with pytest.raises(RunError, match="data of fewer steps") as raised:
            train(toy_config(tmp_path, steps=3), tmp_path / "run", resume=True)
        assert raised.value.status == 2
        assert Run(tmp_path / "run").config()["train"]["steps"] == 1

    def test_an_existing_run_is_not_overwritten(self, tmp_path: Path, finished: Run) -> None:
        with pytest.raises(RunError, match="already has a run"):
            train(toy_config(tmp_path), finished.folder)
