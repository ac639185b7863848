"""`forward_backward_custom` on a local model: what regularizers and their norms add, and the client to a plain loop.

Slow regularizers run at once, against one after another.

The model's step takes tens of milliseconds, so that what is added can be seen.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import penalties as pn
from penalties.training import Datum, LocalTrainingClient, ModelInput, forward_backward_custom

from .harness import FIXED_ALLOCATOR, Row, compare, in_process
from .loop import ADAM, VOCABULARY, Loop, save_model
from .slow_terms import wait

# Sequences of many lengths, as data are.
LENGTHS = (64, 33, 48, 57, 21, 64, 40, 12)


def likelihood(data: Any, logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
    return -torch.cat(list(logprobs)).sum(), {}


def certainty(flat_logprobs: Tensor) -> Tensor:
    """An own term: by how much tokens are likelier than 50 %."""
    return (flat_logprobs.exp() - 0.5).clamp(min=0).square().sum()


ONE = {
    "one built-in": [pn.Term(pn.kl_estimate, 0.1, inputs=("logprobs", "teacher"))],
    "one own": [pn.Term(certainty, 0.1)],
}
FIVE = [
    *ONE["one built-in"],
    *ONE["one own"],
    pn.Term(pn.entropy_estimate, 0.01, inputs="logprobs"),
    pn.Term(pn.l2, 1e-3, inputs="logprobs"),
    pn.Term(pn.consistency, 0.1, inputs=("logprobs", "teacher")),
]


def run(scale: float) -> list[Row]:
    return in_process("benchmarks.custom_loss:rows", scale, FIXED_ALLOCATOR)


def rows(scale: float) -> list[Row]:
    data = _data()
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder))
        return [*_regularizers(Path(folder), data, scale), *_against_a_loop(Path(folder), data, scale)]


def _regularizers(folder: Path, data: list[Datum], scale: float) -> Iterator[Row]:
    teacher = [np.full(length, -2.0, np.float32) for length in LENGTHS]
    with LocalTrainingClient(folder, device="cpu") as client:

        def call(terms: Sequence[pn.Term] = (), *, norms: bool = False) -> Any:
            references = {"teacher": teacher}
            passed = forward_backward_custom(
                client, data, likelihood, regularizers=terms, references=references, track_grad_norms=norms
            )
            return passed.result().metrics

        for name, terms in ONE.items():
            yield compare(
                f"{name} regularizer, of a call",
                call,
                lambda terms=terms: call(terms),
                seconds=20.0 * scale,
                unit="ms",
                most_ratio=1.05,
            )
        yield _parallel(client, data, scale)
        assert {"kl_estimate_grad_norm", "total_grad_norm"} <= set(call(FIVE, norms=True))
        yield compare(
            "five regularizers, with norms",
            lambda: call(FIVE),
            lambda: call(FIVE, norms=True),
            seconds=20.0 * scale,
            unit="ms",
            most_ratio=1.3,
        )


def _parallel(client: LocalTrainingClient, data: list[Datum], scale: float) -> Row:
    """Five terms that wait for a service, one after another and at once."""
    seconds = 0.2 if scale else 0.02
    terms = [pn.Term(wait, 0.1, f"wait_{i}", "flat_logprobs", {"seconds": seconds}) for i in range(5)]

    def call(executor: pn.Executor) -> float:
        passed = forward_backward_custom(client, data, likelihood, regularizers=terms, executor=executor)
        return passed.result().metrics["total"]

    with pn.Executor(sequential=True) as one, pn.Executor() as all_at_once:
        np.testing.assert_allclose(call(one), call(all_at_once), rtol=1e-6)
        return compare(
            f"five regularizers of {1000 * seconds:.0f} ms, in parallel",
            lambda: call(one),
            lambda: call(all_at_once),
            seconds=10.0 * scale,
            unit="ms",
            most_ratio=1 / 3,
        )


def _against_a_loop(folder: Path, data: list[Datum], scale: float) -> Iterator[Row]:
    """A step of the client, against the same model trained by a loop of transformers and peft."""

    def named(client: LocalTrainingClient) -> float:
        passed = client.forward_backward(data, "cross_entropy")
        client.optim_step(ADAM).result()
        return passed.result().metrics["loss:sum"]

    def custom(client: LocalTrainingClient) -> float:
        passed = forward_backward_custom(client, data, surprise)
        client.optim_step(ADAM).result()
        return passed.result().metrics["total"]

    def surprise(data: Any, logprobs: Sequence[Tensor]) -> Tensor:
        return _surprise(torch.cat(list(logprobs)))

    cases: tuple[tuple[str, Callable[[Any], float], Callable[[Loop], Tensor]], ...] = (
        ("a step, cross_entropy", named, lambda loop: (loop.nll() * loop.weights).sum()),
        ("a step, own loss", custom, lambda loop: _surprise(-loop.nll()[loop.mask.bool()])),
    )
    for case, step, loss in cases:
        # A model for each case and side, so that both are equally far in their training when they are compared.
        loop = Loop(folder, data)
        with LocalTrainingClient(folder, device="cpu") as client:
            for _ in range(3):
                np.testing.assert_allclose(step(client), loop.step(loss(loop)), rtol=1e-4)
            yield compare(
                case,
                lambda loop=loop, loss=loss: loop.step(loss(loop)),
                lambda client=client, step=step: step(client),
                seconds=20.0 * scale,
                unit="ms",
                most_ratio=1.05,
            )


def _surprise(logprobs: Tensor) -> Tensor:
    """A loss that is not linear in the log-probabilities."""
    return (logprobs.exp() - 0.5).square().sum() - 0.1 * logprobs.sum()


def _data() -> list[Datum]:
    generator = np.random.default_rng(0)
    data: list[Datum] = []
    for length in LENGTHS:
        tokens = generator.integers(0, VOCABULARY, length + 1)
        weights = (np.arange(length) >= length // 3).astype(np.float32)
        data.append(Datum(ModelInput.from_ints(tokens[:-1]), {"target_tokens": tokens[1:], "weights": weights}))
    return data
