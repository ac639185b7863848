"""Calls in one pass over parts, and what they are compared with: the whole batch at once."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from penalties.training import forward_backward_custom
from penalties.training.local import LocalTrainingClient
from tests.training.local.cases import WAIT, assert_close, clear, gradients, tiny

LENGTHS = (6, 2, 5, 3, 4, 7, 1, 3)


def flags(rng: Any, shape: Any) -> Any:
    """Of the second and third datum nothing counts: one part of the batch has no target at all."""
    return rng.integers(0, 2, shape) if shape[0] not in (2, 5) else np.zeros(shape)


def count_forwards(client: LocalTrainingClient) -> list[int]:
    seen: list[int] = []
    layer = client.model.get_base_model().get_input_embeddings()
    layer.register_forward_pre_hook(lambda module, args: seen.append(args[0].numel()))
    return seen


def trained(
    batch: Sequence[Any], loss: Any, terms: Sequence[Any] = (), *, limit: int | None = None, **options: Any
) -> tuple[Any, dict[str, torch.Tensor], int]:
    """The result of a call, the gradients, and how often the model ran."""
    with tiny(micro_batch_tokens=limit) as client:
        # The first call tries the model out. No step of Adam: the first one makes gradients that are rounded to
        # either side of 0 as large as all others, and parts are rounded in their own way.
        client.forward_backward(list(batch), "cross_entropy").result(WAIT)
        clear(client)
        seen = count_forwards(client)
        found = forward_backward_custom(client, batch, loss, regularizers=list(terms), **options).result(WAIT)
        return found, gradients(client), len(seen)


def numbers(output: Any) -> dict[str, float]:
    return {name: one for name, one in output.metrics.items() if not name.startswith("time")}


def assert_one_pass(batch: Sequence[Any], loss: Any, terms: Sequence[Any] = (), limit: int = 8, **options: Any) -> None:
    """The results and gradients of the whole batch, with one forward for each part."""
    whole, expected, _ = trained(batch, loss, terms, **options)
    parts, found, forwards = trained(batch, loss, terms, limit=limit, **options)
    with tiny(micro_batch_tokens=limit) as client:
        sweep = client.sweep(batch)
        assert sweep is not None
        assert forwards <= len(sweep), "a part went through the model twice"
    assert numbers(parts) == pytest.approx(numbers(whole), rel=1e-4, abs=1e-5)
    assert_close(found, expected, 1e-5)
    assert_close(
        [one["logprobs"].to_numpy() for one in parts.loss_fn_outputs],
        [one["logprobs"].to_numpy() for one in whole.loss_fn_outputs],
        1e-5,
    )
    plain, split = whole.custom_loss, parts.custom_loss
    assert split.names == plain.names
    for name in plain.names:
        assert split[name].metrics == pytest.approx(plain[name].metrics, rel=1e-4, abs=1e-5)
        assert split[name].weight == plain[name].weight
        assert (split[name].grad_error is None) == (plain[name].grad_error is None)
        assert split[name].grad_norms == pytest.approx(plain[name].grad_norms, rel=1e-4, abs=1e-6)
    if plain.cosines is not None:
        np.testing.assert_allclose(split.cosines, plain.cosines, rtol=1e-3, atol=1e-4)
    if plain.gradient is not None:
        assert_close(split.gradient["flat_logprobs"], plain.gradient["flat_logprobs"], 1e-5)


MEASURED = [
    {},
    {"track_grad_norms": True},
    {"track_grad_norms": True, "cosines": True},
    {"track_grad_norms": "parameters", "cosines": True},
]


def reference(batch: Sequence[Any]) -> list[Any]:
    rng = np.random.default_rng(7)
    return [
        -rng.uniform(4, 7, one.loss_fn_inputs["target_tokens"].to_numpy().shape).astype(np.float32) for one in batch
    ]


OVER_LOGPROBS = [
    pn.Term(pn.l1, weight=0.1, inputs="logprobs"),
    pn.Term(pn.l2, weight=0.2, inputs="logprobs", options={"reduction": "mean", "center": -5.0}),
    pn.Term(pn.smooth_l1, weight=0.2, inputs="flat_logprobs", options={"reduction": "mean"}),
    pn.Term(pn.elastic_net, weight=0.02, inputs="logprobs"),
    pn.Term(pn.kl_estimate, weight=0.3, inputs=("logprobs", "teacher")),
    pn.Term(pn.entropy_estimate, weight=0.3, inputs="logprobs", options={"reduction": "sum"}),
    pn.Term(pn.consistency, weight=0.3, inputs=("logprobs", "teacher")),
]

LOGITS = {"logits": True}
OVER_LOGITS = [
    pn.Term(pn.entropy, weight=0.5, inputs={"p": "logits", "mask": "mask"}, options={**LOGITS, "mode": "bonus"}),
    pn.Term(pn.kl_divergence, weight=0.3, inputs={"p": "logits", "q": "first.logits", "mask": "mask"}, options=LOGITS),
    pn.Term(pn.js_divergence, weight=0.3, inputs=("flat_logits", "flat_first.logits"), options=LOGITS),
    pn.Term(pn.l2, name="small", weight=1e-3, inputs="hidden.1", options={"reduction": "mean"}),
    pn.Term(pn.l1, name="sparse", weight=1e-4, inputs="flat_hidden.0"),
    pn.Term(
        pn.consistency,
        name="alike",
        weight=0.1,
        inputs={"a": "hidden.1", "b": "hidden.0", "mask": "mask"},
        options={"metric": "cosine"},
    ),
]


def spread(flat_logprobs: Any) -> Any:
    return flat_logprobs.std()
