"""The whole workflow on the hosted service. It costs a little; it runs only where `TINKER_API_KEY` is set.

The model is `PENALTIES_LIVE_MODEL`, by default the smallest that can be trained there.
"""

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import penalties as pn
from penalties.training import forward_backward_custom, references

pytestmark = [
    pytest.mark.skipif("TINKER_API_KEY" not in os.environ, reason="needs the hosted service: set TINKER_API_KEY"),
    pytest.mark.timeout(1800),
]

LIMIT = 600.0
PAIRS = (
    ("The river rises in the hills", " and falls to the sea."),
    ("Bread is made of flour", " and water, and needs time."),
    ("The train was late", ", so we walked."),
    ("She counted the stars", " until she fell asleep."),
)


@pytest.fixture(scope="module")
def service() -> Iterator[Any]:
    import tinker

    with tinker.ServiceClient() as made:
        yield made


@pytest.fixture(scope="module")
def model(service: Any) -> str:
    if "PENALTIES_LIVE_MODEL" in os.environ:
        return os.environ["PENALTIES_LIVE_MODEL"]
    offered = service.get_server_capabilities().supported_models
    sizes = {one.model_name: re.search(r"(\d+(?:\.\d+)?)B", one.model_name or "") for one in offered if one.trainable}
    return min((float(found[1]), name) for name, found in sizes.items() if found)[1]


@pytest.fixture(scope="module")
def client(service: Any, model: str) -> Any:
    return service.create_lora_training_client(model, rank=8, seed=0)


@pytest.fixture(scope="module")
def data(client: Any) -> list[Any]:
    from tinker import types

    tokenizer = client.get_tokenizer()
    made: list[Any] = []
    for prompt, completion in PAIRS:
        start, tokens = tokenizer.encode(prompt), tokenizer.encode(prompt + completion)
        weights = np.zeros(len(tokens) - 1, np.float32)
        weights[len(start) - 1 :] = 1.0
        given = {"target_tokens": np.asarray(tokens[1:]), "weights": weights}
        made.append(types.Datum(types.ModelInput.from_ints(tokens[:-1]), given))
    return made


def adam() -> Any:
    from tinker import types

    return types.AdamParams(learning_rate=3e-4)


def logprobs(client: Any, data: Sequence[Any]) -> np.ndarray[Any, Any]:
    output = client.forward(list(data), "cross_entropy").result(LIMIT)
    return np.concatenate([np.asarray(one["logprobs"].to_numpy()) for one in output.loss_fn_outputs])


def pairwise(data: Any, logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
    means = torch.stack([one.mean() for one in logprobs])
    return torch.nn.functional.softplus(means[1:] - means[:-1]).sum() + (means**2).sum(), {}


def test_regularized_training_lowers_the_loss_and_goes_on_from_a_checkpoint(
    service: Any, client: Any, data: list[Any]
) -> None:
    terms = [
        pn.Term("kl_estimate", weight=0.05, inputs=("logprobs", "initial"), name="kl"),
        pn.Term("entropy_estimate", weight=0.01, inputs="logprobs", options={"mode": "bonus"}, name="entropy"),
    ]
    beside = {"initial": references.initial()}
    losses: list[float] = []
    for step in range(8):
        passed = forward_backward_custom(
            client, data, "cross_entropy", regularizers=terms, references=beside, track_grad_norms=True, step=step
        )
        stepped = client.optim_step(adam())
        output = passed.result(LIMIT)
        stepped.result(LIMIT)
        losses.append(output.metrics["base_loss"])
        assert output.custom_loss["kl"].grad_norm is not None
        if step == 0:
            assert output.metrics["kl"] == pytest.approx(0.0, abs=1e-2)
    assert losses[-1] < losses[0]
    assert output.metrics["kl"] > 0.0

    path = client.save_state("penalties-live", ttl_seconds=3600, overwrite=True).result(LIMIT).path
    again = service.create_training_client_from_state_with_optimizer(path)
    np.testing.assert_allclose(logprobs(again, data), logprobs(client, data), atol=5e-2)

    sampler = client.save_weights_and_get_sampling_client()
    from tinker import types

    prompt = types.ModelInput.from_ints(data[0].model_input.to_ints()[:4])
    drawn = sampler.sample(prompt, 1, types.SamplingParams(max_tokens=8, seed=0)).result(LIMIT)
    assert 1 <= len(drawn.sequences[0].tokens) <= 8


def test_ours_trains_as_the_sdks_own_does(service: Any, model: str, data: list[Any]) -> None:
    """One step each from the same start: the same loss, and the same model after it as far as its precision goes."""
    found: list[tuple[float, np.ndarray[Any, Any]]] = []
    for ours in (True, False):
        client = service.create_lora_training_client(model, rank=8, seed=1)
        if ours:
            passed = forward_backward_custom(client, data, pairwise)
        else:
            passed = client.forward_backward_custom(data, pairwise)
        client.optim_step(adam()).result(LIMIT)
        found.append((passed.result(LIMIT).metrics["loss:sum"], logprobs(client, data)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-2)
    np.testing.assert_allclose(found[0][1], found[1][1], atol=5e-2)


def test_candidates_at_each_position_are_trained_on(client: Any, data: list[Any]) -> None:
    from tinker import types

    wide = []
    for datum in data:
        target = datum.loss_fn_inputs["target_tokens"].to_numpy()
        targets = np.stack([target, (target + 1) % 1000], axis=1)
        given = {"target_tokens": targets, "weights": np.ones(targets.shape, np.float32)}
        wide.append(types.Datum(datum.model_input, given))
    teacher = [np.log(np.full(datum.loss_fn_inputs["target_tokens"].shape, 0.5, np.float32)) for datum in wide]
    output = forward_backward_custom(client, wide, "reverse_kl", references={"teacher": teacher}).result(LIMIT)
    assert np.isfinite(output.metrics["base_loss"])
    client.optim_step(adam()).result(LIMIT)


def test_what_the_service_rejects_is_raised(client: Any) -> None:
    from tinker import types

    datum = types.Datum(types.ModelInput.from_ints([1, 2]), {"target_tokens": [1, 10**8], "weights": [1.0, 1.0]})
    with pytest.raises(Exception, match=r".+"):
        forward_backward_custom(client, [datum], "cross_entropy").result(LIMIT)
