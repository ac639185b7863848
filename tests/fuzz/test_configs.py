"""Configs with random mistakes: problems in sentences, and none of their code is run where it should not be."""

import contextlib
import copy
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penalties.app import cli
from penalties.app.config.config import Config
from penalties.app.problems import toml_key, toml_value
from tests.app.configs import LINES, lines

from .cases import counts, try_cases

BASE: dict[str, Any] = {
    "model": {"name": "tiny", "rank": 4},
    "backend": {"kind": "local"},
    "data": {"path": "lines.jsonl", "eval_path": "lines.jsonl", "on_bad_line": "skip", "sampled": True},
    "train": {"steps": 5, "loss": "cross_entropy", "schedule": {"kind": "cosine", "end": 0.1}, "batch_size": 2},
    "references": {"initial": {"kind": "initial"}, "teacher": {"kind": "client", "model": "tiny", "cache": True}},
    "term": [
        {
            "fn": "kl_estimate",
            "name": "kl",
            "inputs": ["logprobs", "initial"],
            "schedule": {"kind": "warmup", "steps": 2},
        },
        {"fn": "entropy", "inputs": {"p": "logits", "mask": "mask"}, "options": {"mode": "bonus", "logits": True}},
        {"fn": "lurking:term", "wrap": [{"kind": "ema", "decay": 0.5}], "runs": "thread", "on_error": "skip"},
    ],
    "sinks": {"tensorboard": True, "mlflow": {"experiment": "x"}},
}
ODD: list[Any] = [
    *(
        None,
        True,
        0,
        -1,
        10**30,
        0.5,
        float("nan"),
        float("-inf"),
        "",
        "x",
        "tiny",
        "dpo",
        "initial",
        "l1",
        "kl",
        "a.b",
    ),
    *("lurking:term", "lurking:", ":", "os:nothing", "..", "/", "/dev/null", "/dev/zero", "lines.jsonl", "~", "a\x00b"),
    *("\x1b[2J", "https://me:word@host/x", "[", '"', "é" * 200, "\u202e", [], [1], ["logprobs"], {}, {"kind": "chain"}),
    *({"kind": "product", "schedules": []}, {"": 1}, {"kind": "warmup", "steps": 0}, [[[[]]]], {"a": {"a": {"a": {}}}}),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data, and a module that says when it is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    lines(tmp_path / "lines.jsonl", [*LINES, "no JSON", {"prompt": 5}])
    (tmp_path / "lurking.py").write_text("from pathlib import Path\n\nPath('ran').touch()\ndef term(logprobs): ...\n")
    return tmp_path


@pytest.mark.parametrize("count", counts(25, 100))
def test_any_config_is_right_or_its_problems_are_sentences(
    folder: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    statuses: list[int] = []

    def check(generator: np.random.Generator) -> None:
        draw = random.Random(int(generator.integers(2**32)))
        path = folder / "config.toml"
        path.write_bytes(_written(draw))
        with _importing(folder):
            assert cli.main(["check", "--no-code", "--json", str(path)]) in (0, 2)
            said = capsys.readouterr()
            assert "shows the traceback" not in said.err, said.err
            assert not (folder / "ran").exists()
            found = json.loads(said.out)
            assert all(one["where"] and one["message"] for one in found["problems"])
            status = cli.main(["check", str(path)])
            said = capsys.readouterr()
            # Imported last, where nothing else is wrong.
            assert found["ok"] or not (folder / "ran").exists()
        assert status in (0, 2)
        assert (status == 0) <= found["ok"]
        assert "shows the traceback" not in said.err, said.err
        assert "Traceback" not in said.err
        assert said.out.isprintable() or not {"\x1b", "\u202e", "\x00"} & {*said.out, *said.err}
        statuses.append(status)

    try_cases(count, check)
    assert len(set(statuses)) == 2 or len(statuses) < 50


@contextlib.contextmanager
def _importing(folder: Path) -> Iterator[None]:
    """Whatever is imported meanwhile is forgotten."""
    try:
        yield
    finally:
        sys.modules.pop("lurking", None)
        (folder / "ran").unlink(missing_ok=True)


def _written(draw: random.Random) -> bytes:
    """The config with up to three values changed, or with its text damaged."""
    config = json.loads(json.dumps(BASE))
    for _ in range(draw.randrange(4)):
        _change(draw, config)
    text = "\n".join(f"{toml_key(key)} = {_toml(value)}" for key, value in config.items()).encode("utf-8", "replace")
    for _ in range(draw.randrange(3) if draw.random() < 0.3 else 0):
        at = draw.randrange(len(text))
        middle = draw.choice([b"", b"[[", b"=", b'"', b"\xff", b"\x00", b"\r", b"{" * 500, bytes([text[at] ^ 1])])
        text = text[:at] + middle + text[at + draw.randrange(3) :]
    return text


def _change(draw: random.Random, table: Any) -> None:
    """Change a value somewhere in a table: to another one, to that of another key, or to none."""
    keys = list(table) if isinstance(table, dict) else list(range(len(table)))
    if not keys:
        return
    key = draw.choice(keys)
    if isinstance(table[key], dict | list) and draw.random() < 0.7:
        _change(draw, table[key])
    elif draw.random() < 0.2:
        del table[key]
    elif isinstance(table, dict) and draw.random() < 0.3:
        names = [*Config.model_fields, "steps", "kind", "fn", "weight", "", "\x1b", "api_key", "a b"]
        table[draw.choice(names)] = copy.deepcopy(draw.choice(ODD))
    else:
        # A copy: the next change may be inside it.
        table[key] = copy.deepcopy(draw.choice([draw.choice(ODD), table[draw.choice(keys)]]))


def _toml(value: Any) -> str:
    return toml_value(value) if value is not None else '""'
