"""Two processes compute sums and means over tokens or sequences in one pass over parts, as one process does."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from penalties.errors import TermError
from penalties.training import forward_backward_custom, references
from penalties.training.local import LocalTrainingClient
from penalties.training.local.processes import ParallelTrainingClient
from penalties.training.local.processes.group import Group
from penalties.training.types import AdamParams

from ..cases import data, normal
from .test_parallel import two

pytestmark = pytest.mark.slow

LENGTHS = (6, 2, 5, 3, 4, 7, 1, 3)
OVER_LOGITS = {"logits": True}


def flags(rng: Any, shape: Any) -> Any:
    """Nothing counts in the second and third datum."""
    return rng.integers(0, 2, shape) if shape[0] not in (2, 5) else np.zeros(shape)


def spread(flat_logprobs: Any) -> Any:
    return flat_logprobs.std()


def fails_late(flat_logprobs: Any) -> Any:
    if len(flat_logprobs) == sum(LENGTHS[-3:]):
        raise ValueError("too short")
    return flat_logprobs.sum()


def terms_of(name: str) -> list[pn.Term]:
    estimates = [
        pn.Term(pn.entropy_estimate, weight=0.3, inputs="logprobs"),
        pn.Term(pn.l2, weight=0.2, inputs="logprobs", options={"reduction": "mean"}),
        pn.Term(pn.l2, name="size", weight=0.1, inputs="params"),
    ]
    full = [
        pn.Term(pn.entropy, weight=0.5, inputs={"p": "logits", "mask": "mask"}, options=OVER_LOGITS),
        pn.Term(pn.kl_divergence, weight=0.3, inputs=("first.logits", "logits"), options=OVER_LOGITS),
        pn.Term(pn.l2, name="small", weight=1e-3, inputs="hidden.1", options={"reduction": "mean"}),
    ]
    likeliest = [*estimates, pn.Term(pn.kl_divergence, inputs=("logprobs.first", "first"))]
    found = {"estimates": estimates, "logits": [*estimates, *full], "likeliest": likeliest}
    return {**found, "whole": [pn.Term(spread)], "pairs": []}[name]


# A name, the options of the client, what is trained on, and how often the first process then runs the model.
PARTS: dict[str, Any] = {"micro_batch_tokens": 8}
CASES: Mapping[str, tuple[dict[str, Any], str, dict[str, Any], int]] = {
    "parts": (PARTS, "estimates", {}, 3),
    "measured": (PARTS, "estimates", {"track_grad_norms": "parameters", "cosines": True}, 3),
    "logits": (PARTS, "logits", {}, 6),
    "likeliest": (PARTS, "likeliest", {}, 7),
    "all weights": ({"adapter": "none", **PARTS}, "estimates", {}, 3),
    "packed": ({"packing": True, **PARTS}, "estimates", {}, 3),
    "by rows": ({"batch_size": 1}, "estimates", {}, 4),
    "sharded": ({"shard": True, **PARTS}, "logits", {}, 6),
    "checkpointing": ({"shard": True, "checkpointing": True, **PARTS}, "estimates", {}, 3),
    "pairs": ({"micro_batch_tokens": 14}, "pairs", {}, 2),
    "all at once": ({"micro_batch_tokens": 40}, "estimates", {}, 1),
    "whole batch": (PARTS, "whole", {}, 8),
}


def reference(batch: Sequence[Any]) -> list[Any]:
    rng = np.random.default_rng(7)
    return [-rng.uniform(4, 7, len(one.loss_fn_inputs["target_tokens"].data)).astype(np.float32) for one in batch]


def step(client: Any, terms: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """What a call computes, after a step that has changed the adapter; and how often the model ran here."""
    seen: list[int] = []
    batch = data(*LENGTHS, weights=flags)
    first = {"logits": references.initial(), "likeliest": references.initial(top_k=3)}
    given: dict[str, Any] = {"references": {"first": first[terms]}} if terms in first else {}
    loss: Any = "cross_entropy"
    if terms == "pairs":
        loss, given = {"fn": "dpo", "options": {"beta": 0.3}}, {"references": {"initial": reference(batch)}}
    client.forward_backward(data(*LENGTHS, weights=normal), "cross_entropy").result()
    client.optim_step(AdamParams(1e-2)).result()
    client.model.get_input_embeddings().register_forward_pre_hook(lambda module, args: seen.append(1))
    passed = forward_backward_custom(client, batch, loss, regularizers=terms_of(terms), **given, **options).result()
    numbers = {name: one for name, one in passed.metrics.items() if not name.startswith("time")}
    return {
        "metrics": {name: torch.tensor(one) for name, one in numbers.items()},
        "gradients": {name: one.grad.clone() for name, one in client.parameters().items()},
        "logprobs": [torch.tensor(one["logprobs"].to_numpy()) for one in passed.loss_fn_outputs],
    }, len(seen)


def led(group: Group) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (options, terms, call, _) in CASES.items():
        with ParallelTrainingClient(group, "tiny", device="cpu", **options) as client:
            result, forwards = step(client, terms, call)
            found[name] = {**result, "forwards": torch.tensor(forwards)}
    found["after a failure"] = after_a_failure(group)
    found["smaller"] = smaller_meanwhile(group)
    return found


def after_a_failure(group: Group) -> dict[str, Any]:
    """What a call computes after one that failed in its last part."""
    with ParallelTrainingClient(group, "tiny", device="cpu", **PARTS) as client:
        failing = pn.Term(fails_late, scope="sum", separable=True)
        with pytest.raises(TermError, match="too short"):
            forward_backward_custom(client, data(*LENGTHS), "cross_entropy", regularizers=[failing])
        assert all(one.grad is None for one in client.parameters().values())
        return step(client, "estimates", {})[0]


def smaller_meanwhile(group: Group) -> dict[str, Any]:
    """Memory for only 4 tokens is left after the parts were chosen."""
    with ParallelTrainingClient(group, "tiny", device="cpu", micro_batch_tokens="auto") as client:
        client._limits.tokens = 8
        sweeping = client.sweep

        def swept(*arguments: Any, **options: Any) -> Any:
            found = sweeping(*arguments, **options)
            client._limits.tokens = 4
            return found

        client.sweep = swept  # pyright: ignore[reportAttributeAccessIssue]
        return step(client, "estimates", {})[0]


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return two(led)


@pytest.mark.parametrize("name", CASES)
def test_two_processes_take_one_pass_over_parts(results: dict[str, Any], name: str) -> None:
    options, terms, call, forwards = CASES[name]
    kept = {key: one for key, one in options.items() if key == "adapter"}
    with LocalTrainingClient("tiny", device="cpu", **kept) as client:
        expected, _ = step(client, terms, call)
    assert_same(results[name], expected)
    assert int(results[name]["forwards"]) == forwards


@pytest.mark.parametrize("name", ["after a failure", "smaller"])
def test_what_happened_before_changes_nothing(results: dict[str, Any], name: str) -> None:
    with LocalTrainingClient("tiny", device="cpu") as client:
        expected, _ = step(client, "estimates", {})
    assert_same(results[name], expected)


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["metrics"].keys() == expected["metrics"].keys()
    for name, one in expected["metrics"].items():
        assert float(found["metrics"][name]) == pytest.approx(float(one), rel=1e-4, abs=1e-5), name
    for name, one in expected["gradients"].items():
        torch.testing.assert_close(found["gradients"][name], one, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found["logprobs"], expected["logprobs"], atol=1e-5, rtol=1e-5)
