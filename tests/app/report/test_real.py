"""Pages of runs that were really trained: their numbers are those of the logs."""

import json
from pathlib import Path

import pytest

from penalties.app import cli

from .drawn import drawings

pytestmark = pytest.mark.slow


def logged(folder: Path) -> tuple[dict[int, dict], dict[int, dict]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = {one["step"]: one["loss"] for one in lines if one["kind"] == "step"}
    return steps, {one["step"]: one["loss"] for one in lines if one["kind"] == "eval"}


def test_a_run_and_the_numbers_of_its_log(tmp_path):
    folder = tmp_path / "demo"
    assert (
        cli.main(["train", "-q", "--run", str(folder), "--set", "train.steps=12", "--set", "train.eval_every=4"]) == 0
    )
    steps, evaluations = logged(folder)
    charts = drawings((folder / "report.html").read_text())
    loss = charts["Held-out base loss"]
    assert loss.line("training base loss") == {step: one["base_loss"]["value"] for step, one in steps.items()}
    assert loss.line("held-out base loss") == {step: one["base_loss"]["value"] for step, one in evaluations.items()}
    assert list(evaluations) == [0, 4, 8, 12]
    for name in ("kl", "entropy", "size"):
        terms = {step: one["regularizers"][name] for step, one in steps.items()}
        assert charts[name].line("value") == {step: one["value"] for step, one in terms.items()}
        contributions = {step: one["contribution"] for step, one in terms.items()}
        assert charts[name].line("contribution") == pytest.approx(contributions, rel=1e-12)
        norms = {step: one["grad_norm_weighted"] for step, one in terms.items() if one["grad_norm"] is not None}
        assert charts["Gradient norms"].line(name) == pytest.approx(norms, rel=1e-12)


def test_an_ablation_and_the_numbers_of_its_logs(tmp_path):
    folder = tmp_path / "ablation"
    given = ["--set", "train.steps=4", "--set", "train.eval_every=2", "--seeds", "1"]
    assert cli.main(["ablate", "-q", "--run", str(folder), *given]) == 0
    page = (folder / "report.html").read_text()
    drawn = drawings(page)["Held-out base loss"]
    names = drawn.names
    assert {"all", "without-kl", "without-entropy", "without-size"} <= set(names)
    for name in names:
        _, evaluations = logged(folder / f"{name}-seed-0")
        assert drawn.line(name) == {step: one["base_loss"]["value"] for step, one in evaluations.items()}
