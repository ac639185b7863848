"""The mixin in TRL's trainers: parameters after ten steps equal those of a loop by hand, on one process and on two."""

from pathlib import Path
from typing import Any

import pytest
import trl
from datasets import Dataset

import penalties as pn

from ..torchrun import torchrun
from . import cases, tuning, tuning_worker
from .test_trainer import assert_equal, logged

ROWS = 18 * cases.ROWS


@pytest.mark.parametrize("accumulation", [1, 4, 8])
@pytest.mark.parametrize("kind", tuning_worker.KINDS)
def test_a_model_is_tuned_as_by_hand(kind: str, accumulation: int, tmp_path: Path):
    build, by_hand = tuning_worker.KINDS[kind]
    trainer = build(tmp_path, accumulation, ROWS)
    trainer.train()
    expected, losses = by_hand(accumulation, ROWS)
    assert_equal(trainer.model, expected)
    assert logged(trainer, "loss") == pytest.approx(losses, rel=1e-5)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the two ranks saved."""
    return torchrun(tuning_worker, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("accumulation", tuning_worker.ACCUMULATION)
@pytest.mark.parametrize("kind", tuning_worker.KINDS)
def test_two_processes_tune_it_as_by_hand(runs: Any, kind: str, accumulation: int):
    _, by_hand = tuning_worker.KINDS[kind]
    expected, losses = by_hand(accumulation, tuning_worker.ROWS, ranks=2)
    for rank in runs:
        run = rank[f"{kind} {accumulation}"]
        assert run["ranks"] == 2
        found = cases.language_model()
        found.load_state_dict(run["model"])
        assert_equal(found, expected)
        assert run["losses"] == pytest.approx(losses, rel=1e-5)
        assert run["output"]["total"] == pytest.approx(losses[-1], rel=1e-5)


def test_a_window_in_which_no_token_counts_has_the_terms_of_the_parameters_alone(tmp_path: Path):
    rows = [{"input_ids": row["input_ids"].tolist(), "labels": [-100] * cases.LENGTH} for row in cases.tokens(8)]
    trainer = tuning.PenalizedSFTTrainer(
        cases.language_model(),
        trl.SFTConfig(**tuning.shared(tmp_path, 4) | {"max_steps": 1}),
        train_dataset=Dataset.from_list(rows),
        processing_class=tuning.tokenizer(),
        pipeline=pn.Pipeline(
            [tuning.DECAY, pn.Term(tuning.fluency, weight=0.1, inputs="outputs.log_probs", scope="mean")]
        ),
    )
    trainer.train()
    decay = 0.01 * pn.l2(cases.language_model().parameters()).item()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(decay, rel=1e-5)
    assert trainer.state.log_history[0]["loss/fluency"] == 0.0


def test_logits_that_a_fused_head_does_not_build_raise(tmp_path: Path):
    trainer = tuning.PenalizedSFTTrainer(
        cases.language_model(),
        trl.SFTConfig(**tuning.shared(tmp_path, 1)),
        train_dataset=Dataset.from_list([{"input_ids": [1, 2, 3]}] * 4),
        processing_class=tuning.tokenizer(),
        pipeline=pn.Pipeline([pn.Term(pn.l2, inputs="logits")]),
    )
    with pytest.raises(pn.InputError, match='reads "logits", which the model did not return; it returned .*log_probs'):
        trainer.train()
