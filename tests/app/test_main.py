"""`python -m penalties` is the program."""

import importlib
import runpy
import sys

import pytest


def test_the_package_is_the_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["penalties", "version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("penalties", run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("penalties ")
    # Imported it does nothing.
    importlib.reload(importlib.import_module("penalties.__main__"))
    assert capsys.readouterr().out == ""
