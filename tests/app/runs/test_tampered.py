"""Run folders that are not as the program left them: a sentence, nothing waited for, nothing outside touched."""

import contextlib
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penalties as pn
from penalties.app import cli
from penalties.app.runs import Run, checkpoints
from penalties.app.runs.disk import RunError
from penalties.app.train import start as start_module
from tests.app.stand_ins import Backend, trained, weights_of, write_config

PRECIOUS = "nothing of a run's\n"
FILES = ("config.json", "metrics.jsonl", "lock", "report.html", "sinks.json")
FOLDERS = ("checkpoints", "references", "tensorboard")


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config and its run, which has half of its steps."""
    folder = tmp_path_factory.mktemp("interrupted")
    trained(folder, steps=4)
    write_config(folder, steps=6)
    return folder


@pytest.fixture
def run(interrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run of four steps, beside the config and the data of six."""
    shutil.copytree(interrupted, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["data"] |= {"path": str(tmp_path / "data.jsonl"), "eval_path": str(tmp_path / "held_out.jsonl")}
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    (tmp_path / "precious").write_text(PRECIOUS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(start_module, "connect", Backend)
    return tmp_path / "run"


def resume(run: Path, *more: str) -> int:
    return cli.main(["train", "--run", str(run), "--resume", "--set", "train.steps=6", *more])


@pytest.fixture
def error(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """The error that was printed: a line or two."""

    def read() -> str:
        lines = capsys.readouterr().err.splitlines()
        assert lines[0].startswith("error: ")
        assert len(lines) <= 2
        assert "shows the traceback" not in lines[-1]
        return lines[0]

    return read


def test_it_is_resumed_as_it_is(run: Path) -> None:
    assert resume(run) == 0
    assert Run(run).last() is not None
    assert weights_of(run, 6)


@pytest.mark.parametrize("name", FILES)
def test_a_link_in_the_place_of_a_file_is_an_error_and_is_not_followed(
    run: Path, error: Callable[[], str], name: str
) -> None:
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(run.parent / "precious")
    assert resume(run) in (1, 2)
    assert f"run/{name} " in (said := error())
    assert "it is a symbolic link; expected a file" in said
    assert (run.parent / "precious").read_text() == PRECIOUS


@pytest.mark.parametrize("name", FOLDERS)
def test_so_is_one_in_the_place_of_a_folder(run: Path, error: Callable[[], str], name: str) -> None:
    elsewhere = run.parent / "elsewhere"
    if (run / name).is_dir():
        (run / name).rename(elsewhere)
    else:
        elsewhere.mkdir()
    (run / name).symlink_to(elsewhere)
    before = sorted(elsewhere.rglob("*"))
    assert resume(run) == 2
    assert "it is a symbolic link; expected a folder; replace it" in error()
    assert cli.main(["train", "toy.toml", "--run", str(run)]) == 2
    assert sorted(elsewhere.rglob("*")) == before


def test_a_report_replaces_a_link(run: Path) -> None:
    (run / "report.html").symlink_to(run.parent / "precious")
    assert cli.main(["report", str(run)]) == 0
    assert not (run / "report.html").is_symlink()
    assert (run.parent / "precious").read_text() == PRECIOUS


@contextlib.contextmanager
def special(path: Path, kind: str) -> Iterator[None]:
    path.unlink(missing_ok=True)
    with contextlib.ExitStack() as ending:
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            with contextlib.chdir(path.parent):
                made = ending.enter_context(socket.socket(socket.AF_UNIX))
                made.bind(path.name)
        yield


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, "pipe") for name in FILES), ("metrics.jsonl", "socket"), ("lock", "folder"), ("report.html", "folder")],
)
def test_nothing_waits_for_a_special_file(run: Path, error: Callable[[], str], name: str, kind: str) -> None:
    with special(run / name, kind):
        assert resume(run) in (1, 2)
        assert f"run/{name} " in error()
        assert cli.main(["train", "toy.toml", "--run", str(run)]) == 2
        drawn = cli.main(["report", str(run)])
        assert drawn == {"metrics.jsonl": 1, "report.html": 2 if kind == "folder" else 0}.get(name, 0)


