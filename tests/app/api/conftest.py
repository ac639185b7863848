"""A backend that takes a millisecond a step."""

from pathlib import Path

import pytest

from penalties.app.train import start as start_module

from ..stand_ins import Backend, write_config


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(start_module, "connect", Backend)
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path, steps=4)
    return tmp_path
