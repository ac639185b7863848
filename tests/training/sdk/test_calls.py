"""Our call through the newest SDK over HTTP."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from tinker import types
from torch import Tensor

import penalties as pn
from penalties.training import (
    LocalTrainingClient,
    forward_backward_custom,
    forward_backward_custom_async,
    references,
)
from tests.servers.sdk import LIMIT, Connected, connected
from tests.servers.terms import slowly
from tests.training.sdk.cases import assert_alike, batch, gradients, logprobs, pairwise

pytestmark = pytest.mark.timeout(120)

ADAM = types.AdamParams(learning_rate=3e-3)


def close_to_mean(data: Any, logprobs: Sequence[Tensor]) -> Tensor:
    """A term in the form of the data-aware ones."""
    return torch.stack([((one - one.mean()) ** 2).mean() for one in logprobs]).sum()


TERMS = [
    pn.Term(close_to_mean, weight=0.3),
    pn.Term("kl_estimate", weight=0.2, inputs=("logprobs", "teacher"), name="kl"),
    pn.Term("entropy_estimate", weight=0.1, inputs="logprobs", options={"mode": "bonus"}, name="entropy"),
]


def teacher(data: Sequence[types.Datum], seed: int = 7) -> list[np.ndarray[Any, Any]]:
    random = np.random.default_rng(seed)
    shapes = [datum.loss_fn_inputs["target_tokens"].shape for datum in data]
    return [-random.exponential(2.0, shape).astype(np.float32) for shape in shapes]


class TestOurCall:
    """`forward_backward_custom` through the SDK."""

    @pytest.mark.parametrize("candidates", [None, 3])
    @pytest.mark.parametrize("scale", [1.0, 10.0])
    def test_every_weight_gets_the_gradient_of_autograd(
        self, sdk: Connected, client: Any, local: Any, candidates: int | None, scale: float
    ) -> None:
        def loss(data: Any, logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
            value, metrics = pairwise(data, logprobs)
            return scale * value, metrics

        data = batch(candidates=candidates)
        forward_backward_custom(client, data, loss, regularizers=[pn.Term(close_to_mean)]).result(LIMIT)
        graph = local.forward_with_graph(data).result(LIMIT)
        (loss(data, graph.logprobs)[0] + close_to_mean(data, graph.logprobs)).backward()
        expected = {name: parameter.grad for name, parameter in graph.inputs["params"].items()}
        found = gradients(sdk.server.service.models[client.model_id].client)
        assert found.keys() == expected.keys()
        norm = torch.cat([one.flatten() for one in expected.values()]).norm()
        for name, gradient in expected.items():
            assert float((found[name] - gradient).norm()) <= 1e-5 * float(norm), name

    def test_output_is_the_sdks_with_ours_in_it(self, client: Any) -> None:
        data = batch()
        beside = {"teacher": teacher(data)}
        output = forward_backward_custom(
            client, data, pairwise, regularizers=TERMS, references=beside, track_grad_norms=True
        ).result(LIMIT)
        assert isinstance(output, types.ForwardBackwardOutput)
        assert len(output.loss_fn_outputs) == len(data)
        assert output.custom_loss["kl"].grad_norm > 0.0
        assert output.metrics["loss:sum"] == pytest.approx(output.custom_loss.total)
        assert {"kl", "entropy_weighted", "base_loss", "spread", "surrogate_loss:sum"} <= output.metrics.keys()
        assert all(isinstance(number, float) for number in output.metrics.values())

    def test_references_stay_here(self, sdk: Connected, client: Any) -> None:
        sent: list[Any] = []
        run = sdk.server.service.run_pass
        sdk.server.service.run_pass = lambda asked, digest: (sent.append(asked), run(asked, digest))[1]
        try:
            data = batch()
            beside = {"teacher": teacher(data)}
            forward_backward_custom(client, data, pairwise, regularizers=TERMS, references=beside).result(LIMIT)
        finally:
            del sdk.server.service.run_pass
        assert [asked.forward_only for asked in sent] == [True, False]
        assert {name for asked in sent for one in asked.data for name in one.loss_fn_inputs} == {
            "target_tokens",
            "weights",
        }

    def test_ours_is_the_sdks_own_for_the_same_loss(self, sdk: Connected, client: Any) -> None:
        other = sdk.service.create_lora_training_client("tiny", rank=4, seed=0)
        ours = forward_backward_custom(client, batch(), pairwise).result(LIMIT)
        theirs = other.forward_backward_custom(batch(), pairwise).result(LIMIT)
        shared = theirs.metrics.keys() - {"clock_cycle:unique"}
        assert {name: ours.metrics[name] for name in shared} == pytest.approx({n: theirs.metrics[n] for n in shared})
        steps = [one.optim_step(ADAM).result(LIMIT).metrics for one in (client, other)]
        assert steps[0] == pytest.approx(steps[1], rel=1e-5)

    def test_a_datum_without_gradient_is_sent_zeros(self, client: Any) -> None:
        def first_alone(data: Any, logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
            return (logprobs[0] ** 2).sum(), {}

        with pytest.raises(ValueError, match="No gradient"):
            client.forward_backward_custom(batch(), first_alone).result(LIMIT)
        forward_backward_custom(client, batch(), first_alone).result(LIMIT)
        client.optim_step(ADAM).result(LIMIT)

    def test_a_step_sent_at_once_comes_after_the_backward(self, sdk: Connected, client: Any) -> None:
        passed = forward_backward_custom(client, batch(), pairwise)
        client.optim_step(ADAM).result(LIMIT)
        passed.result(LIMIT)
        assert [done.operation for done in sdk.server.executed] == ["forward", "forward_backward", "optim_step"]

    def test_two_calls_accumulate(self, client: Any, local: Any) -> None:
        for one in (client, local):
            forward_backward_custom(one, batch(), pairwise).result(LIMIT)
            forward_backward_custom(one, batch(seed=1), pairwise).result(LIMIT)
            one.optim_step(ADAM).result(LIMIT)
        assert_alike(logprobs(client, batch()), logprobs(local, batch()))

    @pytest.mark.parametrize("parallel", [True, False])
    def test_chunked_responses_are_put_together_in_order(self, local: Any, parallel: bool) -> None:
        data = batch((3, 8, 5, 2, 7))
        beside = {"teacher": teacher(data)}
        config = {"fwdbwd_max_chunk_len": 2, "parallel_fwdbwd_chunks": parallel}
        with connected(config=config) as sdk:
            for one in (sdk.client, local):
                output = forward_backward_custom(one, data, pairwise, regularizers=TERMS, references=beside)
                assert [len(part["logprobs"].data) for part in output.result(LIMIT).loss_fn_outputs] == [3, 8, 5, 2, 7]
                one.optim_step(ADAM).result(LIMIT)
            assert sdk.server.count("forward") == sdk.server.count("forward_backward") == 3
            assert_alike(logprobs(sdk.client, data), logprobs(local, data))

    def test_training_is_that_of_the_local_client(self, client: Any, local: Any) -> None:
        losses: dict[str, list[float]] = {}
        for name, one in (("sdk", client), ("local", local)):
            data = batch()
            beside = {"teacher": teacher(data)}
            for _ in range(6):
                passed = forward_backward_custom(one, data, "cross_entropy", regularizers=TERMS, references=beside)
                stepped = one.optim_step(ADAM)
                losses.setdefault(name, []).append(passed.result(LIMIT).metrics["loss:sum"])
                stepped.result(LIMIT)
        assert losses["sdk"] == pytest.approx(losses["local"], abs=1e-4)
        assert losses["sdk"][-1] < losses["sdk"][0]

    @pytest.mark.parametrize("kind", ["initial", "client", "perturbed"])
    def test_providers_return_the_same_as_with_the_local_client(self, sdk: Connected, local: Any, kind: str) -> None:
        student = sdk.service.create_lora_training_client("tiny", rank=4, seed=0)
        teachers = {
            id(student): sdk.service.create_lora_training_client("tiny", rank=4, seed=1),
            id(local): LocalTrainingClient("tiny", rank=4, seed=1),
        }
        terms = [pn.Term("kl_estimate", weight=0.5, inputs=("logprobs", "other"), name="kl")]
        kls: list[list[float]] = []
        for one in (student, local):
            made = {
                "initial": references.initial,
                "client": lambda one=one: references.client(teachers[id(one)]),
                "perturbed": lambda: references.perturbed(token_dropout=0.3),
            }[kind]()
            kls.append([])
            for step in range(3):
                passed = forward_backward_custom(
                    one, batch(), "cross_entropy", regularizers=terms, references={"other": made}, step=step
                )
                one.optim_step(ADAM).result(LIMIT)
                kls[-1].append(passed.result(LIMIT).metrics["kl"])
        assert kls[0] == pytest.approx(kls[1], rel=1e-3, abs=1e-5)
        assert kls[0][2] > 0.0
        if kind == "initial":
            assert kls[0][0] == 0.0

    def test_the_asynchronous_call_does_the_same(self, client: Any, local: Any) -> None:
        async def step(one: Any) -> None:
            passed = await forward_backward_custom_async(one, batch(), pairwise)
            stepped = await one.optim_step_async(ADAM)
            await asyncio.wait_for(passed, LIMIT)
            await asyncio.wait_for(stepped, LIMIT)

        for one in (client, local):
            asyncio.run(step(one))
        assert_alike(logprobs(client, batch()), logprobs(local, batch()))


@contextmanager
def watched(loop: asyncio.AbstractEventLoop) -> Iterator[Callable[[], float]]:
    """How long an event loop was ever held up."""
    worst = 0.0
    over = threading.Event()

    async def beat() -> None:
        nonlocal worst
        before = time.perf_counter()
        while not over.is_set():
            await asyncio.sleep(0.005)
            now = time.perf_counter()
            worst, before = max(worst, now - before - 0.005), now

    beating = asyncio.run_coroutine_threadsafe(beat(), loop)
    try:
        yield lambda: worst
    finally:
        over.set()
        beating.result(LIMIT)


def held_up(loop: asyncio.AbstractEventLoop, call: Callable[[], Any]) -> float:
    """How long a call holds up an event loop: the least of three, since others use the machine too."""
    least = float("inf")
    for _ in range(3):
        with watched(loop) as worst:
            call()
        least = min(least, worst())
        if least < 0.05:
            break
    return least


@pytest.mark.slow
class TestWhileTermsRun:
    """The SDK's event loop, where its heartbeat lives, is not ours to hold."""

    def test_a_slow_term_holds_up_the_loop_in_the_sdks_own_call(self, client: Any) -> None:
        def slow(data: Any, logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
            return slowly(data, logprobs), {}

        with watched(client.holder.get_loop()) as worst:
            client.forward_backward_custom(batch(), slow).result(LIMIT)
        assert worst() > 0.6

    @pytest.mark.parametrize("where", ["inline", "thread", "process"])
    def test_a_slow_term_holds_up_no_loop_in_ours(self, client: Any, where: Any) -> None:
        terms = [pn.Term(slowly, runs=where)]
        with pn.Executor(max_workers=1) as executor:

            def call() -> None:
                forward_backward_custom(client, batch(), pairwise, regularizers=terms, executor=executor).result(LIMIT)

            if where == "process":
                call()  # the worker starts
            assert held_up(client.holder.get_loop(), call) < 0.3

    def test_who_is_cancelled_before_the_backward_sends_none(self, sdk: Connected, client: Any) -> None:
        async def cancelled() -> None:
            terms = [pn.Term(slowly, runs="thread")]
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(
                    forward_backward_custom_async(client, batch(), pairwise, regularizers=terms), timeout=0.4
                )

        asyncio.run(cancelled())
        time.sleep(1.0)
        assert [done.operation for done in sdk.server.executed] == ["forward"]
        assert len(logprobs(client, batch())) == 3

    def test_who_stops_waiting_does_not_stop_the_request(self, sdk: Connected, client: Any) -> None:
        sdk.server.service.models[client.model_id].slow["forward_backward"] = 0.4
        passed = forward_backward_custom(client, batch(), pairwise)
        with pytest.raises(TimeoutError):
            passed.result(0.05)

        async def briefly() -> None:
            with pytest.raises(TimeoutError):
                await passed.result_async(0.05)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(passed.result_async(), 0.05)

        asyncio.run(briefly())
        passed.result(LIMIT)
        client.optim_step(ADAM).result(LIMIT)
        assert [done.operation for done in sdk.server.executed] == ["forward", "forward_backward", "optim_step"]

    def test_a_term_over_data_alone_starts_while_the_forward_runs(self, sdk: Connected, client: Any) -> None:
        started: dict[str, float] = {}

        def of_data(data: Any) -> Tensor:
            started["term"] = time.perf_counter()
            return torch.tensor(1.0)

        def base(data: Any, logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
            started["base"] = time.perf_counter()
            return logprobs[0].sum() + sum(one.sum() for one in logprobs[1:]), {}

        sdk.server.wait("retrieve Forward", 0.8)
        terms = [pn.Term(of_data, runs="thread", differentiable=False)]
        output = forward_backward_custom(client, batch(), base, regularizers=terms).result(LIMIT)
        assert output.metrics["of_data"] == 1.0
        assert started["base"] - started["term"] > 0.4