class TestWithoutConfig:
    def test_it_is_neither_resumed_nor_begun_again(self, run: Path, error: Callable[[], str]) -> None:
        (run / "config.json").unlink()
        before = {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file() and path.name != "lock"}
        for command in (
            ["train", "--run", str(run), "--resume"],
            ["train", "toy.toml", "--run", str(run), "--resume"],
            ["train", "toy.toml", "--run", str(run)],
        ):
            assert cli.main(command) == 2
            said = error()
            assert "run has metrics.jsonl of a run, but no config.json; restore that to resume the run" in said
            assert "without --resume" not in said
        assert {path: path.read_bytes() for path in sorted(run.rglob("*")) if path in before} == before

    @pytest.mark.parametrize(
        "left",
        [
            "checkpoints",
            "references",
            "environment.json",
            "report.html",
            "sinks.json",
            "mlflow.db",
            "tensorboard",
            "mlflow",
            "wandb",
        ],
    )
    def test_what_is_left_may_be_anything(self, run: Path, error: Callable[[], str], left: str) -> None:
        for path in run.iterdir():
            if path.name != left:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        path = run / left
        if not path.exists():
            path = path if path.suffix else path / "events.1"
            path.parent.mkdir(exist_ok=True)
            path.write_text("{}")
        before = sorted(run.rglob("*"))
        for more in ([], ["--resume"]):
            assert cli.main(["train", "toy.toml", "--run", str(run), *more]) == 2
            said = error()
            assert f"run has {left}" in said
            assert "of a run, but no config.json" in said
        assert sorted(run.rglob("*")) == before

    @pytest.mark.parametrize("text", ["[]", "{}", "no JSON"])
    def test_a_config_of_something_else_is_called_that(self, run: Path, error: Callable[[], str], text: str) -> None:
        (run / "config.json").write_text(text)
        (run / "lock").unlink()
        for more in ([], ["--resume"]):
            assert cli.main(["train", "toy.toml", "--run", str(run), *more]) == 2
            assert "run has metrics.jsonl of a run, but a config.json that is not; restore that to resume" in error()

    def test_a_folder_with_nothing_of_a_run_is_a_new_one(self, run: Path) -> None:
        for name in ("checkpoints", "references"):
            shutil.rmtree(run / name)
            (run / name).mkdir()
        for name in ("config.json", "metrics.jsonl", "environment.json"):
            (run / name).unlink()
        assert cli.main(["train", "toy.toml", "--run", str(run), "--quiet"]) == 0


class TestTypes:
    @pytest.mark.parametrize(
        "text",
        ["", "[]", "5", "null", '"text"', "{}", "[" * 100_000, "\x00", '{"model": 5, "data": [], "train": null}'],
    )
    def test_a_config_of_another_type_is_a_sentence(self, run: Path, error: Callable[[], str], text: str) -> None:
        (run / "config.json").write_text(text)
        assert resume(run) in (1, 2)
        error()
        assert cli.main(["report", str(run)]) == 0

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("folder", 5),
            ("folder", [5]),
            ("folder", ["relative"]),
            ("term", {"fn": 5}),
            ("term", [[]]),
            ("model", "tiny"),
        ],
    )
    def test_so_is_a_value_of_another_type(self, run: Path, error: Callable[[], str], key: str, value: Any) -> None:
        config = json.loads((run / "config.json").read_text())
        (run / "config.json").write_text(json.dumps(config | {key: value}))
        assert resume(run) == 2
        assert key in error()
        assert cli.main(["report", str(run)]) == 0

    @pytest.mark.parametrize(
        "line", ["[]", "5", '{"kind": "event", "event": "finished"}', '{"kind": []}', "[" * 100_000]
    )
    def test_a_last_line_of_another_type_ends_nothing(self, run: Path, line: str) -> None:
        with (run / "metrics.jsonl").open("a") as file:
            file.write(f"{line}\n")
        assert cli.main(["report", str(run)]) == 0
        assert resume(run) == 0
        assert weights_of(run, 6)

    def test_a_log_without_an_object_is_a_run(self, run: Path, error: Callable[[], str]) -> None:
        shutil.rmtree(run / "checkpoints")
        (run / "metrics.jsonl").write_text("[]\n")
        assert cli.main(["train", "toy.toml", "--run", str(run)]) == 2
        assert "already has a run" in error()


