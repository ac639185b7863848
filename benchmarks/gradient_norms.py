"""The gradient norm of every term, five terms at 1e6, against forward and backward of the total; cosines and memory.

The limit on PyTorch is for memory that stays with the process. Rows of the allocator as it is by default stand beside
it: there, results of a few megabytes cost page faults on either side.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import penalties as pn

from .harness import FIXED_ALLOCATOR, Row, compare, in_process, peak_memory
from .terms import BUILT_IN, OWN, logprobs

Objective = Sequence[tuple[Callable[..., Any], float, tuple[str, ...]]]
OBJECTIVES: Mapping[str, Objective] = {
    "built-in divergences": [
        (pn.l2, 1e-3, ("student",)),
        (pn.entropy, 0.1, ("student",)),
        (pn.kl_divergence, 0.1, ("student", "teacher")),
        (pn.js_divergence, 0.1, ("student", "teacher")),
        (pn.consistency, 1.0, ("student", "pair")),
    ],
    "built-in norms": [(fn, weight, ("student",)) for fn, weight in BUILT_IN.functions.items()],
    "own": [(fn, weight, ("student",)) for fn, weight in OWN.functions.items()],
}


def run(scale: float) -> list[Row]:
    return [
        *in_process("benchmarks.gradient_norms:torch_rows", scale, FIXED_ALLOCATOR),
        *_default(in_process("benchmarks.gradient_norms:torch_rows", scale / 2, {})),
        *in_process("benchmarks.gradient_norms:jax_rows", scale, FIXED_ALLOCATOR),
        *in_process("benchmarks.gradient_norms:network_rows", scale, FIXED_ALLOCATOR),
        *_memory(),
    ]


def _default(rows: list[Row]) -> list[Row]:
    """The same rows without their limits."""
    return [Row(f"{row.case}, default allocator", row.unit, row.plain, row.ours, row.again) for row in rows]


def _inputs() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    names = ("student", "teacher", "pair")
    return {name: torch.randn(1000, 1000, generator=generator).log_softmax(-1) for name in names}


def torch_rows(scale: float) -> list[Row]:
    inputs = _inputs()
    x = inputs["student"].requires_grad_()
    rows: list[Row] = []
    for name, objective in OBJECTIVES.items():
        total, five = _total(objective), _pipeline(objective)

        def plain(total: Callable[..., Any] = total) -> None:
            x.grad = None
            total(inputs).backward()

        def ours(five: pn.Pipeline = five) -> Any:
            return five.value_and_grad(**inputs, wrt="student")

        plain()
        torch.testing.assert_close(ours().gradient["student"], x.grad)
        rows.append(compare(f"5 terms, {name}", plain, ours, seconds=12.0 * scale, unit="ms", most_ratio=1.45))
    return rows


def jax_rows(scale: float) -> list[Row]:
    inputs = {name: jax.numpy.asarray(tensor.numpy()) for name, tensor in _inputs().items()}
    rows: list[Row] = []
    for name, objective in OBJECTIVES.items():
        total, five = _total(objective), _pipeline(objective)
        value_and_grad = jax.value_and_grad(lambda x, named, total=total: total({**named, "student": x}))
        plain = jax.jit(lambda named, fn=value_and_grad: fn(named["student"], named))
        ours = jax.jit(lambda named, five=five: five.value_and_grad(**named, wrt="student"))
        value, gradient = plain(inputs)
        out = ours(inputs)
        assert jax.numpy.allclose(out.total, value)
        assert jax.numpy.allclose(out.gradient["student"], gradient, atol=1e-7)
        rows.append(
            compare(
                f"5 terms, {name}, one jit",
                lambda plain=plain: jax.block_until_ready(plain(inputs)),
                lambda ours=ours: jax.block_until_ready(ours(inputs)),
                seconds=12.0 * scale,
                unit="ms",
                most_ratio=1.7,
            )
        )
    return rows


def _total(objective: Objective) -> Callable[[Mapping[str, Any]], Any]:
    """The weighted sum, by calls of the functions."""

    def total(named: Mapping[str, Any]) -> Any:
        return sum(weight * fn(*(named[name] for name in names)) for fn, weight, names in objective)

    return total


def _pipeline(objective: Objective) -> pn.Pipeline:
    return pn.Pipeline([pn.Term(fn, weight, inputs=names) for fn, weight, names in objective])


CLASSES = 10
SHARED = pn.Pipeline(
    [
        pn.Term(cross_entropy, inputs=("scores", "labels")),
        pn.Term(pn.kl_divergence, 0.5, inputs=("logprobs", "teacher")),
        pn.Term(pn.entropy, 0.01, inputs="logprobs"),
        pn.Term(pn.l2, 1e-3, inputs="hidden", options={"reduction": "mean"}),
        pn.Term(pn.smooth_l1, 1e-3, inputs="hidden", options={"reduction": "mean"}),
    ]
)


def network_rows(scale: float) -> list[Row]:
    """Norms and cosines at a shared layer of a network of 5e6 parameters, against training without them."""
    torch.manual_seed(0)
    trunk = nn.Sequential(
        nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024), nn.ReLU()
    )
    head = nn.Linear(1024, CLASSES)
    parameters = [*trunk.parameters(), *head.parameters()]
    rows: list[Row] = []
    for batch in (128, 16):
        images, labels = torch.randn(batch, 784), torch.randint(CLASSES, (batch,))
        teacher = torch.randn(batch, CLASSES).log_softmax(-1)

        def forward(
            images: Tensor = images, labels: Tensor = labels, teacher: Tensor = teacher
        ) -> tuple[pn.LossOutput, Tensor]:
            for parameter in parameters:
                parameter.grad = None
            hidden = trunk(images)
            scores = head(hidden)
            logprobs = scores.log_softmax(-1)
            return SHARED(scores=scores, labels=labels, logprobs=logprobs, teacher=teacher, hidden=hidden), hidden

        def plain(forward: Callable[[], tuple[pn.LossOutput, Tensor]] = forward) -> None:
            out, _ = forward()
            out.total.backward()

        def ours(forward: Callable[[], tuple[pn.LossOutput, Tensor]] = forward) -> None:
            out, hidden = forward()
            pn.gradients.track(out, at=hidden, backward=True)

        plain()
        expected = [parameter.grad for parameter in parameters]
        ours()
        torch.testing.assert_close([parameter.grad for parameter in parameters], expected)
        case = f"a network, batch of {batch}, norms and cosines"
        rows.append(compare(case, plain, ours, seconds=10.0 * scale, unit="ms", most_ratio=1.2))
    return rows


def _memory() -> list[Row]:
    """Peak memory of `value_and_grad` beyond the gradient that it returns."""
    x = logprobs(1000, 1000)
    gradient = [x.nbytes / 1e6]
    rows: list[Row] = []
    for five in (BUILT_IN, OWN):
        for count, most in ((1, 10.0), (5, math.inf)):
            pipeline = five.pipeline(count)
            taken = [peak_memory(lambda pipeline=pipeline: pipeline.value_and_grad(x))]
            case = f"peak memory, {count} {five.name}"
            rows.append(Row(case, "MB", gradient, taken, gradient, most_more=most))
    return rows
