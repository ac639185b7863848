"""What a run was made with."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penalties
from penalties.app.runs import environment as module
from penalties.app.runs.environment import ENVIRONMENT, environment, environments_in, write_environment

DATA = {"training": "1", "held_out": "2"}


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    return subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / "terms.py").write_text("A = 1\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "Begin")
    monkeypatch.chdir(folder)
    return folder


def test_has_versions_and_the_commit(repository: Path) -> None:
    found = environment()
    assert found["commit"] == git(repository, "rev-parse", "HEAD").strip()
    assert found["changed"] is False
    assert found["versions"]["penalties"] == penalties.__version__
    assert found["versions"]["numpy"] == np.__version__
    # A run's own folder does not count as a change.
    (repository / "runs").mkdir()
    (repository / "runs" / "log").write_text("new")
    assert environment()["changed"] is False
    (repository / "terms.py").write_text("A = 2\n")
    assert environment()["changed"] is True


def test_outside_a_repository_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert set(environment()) == {"versions"}


@pytest.mark.parametrize("error", [FileNotFoundError("git"), subprocess.TimeoutExpired("git", 5.0)])
def test_without_an_answer_of_git_there_is_no_commit(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any, **options: Any) -> Any:
        raise error

    monkeypatch.setattr(module.subprocess, "run", fails)
    assert set(environment()) == {"versions"}


def test_another_environment_is_added_and_the_same_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_environment(tmp_path, 0, DATA)
    write_environment(tmp_path, 10, DATA)
    assert [one["step"] for one in environments_in(tmp_path)] == [0]
    monkeypatch.setattr(module, "__version__", "99")
    write_environment(tmp_path, 20, DATA)
    first, second = environments_in(tmp_path)
    assert (first["step"], second["step"]) == (0, 20)
    assert second["versions"]["penalties"] == "99"
    assert second["data"] == DATA
    write_environment(tmp_path, 30, {**DATA, "held_out": "3"})
    assert environments_in(tmp_path)[-1]["step"] == 30


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        "{}",
        '{"processes": 5}',
        '{"processes": [5, {}, {"versions": 5, "step": 0}, {"versions": {}, "step": 0, "data": 5}]}',
        "[" * 10_000,
    ],
)
def test_a_damaged_file_has_none(text: str, tmp_path: Path) -> None:
    (tmp_path / ENVIRONMENT).write_text(text)
    assert environments_in(tmp_path) == []
    write_environment(tmp_path, 3, DATA)
    assert json.loads((tmp_path / ENVIRONMENT).read_text())["processes"][0]["step"] == 3
