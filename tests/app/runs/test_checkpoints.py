"""Checkpoints: whole or not there, with everything that going on needs."""

import errno
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy
import numpy as np
import pytest
import torch

from penalties.app.runs import Run, checkpoints, disk
from penalties.app.runs.checkpoints import commit, find, latest
from penalties.app.runs.disk import RunError


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Run.create(tmp_path / "run", {}) as run:
        run.begin_log()
        yield run


def in_folder(folder: Path, name: str) -> str:
    folder.mkdir()
    (folder / "model").write_text(name)
    return str(folder)


def save(run: Run, step: int, state: Any = None, save_client: Any = in_folder, **notes: Any) -> None:
    commit(run, step, save_client, state or {}, notes, lambda: run.event(step, "checkpoint", "here"))


def save_best(run: Run, step: int, best: int | None, keep: int = 2) -> None:
    commit(run, step, in_folder, {}, {}, lambda: run.event(step, "checkpoint", "here"), keep=keep, best=best)


def names(run: Run) -> list[str]:
    return sorted(path.name for path in run.checkpoints.iterdir())


def test_without_one_there_is_none(run: Run) -> None:
    assert latest(run) is None
    shutil.rmtree(run.checkpoints)
    assert latest(run) is None


def test_one_that_is_not_there_is_an_error_that_names_those_there_are(run: Run) -> None:
    save(run, 2)
    save(run, 10)
    with pytest.raises(RunError, match="has no checkpoint after 1 step; there are those after 2 and 10"):
        find(run, 1)


def test_the_last_one_is_found_with_all_that_was_in_it(run: Run) -> None:
    save(run, 2)
    save(run, 10, told=[1, 2])
    found = latest(run)
    assert found is not None
    assert found.step == 10
    assert found.notes == {"told": [1, 2]}
    assert found.log_size == run.metrics.stat().st_size
    assert (Path(found.client) / "model").read_text() == "step-000010"
    assert found.state() == {}


def test_a_folder_may_be_relative_and_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given: list[Path] = []

    def kept(folder: Path, name: str) -> str:
        given.append(folder)
        return in_folder(folder, name)

    with Run.create("run", {}) as run:
        run.begin_log()
        save(run, 2, save_client=kept)
        assert given[0].is_absolute()
        Path("run").rename("moved")
    found = latest(Run("moved"))
    assert found is not None
    assert Path(found.client) == tmp_path / "moved" / "checkpoints" / "000002" / "client"
    assert (Path(found.client) / "model").read_text() == "step-000002"


def test_a_model_elsewhere_is_loaded_by_its_own_name(run: Run) -> None:
    save(run, 3, save_client=lambda folder, name: f"tinker://model/weights/{name}")
    found = latest(run)
    assert found is not None
    assert found.client == "tinker://model/weights/step-000003"


def test_state_comes_back_in_the_libraries_and_dtypes_it_was_in(run: Run) -> None:
    state = {
        "ema": {"before": torch.tensor(1.5, dtype=torch.float64), "inner": None},
        "half": (torch.tensor([1.0, 2.0], dtype=torch.bfloat16), [np.arange(3)], "text"),
        "jax": jax.numpy.ones(2),
        "number": 0.1,
    }
    save(run, 1, state)
    found = latest(run)
    assert found is not None
    back: Any = found.state("cpu")
    assert torch.equal(back["ema"]["before"], state["ema"]["before"])
    assert back["ema"]["before"].dtype == torch.float64
    assert back["ema"]["inner"] is None
    assert isinstance(back["half"], tuple)
    assert back["half"][0].dtype == torch.bfloat16
    assert isinstance(back["half"][1][0], np.ndarray)
    assert back["half"][1][0].dtype == np.arange(3).dtype
    assert back["half"][2] == "text"
    assert isinstance(back["jax"], jax.Array)
    assert back["number"] == 0.1


def test_the_last_two_are_kept(run: Run) -> None:
    for step in (2, 4, 6, 8):
        save(run, step)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["000006", "000008"]


def test_the_best_is_kept_until_another_is(run: Run) -> None:
    for step, best in ((2, 2), (4, 2), (6, 2), (8, 2)):
        save_best(run, step, best)
    assert names(run) == ["000002", "000006", "000008"]
    save_best(run, 10, 10)
    # A run that is resumed from step 8, because step 10 is damaged, still finds its best.
    assert names(run) == ["000002", "000008", "000010"]
    save_best(run, 12, 10)
    assert names(run) == ["000010", "000012"]


def test_one_that_is_to_be_kept_alone_is(run: Run) -> None:
    for step in (2, 4, 6):
        save_best(run, step, None, keep=1)
    assert names(run) == ["000006"]


