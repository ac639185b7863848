"""Commands that run in this process."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from penalties.app.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command here: its status, and what it printed."""

    def call(*arguments: Any) -> tuple[int, str, str]:
        status = main([str(one) for one in arguments])
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # The class: the streams themselves are others when the test begins.
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda stream: True)
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "120"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
