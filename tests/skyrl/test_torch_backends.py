"""The losses of SkyRL's torch backends, which need GPUs to serve: they add up, so the surrogate for sums is exact."""

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from penalties.training.surrogates import REDUCTIONS

FUNCTIONS = ("cross_entropy_loss", "importance_sampling_loss", "reduce_loss")
LENGTHS = (4, 5)


@pytest.fixture(scope="module")
def losses() -> dict[str, Any]:
    """SkyRL's own functions, without the module around them, which wants Ray and more."""
    (folder,) = find_spec("skyrl").submodule_search_locations  # type: ignore[union-attr]
    tree = ast.parse(Path(folder, "backends", "skyrl_train", "utils", "ppo_utils.py").read_text())
    chosen = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name in FUNCTIONS]
    assert len(chosen) == len(FUNCTIONS)
    for one in chosen:
        one.decorator_list.clear()
    module = ast.parse("from typing import Any, Optional, Tuple\nimport torch\nAlgorithmConfig = Any")
    module.body += chosen
    found: dict[str, Any] = {}
    exec(compile(module, "ppo_utils.py", "exec"), found)
    return found


def gradient(losses: dict[str, Any], reduction: str, count: int) -> list[float]:
    """What the backend adds to each log-probability where our loss is their sum: of the last of `count` sequences."""
    logprobs = [torch.linspace(-2, -1, length, requires_grad=True) for length in LENGTHS[:count]]
    surrogate = REDUCTIONS[reduction]
    for one in logprobs:
        sent = surrogate.inputs(one.detach().numpy(), torch.ones(len(one)).numpy(), count)
        # As its API does: ones where there are no weights.
        mask = torch.as_tensor(sent.get("weights", torch.ones(len(one))))
        old, advantages = (torch.as_tensor(sent.get(name, mask)) for name in ("logprobs", "advantages"))
        losses[f"{surrogate.loss_fn}_loss"](one, old, advantages, None, mask)[0].backward()
    return logprobs[-1].grad.tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("count", [1, 2])
def test_the_surrogate_for_sums_is_exact(losses: dict[str, Any], count: int) -> None:
    assert gradient(losses, "sums", count) == [1.0] * LENGTHS[count - 1]


@pytest.mark.parametrize("count", [1, 2])
def test_the_one_for_averages_is_off_by_length_times_count(losses: dict[str, Any], count: int) -> None:
    length = LENGTHS[count - 1]
    assert gradient(losses, "averages", count) == [float(length * count)] * length
