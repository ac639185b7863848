"""Run folders with random damage: a run is resumed to the end it would have come to, or a sentence says why not."""

import contextlib
import json
import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penalties.app import cli
from penalties.app.runs import Run, checkpoints
from penalties.app.runs.differences import differences
from penalties.app.train import start as start_module
from tests.app.stand_ins import Backend, toy_config, trained, weights_of

from .cases import counts, try_cases

STEPS = 3
PRECIOUS = "nothing of a run's\n"
TEXTS = ("", "{", "[]", "null", "{}", "\x1b[2J", "NaN", '{"kind": "step"}', '{"kind": "step", "step": 1, "loss": {}}')
VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    7,
    0.5,
    "",
    "x",
    "lurking:term",
    "../../precious",
    [],
    [5],
    {},
    {"a": 1},
]


class Original:
    """A run with a step to go, in a folder with its data, and the weights that it comes to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # All data in two steps: the model before training is evaluated on those of the first steps alone.
        options: dict[str, Any] = {"checkpoint_every": 1, "eval_every": 2, "batch_size": 4}
        trained(folder, steps=STEPS, **options)
        self.weights = weights_of(folder / "run", STEPS)
        shutil.rmtree(folder / "run")
        trained(folder, steps=STEPS - 1, **options)
        with Run.open(folder / "run") as run:
            self.config = toy_config(folder, steps=STEPS, **options).to_dict()
            run.write_config(self.config)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return Original(tmp_path_factory.mktemp("original"))


@pytest.fixture
def run(original: Original, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(start_module, "connect", Backend)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "precious").write_text(PRECIOUS)
    return tmp_path / "run"


@pytest.mark.parametrize("count", counts(20, 60))
def test_a_damaged_run_is_resumed_to_the_same_end_or_a_sentence_says_why_not(
    original: Original, run: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    resumed: list[bool] = []

    def command(*arguments: str) -> int:
        status = cli.main(list(arguments))
        said = capsys.readouterr()
        assert status in (0, 1, 2)
        assert "shows the traceback" not in said.err, said.err
        assert status == 0 or said.err.startswith("error: ")
        assert not {"\x1b", "\x00"} & {*said.out, *said.err}
        assert Path("precious").read_text() == PRECIOUS
        assert not {"lurking", "run.lurking"} & sys.modules.keys()
        return status

    def check(generator: np.random.Generator) -> None:
        draw = random.Random(int(generator.integers(2**32)))
        shutil.copytree(original.folder / "run", run)
        try:
            damage = draw.choices(DAMAGE, k=draw.randint(1, 3))
            for one in damage:
                # One may be impossible after another.
                with contextlib.suppress(OSError, ValueError, TypeError):
                    one(draw, run)
            drawn = command("report", str(run), "--out", "report.html")
            readable = not (run / "metrics.jsonl").is_symlink() and (run / "metrics.jsonl").is_file()
            assert drawn == 0 or not readable
            both = command("report", str(run), str(original.folder / "run"), "--out", "report.html")
            assert both == drawn
            resumed.append(command("train", "--run", str(run), "--resume", "--quiet") == 0)
            # Checksums do not tell a forger's files from the program's.
            if resumed[-1] and _signed not in damage:
                _compare(original, run)
        finally:
            _remove(run)

    try_cases(count, check)
    assert len(set(resumed)) == 2 or len(resumed) < 30


def _compare(original: Original, run: Path) -> None:
    """The weights are those of the original, unless the run began again with another config."""
    config = Run(run).config()
    lines = (run / "metrics.jsonl").read_text("utf-8", "replace").splitlines()
    again = not any("from the checkpoint after" in line for line in lines)
    other = differences(original.config, config) or config["data"] != original.config["data"]
    if again and other:
        return
    assert not other, "resumed with another config"
    found = checkpoints.latest(Run(run))
    if config["train"]["steps"] == STEPS and found is not None:
        assert weights_of(run, STEPS) == original.weights


def _files(run: Path) -> list[Path]:
    return sorted(path for path in run.rglob("*") if path.is_file() and not path.is_symlink())


def _bytes(draw: random.Random, run: Path) -> None:
    """Bytes are flipped, added or lost."""
    path = draw.choice(_files(run))
    data = bytearray(path.read_bytes()) or bytearray(b"?")
    at = draw.randrange(len(data))
    kind = draw.randrange(3)
    if kind == 0:
        data[at] ^= 1 << draw.randrange(8)
    elif kind == 1:
        del data[at : at + draw.choice([1, 100, len(data)])]
    else:
        data[at:at] = draw.randbytes(draw.choice([1, 100]))
    path.write_bytes(data)


def _text(draw: random.Random, run: Path) -> None:
    draw.choice(_files(run)).write_text(draw.choice(TEXTS) * draw.choice([1, 1, 1000]) + draw.choice(["", "\n"]))


def _lines(draw: random.Random, run: Path) -> None:
    """Lines of the log are lost, repeated, moved, or from elsewhere."""
    path = run / "metrics.jsonl"
    lines = path.read_text("utf-8", "replace").splitlines() or [""]
    at = draw.randrange(len(lines))
    kind = draw.randrange(4)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        draw.shuffle(lines)
    else:
        lines[at:at] = [draw.choice([*TEXTS, *lines])] * draw.choice([1, 200])
    path.write_text("".join(f"{line}\n" for line in lines))


def _value(draw: random.Random, run: Path) -> None:
    """A value of some JSON is another one, or gone."""
    _changed(draw, draw.choice([path for path in _files(run) if path.suffix == ".json"]))


def _changed(draw: random.Random, path: Path) -> None:
    table = found = json.loads(path.read_bytes())
    while isinstance(table, dict | list) and table:
        key = draw.choice(list(table) if isinstance(table, dict) else list(range(len(table))))
        if not isinstance(table[key], dict | list) or not table[key] or draw.random() < 0.2:
            if isinstance(table, dict) and draw.random() < 0.2:
                del table[key]
            else:
                table[key] = draw.choice([*VALUES, *(table.values() if isinstance(table, dict) else table)])
            break
        table = table[key]
    path.write_text(json.dumps(found))


def _numbers(draw: random.Random, run: Path) -> None:
    """One number of every step is as large or as small as numbers are."""
    path = run / "metrics.jsonl"
    keys = draw.choice([("seconds",), ("tokens",), ("loss", "loss_total"), ("loss", "total_grad_norm"), ("step",)])
    value = draw.choice([1e308, -1e308, 1e-310, 5e-324, 0.0, "NaN", "Infinity", 10**400, 10**14])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for record in lines:
        table = record
        for key in keys[:-1]:
            table = table.get(key, {})
        table[keys[-1]] = value
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def _signed(draw: random.Random, run: Path) -> None:
    """A checkpoint has another value, or another file, and the checksums for it."""
    folder = draw.choice([path for path in (run / "checkpoints").iterdir() if path.is_dir()])
    about = folder / "checkpoint.json"
    if draw.random() < 0.3:
        draw.choice([_bytes, _text])(draw, folder)
    else:
        _changed(draw, about)
    found = dict(json.loads(about.read_text()))
    found.pop("checksum", None)
    if draw.random() < 0.8:
        found["files"] = checkpoints._checksums(folder)
    about.write_text(json.dumps({**found, "checksum": checkpoints._checksum_of(found)}))


def _missing(draw: random.Random, run: Path) -> None:
    _remove(draw.choice(sorted(run.rglob("*"))))


def _special(draw: random.Random, run: Path) -> None:
    """A link, a pipe or a folder is where a file or a folder was."""
    path = draw.choice(sorted(run.rglob("*")))
    away = run.parent / "away"
    _remove(away)
    path.rename(away)
    kind = draw.randrange(5)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.mkdir()
    else:
        path.symlink_to([run.parent / "precious", away, run][kind - 2])


def _swapped(draw: random.Random, run: Path) -> None:
    """Two files, or two folders, have each other's names, or one has both."""
    paths = _files(run) if draw.random() < 0.7 else sorted((run / "checkpoints").iterdir())
    if len(paths) < 2:
        return
    first, second = draw.sample(paths, 2)
    if first.is_dir() or draw.random() < 0.5:
        temporary = run.parent / "away"
        _remove(temporary)
        first.rename(temporary)
        second.rename(first)
        temporary.rename(second)
    else:
        shutil.copyfile(first, second)


