"""The mixin in `Trainer`, on one process: parameters after ten steps equal those of a loop by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from . import cases, reference


def assert_equal(found: nn.Module, expected: nn.Module) -> None:
    for (name, a), b in zip(found.state_dict().items(), expected.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


def logged(trainer: Any, key: str) -> list[float]:
    return [entry[key] for entry in trainer.state.log_history if key in entry]


@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize("accumulation", [1, 4, 8])
def test_a_language_model_is_trained_as_by_hand(accumulation: int, across: bool, tmp_path: Path):
    model, expected = cases.language_model(), cases.language_model()
    # Windows of 4 end with one of 2, and those of 8 likewise.
    data = cases.tokens(18 * cases.ROWS)
    trainer = cases.PenalizedTrainer(
        model,
        cases.arguments(tmp_path, accumulation, average_tokens_across_devices=across),
        train_dataset=data,
        pipeline=cases.language_pipeline(),
    )
    trainer.train()
    losses = reference.train_language_model(expected, cases.windows(data, accumulation, 1), across=across)
    assert_equal(model, expected)
    assert logged(trainer, "loss") == pytest.approx(losses, rel=1e-5)
    assert logged(trainer, "loss/total") == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize("accumulation", [1, 4, 8])
def test_a_model_without_a_token_count_is_trained_as_by_hand(accumulation: int, tmp_path: Path):
    model, expected = cases.Regressor(), cases.Regressor()
    data = cases.points(18 * cases.ROWS)
    trainer = cases.PenalizedTrainer(
        model, cases.arguments(tmp_path, accumulation), train_dataset=data, pipeline=cases.points_pipeline()
    )
    trainer.train()
    losses = reference.train_regressor(expected, cases.windows(data, accumulation, 1))
    assert_equal(model, expected)
    assert logged(trainer, "loss") == pytest.approx(losses, rel=1e-5)