def test_what_a_run_did_not_write_stays(run: Run) -> None:
    (run.checkpoints / "mine").mkdir()
    (run.checkpoints / "notes.txt").write_text("mine")
    for step in (2, 4):
        save_best(run, step, None, keep=1)
    assert names(run) == ["000004", "mine", "notes.txt"]


def test_later_ones_that_are_damaged_do_not_push_out_what_was_just_saved(run: Run) -> None:
    save_best(run, 40, 40, keep=1)
    save_best(run, 60, 40, keep=1)
    (run.checkpoints / "000060" / "checkpoint.json").write_text("{")
    save_best(run, 45, 45, keep=1)
    assert names(run) == ["000045", "000060"]
    found = latest(run)
    assert found is not None
    assert found.step == 45


def test_a_damaged_one_names_no_best(run: Run) -> None:
    save_best(run, 2, 2)
    save_best(run, 4, 2)
    (run.checkpoints / "000004" / "checkpoint.json").write_text("{")
    save_best(run, 6, 6)
    assert names(run) == ["000004", "000006"]


class TestFind:
    def test_the_best_goes_before_the_last(self, run: Run) -> None:
        save_best(run, 2, None)
        assert find(run).step == 2
        save_best(run, 4, 4)
        save_best(run, 6, 4)
        assert [find(run, which).step for which in (None, "best", "last", 4, 6)] == [4, 4, 6, 4, 6]

    def test_without_any_it_says_so(self, run: Run) -> None:
        with pytest.raises(RunError, match="has no checkpoint yet") as raised:
            find(run)
        assert raised.value.status == 2

    def test_without_a_best_one_it_says_what_to_take(self, run: Run) -> None:
        save(run, 2)
        with pytest.raises(RunError, match='no best checkpoint: set train.best_by, or take "last"') as raised:
            find(run, "best")
        assert raised.value.status == 2

    def test_an_unknown_step_names_those_that_there_are(self, run: Run) -> None:
        save(run, 2)
        save(run, 4)
        with pytest.raises(RunError, match="no checkpoint after 3 steps; there are those after 2 and 4") as raised:
            find(run, 3)
        assert raised.value.status == 2

    def test_a_damaged_one_is_not_replaced_by_another(self, run: Run) -> None:
        save_best(run, 2, 2)
        save_best(run, 4, 2)
        (run.checkpoints / "000002" / "client" / "model").write_text("other")
        for which in (None, "best", 2):
            with pytest.raises(RunError, match="after 2 steps cannot be used .*does not match its checksum"):
                find(run, which)
        assert find(run, "last").step == 4

    def test_one_of_an_earlier_version_has_no_best(self, run: Run) -> None:
        save(run, 2)
        path = run.checkpoints / "000002" / "checkpoint.json"
        about = json.loads(path.read_text())
        del about["best"], about["checksum"]
        digest = hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=16)
        path.write_text(json.dumps(about | {"checksum": digest.hexdigest()}))
        assert find(run).best is None


def test_a_damaged_one_gives_way_to_the_one_before(run: Run) -> None:
    save(run, 2)
    save(run, 4)
    (run.checkpoints / "000004" / "checkpoint.json").write_text("{")
    found = latest(run)
    assert found is not None
    assert found.step == 2
    assert "000004: checkpoint.json cannot be read" in found.damaged[0]
    # And is replaced when its step comes again.
    save(run, 4)
    again = latest(run)
    assert again is not None
    assert again.step == 4


def _flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _lengthen(path: Path) -> None:
    path.write_text(path.read_text().replace('"log_size": ', '"log_size": 1'))


def _linked(path: Path) -> None:
    """Move a file away, and leave a link to it."""
    path.rename(path.parents[3] / "away")
    path.symlink_to(path.parents[3] / "away")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda folder: (folder / "client" / "model").write_text("?"), "client/model does not match its checksum"),
        (lambda folder: _flip(folder / "state.safetensors"), "state.safetensors does not match its checksum"),
        (lambda folder: _lengthen(folder / "checkpoint.json"), "checkpoint.json does not match its checksum"),
        (lambda folder: _linked(folder / "client" / "model"), "client/model: it is a symbolic link"),
        (lambda folder: _linked(folder / "client"), "client: it is a symbolic link"),
        (lambda folder: _linked(folder / "checkpoint.json"), "checkpoint.json: it is a symbolic link"),
        (lambda folder: (shutil.rmtree(folder), folder.write_text("")), "not a directory"),
        (lambda folder: (shutil.rmtree(folder), shutil.copytree(folder.with_name("000002"), folder)), "after step 2"),
        (lambda folder: shutil.rmtree(folder / "client"), "model is missing"),
        (lambda folder: (folder / "state.safetensors").unlink(), "state.safetensors is missing"),
        (lambda folder: (folder / "checkpoint.json").unlink(), "checkpoint.json is missing"),
        (lambda folder: (folder / "checkpoint.json").write_text('{"version": 2}'), "does not match its checksum"),
    ],
)
def test_so_does_one_whose_files_are_not_those_that_were_written(run: Run, change: Any, reason: str) -> None:
    for step in (2, 4):
        save(run, step, {"state": np.ones(2)})
    change(run.checkpoints / "000004")
    found = latest(run)
    assert found is not None
    assert found.step == 2
    assert reason in found.damaged[0]


