"""`penalties train` and `penalties ablate`, from the command line."""

import errno
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from penalties.app import cli
from penalties.app import train as train_module
from penalties.app.clients import connect
from penalties.app.commands.train import folder_for, next_command
from penalties.app.disk import RunError
from penalties.app.log import Log
from penalties.app.runs import Run

from .stand_ins import Backend, write_config


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(train_module, "connect", Backend)
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path, steps=4)
    return tmp_path


def interrupting(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Ctrl-C during a step."""
    write = Log.write

    def pressing(self: Log, record: Any) -> str:
        if record["kind"] == "step" and record["step"] == step:
            os.kill(os.getpid(), signal.SIGINT)
        return write(self, record)

    monkeypatch.setattr(Log, "write", pressing)


class TestTrain:
    def test_trains_and_writes_a_report(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["train", "toy.toml"]) == 0
        shown = capsys.readouterr()
        assert shown.err == ""
        assert shown.out.splitlines()[0] == "runs/toy: 4 steps"
        assert shown.out.splitlines()[-1] == "report: runs/toy/report.html"
        assert (here / "runs" / "toy" / "report.html").read_text().startswith("<!")

    def test_a_new_run_has_a_new_folder(self, here: Path) -> None:
        for name in ("toy", "toy-2", "toy-3"):
            assert cli.main(["train", "toy.toml", "--quiet"]) == 0
            assert Run(here / "runs" / name).begun()

    def test_json_is_the_log_and_the_result(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["train", "toy.toml", "--run", "mine", "--set", "train.steps=2", "--json"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["kind"] for line in lines].count("step") == 2
        assert lines[-1] == {"kind": "result", "run": "mine", "report": "mine/report.html"}

    def test_quiet_is_quiet(self, capfd: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["train", "toy.toml", "--quiet"]) == 0
        assert capfd.readouterr() == ("", "")

    def test_ctrl_c_says_how_to_go_on_and_that_works(
        self, here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        interrupting(monkeypatch, 1)
        assert cli.main(["train", "toy.toml", "--set", "train.steps=5"]) == 1
        shown = capfd.readouterr()
        assert shown.err.splitlines() == [
            "stopping after this step; once more to stop at once",
            "error: interrupted after 2 steps; go on with:",
            "penalties train toy.toml --set train.steps=5 --run runs/toy --resume",
        ]
        assert (here / "runs" / "toy" / "report.html").is_file()
        monkeypatch.undo()
        monkeypatch.chdir(here)
        monkeypatch.setattr(train_module, "connect", Backend)
        assert cli.main(shown.err.splitlines()[-1].split()[1:]) == 0
        steps = [record["step"] for record in Run("runs/toy").records() if record["kind"] == "step"]
        assert steps == [0, 1, 2, 3, 4]

    def test_resume_without_a_folder_is_of_the_last_run(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert cli.main(["train", "toy.toml", "--quiet"]) == 0
        with monkeypatch.context() as broken:
            interrupting(broken, 1)
            assert cli.main(["train", "toy.toml", "--quiet"]) == 1
        assert cli.main(["train", "toy.toml", "--quiet", "--resume"]) == 0
        last = Run("runs/toy-2").last()
        assert last is not None
        assert last["event"] == "finished"

    def test_so_does_the_local_model_from_a_relative_folder(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(train_module, "connect", connect)
        with monkeypatch.context() as broken:
            interrupting(broken, 1)
            assert cli.main(["train", "--set", "train.steps=3", "--quiet", "--run", "mine"]) == 1
        assert cli.main(["train", "--set", "train.steps=3", "--quiet", "--run", "mine", "--resume"]) == 0
        assert [record["step"] for record in Run("mine").records() if record["kind"] == "step"] == [0, 1, 2]

    def test_a_run_that_never_began_leaves_no_folder_that_nobody_named(
        self, here: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (here / "data.jsonl").write_text('{"prompt": "x"}\n')
        assert cli.main(["train", "toy.toml"]) in (1, 2)
        assert "line 1" in capsys.readouterr().err
        assert not (here / "runs" / "toy").exists()
        assert cli.main(["train", "toy.toml", "--run", "mine"]) in (1, 2)
        assert (here / "mine").exists()

    def test_a_folder_that_is_taken_is_the_commands_fault(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["train", "toy.toml", "--quiet", "--run", "mine"]) == 0
        assert cli.main(["train", "toy.toml", "--quiet", "--run", "mine"]) == 2
        assert "mine holds a run already" in capsys.readouterr().err

    def test_a_term_that_fails_is_the_runs_fault(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        write_config(here, terms='[[term]]\nfn = "tests.app.terms:failing"\n')
        assert cli.main(["train", "toy.toml", "--quiet"]) == 1
        assert "as the test wants it" in capsys.readouterr().err
        assert Run("runs/toy").begun()

    def test_a_place_that_cannot_be_written_is_a_clear_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refused(*_: Any, **__: Any) -> Any:
            raise OSError(errno.EROFS, "Read-only file system")

        monkeypatch.setattr(Path, "mkdir", refused)
        with pytest.raises(RunError, match="runs/toy could not be written: read-only file system"):
            folder_for("toy.toml", resume=False)

    def test_two_that_start_together_get_two_folders(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        mkdir = Path.mkdir
        made: list[Path] = []

        def meanwhile(self: Path, *arguments: Any, **options: Any) -> None:
            if self.name == "toy" and not made:
                made.append(self)
                mkdir(self)
            mkdir(self, *arguments, **options)

        monkeypatch.setattr(Path, "mkdir", meanwhile)
        assert folder_for("toy.toml", resume=False) == Path("runs/toy-2")

    def test_folders_of_others_are_none_of_its_business(self, here: Path) -> None:
        for name in ("toy-new", "toy-7", "toys"):
            (here / "runs" / name).mkdir(parents=True)
        assert folder_for("toy.toml", resume=False) == Path("runs/toy-8")
        assert folder_for("toy.toml", resume=True) == Path("runs/toy-8")
        assert folder_for(None, resume=True) == Path("runs/demo")

    def test_the_next_command_can_be_pasted(self) -> None:
        told = next_command("train", "my config.toml", ['kl.options={ a = "b" }'], Path("r u n"))
        assert told == "penalties train 'my config.toml' --set 'kl.options={ a = \"b\" }' --run 'r u n' --resume"
        assert next_command("train", None, [], Path("r")) == "penalties train --run r --resume"


class TestAblate:
    def test_compares_in_a_table_and_one_report(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["ablate", "toy.toml"]) == 0
        shown = capsys.readouterr().out
        assert "2 of 4: without kl, seed 0" in shown
        assert "variant           base loss  difference" in shown
        assert shown.splitlines()[-1] == "report: runs/toy-ablation/report.html"
        assert (here / "runs" / "toy-ablation" / "report.html").is_file()
        assert Run("runs/toy-ablation/without-kl-seed-0").begun()

    def test_json_is_the_comparison_alone(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["ablate", "toy.toml", "--sweep", "kl.weight=0.1,1", "--seeds", "2", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert [one["variant"] for one in told["variants"]] == ["all", "kl.weight=0.1", "kl.weight=1"]
        assert told["kind"] == "ablation"
        mean, deviation = told["variants"][1]["difference"]
        assert mean != 0
        assert deviation >= 0

    def test_keep_is_of_one_term_each(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["ablate", "toy.toml", "--keep", "--quiet"]) == 0
        assert capsys.readouterr().out == ""
        assert Run("runs/toy-ablation/only-kl-seed-0").begun()

    def test_a_sweep_keeps_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["ablate", "toy.toml", "--keep", "--sweep", "kl.weight=1"]) == 2
        assert "exclude each other" in capsys.readouterr().err

    def test_ctrl_c_says_how_to_go_on(self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as broken:
            interrupting(broken, 1)
            assert cli.main(["ablate", "toy.toml", "--seeds", "2", "--keep", "--quiet"]) == 1
        told = capfd.readouterr().err.splitlines()[-1]
        assert told == "penalties ablate toy.toml --seeds 2 --keep --run runs/toy-ablation --resume"
        with monkeypatch.context() as broken:
            interrupting(broken, 3)
            sweep = ["--sweep", "kl.weight=1", "--run", "swept"]
            assert cli.main(["ablate", "toy.toml", "--quiet", "--set", "train.steps=5", *sweep]) == 1
        told = capfd.readouterr().err.splitlines()[-1]
        assert told == "penalties ablate toy.toml --set train.steps=5 --sweep kl.weight=1 --run swept --resume"
        assert cli.main([*told.split()[1:], "--quiet"]) == 0

    def test_a_run_that_failed_is_told_by_the_status(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        terms = '[[term]]\nfn = "tests.app.terms:failing"\n[[term]]\nfn = "l2"\ninputs = "logprobs"\nweight = 0.1\n'
        write_config(here, terms=terms)
        assert cli.main(["ablate", "toy.toml", "--quiet"]) == 1
        assert "2 of 3 runs failed" in capsys.readouterr().err
