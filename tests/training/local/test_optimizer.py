from typing import Any

import pytest
import tinker
import torch

from penalties.errors import GradientError, NonFiniteError, OptionError
from penalties.training.types import AdamParams
from tests.training.local.cases import (
    WAIT,
    assert_close,
    assert_same,
    data,
    gradients,
    normal,
    plain_gradients,
    plain_logprobs,
    tiny,
    weights,
)

NORM = "unclipped_grad_l2:mean"


@pytest.mark.parametrize(
    "params",
    [
        AdamParams(),
        AdamParams(learning_rate=1e-2, beta1=0.8, beta2=0.99, eps=1e-6, weight_decay=0.1),
        AdamParams(learning_rate=1e-2, grad_clip_norm=0.5),
    ],
)
def test_a_step_is_that_of_torch(params: AdamParams) -> None:
    batch = data(5, 8, weights=normal)
    with tiny() as client, tiny() as plain:
        parameters = list(plain.parameters().values())
        optimizer = torch.optim.AdamW(
            parameters,
            lr=params.learning_rate,
            betas=(params.beta1, params.beta2),
            eps=params.eps,
            weight_decay=params.weight_decay,
        )
        for _ in range(3):
            client.forward_backward(batch, "cross_entropy").result(WAIT)
            # The very same gradients: a step divides by them, and enlarges what they differ by.
            for one, gradient in zip(parameters, gradients(client).values(), strict=True):
                one.grad = gradient
            step = client.optim_step(params).result(WAIT)
            norm = torch.nn.utils.get_total_norm([one.grad for one in parameters])
            assert step.metrics == {NORM: pytest.approx(norm.item(), rel=1e-5)}
            if params.grad_clip_norm:
                assert norm > params.grad_clip_norm
                for one in parameters:
                    one.grad *= params.grad_clip_norm / norm
            optimizer.step()
            optimizer.zero_grad()
            assert gradients(client) == {}
        assert_close(weights(client), weights(plain))


def test_the_defaults_are_those_of_the_service() -> None:
    theirs = tinker.AdamParams()
    assert all(getattr(AdamParams(), name) == getattr(theirs, name) for name in type(theirs).model_fields)


def test_gradients_below_the_most_are_not_clipped() -> None:
    batch = data(5)
    with tiny() as client, tiny() as other:
        for one, most in ((client, 0.0), (other, 1e9)):
            one.forward_backward(batch, "cross_entropy").result(WAIT)
            one.optim_step(AdamParams(1e-2, grad_clip_norm=most)).result(WAIT)
        assert_same(weights(client), weights(other))


def test_the_norm_is_that_of_the_whole_gradient() -> None:
    batch = data(5)
    with tiny() as client:
        expected = plain_gradients(client, plain_logprobs(client, batch[0]).sum())
        client.forward_backward(batch, "cross_entropy").result(WAIT)
        norm = torch.cat([one.flatten() for one in expected.values()]).norm().item()
        assert client.optim_step(AdamParams()).result(WAIT).metrics[NORM] == pytest.approx(norm, rel=1e-6)


def test_a_step_needs_gradients() -> None:
    with tiny() as client:
        before = weights(client)
        with pytest.raises(GradientError, match="optim_step: there are no gradients"):
            client.optim_step(AdamParams()).result(WAIT)
        client.forward(data(3)).result(WAIT)
        with pytest.raises(GradientError):
            client.optim_step(AdamParams()).result(WAIT)
        assert_same(weights(client), before)


@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_a_gradient_that_is_not_finite_changes_nothing(kind: str) -> None:
    with tiny() as client:
        before = weights(client)
        graph = client.forward_with_graph(data(3)).result(WAIT)
        name, one = next(iter(client.parameters().items()))
        graph.backward({"params": {name: torch.full_like(one, float(kind))}})
        with pytest.raises(
            NonFiniteError, match=f"the norm of the gradient is {kind}; the gradient was discarded"
        ) as info:
            client.optim_step(AdamParams()).result(WAIT)
        assert info.value.kind == kind
        assert_same(weights(client), before)
        assert gradients(client) == {}
        client.forward_backward(data(3), "cross_entropy").result(WAIT)
        client.optim_step(AdamParams()).result(WAIT)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (AdamParams(learning_rate=-1.0), "optim_step: learning_rate=-1.0; expected a finite number of at least 0"),
        (AdamParams(learning_rate=float("inf")), "learning_rate=inf"),
        (AdamParams(beta1=1.0), "beta1=1.0; expected a number from 0 to below 1"),
        (AdamParams(beta2=-0.1), "beta2=-0.1"),
        (AdamParams(eps=float("nan")), "eps=nan"),
        (AdamParams(weight_decay=-1), "weight_decay=-1"),
        (AdamParams(grad_clip_norm=-1), "grad_clip_norm=-1; expected a finite number of at least 0; 0 is no clipping"),
        (None, "adam_params=None; expected AdamParams; it has no learning_rate"),
        (tinker.types.optimizer.DimuonParams(learning_rate=1e-3), "expected AdamParams; it has no beta2"),
    ],
)
def test_options_are_checked(params: Any, message: str) -> None:
    with tiny() as client, pytest.raises(OptionError, match=message):
        client.optim_step(params)
