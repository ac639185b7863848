"""Weights with gradients, that the tests of optimizers share."""

from typing import Any

import torch
from torch import nn

from tests.libraries import DEVICE


def weight(values: Any, gradient: Any = None, dtype: torch.dtype = torch.float64) -> nn.Parameter:
    """A parameter with these values and a gradient, of zeros unless given."""
    parameter = nn.Parameter(torch.tensor(values, dtype=dtype, device=DEVICE))
    given = torch.zeros_like(parameter) if gradient is None else torch.as_tensor(gradient, device=DEVICE)
    parameter.grad = given.to(dtype)
    return parameter


def sgd(*parameters: nn.Parameter, lr: Any = 1.0, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=lr, **options)


def problem(dtype: torch.dtype = torch.float64) -> tuple[nn.Sequential, Any]:
    """A small network, and a function that sets its gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)).to(DEVICE, dtype)
    x, y = torch.randn(16, 5, device=DEVICE, dtype=dtype), torch.randn(16, 1, device=DEVICE, dtype=dtype)

    def backward() -> torch.Tensor:
        model.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    return model, backward


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([one.detach().flatten() for one in model.parameters()])
