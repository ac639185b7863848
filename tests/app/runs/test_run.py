"""Run folders, their locks and their logs."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penalties.app.privacy import hide
from penalties.app.runs import Run, log
from penalties.app.runs.differences import differences
from penalties.app.runs.disk import RunError, discard, writing
from penalties.app.runs.lock import Lock
from penalties.app.runs.log import Log, records

CONFIG = {"train": {"steps": 3, "seed": 0}}


def failing(number: int) -> Any:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


class TestErrorsOfTheDisk:
    @pytest.mark.parametrize(
        ("number", "message"),
        [
            (errno.ENOSPC, "x could not be written: the disk is full; free some space, then resume"),
            (errno.EDQUOT, "the disk is full"),
            (errno.EROFS, "read-only file system; make the folder writable, or choose another with --run"),
            (errno.EACCES, "permission denied; make the folder writable"),
            (errno.EIO, "x could not be written: input/output error"),
        ],
    )
    def test_say_what_to_do(self, number: int, message: str) -> None:
        with pytest.raises(RunError, match=message), writing(Path("x")):
            failing(number)()

    def test_those_of_safetensors_count_too(self) -> None:
        with pytest.raises(RunError, match="the disk is full"), writing(Path("x")):
            raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")

    @pytest.mark.parametrize("error", [ValueError("no number"), OSError("no number either"), RunError("said before")])
    def test_other_errors_pass(self, error: Exception) -> None:
        with pytest.raises(type(error)) as raised, writing(Path("x")):
            raise error
        assert raised.value is error

    def test_what_is_discarded_is_gone_even_where_it_was_half_gone(self, tmp_path: Path) -> None:
        (tmp_path / "one").mkdir()
        (tmp_path / ".one.gone").mkdir()
        (tmp_path / ".one.gone" / "left").touch()
        discard(tmp_path / "one")
        discard(tmp_path / "one")
        assert list(tmp_path.iterdir()) == []


class TestLock:
    def test_is_held_by_one(self, tmp_path: Path) -> None:
        held = Lock(tmp_path / "lock")
        with pytest.raises(RunError, match=f"is being written by process {os.getpid()} on ") as raised:
            Lock(tmp_path / "lock")
        assert raised.value.status == 2
        held.release()
        held.release()
        Lock(tmp_path / "lock").release()

    def test_says_another_process_where_it_has_not_said_who(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        held = Lock(tmp_path / "lock")
        (tmp_path / "lock").write_text("")
        with pytest.raises(RunError, match="is being written by another process"):
            Lock(tmp_path / "lock")
        held.release()

    def test_ends_with_its_process_even_where_a_fork_lives_on(self, tmp_path: Path) -> None:
        code = (
            "import os, signal, sys, time\n"
            "from pathlib import Path\n"
            "from penalties.app.runs.lock import Lock\n"
            "lock = Lock(Path(sys.argv[1]))\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    print('forked', flush=True)\n"
            "    os.close(1)\n"
            "    time.sleep(3)\n"
            "    os._exit(0)\n"
            "time.sleep(60)\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "forked\n"
            with pytest.raises(RunError, match=f"process {process.pid}"):
                Lock(tmp_path / "lock")
            process.kill()
        Lock(tmp_path / "lock").release()


class TestLog:
    def test_records_come_back_with_their_numbers(self, tmp_path: Path) -> None:
        written = Log(tmp_path / "log")
        line = written.write({"step": 1, "loss": float("nan"), "name": "ü"})
        written.write({"step": 2})
        written.close()
        assert json.loads(line) == {"step": 1, "loss": "NaN", "name": "ü"}
        first, second = records(tmp_path / "log")
        assert first["loss"] != first["loss"]
        assert second == {"step": 2}

    def test_one_that_is_not_there_has_no_records(self, tmp_path: Path) -> None:
        assert list(records(tmp_path / "log")) == []

    def test_a_last_line_that_is_not_whole_is_left_out(self, tmp_path: Path) -> None:
        (tmp_path / "log").write_text('{"step": 1}\n{"step": 2')
        assert list(records(tmp_path / "log")) == [{"step": 1}]

    def test_a_line_that_is_not_json_is_an_error_with_its_number(self, tmp_path: Path) -> None:
        (tmp_path / "log").write_text('{"step": 1}\nhello\n')
        with pytest.raises(RunError, match="line 2 is not JSON"):
            list(records(tmp_path / "log"))

    @pytest.mark.parametrize("rest", ["", '{"st', "x" * 200_000])
    def test_continues_after_its_last_complete_line(self, tmp_path: Path, rest: str) -> None:
        (tmp_path / "log").write_text(f'{{"step": 1}}\n{rest}')
        opened = Log(tmp_path / "log")
        assert opened.size == 12
        opened.write({"step": 2})
        opened.cut(12)
        opened.write({"step": 3})
        opened.close()
        assert (tmp_path / "log").read_text() == '{"step": 1}\n{"step": 3}\n'

    def test_one_without_a_whole_line_begins_again(self, tmp_path: Path) -> None:
        (tmp_path / "log").write_text("x" * 100_000)
        opened = Log(tmp_path / "log")
        assert opened.size == 0
        opened.close()

    def test_a_line_that_does_not_fit_leaves_nothing_behind(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        opened = Log(tmp_path / "log")
        opened.write({"step": 1})
        write, calls = os.write, []

        def full(descriptor: int, content: bytes) -> int:
            calls.append(content)
            return write(descriptor, content[:5]) if len(calls) == 1 else failing(errno.ENOSPC)()

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(RunError, match="log could not be written: the disk is full"):
            opened.write({"step": 2})
        monkeypatch.undo()
        assert (tmp_path / "log").read_text() == '{"step": 1}\n'
        opened.write({"step": 3})
        opened.close()
        opened.close()
        assert (tmp_path / "log").read_text() == '{"step": 1}\n{"step": 3}\n'

    def test_a_slow_disk_is_not_waited_for_at_every_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        now, synced = [0.0], []

        def fsync(descriptor: int) -> None:
            synced.append(now[0])
            now[0] += 0.03

        monkeypatch.setattr(log.time, "monotonic", lambda: now[0])
        monkeypatch.setattr(os, "fsync", fsync)
        opened = Log(tmp_path / "log")
        for step in range(100):
            opened.write({"step": step})
            now[0] += 0.15
        assert synced == pytest.approx([0.0, 9.03], abs=0.16)
        opened.close()
        assert len(synced) == 3

    def test_what_fails_on_the_way_to_the_disk_is_raised(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = Log(tmp_path / "log")
        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", failing(errno.EIO))
            with pytest.raises(RunError, match="input/output error"):
                opened.write({"step": 1})
        opened.close()

    def test_one_that_cannot_be_cut_is_closed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "ftruncate", failing(errno.EIO))
        with pytest.raises(RunError, match="input/output error"):
            Log(tmp_path / "log")

    def test_keys_are_hidden(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TINKER_API_KEY", "tml-very-secret")
        monkeypatch.setenv("HF_TOKEN", "a")
        opened = Log(tmp_path / "log")
        assert opened.write({"message": "401: tml-very-secret"}) == '{"message": "401: <TINKER_API_KEY>"}'
        opened.close()
        assert "secret" not in (tmp_path / "log").read_text()
        assert hide("a key") == "a key"


class TestRun:
    def test_has_its_config_whole_or_is_none(self, tmp_path: Path) -> None:
        folder = tmp_path / "deep" / "run"
        assert not Run(folder).exists()
        with Run.create(folder, CONFIG) as run:
            assert run.config() == CONFIG
            assert run.exists()
            assert not run.begun()
        assert repr(run) == f"Run({str(folder)!r})"
        assert run.report == folder / "report.html"

    def test_two_never_write_one(self, tmp_path: Path) -> None:
        with Run.create(tmp_path / "run", CONFIG):
            with pytest.raises(RunError, match="is being written by process"):
                Run.create(tmp_path / "run", CONFIG)
            with pytest.raises(RunError, match="is being written by process"):
                Run.open(tmp_path / "run")
        Run.open(tmp_path / "run").close()

    def test_one_that_began_is_not_written_over(self, tmp_path: Path) -> None:
        with Run.create(tmp_path / "run", CONFIG) as run:
            run.begin_log().write({"kind": "step", "step": 0})
        with pytest.raises(RunError, match="already has a run") as raised:
            Run.create(tmp_path / "run", CONFIG)
        assert raised.value.status == 2
        # And the lock is free again.
        Run.open(tmp_path / "run").close()

    def test_one_that_never_began_gives_way(self, tmp_path: Path) -> None:
        with Run.create(tmp_path / "run", CONFIG) as run:
            run.begin_log()
            run.event(0, "failed", "bad data")
            (run.references / "initial.npz").touch()
            (run.checkpoints / ".000001.part").mkdir()
            (run.folder / ".config.json.part").touch()
        with Run.create(tmp_path / "run", {"other": 1}) as run:
            assert run.config() == {"other": 1}
            assert list(run.records()) == []
            assert not list(run.references.iterdir())
            assert not list(run.checkpoints.iterdir())

    @pytest.mark.parametrize(
        ("files", "named"),
        [
            ([".git/HEAD", ".env"], ".env and 1 more"),
            (["thesis.tex"], "thesis.tex;"),
            (["config.json"], "config.json;"),
            (["checkpoints/mine/weights.bin"], "checkpoints/mine;"),
            (["references/paper.bib"], "references/paper.bib;"),
            ([".config.json.bak"], ".config.json.bak;"),
        ],
    )
    def test_a_folder_with_other_files_is_an_error_and_stays_as_it_is(
        self, tmp_path: Path, files: list[str], named: str
    ) -> None:
        for name in files:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("{}")
        before = sorted(path for path in tmp_path.rglob("*"))
        with pytest.raises(RunError, match="files that no run wrote") as raised:
            Run.create(tmp_path, CONFIG)
        assert named in str(raised.value)
        assert raised.value.status == 2
        assert sorted(path for path in tmp_path.rglob("*")) == before

    def test_what_others_put_into_its_folder_stays(self, tmp_path: Path) -> None:
        with Run.create(tmp_path / "run", CONFIG) as run:
            run.begin_log().write({"kind": "step", "step": 0})
        for name in (".git/HEAD", ".env", "checkpoints/.keep/x", "notes.txt"):
            (run.folder / name).parent.mkdir(exist_ok=True)
            (run.folder / name).touch()
        for name in (".config.json.part", "references/.initial.npz.1a2b"):
            (run.folder / name).touch()
        (run.checkpoints / ".000002.gone").mkdir()
        with Run.open(run.folder) as again:
            again.clean()
        names = {str(path.relative_to(run.folder)) for path in run.folder.rglob("*") if path.is_file()}
        assert names == {
            *(".git/HEAD", ".env", "checkpoints/.keep/x", "notes.txt", "config.json", "metrics.jsonl", "lock")
        }
        assert not (run.checkpoints / ".000002.gone").exists()

    def test_one_that_never_began_can_be_discarded(self, tmp_path: Path) -> None:
        run = Run.create(tmp_path / "run", CONFIG)
        run.begin_log()
        run.event(0, "failed", "bad data")
        # Not while somebody writes it.
        Run(run.folder).discard()
        assert run.exists()
        run.close()
        Run(run.folder).discard()
        assert not run.folder.exists()
        # Nor one that is empty yet.
        run.folder.mkdir()
        Run(run.folder).discard()
        assert not run.folder.exists()

    @pytest.mark.parametrize("kept", ["step", "checkpoint", "file"])
    def test_but_not_one_that_began_or_holds_something_else(self, tmp_path: Path, kept: str) -> None:
        with Run.create(tmp_path / "run", CONFIG) as run:
            log = run.begin_log()
            if kept == "step":
                log.write({"kind": "step", "step": 0})
            elif kept == "checkpoint":
                (run.checkpoints / "000002").mkdir()
            else:
                (run.folder / "notes.txt").touch()
        Run(run.folder).discard()
        assert run.exists()

    def test_a_copy_without_its_lock_is_a_run(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text('{"model_type": "llama"}')
        assert not Run(tmp_path).exists()
        (tmp_path / "config.json").write_text("{")
        assert not Run(tmp_path).exists()
        (tmp_path / "config.json").write_text('{"model": {}, "data": {}, "train": {}}')
        assert Run(tmp_path).exists()

    def test_a_last_line_that_is_not_a_record_is_ignored(self, tmp_path: Path) -> None:
        with Run.create(tmp_path / "run", CONFIG) as run:
            run.begin_log().write({"kind": "step", "step": 0})
        with run.metrics.open("ab") as file:
            file.write(b"\0\0\0\0\n")
        assert run.last() is None
        assert run.begun()

    def test_a_folder_without_one_cannot_be_opened(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="no config.json") as raised:
            Run.open(tmp_path)
        assert raised.value.status == 2
        with pytest.raises(RunError, match="is not the folder of a run"):
            Run(tmp_path).config()

    def test_a_config_that_is_damaged_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{")
        with pytest.raises(RunError, match="config.json cannot be read"):
            Run(tmp_path).config()

    def test_a_read_only_folder_is_a_clear_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Path, "mkdir", failing(errno.EROFS))
        with pytest.raises(RunError, match="run could not be written: read-only file system; make the folder writable"):
            Run.create(tmp_path / "run", CONFIG)

    def test_a_file_instead_of_the_folder_is_a_clear_error(self, tmp_path: Path) -> None:
        (tmp_path / "run").write_text("hello")
        with pytest.raises(RunError, match="run could not be written"):
            Run.create(tmp_path / "run", CONFIG)

    def test_a_disk_that_is_full_at_the_beginning_leaves_no_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC))
        with pytest.raises(RunError, match="config.json could not be written: the disk is full"):
            Run.create(tmp_path / "run", CONFIG)
        monkeypatch.undo()
        assert not Run(tmp_path / "run").exists()
        Run.create(tmp_path / "run", CONFIG).close()

    def test_what_was_begun_is_cleaned_away(self, tmp_path: Path) -> None:
        with Run.create(tmp_path / "run", CONFIG) as run:
            (run.checkpoints / ".000020.part").mkdir()
            (run.references / ".initial.npz.ab12").touch()
            (run.folder / ".config.json.part").touch()
            run.clean()
            assert not [path for path in run.folder.rglob("*") if path.name.startswith(".")]

    def test_the_last_record_is_found_from_the_end(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("penalties.app.runs.run._REACH", 8)
        run = Run(tmp_path)
        assert run.last() is None
        run.metrics.write_text("")
        assert run.last() is None
        run.metrics.write_text('{"step": 1')
        assert run.last() is None
        run.metrics.write_text('{"step": 1}\n')
        assert run.last() == {"step": 1}
        run.metrics.write_text('{"step": 1}\n' * 20 + '{"step": 2, "long": "' + 100 * "x" + '"}\n{"step": 3')
        last = run.last()
        assert last is not None
        assert last["step"] == 2

    def test_is_closed_even_where_its_log_fails(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run = Run.create(tmp_path / "run", CONFIG)
        run.begin_log()
        monkeypatch.setattr(os, "fsync", failing(errno.EIO))
        with pytest.raises(RunError):
            run.close()
        monkeypatch.undo()
        run.close()
        Run.open(tmp_path / "run").close()


class TestDifferences:
    def test_what_is_trained_counts(self) -> None:
        before = {"train": {"seed": 0, "steps": 3}, "term": [{"weight": 0.1}], "model": {"name": "tiny"}}
        after = {"train": {"seed": 0, "steps": 9}, "term": [{"weight": 0.2}, {"weight": 1}], "model": {"name": "tiny"}}
        assert differences(before, after) == [
            "term.0.weight was 0.1 and is 0.2",
            'term.1 was missing and is {"weight": 1}',
        ]

    def test_what_is_only_written_does_not(self) -> None:
        before = {"sinks": {"wandb": None}, "train": {"eval_every": 2, "checkpoint_every": 2}}
        after = {"sinks": {"wandb": {"project": "x"}}, "train": {"eval_every": 3, "checkpoint_every": 0}}
        assert differences(before, after) == []

    def test_steps_count_where_a_schedule_is_over_them(self) -> None:
        schedule = [{"schedule": {"kind": "linear", "steps": None}}]
        before, after = ({"train": {"steps": steps}, "term": schedule} for steps in (3, 9))
        assert differences(before, after) == ["train.steps was 3 and is 9"]
