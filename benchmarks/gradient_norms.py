"""The norm of every term's gradient on PyTorch, five terms at 1e6, against forward and backward of the total."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm

import penalties as pn

from .harness import Row, compare
from .terms import pipeline

# What an objective on distributions is made of, and five cheap ones: a norm is a pass over its gradient, which would be
# much of a term that is a norm itself, and is little of one that takes exponentials.
DISTRIBUTIONS = pn.Pipeline(
    [
        pn.Term("l2", 1e-3, inputs="student"),
        pn.Term("entropy", 0.1, inputs="student"),
        pn.Term("kl_divergence", 0.1, inputs=("student", "teacher")),
        pn.Term("js_divergence", 0.1, inputs=("student", "teacher")),
        pn.Term("consistency", 1.0, inputs=("student", "pair")),
    ]
)
CHEAP = pn.Pipeline([term.replace(inputs="student") for term in pipeline(5)])


def given() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    names = ("student", "teacher", "pair")
    inputs = {name: torch.randn(1000, 1000, generator=generator).log_softmax(-1) for name in names}
    inputs["student"].requires_grad_()
    return inputs


def again(five: pn.Pipeline, inputs: dict[str, Tensor]) -> Callable[[], tuple[list[Tensor], Tensor, Tensor]]:
    """The values, every term again for its gradient, and all once more for the total's."""
    alone = [pn.Pipeline([term.with_weight(1.0)]) for term in five]
    x = inputs["student"]

    def step() -> tuple[list[Tensor], Tensor, Tensor]:
        values = [one.total(**inputs) for one in alone]
        norms = [vector_norm(torch.autograd.grad(one.total(**inputs), x)[0]) for one in alone]
        (gradient,) = torch.autograd.grad(five.total(**inputs), x)
        return values, torch.stack([*norms, vector_norm(gradient)]), gradient

    return step


def run(scale: float) -> list[Row]:
    # With the allocator as users have it: what is freed early need not be fetched from the system again.
    return [
        *_rows("distributions", DISTRIBUTIONS, scale, (1.25, 1 / 2.2)),
        *_rows("cheap", CHEAP, scale, (1.25, 1 / 2.2)),
    ]


def _rows(kind: str, five: pn.Pipeline, scale: float, most: tuple[float, float]) -> list[Row]:
    inputs = given()
    x = inputs["student"]
    naive = again(five, inputs)
    out = five.value_and_grad(**inputs, wrt="student")
    norms = torch.stack([*(term.grad_norm for term in out), out.total_grad_norm])
    # The naive norms lose digits: PyTorch adds a million squares one after another.
    torch.testing.assert_close(norms, naive()[1], rtol=1e-3, atol=0.0)
    torch.testing.assert_close(out.gradient["student"], naive()[2])

    def plain() -> None:
        x.grad = None
        five.total(**inputs).backward()

    def ours() -> Any:
        return five.value_and_grad(**inputs, wrt="student")

    seconds = 12.0 * scale
    return [
        compare(f"a term, {kind}", plain, ours, seconds=seconds, unit="ms", each=5, most=10.0, most_ratio=most[0]),
        compare(f"every term again, {kind}", naive, ours, seconds=seconds, unit="ms", most_ratio=most[1]),
    ]
