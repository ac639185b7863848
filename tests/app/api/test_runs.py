"""`penalties.runs`: a run, read back from its folder."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penalties as pn
from penalties.app.runs.disk import RunError
from penalties.errors import MissingLibraryError, OptionError

from ..stand_ins import write_config

SAMPLES = '\n[samples]\nprompts = ["apple "]\nmax_tokens = 3\nmetrics = ["exact_match"]\n'


@pytest.fixture
def run(here: Path) -> Any:
    write_config(here, more=SAMPLES, steps=4)
    return pn.train("toy.toml", quiet=True)


def logged(run: Any, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def test_steps_are_the_columns_of_the_log(run: Any) -> None:
    records = logged(run, "step")
    assert run.steps["step"].tolist() == [1, 2, 3, 4]
    for name in ("learning_rate", "tokens", "seconds", "memory"):
        assert run.steps[name].tolist() == [record[name] for record in records]
    assert run.steps["loss"].tolist() == [record["loss"]["loss_total"] for record in records]
    assert run.steps["base_loss"].tolist() == [record["loss"]["base_loss"]["value"] for record in records]
    perplexity = [record["loss"]["base_loss"]["custom"]["perplexity"] for record in records]
    assert run.steps["base_loss/perplexity"].tolist() == perplexity
    kl = [record["loss"]["regularizers"]["kl"] for record in records]
    assert run.steps["kl"].tolist() == [part["value"] for part in kl]
    assert run.steps["kl_weight"].tolist() == [part["weight"] for part in kl]
    np.testing.assert_allclose(run.steps["kl_weighted"], [part["contribution"] for part in kl])
    # This term runs at every other step, and gradients are measured at the first alone.
    assert np.isnan(run.steps["counting"]).tolist() == [False, True, False, True]
    assert np.isnan(run.steps["kl_grad_norm"]).tolist() == [False, True, True, True]


def test_evaluations_have_values_contributions_and_metrics_over_samples(run: Any) -> None:
    records = logged(run, "eval")
    assert run.evaluations["step"].tolist() == [0, 3, 4]
    assert run.evaluations["loss"].tolist() == [record["loss"]["loss_total"] for record in records]
    kl = [record["loss"]["regularizers"]["kl"] for record in records]
    assert run.evaluations["kl"].tolist() == [part["value"] for part in kl]
    np.testing.assert_allclose(run.evaluations["kl_weighted"], [part["contribution"] for part in kl])
    assert len(run.evaluations["base_loss/perplexity"]) == 3
    assert run.evaluations["exact_match"].tolist() == [one["metrics"]["exact_match"] for one in logged(run, "samples")]


def test_the_rest_is_what_the_folder_has(run: Any) -> None:
    assert run.finished
    assert run.config["train"]["steps"] == 4
    assert [one["step"] for one in run.samples] == [0, 3, 4]
    assert set(run.samples[0]) == {"step", "prompt", "text"}
    assert run.events[-1] == {"step": 4, "event": "finished", "message": "4 steps"}
    assert run.verdict.startswith("The held-out base loss ")
    assert any("kl" in finding for finding in run.findings)
    assert list(run.checkpoints) == [2, 4]
    assert all((path / "checkpoint.json").is_file() for path in run.checkpoints.values())
    assert run.environment["versions"]["penalties"] == pn.__version__
    assert run.report.is_file()
    assert run.weights == "runs/toy/checkpoints/000004/client"
    assert run.unreadable == []
    assert repr(run).startswith("Run('runs/toy'): 4 steps. The held-out base loss ")


def test_to_pandas_has_the_same_columns(run: Any) -> None:
    steps = run.to_pandas()
    assert list(steps.columns) == list(run.steps)
    assert steps["loss"].tolist() == run.steps["loss"].tolist()
    assert run.to_pandas("evaluations")["step"].tolist() == [0, 3, 4]
    assert list(run.to_pandas("samples").columns) == ["step", "prompt", "text"]
    assert run.to_pandas("events")["event"].tolist()[-1] == "finished"
    with pytest.raises(OptionError, match=r'what="losses"; expected one of "steps", "evaluations"'):
        run.to_pandas("losses")


def test_without_pandas_the_error_says_what_to_install(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingLibraryError, match=r"^to_pandas needs pandas: pip install pandas$"):
        run.to_pandas()


def test_damaged_lines_are_left_out_and_counted(run: Any) -> None:
    log = run.folder / "metrics.jsonl"
    lines = log.read_text().splitlines()
    second = next(at for at, line in enumerate(lines) if json.loads(line).get("step") == 2)
    lines[second] = lines[second][:40]
    log.write_text("\n".join(lines) + '\n{"kind": "st')
    (run.folder / "environment.json").write_text("nonsense")
    again = pn.runs.read(run.folder)
    assert again.unreadable == [second + 1]
    assert again.steps["step"].tolist() == [1, 3, 4]
    assert again.environment == {}


def test_a_run_without_a_step_can_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "config.json").write_text('{"model": {}, "data": {}, "train": {"steps": 5}}')
    run = pn.runs.read(folder)
    assert run.steps["step"].tolist() == []
    assert run.evaluations["step"].tolist() == []
    assert (run.finished, run.weights, run.checkpoints) == (False, None, {})
    assert "0 steps, not finished" in repr(run)


def test_a_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"nothing is not a folder; expected the folder of a run"):
        pn.runs.read(tmp_path / "nothing")
    with pytest.raises(RunError, match=r"is not the folder of a run"):
        pn.runs.read(tmp_path)


def test_a_term_named_like_a_quantity_of_the_run_has_a_column_of_its_own(here: Path) -> None:
    term = '[[term]]\nfn = "l2"\nname = "tokens"\nweight = 0.1\ninputs = "logprobs"\n'
    write_config(here, terms=term, steps=2)
    run = pn.train("toy.toml", quiet=True)
    assert run.steps["tokens"].tolist() == [record["tokens"] for record in logged(run, "step")]
    values = [record["loss"]["regularizers"]["tokens"]["value"] for record in logged(run, "step")]
    assert run.steps["term/tokens"].tolist() == values
