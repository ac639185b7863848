"""`penalties.train`: what the program does, with errors that are raised."""

import asyncio
import importlib.util
import os
import signal
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import penalties as pn
from penalties.app.api import runs as runs_module
from penalties.app.config import ConfigError, load
from penalties.app.runs.disk import RunError
from penalties.app.runs.log import Log
from penalties.app.train import Interrupted
from penalties.errors import MissingLibraryError, OptionError

from ..stand_ins import write_config

FAILING = '[[term]]\nfn = "tests.app.terms:failing"\n'


def tables() -> dict[str, Any]:
    return tomllib.loads(Path("toy.toml").read_text())


class TestConfigs:
    def test_a_path_a_mapping_and_a_config_train_the_same(self, here: Path) -> None:
        given = {"path": "toy.toml", "mapping": tables(), "config": load("toy.toml"), "pathlike": here / "toy.toml"}
        losses = [pn.train(one, run=name, quiet=True).steps["loss"].tolist() for name, one in given.items()]
        assert len(losses[0]) == 4
        assert losses == [losses[0]] * 4

    def test_paths_of_a_mapping_may_be_objects(self, here: Path) -> None:
        given = tables()
        given["data"] |= {"path": [here / "data.jsonl"], "eval_path": here / "held_out.jsonl"}
        run = pn.train(given, quiet=True)
        assert run.config is not None
        assert run.config["data"]["path"] == [str(here / "data.jsonl")]
        assert given["data"]["path"] == [here / "data.jsonl"]

    def test_overrides_set_keys(self) -> None:
        run = pn.train("toy.toml", overrides={"train.steps": 2, "term.kl.weight": 0.25}, quiet=True)
        assert run.config is not None
        assert len(run.steps["step"]) == 2
        assert run.config["term"][0]["weight"] == 0.25
        assert len(pn.train(load("toy.toml"), overrides={"train.steps": 3}, quiet=True).steps["step"]) == 3

    def test_a_function_of_the_notebook_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys.modules["__main__"], "mine", lambda logprobs: logprobs[0].mean(), raising=False)
        given = tables()
        given["term"] = [{"fn": "__main__:mine", "name": "mine", "weight": 0.1}]
        assert "mine" in pn.train(given, quiet=True).steps

    def test_a_config_that_cannot_be_used_has_every_problem(self) -> None:
        given = tables()
        given["train"] |= {"lr": 5, "steps": 0}
        with pytest.raises(ConfigError) as raised:
            pn.train(given, quiet=True)
        assert {one.where for one in raised.value.problems} == {"train.lr", "train.steps"}
        assert not Path("runs").exists()

    def test_anything_else_is_an_error(self) -> None:
        with pytest.raises(OptionError, match=r"config=5; expected the path of a TOML file, a mapping"):
            pn.train(5)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match=r"overrides=.*; expected a mapping"):
            pn.train("toy.toml", overrides=["train.steps=5"])  # type: ignore[arg-type]


class TestFolders:
    def test_are_new_ones_in_runs(self) -> None:
        assert pn.train("toy.toml", quiet=True).folder == Path("runs/toy")
        assert pn.train("toy.toml", quiet=True).folder == Path("runs/toy-2")
        assert pn.train(tables(), quiet=True).folder == Path("runs/run")

    def test_one_with_a_run_is_an_error_in_words_of_python(self) -> None:
        pn.train("toy.toml", run="mine", quiet=True)
        with pytest.raises(RunError, match=r"already has a run; resume it with resume=True, or choose .* with run=$"):
            pn.train("toy.toml", run="mine", quiet=True)

    def test_one_without_a_run_cannot_be_resumed(self) -> None:
        with pytest.raises(RunError, match=r"nothing holds no run; start one without resume=True"):
            pn.train(run="nothing", resume=True, quiet=True)


class TestFailures:
    def test_name_the_step_and_the_term_and_leave_a_report(self, here: Path) -> None:
        write_config(here, terms=FAILING)
        with pytest.raises(RunError) as raised:
            pn.train("toy.toml", quiet=True)
        first, second = str(raised.value).splitlines()
        assert first == "at step 5: failing: raised RuntimeError: as the test wants it"
        assert second == 'on_error = "skip" in its [[term]] leaves it out when it fails'
        assert raised.value.__notes__ == ["report: runs/toy/report.html"]
        assert "failing" in Path("runs/toy/report.html").read_text()
        assert not pn.runs.read("runs/toy").finished

    def test_before_the_first_step_leave_a_report_in_a_folder_that_was_chosen(self, here: Path) -> None:
        (here / "losses_of_python.py").write_text("def loss(data, logprobs):\n    raise ValueError('no')\n")
        write_config(here, terms="", loss="losses_of_python:loss")
        with pytest.raises(RunError, match="in the evaluation before step 1: base_loss: raised ValueError: no"):
            pn.train("toy.toml", quiet=True)
        assert not Path("runs/toy").exists()
        with pytest.raises(RunError) as raised:
            pn.train("toy.toml", run="mine", quiet=True)
        assert raised.value.__notes__ == ["report: mine/report.html"]
        assert "in the evaluation before step 1" in str(raised.value)
        assert "raised ValueError: no" in Path("mine/report.html").read_text()

    def test_an_interrupted_run_is_resumed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        write = Log.write

        def pressing(self: Log, record: Any) -> str:
            if record["kind"] == "step" and record["step"] == 3:
                os.kill(os.getpid(), signal.SIGINT)
            return write(self, record)

        with monkeypatch.context() as patch:
            patch.setattr(Log, "write", pressing)
            with pytest.raises(
                Interrupted, match=r"after 3 steps; resume with pn.train\(run='runs/toy', resume=True\)"
            ):
                pn.train("toy.toml", quiet=True)
        assert len(pn.runs.read("runs/toy").steps["step"]) == 3
        # The last run of that config.
        run = pn.train("toy.toml", resume=True, quiet=True)
        assert run.folder == Path("runs/toy")
        assert run.finished
        assert run.steps["step"].tolist() == [1, 2, 3, 4]
        again = pn.train(run="runs/toy", resume=True, quiet=True)
        assert again.steps["loss"].tolist() == run.steps["loss"].tolist()

    def test_without_the_program_is_one_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(runs_module, "find_spec", lambda name: None if name == "pydantic" else object())
        with pytest.raises(
            MissingLibraryError, match=r'^penalties.train needs pydantic: pip install "penalties\[cli\]"$'
        ):
            pn.train("toy.toml")
        with pytest.raises(MissingLibraryError, match=r"^penalties.runs.read needs pydantic"):
            pn.runs.read("runs/toy")


class TestDisplay:
    def test_a_script_sees_what_the_program_prints(self, capsys: pytest.CaptureFixture[str]) -> None:
        pn.train("toy.toml")
        assert "step 1/4: loss" in capsys.readouterr().out

    def test_a_notebook_sees_nothing_unless_it_asks(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shell = SimpleNamespace(kernel=object())
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
        pn.train("toy.toml")
        assert capsys.readouterr().out == ""
        pn.train("toy.toml", quiet=False)
        assert "step 1/4: loss" in capsys.readouterr().out
        # IPython in a terminal.
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace()))
        pn.train("toy.toml")
        assert "step 1/4: loss" in capsys.readouterr().out

    def test_it_trains_where_an_event_loop_runs(self) -> None:
        async def cell() -> Any:
            return pn.train("toy.toml", quiet=True)

        assert asyncio.run(cell()).finished


def test_the_libraries_of_the_program_are_installed_here() -> None:
    assert all(importlib.util.find_spec(name) for name in runs_module._PROGRAM)
