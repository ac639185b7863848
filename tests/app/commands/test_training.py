"""`penalties train` and `penalties ablate`, from the command line."""

import errno
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from penalties.app import cli
from penalties.app.commands.options import command_line
from penalties.app.commands.train import folder_for
from penalties.app.report import page
from penalties.app.runs import Run
from penalties.app.runs.disk import RunError
from penalties.app.runs.log import Log
from penalties.app.train import start as start_module
from penalties.app.train.clients import connect

from ..stand_ins import Backend, Client, write_config


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(start_module, "connect", Backend)
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path, steps=4)
    return tmp_path


@pytest.fixture
def toy(here: Path, finished: Run) -> Path:
    """The folder of a finished run."""
    return shutil.copytree(finished.folder, here / "runs" / "toy")


def interrupting(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Ctrl-C during a step."""
    write = Log.write

    def pressing(self: Log, record: Any) -> str:
        if record["kind"] == "step" and record["step"] == step + 1:
            os.kill(os.getpid(), signal.SIGINT)
        return write(self, record)

    monkeypatch.setattr(Log, "write", pressing)


class TestTrain:
    def test_says_what_was_trained(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        write_config(here, more='[model]\nadapter = "none"\n', steps=1)
        assert cli.main(["train", "toy.toml", "--run", "mine"]) == 0
        assert "\nweights: mine/checkpoints/000001/client\n" in capsys.readouterr().out
        assert cli.main(["train", "toy.toml", "--run", "other", "--json"]) == 0
        result = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert result["weights"] == "other/checkpoints/000001/client"
        assert "adapter" not in result

    def test_trains_and_writes_a_report(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["train", "toy.toml"]) == 0
        shown = capsys.readouterr()
        assert shown.err == ""
        assert shown.out.splitlines()[0] == "runs/toy: 4 steps"
        assert shown.out.splitlines()[-1] == "report: runs/toy/report.html"
        assert shown.out.splitlines()[-3] == "adapter: runs/toy/checkpoints/000004/client"
        assert (here / "runs" / "toy" / "checkpoints" / "000004" / "client").is_dir()
        assert cli.main(["report", "runs/toy"]) == 0
        assert shown.out.splitlines()[-2] == capsys.readouterr().out.splitlines()[0]
        assert shown.out.splitlines()[-2].startswith("toy: The held-out base loss fell by ")
        assert (here / "runs" / "toy" / "report.html").read_text().startswith("<!")

    def test_a_new_run_has_a_new_folder(self, toy: Path) -> None:
        for name in ("toy-2", "toy-3"):
            assert cli.main(["train", "toy.toml", "--quiet", "--set", "train.steps=1"]) == 0
            assert Run(toy.parent / name).begun()

    def test_json_is_the_log_and_the_result(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["train", "toy.toml", "--run", "mine", "--set", "train.steps=2", "--json"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["kind"] for line in lines].count("step") == 2
        verdict = lines[-1].pop("verdict")
        adapter = "mine/checkpoints/000002/client"
        assert lines[-1] == {"kind": "result", "run": "mine", "report": "mine/report.html", "adapter": adapter}
        assert cli.main(["report", "mine", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["runs"] == {"mine": verdict}

    def test_the_adapter_is_that_of_the_best_checkpoint(self, capsys: pytest.CaptureFixture[str]) -> None:
        values = ["train.best_by=base_loss", "train.eval_every=1", "train.best_is=highest", "train.steps=3"]
        assert cli.main(["train", "toy.toml", *(part for one in values for part in ("--set", one))]) == 0
        assert capsys.readouterr().out.splitlines()[-3] == "adapter: runs/toy/checkpoints/000001/client"

    def test_a_finished_run_without_checkpoints_has_no_adapter(
        self, toy: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        shutil.rmtree(toy / "checkpoints")
        assert cli.main(["train", "--run", str(toy), "--resume"]) == 0
        assert "adapter" not in capsys.readouterr().out
        assert cli.main(["train", "--run", str(toy), "--resume", "--json"]) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["adapter"] is None

    def test_quiet_is_quiet(self, capfd: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["train", "toy.toml", "--quiet", "--set", "train.steps=1"]) == 0
        assert capfd.readouterr() == ("", "")

    @pytest.mark.parametrize(
        ("term", "says"),
        [
            (
                "late",
                [
                    "error: at step 3: late: the value is nan",
                    'lower train.learning_rate or set train.grad_clip_norm; on_error = "skip" in its [[term]] leaves '
                    "it out when it fails",
                ],
            ),
            (
                "late_gradient",
                [
                    "error: at step 3: datum 0: the gradient of the loss is nan; nothing was sent",
                    "lower train.learning_rate, set train.grad_clip_norm or set train.gradients_every = 1, which names "
                    "the term",
                ],
            ),
        ],
    )
    def test_a_run_that_fails_says_what_to_try_and_has_a_report(
        self, here: Path, capsys: pytest.CaptureFixture[str], term: str, says: list[str]
    ) -> None:
        write_config(here, f'[[term]]\nfn = "tests.app.terms:{term}"\n', steps=4)
        assert cli.main(["train", "toy.toml"]) == 1
        shown = capsys.readouterr()
        assert shown.err.splitlines() == says
        assert shown.out.splitlines()[-1] == "report: runs/toy/report.html"
        assert "It failed after 2 of 4 steps: " in (here / "runs" / "toy" / "report.html").read_text()
        assert cli.main(["train", "toy.toml", "--quiet"]) == 1
        assert capsys.readouterr().out == ""
        assert (here / "runs" / "toy-2" / "report.html").exists()

    def test_a_model_that_diverged_has_no_term_to_name(
        self, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = Client.forward

        def diverging(self: Client, *arguments: Any) -> Any:
            if self.calls.count("optim_step") == 2:
                self.table.data.fill_(float("nan"))
            return whole(self, *arguments)

        monkeypatch.setattr(Client, "forward", diverging)
        assert cli.main(["train", "toy.toml", "--quiet"]) == 1
        assert capsys.readouterr().err.splitlines() == [
            "error: at step 3: datum 0: the forward returned nan in logprobs; the model diverged",
            "lower train.learning_rate or set train.grad_clip_norm",
        ]

    def test_a_run_that_fails_before_its_first_step_has_a_report_where_its_folder_was_chosen(
        self, here: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write_config(here, terms="", loss="tests.app.terms:failing_loss")
        assert cli.main(["train", "toy.toml", "--run", "mine"]) == 1
        shown = capsys.readouterr()
        assert shown.out.splitlines()[-1] == "report: mine/report.html"
        assert "It failed before its first step was finished" in (here / "mine" / "report.html").read_text()

    def test_ctrl_c_shows_a_command_that_resumes(
        self, here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        interrupting(monkeypatch, 1)
        assert cli.main(["train", "toy.toml", "--set", "train.steps=5"]) == 1
        shown = capfd.readouterr()
        assert shown.err.splitlines() == [
            "stopping after this step; press Ctrl-C again to stop at once",
            "error: interrupted after 2 steps; resume with:",
            "penalties train --run runs/toy --resume",
        ]
        assert (here / "runs" / "toy" / "report.html").is_file()
        monkeypatch.undo()
        monkeypatch.chdir(here)
        monkeypatch.setattr(start_module, "connect", Backend)
        assert cli.main(shown.err.splitlines()[-1].split()[1:]) == 0
        steps = [record["step"] for record in Run("runs/toy").records() if record["kind"] == "step"]
        assert steps == [1, 2, 3, 4, 5]

    def test_ctrl_c_before_the_first_step_shows_a_command_that_resumes(
        self, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def pressed(*_: Any) -> Any:
            raise KeyboardInterrupt

        with monkeypatch.context() as broken:
            broken.setattr(start_module, "connect", pressed)
            assert cli.main(["train", "toy.toml", "--run", "mine", "--quiet"]) == 1
            assert capsys.readouterr().err.splitlines()[1] == "penalties train --run mine --resume"
            assert cli.main(["train", "toy.toml", "--quiet"]) == 1
            assert not list((here / "runs").iterdir())
        assert cli.main(["train", "--run", "mine", "--resume", "--quiet"]) == 0

    @pytest.mark.usefixtures("toy")
    def test_resume_without_a_folder_takes_the_last_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as broken:
            interrupting(broken, 1)
            assert cli.main(["train", "toy.toml", "--quiet"]) == 1
        assert cli.main(["train", "toy.toml", "--quiet", "--resume"]) == 0
        last = Run("runs/toy-2").last()
        assert last is not None
        assert last["event"] == "finished"

    def test_resume_alone_takes_the_last_run_of_the_demo_with_its_own_config(
        self, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        demo = write_config(here / "elsewhere", steps=4).rename(here / "elsewhere" / "demo.toml")
        with monkeypatch.context() as broken:
            interrupting(broken, 1)
            assert cli.main(["train", str(demo), "--set", "train.seed=3", "--quiet"]) == 1
        assert cli.main(["train", "--resume", "--quiet"]) == 0
        assert Run("runs/demo").config()["train"]["seed"] == 3
        assert [record["step"] for record in Run("runs/demo").records() if record["kind"] == "step"] == [1, 2, 3, 4]

    def test_values_may_be_set_on_the_config_of_a_run(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as broken:
            interrupting(broken, 1)
            assert cli.main(["train", "toy.toml", "--run", "mine", "--quiet"]) == 1
        resume = ["train", "--run", "mine", "--resume", "--quiet", "--set"]
        assert cli.main([*resume, "train.eval_every=1"]) == 0
        assert [record["step"] for record in Run("mine").records() if record["kind"] == "eval"] == [0, 3, 4]
        assert cli.main([*resume, "train.seed=1"]) == 2
        assert "train.seed was 0 and is 1" in capsys.readouterr().err
        assert cli.main([*resume, "train.steps=0", "--set", "train.seed=-1"]) == 2
        assert capsys.readouterr().err.splitlines() == [
            "error: mine: train.steps: found 0; expected a whole number of at least 1",
            "and 1 more: --debug shows all of them",
        ]

    def test_terms_beside_the_config_are_found_from_anywhere(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write_config(here / "project", terms='[[term]]\nfn = "terms_of_mine:small"\n', steps=4)
        (path.parent / "terms_of_mine.py").write_text("def small(logprobs):\n    return logprobs[0].mean() ** 2\n")
        monkeypatch.setattr(sys, "path", [*sys.path])
        with monkeypatch.context() as broken:
            interrupting(broken, 1)
            broken.chdir(path.parent)
            assert cli.main(["train", "toy.toml", "--run", str(here / "mine"), "--quiet"]) == 1
        sys.path.remove(str(path.parent))
        del sys.modules["terms_of_mine"]
        assert Run("mine").config()["folder"] == [str(path.parent)]
        assert cli.main(["train", "--run", "mine", "--resume", "--quiet"]) == 0
        last = Run("mine").last()
        assert last is not None
        assert last["event"] == "finished"

    def test_a_project_that_was_moved_can_be_resumed(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write_config(here / "before", terms='[[term]]\nfn = "moved_terms:small"\n', steps=4)
        (path.parent / "moved_terms.py").write_text("def small(logprobs):\n    return logprobs[0].mean() ** 2\n")
        with monkeypatch.context() as broken:
            interrupting(broken, 1)
            assert cli.main(["train", "before/toy.toml", "--run", "mine", "--quiet"]) == 1
        path.parent.rename(here / "after")
        assert cli.main(["train", "after/toy.toml", "--run", "mine", "--resume", "--quiet"]) == 0
        assert Run("mine").config()["folder"] == [str(here / "after")]

    @pytest.mark.parametrize("config", [[], ["toy.toml"]])
    def test_resume_of_a_folder_without_a_run_is_an_error(
        self, here: Path, config: list[str], finished: Run, capsys: pytest.CaptureFixture[str]
    ) -> None:
        resume = ["train", *config, "--resume", "--quiet"]

        def told(*more: str) -> str:
            assert cli.main([*resume, *more]) == 2
            return capsys.readouterr().err

        assert told("--run", "runs/mine") == "error: runs/mine holds no run; start one without --resume\n"
        for name in ("mine", "other"):
            shutil.copytree(finished.folder, here / "runs" / name)
        assert told("--run", "mime") == "error: mime holds no run; did you mean runs/mine?\n"
        there = "there is one in runs/mine and runs/other: choose it with --run"
        assert told("--run", "zzz") == f"error: zzz holds no run; {there}\n"
        assert told() == f"error: runs/{'toy' if config else 'demo'} holds no run; {there}\n"
        assert {path.name for path in (here / "runs").iterdir()} == {"mine", "other"}

    def test_a_run_that_never_began_can_be_resumed(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        data = (here / "data.jsonl").read_text()
        (here / "data.jsonl").write_text('{"prompt": "x"}\n')
        assert cli.main(["train", "toy.toml", "--run", "mine"]) == 2
        (here / "data.jsonl").write_text(data)
        assert cli.main(["train", "--run", "mine", "--resume", "--quiet"]) == 0
        assert Run("mine").begun()

    @pytest.mark.parametrize("name", ["train", "ablate"])
    def test_several_problems_are_listed_by_a_command_that_is_named(
        self, name: str, here: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main([name, "toy.toml", "--set", "train.steps=0", "--set", "train.seed=-1"]) == 2
        check = "penalties check toy.toml --set train.steps=0 --set train.seed=-1"
        assert capsys.readouterr().err.splitlines()[1] == f"and 1 more: `{check}` lists all of them"
        (here / "data.jsonl").write_text("{}\n{}\n")
        assert cli.main([name, "toy.toml"]) == 2
        assert capsys.readouterr().err.splitlines()[1] == "and 1 more: `penalties check toy.toml` lists all of them"

    @pytest.mark.slow
    def test_a_local_model_is_resumed_from_a_relative_folder(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(start_module, "connect", connect)
        with monkeypatch.context() as broken:
            interrupting(broken, 1)
            assert cli.main(["train", "--set", "train.steps=3", "--quiet", "--run", "mine"]) == 1
        assert cli.main(["train", "--set", "train.steps=3", "--quiet", "--run", "mine", "--resume"]) == 0
        assert [record["step"] for record in Run("mine").records() if record["kind"] == "step"] == [1, 2, 3]

    def test_a_run_that_never_began_leaves_no_folder_of_its_own_choice(
        self, here: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (here / "data.jsonl").write_text('{"prompt": "x"}\n')
        assert cli.main(["train", "toy.toml"]) in (1, 2)
        assert "line 1" in capsys.readouterr().err
        assert not (here / "runs" / "toy").exists()
        assert cli.main(["train", "toy.toml", "--run", "mine"]) in (1, 2)
        assert (here / "mine").exists()

    def test_a_folder_with_a_run_is_a_wrong_command(self, toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["train", "toy.toml", "--quiet", "--run", str(toy)]) == 2
        assert "toy already has a run" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("options", "where"),
        [
            (["train.eval_every=3"], "at step 5"),
            (["train.eval_every=4"], "in the evaluation after step 4"),
            (["train.eval_every=4", "data.eval_path="], "at step 5"),
        ],
    )
    def test_a_term_that_fails_is_an_error_with_its_step_and_a_hint(
        self, here: Path, capsys: pytest.CaptureFixture[str], options: list[str], where: str
    ) -> None:
        write_config(here, terms='[[term]]\nfn = "tests.app.terms:failing"\n')
        given = [part for one in options for part in ("--set", one)]
        assert cli.main(["train", "toy.toml", "--quiet", *given]) == 1
        assert capsys.readouterr().err.splitlines() == [
            f"error: {where}: failing: raised RuntimeError: as the test wants it",
            'on_error = "skip" in its [[term]] leaves it out when it fails, and --debug shows the traceback',
        ]
        assert Run("runs/toy").begun()
        assert cli.main(["train", "toy.toml", "--quiet", *given, "--debug"]) == 1
        assert "Traceback (most recent call last)" in capsys.readouterr().err

    def test_a_base_loss_that_fails_cannot_be_left_out(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (here / "losses_of_mine.py").write_text("def loss(data, logprobs):\n    raise ValueError('one\\ntwo')\n")
        write_config(here, terms="", loss="losses_of_mine:loss")
        assert cli.main(["train", "toy.toml", "--quiet"]) == 1
        assert capsys.readouterr().err.splitlines() == [
            "error: in the evaluation before step 1: base_loss: raised ValueError: one …",
            "--debug shows the traceback",
        ]
        assert not (here / "runs" / "toy").exists()

    def test_a_folder_that_cannot_be_created_is_a_clear_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def failing(*_: Any, **__: Any) -> Any:
            raise OSError(errno.EROFS, "Read-only file system")

        monkeypatch.setattr(Path, "mkdir", failing)
        with pytest.raises(RunError, match="runs/toy could not be written: read-only file system"):
            folder_for("toy.toml", resume=False)

    def test_two_runs_that_start_together_get_two_folders(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        mkdir = Path.mkdir
        made: list[Path] = []

        def meanwhile(self: Path, *arguments: Any, **options: Any) -> None:
            if self.name == "toy" and not made:
                made.append(self)
                mkdir(self)
            mkdir(self, *arguments, **options)

        monkeypatch.setattr(Path, "mkdir", meanwhile)
        assert folder_for("toy.toml", resume=False) == Path("runs/toy-2")

    def test_other_folders_are_ignored(self, here: Path) -> None:
        for name in ("toy-new", "toy-7", "toys"):
            (here / "runs" / name).mkdir(parents=True)
        assert folder_for("toy.toml", resume=False) == Path("runs/toy-8")
        assert folder_for("toy.toml", resume=True) == Path("runs/toy-8")
        assert folder_for(None, resume=True) == Path("runs/demo")
        assert not Path("runs/demo").exists()

    def test_a_command_can_be_pasted(self) -> None:
        told = command_line("train", "my config.toml", ['kl.options={ a = "b" }'], "--run", "r u n")
        assert told == "penalties train 'my config.toml' --set 'kl.options={ a = \"b\" }' --run 'r u n'"
        assert command_line("train", None, [], "--resume") == "penalties train --resume"


class TestReport:
    def test_several_runs_are_compared(self, finished: Run, capsys: pytest.CaptureFixture[str]) -> None:
        for name in ("one", "other"):
            shutil.copytree(finished.folder, name)
        assert cli.main(["report", "one", "other", "--quiet"]) == 0
        assert capsys.readouterr() == ("", "")
        assert cli.main(["report", "one", "other"]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert [line.split(":")[0] for line in shown[:2]] == ["one", "other"]
        assert shown[-1] == "report: report.html"

    @pytest.mark.usefixtures("toy")
    def test_a_folder_that_is_not_writable_is_an_error(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (here / "file").write_text("")
        for folder in (here / "file", here / "file" / "missing"):
            assert cli.main(["report", "runs/toy", "--out", str(folder / "x.html")]) == 2
            told = f"error: the folder {folder} is not writable; choose another file with --out\n"
            assert capsys.readouterr().err == told

    @pytest.mark.usefixtures("toy")
    def test_only_a_page_is_replaced(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        os.mkfifo(here / "pipe")
        (here / "link.html").symlink_to("toy.toml")
        names = ["runs/toy/metrics.jsonl", "runs/toy/config.json", "toy.toml", "link.html", "pipe", os.devnull]
        before = {name: Path(name).read_bytes() for name in names[:3]}
        for name in names:
            assert cli.main(["report", "runs/toy", "--out", name]) == 2
            said = capsys.readouterr().err
            assert said.startswith(f"error: {name} is not replaced: it is ")
            assert said.endswith("; choose another file with --out\n")
        assert before == {name: Path(name).read_bytes() for name in names[:3]}
        Path("empty").touch()
        for name in ("new.html", "new.html", "empty"):
            assert cli.main(["report", "runs/toy", "--out", name, "--quiet"]) == 0

    @pytest.mark.parametrize(
        ("number", "told"),
        [
            (errno.EACCES, "the folder here is not writable; choose another file with --out"),
            (errno.ENOENT, "the folder here is not writable; choose another file with --out"),
            (errno.ENOSPC, "here/x.html could not be written: the disk is full; free some space, then resume"),
            (errno.EISDIR, "here/x.html is a folder; choose another file with --out"),
        ],
    )
    @pytest.mark.usefixtures("toy")
    def test_errors_of_the_disk_have_their_own_messages(
        self, number: int, told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def failing(*_: Any, **__: Any) -> Any:
            raise OSError(number, os.strerror(number), ".x.html.part")

        monkeypatch.setattr(page, "write_atomically", failing)
        assert cli.main(["report", "runs/toy", "--out", "here/x.html"]) in (1, 2)
        assert capsys.readouterr().err == f"error: {told}\n"


class TestAblate:
    def test_compares_in_a_table_and_one_report(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["ablate", "toy.toml", "--seeds", "3"]) == 0
        shown = capsys.readouterr().out
        assert "2 of 12: without kl, seed 0" in shown
        assert shown.count("\nstep ") == 12 * 4
        header = ["variant", "base", "loss", "difference", "95", "%", "interval", "adjusted", "p"]
        assert shown.splitlines()[-9].split() == [*header, "kl", "entropy", "counting"]
        assert "with at least 3 seeds.\nWith 3 seeds and 3 comparisons, an effect of 5.7 standard dev" in shown
        assert shown.splitlines()[-1] == "report: runs/toy-ablation/report.html"
        assert (here / "runs" / "toy-ablation" / "report.html").is_file()
        assert Run("runs/toy-ablation/without-kl-seed-0").begun()

    def test_each_run_has_a_few_lines(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert (
            cli.main(
                [
                    "ablate",
                    "toy.toml",
                    "--set",
                    "train.steps=12",
                    "--set",
                    "train.eval_every=1",
                    "--sweep",
                    "kl.weight=1",
                    "--seeds",
                    "1",
                ]
            )
            == 0
        )
        shown = capsys.readouterr().out
        for kind in ("step", "evaluation", "checkpoint"):
            assert shown.count(f"\n{kind} ") <= 2 * 6

    def test_resume_of_a_folder_without_an_ablation_is_an_error(
        self, here: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main(["ablate", "toy.toml", "--resume"]) == 2
        told = capsys.readouterr().err
        assert told == "error: runs/toy-ablation holds no ablation; start one without --resume\n"
        assert not (here / "runs").exists()

    def test_json_is_the_comparison_alone(self, capsys: pytest.CaptureFixture[str]) -> None:
        sweep = ["--sweep", "kl.weight=0.1,1", "--seeds", "2", "--set", "train.steps=2"]
        assert cli.main(["ablate", "toy.toml", *sweep, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert [one["variant"] for one in told["rows"]] == ["all", "kl.weight=0.1", "kl.weight=1"]
        assert (told["kind"], told["seeds"], told["comparisons"]) == ("ablation", 2, 2)
        assert told["verdict"] == "Nothing is claimed: 2 seeds; at least 3 are needed."
        effect = told["rows"][1]["effect"]
        assert set(effect["differences"]) == {"0", "1"}
        assert effect["low"] < effect["mean"] < effect["high"]
        assert not effect["claimed"]

    def test_keep_trains_each_term_alone(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["ablate", "toy.toml", "--keep", "--quiet", "--seeds", "1", "--set", "train.steps=1"]) == 0
        assert capsys.readouterr().out == ""
        assert Run("runs/toy-ablation/only-kl-seed-0").begun()

    @pytest.mark.parametrize("option", ["--sweep", "--grid"])
    def test_values_and_keep_cannot_be_combined(self, option: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["ablate", "toy.toml", "--keep", option, "kl.weight=1"]) == 2
        assert "cannot be combined" in capsys.readouterr().err

    def test_ctrl_c_shows_a_command_that_resumes_the_ablation(
        self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as broken:
            interrupting(broken, 1)
            assert cli.main(["ablate", "toy.toml", "--seeds", "2", "--keep", "--quiet"]) == 1
        told = capfd.readouterr().err.splitlines()[-1]
        assert told == "penalties ablate toy.toml --seeds 2 --keep --run runs/toy-ablation --resume"
        with monkeypatch.context() as broken:
            interrupting(broken, 3)
            sweep = ["--sweep", "kl.weight=1", "--grid", "entropy.weight=0.1", "--baseline", "kl.weight=1"]
            sweep += ["--run", "swept"]
            assert cli.main(["ablate", "toy.toml", "--quiet", "--set", "train.steps=5", *sweep]) == 1
        told = capfd.readouterr().err.splitlines()[-1]
        again = "--sweep kl.weight=1 --grid entropy.weight=0.1 --baseline kl.weight=1 --run swept --resume"
        assert told == f"penalties ablate toy.toml --set train.steps=5 {again}"
        assert cli.main([*told.split()[1:], "--quiet"]) == 0

    def test_a_baseline_that_is_no_variant_is_found_before_anything_is_trained(
        self, here: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main(["ablate", "toy.toml", "--baseline", "without"]) == 2
        assert capsys.readouterr().err.startswith("error: --baseline without: no variant has this name; did you mean ")
        assert not (here / "runs").exists()

    def test_several_runs_at_once_are_not_for_a_launcher(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        from penalties.app.commands import many

        monkeypatch.setattr(many, "launched", lambda: True)
        assert cli.main(["ablate", "toy.toml", "--jobs", "2"]) == 2
        assert "--jobs and --ray cannot be combined with torchrun" in capsys.readouterr().err

    def test_a_failed_run_is_in_the_status(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        terms = '[[term]]\nfn = "tests.app.terms:failing"\n[[term]]\nfn = "l2"\ninputs = "logprobs"\nweight = 0.1\n'
        write_config(here, terms=terms)
        assert cli.main(["ablate", "toy.toml", "--quiet", "--seeds", "1"]) == 1
        assert "2 of 3 runs failed" in capsys.readouterr().err