class TestResults:
    """A run is resumed as it was, or not at all."""

    def test_a_config_that_changed_since_the_checkpoint_is_an_error(self, run: Path, error: Callable[[], str]) -> None:
        config = (run / "config.json").read_text()
        assert '"seed": 0' in config
        (run / "config.json").write_text(config.replace('"seed": 0', '"seed": 1', 1))
        assert resume(run) == 2
        assert "its config changed: train.seed was 0 and is 1" in error()

    def test_references_of_another_run_are_an_error(self, run: Path, error: Callable[[], str]) -> None:
        other = trained(run.parent / "other", seed=1)
        shutil.copy(other.references / "initial.npz", run / "references" / "initial.npz")
        assert resume(run) == 1
        assert "initial.npz is not the file that the run wrote; restore it, or remove it" in error()

    @pytest.mark.parametrize("damage", [lambda path: path.write_text("?"), lambda path: (path.unlink(), path.mkdir())])
    def test_so_are_those_that_cannot_be_read(
        self, run: Path, error: Callable[[], str], damage: Callable[[Path], Any]
    ) -> None:
        damage(run / "references" / "initial.npz")
        assert resume(run) == 1
        assert "initial.npz cannot be read" in error()

    def test_a_finished_run_whose_last_checkpoint_is_damaged_does_its_last_steps_again(self, run: Path) -> None:
        assert resume(run) == 0
        weights = weights_of(run, 6)
        path = run / "checkpoints" / "000006" / "client" / "toy.safetensors"
        path.write_bytes(b"\x00" + path.read_bytes()[1:])
        assert resume(run) == 0
        assert weights_of(run, 6) == weights
        assert "a later checkpoint is damaged and was ignored" in (run / "metrics.jsonl").read_text()

    def test_one_without_checkpoints_stays_finished(self, run: Path) -> None:
        assert resume(run) == 0
        shutil.rmtree(run / "checkpoints")
        before = (run / "metrics.jsonl").read_bytes()
        assert resume(run) == 0
        assert (run / "metrics.jsonl").read_bytes() == before


class TestNotes:
    """What a checkpoint has for the training loop, under a checksum that is right."""

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *((name, None) for name in ("config", "data", "findings")),
            *(("config", []), ("data", 5), ("findings", []), ("findings", {"a": 1}), ("findings", {"a": ["1", 2, 3]})),
            *(("best", [1]), ("best", {}), ("best", {"step": "1", "value": 0.5, "waited": 0}), ("best", 5)),
            *(("references", [1]), ("references", {"initial": 5}), ("references", {"initial": [-1, "x"]})),
        ],
    )
    def test_wrong_ones_are_a_sentence(self, run: Path, error: Callable[[], str], name: str, value: Any) -> None:
        for folder in (run / "checkpoints").iterdir():
            about = json.loads((folder / "checkpoint.json").read_text())
            del about["checksum"]
            del about["notes"][name]
            if value is not None:
                about["notes"][name] = value
            checksum = checkpoints._checksum_of(about)
            (folder / "checkpoint.json").write_text(json.dumps({**about, "checksum": checksum}))
        for command in (["--run", str(run)], ["toy.toml", "--run", str(run)]):
            assert cli.main(["train", *command, "--resume", "--set", "train.steps=6"]) == 1
            assert f"the checkpoint after 4 steps cannot be used: notes.{name}" in (said := error())
            assert " is missing or invalid; remove it to resume from the one before, or start again" in said


