"""The norm of every term's gradient, five terms of 1e6 log-probabilities, against forward and backward of the total."""

from collections.abc import Callable

import jax
import torch
from torch import Tensor
from torch.linalg import vector_norm

from .harness import Row, compare, keep_memory
from .terms import EXPRESSIONS, agree, backward, inline, logprobs, pipeline


def again(x: Tensor) -> Callable[[], tuple[dict[str, Tensor], Tensor, Tensor]]:
    """The values, every term again for its gradient, and all once more for the total's."""

    def step() -> tuple[dict[str, Tensor], Tensor, Tensor]:
        values = {name: expression(x) for name, expression in EXPRESSIONS.items()}
        norms = [vector_norm(torch.autograd.grad(expression(x), x)[0]) for expression in EXPRESSIONS.values()]
        (gradient,) = torch.autograd.grad(inline(x), x)
        return values, torch.stack([*norms, vector_norm(gradient)]), gradient

    return step


def run(scale: float) -> list[Row]:
    keep_memory()
    x = logprobs(1000, 1000)
    five = pipeline()
    agree(x, inline, five.total)
    naive = again(x)
    out = five.value_and_grad(x)
    norms = torch.stack([*(term.grad_norm for term in out), out.total_grad_norm])
    torch.testing.assert_close(norms, naive()[1])
    torch.testing.assert_close(out.gradient, naive()[2])

    plain, ours = backward(inline, x), lambda: five.value_and_grad(x)
    rows = [
        compare("PyTorch, a term", plain, ours, seconds=10.0 * scale, unit="ms", each=5, most=10.0, most_ratio=1.25),
        compare("PyTorch, against every term again", naive, ours, seconds=10.0 * scale, unit="ms", most_ratio=1 / 2.2),
    ]

    array = jax.numpy.asarray(x.detach().numpy())
    total = jax.jit(jax.value_and_grad(five.total))
    complete = jax.jit(lambda x: five.value_and_grad(x))
    torch.testing.assert_close(torch.tensor(complete(array).metrics()["total_grad_norm"]), norms[-1])
    rows.append(
        compare(
            "JAX, jit",
            lambda: jax.block_until_ready(total(array)),
            lambda: jax.block_until_ready(complete(array)),
            seconds=10.0 * scale,
            unit="ms",
            most_ratio=1.5,
        )
    )
    return rows
