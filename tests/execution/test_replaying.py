"""Calls of an executor, recorded and replayed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penalties as pn
from tests.pipeline.recordings.failing import fails, late, not_finite


def recorded(folder: Path, pipeline: pn.Pipeline, **options: Any) -> tuple[Path, BaseException]:
    with pn.recording(folder), pn.Executor(**options) as executor, pytest.raises(pn.PenaltiesError) as found:
        executor.run(pipeline, {"x": np.array([3.0])}, step=1)
    (path,) = folder.iterdir()
    return path, found.value


@pytest.mark.parametrize("runs", ["inline", "thread", pytest.param("process", marks=pytest.mark.slow)])
def test_failure_elsewhere(tmp_path: Path, runs: Any) -> None:
    path, error = recorded(tmp_path, pn.Pipeline([pn.Term(fails, runs=runs)]))
    with pytest.raises(pn.TermError) as found:
        pn.replay(path)
    assert str(found.value) == str(error)


def test_value_that_is_not_finite(tmp_path: Path) -> None:
    with np.errstate(divide="ignore"):
        path, error = recorded(tmp_path, pn.Pipeline([not_finite]), sequential=True)
        assert path.name == "step-1-not_finite"
        with pytest.raises(pn.NonFiniteError) as found:
            pn.replay(path)
    assert str(found.value) == str(error)


@pytest.mark.slow
def test_late_term(tmp_path: Path) -> None:
    path, error = recorded(tmp_path, pn.Pipeline([pn.Term(late, runs="process", timeout=0.5)]))
    assert isinstance(error, pn.TermTimeoutError)
    with pytest.raises(pn.TermTimeoutError):
        pn.replay(path)