def _added(draw: random.Random, run: Path) -> None:
    """Something of nobody's is there."""
    name = draw.choice(
        ["notes.txt", "lurking.py", ".config.json.x.part", "checkpoints/000009", "checkpoints/٣", "sinks.json"]
    )
    path = run / name
    if draw.random() < 0.3:
        path.mkdir()
    else:
        path.write_text("raise SystemExit\n")


def _lurking(draw: random.Random, run: Path) -> None:
    """The config names a module that is in the folder of the run."""
    (run / "lurking.py").write_text("raise SystemExit\n")
    config = json.loads((run / "config.json").read_text())
    with contextlib.suppress(KeyError, TypeError, IndexError):
        path = draw.choice(["lurking:term", "run.lurking:term"])
        if draw.random() < 0.5:
            config["samples"]["metrics"] = [path]
        else:
            config["term"][0]["fn"] = path
        config["folder"] = [str(run), str(run / "checkpoints"), str(run.parent)]
        (run / "config.json").write_text(json.dumps(config))


DAMAGE: list[Callable[[random.Random, Path], None]] = [
    *(
        _bytes,
        _bytes,
        _bytes,
        _text,
        _lines,
        _value,
        _value,
        _numbers,
        _signed,
        _signed,
        _missing,
        _special,
        _special,
        _swapped,
        _added,
        _lurking,
    )
]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
