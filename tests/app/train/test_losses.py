"""Runs with each base loss that a config may name, and without one."""

import json
from pathlib import Path
from typing import Any

import pytest

from penalties.app.ablation import ablate, analysed, shown, variants
from penalties.app.config import load
from penalties.app.parallel import one_by_one
from penalties.app.report import make
from penalties.app.train import Interrupted, train
from penalties.app.train.progress import SILENT

from ..configs import CANDIDATES, SAMPLED, config
from ..stand_ins import events, killing, records, toy_config, write_config

TRAIN = "steps = 4\nbatch_size = 2\nlearning_rate = 1e-3\neval_every = 2\n"


def base_losses(run: Any, *kinds: str) -> list[dict[str, Any]]:
    return [record["loss"]["base_loss"] for kind in kinds for record in records(run, kind)]


class TestOnAModel:
    """Losses that need more than one target, or numbers beside the text."""

    def test_importance_sampling(self, tmp_path: Path) -> None:
        data = '[data]\npath = "lines.jsonl"\neval_path = "lines.jsonl"\n'
        made = config(tmp_path, f'[train]\nloss = "importance_sampling"\n{TRAIN}{data}', data=SAMPLED)
        run = train(made, tmp_path / "run")
        steps = base_losses(run, "step")
        assert steps[-1]["value"] < steps[0]["value"]
        assert {"ratio_mean", "ratio_max", "kl"} <= set(base_losses(run, "eval")[0]["custom"])

    def test_reverse_kl_and_resume(self, tmp_path: Path) -> None:
        text = (
            f'[train]\nloss = "reverse_kl"\ncheckpoint_every = 2\n{TRAIN}'
            '[references]\nteacher = { kind = "client", model = "tiny", seed = 3 }\n'
            '[[term]]\nfn = "entropy"\nweight = 1e-3\ninputs = "logprobs"\noptions = { mode = "bonus" }\n'
        )
        made = config(tmp_path, text, data=CANDIDATES)
        whole = train(made, tmp_path / "whole")
        losses = [one["value"] for one in base_losses(whole, "step")]
        assert losses[-1] < losses[0]
        with pytest.raises(Interrupted):
            train(made, tmp_path / "run", progress=killing(3))
        again = train(made, tmp_path / "run", resume=True)
        assert [one["value"] for one in base_losses(again, "step")] == losses


@pytest.mark.usefixtures("backends")
class TestNone:
    """The terms alone."""

    def test_there_is_no_base_loss_in_the_log(self, tmp_path: Path) -> None:
        made = toy_config(tmp_path, loss="none")
        assert made.base is None
        run = train(made, tmp_path / "run")
        losses = [record["loss"] for kind in ("step", "eval") for record in records(run, kind)]
        assert not any("base_loss" in loss for loss in losses)
        assert set(losses[0]["regularizers"]) == {"kl", "entropy", "counting"}
        assert events(run)[-1] == "finished"

    def test_the_report_has_none_either(self, tmp_path: Path) -> None:
        run = train(toy_config(tmp_path, loss="none"), tmp_path / "run")
        report = make([run.folder])
        report.save(tmp_path / "report.html")
        assert "base_loss" not in (tmp_path / "report.html").read_text()
        assert str(next(iter(report.verdicts.values())))

    def test_an_ablation_compares_terms(self, tmp_path: Path) -> None:
        path = write_config(tmp_path, loss="none", steps=2)
        chosen = variants(lambda more: load(path, more))
        training = lambda tasks, ended: one_by_one(tasks, ended, lambda _: SILENT)
        record = ablate(chosen, tmp_path / "ablation", training=training)
        assert {outcome.base_loss for outcome in record.outcomes} == {None}
        lines = shown(analysed(record))
        assert lines[1].split()[:2] == ["all", "-"]
        assert lines[-1] == "There is nothing to compare by held-out base loss."
        assert json.loads((tmp_path / "ablation" / "ablation.json").read_text())["runs"][0]["base_loss"] is None