def sign(folder: Path, **changes: Any) -> None:
    """Change what a checkpoint says about itself, with the checksum for that."""
    path = folder / "checkpoint.json"
    about = json.loads(path.read_text()) | changes
    del about["checksum"]
    path.write_text(json.dumps({**about, "checksum": checkpoints._checksum_of(about)}))


@pytest.mark.parametrize("name", ["files", "step", "client", "log_size", "has_state", "best", "notes"])
@pytest.mark.parametrize("value", [{"a": 1}, [1], 1.5, -1])
def test_so_does_one_that_was_written_with_other_values(run: Run, name: str, value: Any) -> None:
    if (name, value) == ("notes", {"a": 1}):
        value = None
    for step in (2, 4):
        save(run, step)
    sign(run.checkpoints / "000004", **{name: value})
    found = latest(run)
    assert found is not None
    assert found.step == 2
    assert f"checkpoint.json: {name}" in found.damaged[0]
    assert " is missing or invalid" in found.damaged[0]
    # Neither are older ones removed in the wrong order, nor is anything raised.
    save(run, 6)
    assert names(run) == ["000004", "000006"]


def test_so_does_one_that_says_that_it_has_state_and_has_none(run: Run) -> None:
    for step in (2, 4):
        save(run, step)
    sign(run.checkpoints / "000004", has_state=True)
    found = latest(run)
    assert found is not None
    assert found.step == 2
    assert "state.safetensors is missing" in found.damaged[0]


def test_a_file_in_the_place_of_one_is_removed_like_any_other(run: Run) -> None:
    (run.checkpoints / "000002").write_text("")
    (run.checkpoints / ".000004.gone").write_text("")
    for step in (2, 4, 6, 8):
        save(run, step)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["000006", "000008"]


def test_where_none_can_be_used_a_run_does_not_begin_again(run: Run) -> None:
    for step in (2, 4):
        save(run, step)
        (run.checkpoints / f"{step:06d}" / "checkpoint.json").write_text("")
    with pytest.raises(RunError, match="no checkpoint can be used .*000004.*000002.*restore one"):
        latest(run)


def test_an_unreadable_disk_is_not_taken_for_damage(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    save(run, 2)

    def broken(path: Path) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    for module in (checkpoints, disk):
        monkeypatch.setattr(module, "open_plain" if module is checkpoints else "read_plain", broken)
        with pytest.raises(RunError, match="000002 cannot be read: input/output error"):
            latest(run)
        monkeypatch.undo()


def test_an_interruption_right_after_it_counts_leaves_it_and_the_log(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def interrupted(path: Path, target: Path) -> Path:
        rename(path, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(run, 2)
    monkeypatch.undo()
    found = latest(run)
    assert found is not None
    assert found.step == 2
    assert found.log_size == run.log.size == run.metrics.stat().st_size


def test_a_checkpoint_of_another_version_is_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    save(run, 2)
    monkeypatch.setattr(checkpoints, "_VERSION", 3)
    with pytest.raises(RunError, match="000002 has version 2; this version of penalties reads 3"):
        latest(run)


@pytest.mark.parametrize("function", ["os.mkdir", "os.rename", "os.replace", "penalties.files.sync"])
def test_a_full_disk_leaves_the_one_before_and_the_log(
    run: Run, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    save(run, 2, {"state": np.ones(2)})
    before = run.metrics.read_bytes()

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(function, full)
    with pytest.raises(RunError, match="000004 could not be written: the disk is full"):
        save(run, 4, {"state": np.ones(2)})
    monkeypatch.undo()
    assert run.metrics.read_bytes() == before
    assert [path.name for path in run.checkpoints.iterdir()] == ["000002"]
    found = latest(run)
    assert found is not None
    assert found.step == 2
    save(run, 4)


def test_a_client_that_cannot_save_leaves_nothing(run: Run) -> None:
    def fail(folder: Path, name: str) -> str:
        raise RuntimeError("I/O error: No space left on device (os error 28)")

    with pytest.raises(RunError, match="the disk is full"):
        save(run, 4, save_client=fail)
    assert not list(run.checkpoints.iterdir())
    assert run.metrics.read_bytes() == b""
