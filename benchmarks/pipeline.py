"""What a pipeline adds to the functions of its terms, forward and backward, on PyTorch.

Three questions, for built-in functions and for a user's own: five terms against the same mathematics as one expression;
a term against calling its function; a term of `value_and_grad` against a loop by hand that takes every gradient and
its norm.
"""

from typing import Any

import torch

from .harness import Row, compare
from .terms import FIVES, Five, backward, check_gradients, gradients_by_hand, logprobs, summed


def run(scale: float) -> list[Row]:
    return [row for five in FIVES for row in (*_inline(five, scale), *_calls(five, scale), *_norms(five, scale))]


def _inline(five: Five, scale: float) -> list[Row]:
    x = logprobs(100, 100)
    pipeline = five.pipeline()
    check_gradients(x, five.inline, pipeline.total)

    def read() -> dict[str, float]:
        x.grad = None
        out = pipeline(x)
        out.total.backward()
        return out.metrics()

    plain, ours = backward(five.inline, x), backward(lambda x: pipeline(x).total, x)
    case = f"5 {five.name} terms, 1e4, inline"
    return [
        compare(case, plain, ours, seconds=8.0 * scale, most_ratio=1.20),
        compare(f"{case}, metrics read", plain, read, seconds=4.0 * scale),
    ]


def _calls(five: Five, scale: float) -> list[Row]:
    x = logprobs(10, 100)
    rows: list[Row] = []
    for count in (1, 10, 100):
        total, pipeline = summed(five.turns(count)), five.pipeline(count)
        check_gradients(x, total, pipeline.total)
        plain, ours = backward(total, x), backward(lambda x, pipeline=pipeline: pipeline(x).total, x)
        case = f"a term of {count} {five.name}, 1e3"
        rows.append(compare(case, plain, ours, seconds=4.0 * scale, each=count, most_more=15.0))
    return rows


def _norms(five: Five, scale: float) -> list[Row]:
    x = logprobs(10, 100)
    plain, pipeline = gradients_by_hand(five.turns(5), x), five.pipeline()

    def ours() -> Any:
        return pipeline.value_and_grad(x)

    out, (gradient, norms) = ours(), plain()
    torch.testing.assert_close(out.gradient, gradient)
    torch.testing.assert_close(
        torch.stack([*(term.grad_norm for term in out), out.total_grad_norm]), torch.stack(norms)
    )
    case = f"a term of 5 {five.name}, 1e3, with norms"
    return [compare(case, plain, ours, seconds=6.0 * scale, each=5, most_more=40.0)]
