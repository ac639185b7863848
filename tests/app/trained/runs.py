"""Runs of a model in a folder, as of one from the hub, and of the built-in one."""

from pathlib import Path
from typing import Any

import pytest
import torch

from penalties.app.config import Config
from penalties.app.runs import Run
from penalties.app.train import train
from penalties.training.local.tiny import ByteTokenizer, tiny_model

from ..stand_ins import toy_config


def small(folder: Path, name: str = "tiny", model: str = "rank = 2", **options: Any) -> Config:
    """A config without terms that trains a model for a few steps."""
    more = f'[model]\nname = "{name}"\n{model}\n'
    return toy_config(folder, "", more, **{"steps": 3, "learning_rate": 0.02, "eval_every": 1, **options})


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as transformers saves it, with its tokenizer."""
    folder = tmp_path_factory.mktemp("base")
    with torch.random.fork_rng():
        torch.manual_seed(5)
        tiny_model().save_pretrained(folder)
    ByteTokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def adapted(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Run:
    """A run that trained that model."""
    folder = tmp_path_factory.mktemp("adapted")
    return train(small(folder, str(base)), folder / "run")


@pytest.fixture(scope="session")
def built_in(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that trained the built-in model, whose second evaluation counts as the best."""
    folder = tmp_path_factory.mktemp("built_in")
    return train(small(folder, best_by="base_loss", best_is="highest", checkpoint_every=1, keep=3), folder / "run")
