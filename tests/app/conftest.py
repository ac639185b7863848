"""Backends that need no library, and runs that tests share."""

from typing import Any

import pytest

from penalties.app.runs import Run
from penalties.app.train import start as start_module

from .stand_ins import Backend, trained


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> list[Backend]:
    """The backends that a test makes, in order."""
    made: list[Backend] = []

    def connect(*arguments: Any) -> Backend:
        made.append(Backend(*arguments))
        return made[-1]

    monkeypatch.setattr(start_module, "connect", connect)
    return made


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of the toy, to be read only."""
    return trained(tmp_path_factory.mktemp("finished"))
