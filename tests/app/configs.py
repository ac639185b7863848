"""Configs and data for tests, written to a folder."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penalties.app.config import Config, ConfigError, load

LINES = [{"prompt": f"say {word}:", "completion": f" {word}"} for word in ("one", "two", "three", "four", "five")]
SAMPLED = [
    {"prompt": "say:", "completion": "abc", "logprobs": [-1.0, -2.0, -3.0, -0.5], "advantage": 0.5},
    {"prompt": "say:", "completion": "de", "logprobs": [-1.5, -2.5], "advantage": [1.0, -2.0]},
]
CANDIDATES = [
    {"prompt": "say:", "completion": "ab", "candidates": [[97, 98], [98, 99], [256, 0]]},
    {"prompt": "say:", "completion": "c", "candidates": [[99, 100]]},
]
PAIRS = [{"prompt": "say it:", "chosen": " please", "rejected": " now"}, {"chosen": "good", "rejected": "bad"}]


def lines(path: Path, entries: Sequence[Mapping[str, Any] | str | bytes]) -> Path:
    """A file of JSON lines; text goes in as it is."""
    made = [
        one if isinstance(one, bytes) else (one if isinstance(one, str) else json.dumps(one)).encode()
        for one in entries
    ]
    path.write_bytes(b"".join(line + b"\n" for line in made))
    return path


def write(folder: Path, text: str = "", data: Sequence[Any] = LINES, name: str = "run.toml") -> Path:
    """A config with these tables beside its data; `[data]` is there unless the text has one.

    Where estimators are, the data count as sampled.
    """
    lines(folder / "lines.jsonl", data)
    sampled = "sampled = true\n" if "_estimate" in text or "adapters:" in text else ""
    table = "" if "[data]" in text else f'[data]\npath = "lines.jsonl"\n{sampled}'
    path = folder / name
    path.write_text(f"{text}\n{table}")
    return path


def config(folder: Path, text: str = "", overrides: Sequence[str] = (), **more: Any) -> Config:
    return load(write(folder, text, **more), overrides)


def problems(folder: Path, text: str = "", overrides: Sequence[str] = (), **more: Any) -> dict[str, str]:
    """What is wrong with a config, by place."""
    try:
        config(folder, text, overrides, **more)
    except ConfigError as error:
        return dict(error.problems)
    return {}