class TestModules:
    """A config that was changed names one that touches a file."""

    @pytest.fixture(autouse=True)
    def modules(self, run: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(sys, "path", list(sys.path))
        for folder in (run, run / "checkpoints", run.parent / "beside"):
            folder.mkdir(exist_ok=True)
            (folder / "lurking.py").write_text(f"from pathlib import Path\n\nPath({str(run / 'ran')!r}).touch()\n")
        yield
        for name in [name for name in sys.modules if name.partition(".")[0] in ("lurking", "run", "beside")]:
            del sys.modules[name]

    def change(self, run: Path, key: str, path: str) -> None:
        config = json.loads((run / "config.json").read_text())
        if key == "samples.metrics":
            config["samples"]["metrics"] = [path]
        else:
            config["term"][0]["fn"] = path
        folders = [str(run), str(run / "checkpoints"), str(run.parent)]
        (run / "config.json").write_text(json.dumps(config | {"folder": folders}))

    @pytest.mark.parametrize("package", [True, False])
    @pytest.mark.parametrize("module", ["lurking", "run.lurking", "run.checkpoints.lurking"])
    def test_none_is_imported_from_the_folder_of_a_run(
        self, run: Path, error: Callable[[], str], monkeypatch: pytest.MonkeyPatch, module: str, package: bool
    ) -> None:
        if package:
            shutil.copyfile(run / "lurking.py", run / "__init__.py")
        # Other metrics over samples are no reason not to resume.
        self.change(run, "samples.metrics", f"{module}:metric")
        assert resume(run) == 2
        said = error()
        if module == "lurking":
            assert "No module named 'lurking'" in said
        else:
            assert f'samples.metrics: "{module}:metric" is in {run}, from which nothing is imported' in said
        monkeypatch.chdir(run)
        monkeypatch.setattr(sys, "path", ["", *sys.path])
        assert resume(Path()) == 2
        assert "from which nothing is imported" in error()
        assert not (run / "ran").exists()

    def test_none_is_imported_before_the_config_is_known_to_be_that_of_the_checkpoint(
        self, run: Path, error: Callable[[], str]
    ) -> None:
        self.change(run, "term.fn", "beside.lurking:term")
        assert resume(run) == 2
        assert "its config changed: term.0.fn was" in error()
        with pytest.raises(RunError, match="its config changed: term.0.fn was"):
            pn.train(run=run, resume=True, quiet=True)
        assert not (run / "ran").exists()

    def test_one_elsewhere_is(self, run: Path, error: Callable[[], str]) -> None:
        self.change(run, "samples.metrics", "beside.lurking:metric")
        assert resume(run) == 2
        assert "has no" in error()
        assert (run / "ran").exists()


def test_a_report_that_another_process_is_writing_is_left_to_it(run: Path) -> None:
    fresh, old = run / ".report.html.0123.part", run / ".report.html.4567.part"
    for path in (fresh, old):
        path.touch()
    os.utime(old, (0, 0))
    assert resume(run) == 0
    assert fresh.exists()
    assert not old.exists()


def test_a_name_that_is_not_utf8_is_an_error_before_anything_is_trained(
    run: Path, error: Callable[[], str], backends: list[Any]
) -> None:
    odd = os.fsdecode(bytes(run.parent) + b"/odd-\xff")
    assert cli.main(["train", "toy.toml", "--run", odd]) == 2
    assert r"odd-\udcff is not valid UTF-8; choose another folder with --run" in error()
    assert not Path(odd).exists()
    run.rename(odd)
    assert cli.main(["train", "--run", odd, "--resume"]) == 2
    assert "is not valid UTF-8" in error()
    Path(odd, "toy.toml").write_text((run.parent / "toy.toml").read_text())
    assert cli.main(["train", f"{odd}/toy.toml"]) == 2
    assert "data.path: found" in (said := error())
    assert "of valid Unicode; a file or folder of this name must be renamed" in said
    assert not backends
    assert cli.main(["report", odd]) == 0
