"""Data for local clients, and what plain transformers and autograd give for them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from penalties.training.local import LocalTrainingClient
from penalties.training.types import Datum, ModelInput

WAIT = 60.0


def tiny(**options: Any) -> LocalTrainingClient:
    """A tiny client whose adapter does something: B is zero at first, and A would have no gradient."""
    client = LocalTrainingClient("tiny", device="cpu", **options)
    stir(client)
    return client


def stir(client: LocalTrainingClient) -> None:
    generator = torch.Generator().manual_seed(5)
    for name, one in client.parameters().items():
        if "lora_B" in name:
            one.data.copy_(0.05 * torch.randn(one.shape, generator=generator))


def data(*lengths: int, width: int | None = None, seed: int = 0, **inputs: Callable[[Any, Any], Any]) -> list[Datum]:
    """Data of these lengths, with `width` targets per position; `inputs` draw more, of the shape of targets."""
    rng = np.random.default_rng(seed)
    found: list[Datum] = []
    for length in lengths:
        shape = (length,) if width is None else (length, width)
        given = {"target_tokens": rng.integers(0, 257, shape)}
        given |= {name: draw(rng, shape).astype(np.float32) for name, draw in inputs.items()}
        found.append(Datum(ModelInput.from_ints(rng.integers(0, 257, length)), given))
    return found


def normal(rng: Any, shape: Any) -> Any:
    return rng.normal(size=shape)


def negative(rng: Any, shape: Any) -> Any:
    return -rng.uniform(4.0, 7.0, size=shape)


def plain_logprobs(client: LocalTrainingClient, datum: Any) -> torch.Tensor:
    """One datum by itself through the model, with nothing of ours."""
    tokens = torch.tensor([datum.model_input.to_ints()], device=client.device)
    targets = torch.as_tensor(datum.loss_fn_inputs["target_tokens"].to_numpy(), device=client.device)
    logits = client.model(input_ids=tokens).logits[0].float().log_softmax(-1)
    return logits.gather(-1, targets.reshape(len(targets), -1)).reshape(targets.shape)


def plain_gradients(client: LocalTrainingClient, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    parameters = client.parameters()
    return dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))


def gradients(client: LocalTrainingClient) -> dict[str, torch.Tensor]:
    return {name: one.grad.clone() for name, one in client.parameters().items() if one.grad is not None}


def clear(client: LocalTrainingClient) -> None:
    for one in client.parameters().values():
        one.grad = None


def logprobs(output: Any) -> list[np.ndarray[Any, Any]]:
    return [one["logprobs"].to_numpy() for one in output.loss_fn_outputs]


def array(datum: Any, name: str) -> torch.Tensor:
    return torch.as_tensor(datum.loss_fn_inputs[name].to_numpy())


def weights(client: LocalTrainingClient) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in client.parameters().items()}


def assert_close(found: Any, expected: Any, tolerance: float = 1e-6) -> None:
    """Equal up to a part of the largest number that there is."""
    if isinstance(expected, dict):
        assert set(found) == set(expected)
        scale = max(float(one.abs().max()) for one in expected.values())
        for name in expected:
            torch.testing.assert_close(found[name], expected[name], rtol=0.0, atol=tolerance * scale)
    elif isinstance(expected, Sequence):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other, tolerance)
    else:
        found, expected = torch.as_tensor(found).detach(), torch.as_tensor(expected).detach()
        assert found.shape == expected.shape
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


def assert_same(found: Any, expected: Any) -> None:
    """Equal to the bit."""
    if not isinstance(expected, dict):
        found, expected = dict(enumerate(found)), dict(enumerate(expected))
    assert set(found) == set(expected)
    for name in expected:
        assert torch.equal(torch.as_tensor(found[name]), torch.as_tensor(expected[name])), name
