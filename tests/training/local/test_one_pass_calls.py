"""Calls in one pass over parts: one graph at a time, what fails, events, random draws, and parts that do not fit."""

import asyncio
import gc
import weakref
from collections.abc import Mapping
from typing import Any

import pytest
import torch

import penalties as pn
from penalties import telemetry
from penalties.errors import GradientError, OptionError, TermError
from penalties.training import forward_backward_custom, forward_backward_custom_async
from penalties.training.local import LocalTrainingClient
from penalties.training.types import AdamParams
from tests.training.local.cases import WAIT, assert_close, clear, data, gradients, negative, normal, stir, tiny
from tests.training.local.one_pass import (
    LENGTHS,
    OVER_LOGPROBS,
    count_forwards,
    flags,
    trained,
)
from tests.training.local.test_micro_batches import run_out_once, watch


@pytest.mark.slow
def test_one_graph_exists_at_a_time() -> None:
    kept: list[Any] = []
    live: list[int] = []

    def look(module: Any, args: Any, output: Any) -> None:
        gc.collect()
        live.append(sum(one() is not None for one in kept))
        kept.append(weakref.ref(output))

    with tiny(micro_batch_tokens=8) as client:
        client.forward(data(3)).result(WAIT)  # the first pass finds out about the output layer
        client.model.get_base_model().get_input_embeddings().register_forward_hook(look)
        forward_backward_custom(client, data(*LENGTHS), "cross_entropy").result(WAIT)
        assert live == [0] * len(client.sweep(data(*LENGTHS)) or ())


def fails_late(flat_logprobs: Any) -> Any:
    if len(flat_logprobs) < 5:
        raise ValueError("too short")
    return flat_logprobs.sum()


@pytest.mark.parametrize(
    ("term", "error", "message"),
    [
        (pn.Term(fails_late, scope="sum", separable=True), TermError, "fails_late: raised ValueError: too short"),
        (
            pn.Term(
                lambda flat_logprobs: (flat_logprobs.sum(), {"size": 1.0}), name="own", scope="sum", separable=True
            ),
            TermError,
            "own: returned the metric size of a part of the batch; a separable term returns a value alone",
        ),
    ],
)
def test_a_failure_in_a_later_part_trains_nothing(term: pn.Term, error: type[Exception], message: str) -> None:
    with tiny(micro_batch_tokens=8) as client:
        with pytest.raises(error, match=message):
            forward_backward_custom(client, data(*LENGTHS), "cross_entropy", regularizers=[term])
        assert not gradients(client)
        forward_backward_custom(client, data(*LENGTHS), "cross_entropy").result(WAIT)


@pytest.mark.parametrize("limit", [None, 8])
def test_wrong_data_are_named_by_their_index_in_the_batch(limit: int | None) -> None:
    batch = data(*LENGTHS[:4], logprobs=negative, advantages=normal)
    del batch[3].loss_fn_inputs["advantages"]  # pyright: ignore[reportIndexIssue]
    with tiny(micro_batch_tokens=limit) as client, pytest.raises(TermError, match="datum 3: importance_sampling needs"):
        forward_backward_custom(client, batch, "importance_sampling")


@pytest.mark.parametrize("limit", [None, 8])
def test_a_gradient_that_is_not_finite_is_named_by_its_datum(limit: int | None) -> None:
    def root(logprobs: Any) -> Any:
        return sum((one - one.detach() + (len(one) != 7)).sqrt().sum() for one in logprobs)

    with tiny(micro_batch_tokens=limit) as client:
        with pytest.raises(pn.NonFiniteError, match="datum 5: the gradient of the loss is inf"):
            forward_backward_custom(
                client, data(*LENGTHS), None, regularizers=[pn.Term(root, scope="sum", separable=True)]
            )
        assert not gradients(client)


@pytest.mark.parametrize("limit", [None, 8])
def test_a_loss_without_a_gradient_raises(limit: int | None) -> None:
    term = pn.Term(
        lambda logprobs: sum(one.detach().sum() for one in logprobs), name="own", scope="sum", separable=True
    )
    with tiny(micro_batch_tokens=limit) as client, pytest.raises(GradientError, match="own: its value has no gradient"):
        forward_backward_custom(client, data(*LENGTHS), None, regularizers=[term])


def test_unknown_weights_raise() -> None:
    with tiny(micro_batch_tokens=8) as client, pytest.raises(pn.PenaltiesError, match="l3"):
        forward_backward_custom(client, data(*LENGTHS), "cross_entropy", weights={"l3": 1.0})


@pytest.mark.parametrize("limit", [None, 8])
def test_the_events_are_those_of_one_call(limit: int | None) -> None:
    heard: list[tuple[str, Mapping[str, Any]]] = []
    handler = telemetry.attach(lambda event, measurements, metadata: heard.append((event, measurements)))
    try:
        found = trained(data(*LENGTHS, weights=flags), "cross_entropy", OVER_LOGPROBS[:1], limit=limit)[0]
    finally:
        telemetry.detach(handler)
    names = [event for event, _ in heard]
    assert names.count("pipeline.stop") == names.count("custom_loss.stop") == 1
    assert names.count("term.stop") == 2
    (stop,) = [measured for event, measured in heard if event == "pipeline.stop"]
    assert float(stop["loss_total"].detach()) == pytest.approx(found.custom_loss.total, rel=1e-4)


def test_a_step_of_the_optimizer_in_between_raises() -> None:
    with tiny(micro_batch_tokens=8) as client:
        batch = data(*LENGTHS)

        def steps(flat_logprobs: Any) -> Any:
            if len(flat_logprobs) == 5:
                client.optim_step(AdamParams(1e-2)).result(WAIT)
            return flat_logprobs.sum()

        client.forward_backward(batch, "cross_entropy").result(WAIT)
        term = pn.Term(steps, scope="sum", separable=True)
        with pytest.raises(GradientError, match="the parameters changed after the forward"):
            forward_backward_custom(client, batch, None, regularizers=[term]).result(WAIT)
        assert not gradients(client)


def test_awaited() -> None:
    batch = data(*LENGTHS, weights=flags)
    _, expected, _ = trained(batch, "cross_entropy", OVER_LOGPROBS[:2])

    async def step(client: LocalTrainingClient) -> Any:
        return await (
            await forward_backward_custom_async(client, batch, "cross_entropy", regularizers=OVER_LOGPROBS[:2])
        )

    with tiny(micro_batch_tokens=8) as client:
        client.forward_backward(batch, "cross_entropy").result(WAIT)
        clear(client)
        seen = count_forwards(client)
        asyncio.run(step(client))
        assert len(seen) == len(client.sweep(batch) or ())
        assert_close(gradients(client), expected, 1e-5)


def test_a_cancelled_task_sends_nothing() -> None:
    with tiny(micro_batch_tokens=8) as client:

        async def main() -> None:
            started, go_on = asyncio.Event(), asyncio.Event()
            loop = asyncio.get_running_loop()

            def slow(flat_logprobs: Any) -> Any:
                loop.call_soon_threadsafe(started.set)
                asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(WAIT)
                return flat_logprobs.sum()

            term = pn.Term(slow, scope="sum", separable=True)
            task = asyncio.create_task(forward_backward_custom_async(client, data(*LENGTHS), None, regularizers=[term]))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            go_on.set()

        asyncio.run(main())
        client.forward(data(3)).result(WAIT)
        assert not gradients(client)


def drop(client: LocalTrainingClient) -> None:
    """Dropout behind the embedding."""
    layer = client.model.get_base_model().get_input_embeddings()
    layer.register_forward_hook(lambda module, args, output: torch.nn.functional.dropout(output, 0.3, training=True))


def test_a_second_forward_draws_what_the_first_drew() -> None:
    batch = data(6, 2, 5)
    with LocalTrainingClient("tiny", device="cpu", micro_batch_tokens=6) as client:
        stir(client)
        client.forward(batch).result(WAIT)
        drop(client)
        torch.manual_seed(3)
        graph = client.forward_with_graph(batch).result(WAIT)
        after = torch.get_rng_state()
        slopes = {"logprobs": [torch.ones_like(one) for one in graph.logprobs]}
        graph.backward(slopes)
        assert torch.equal(torch.get_rng_state(), after), "the second forward drew numbers of its own"
        found = gradients(client)
    with tiny() as client:
        client.forward(batch).result(WAIT)
        drop(client)
        torch.manual_seed(3)
        for one, expected in zip(batch, graph.logprobs, strict=True):
            part = client.forward_with_graph([one]).result(WAIT)
            assert_close(part.logprobs[0], expected, 1e-5)
            part.backward({"logprobs": [torch.ones_like(part.logprobs[0])]})
        assert_close(found, gradients(client), 1e-5)


def test_a_forward_that_drew_is_not_repeated_in_other_parts() -> None:
    with tiny(micro_batch_tokens="auto") as client:
        client.forward(data(3)).result(WAIT)
        drop(client)
        graph = client.forward_with_graph(data(4, 4)).result(WAIT)
        run_out_once(client)
        with pytest.raises(
            OptionError, match=r'micro_batch_tokens="auto"; expected a number, such as 4: memory ran out'
        ):
            graph.backward({"logprobs": [torch.ones_like(one) for one in graph.logprobs]})


def test_auto_takes_one_pass_once_it_knows_what_fits() -> None:
    batch = data(*LENGTHS, weights=flags)
    with tiny() as client:
        forward_backward_custom(client, batch, "cross_entropy", regularizers=OVER_LOGPROBS[:2]).result(WAIT)
        expected = gradients(client)
    with tiny(micro_batch_tokens="auto") as client:
        client.forward(batch[:1]).result(WAIT)
        seen: list[int] = []
        watch(client, seen, most=20)
        for _ in range(2):
            clear(client)
            seen.clear()
            forward_backward_custom(client, batch, "cross_entropy", regularizers=OVER_LOGPROBS[:2]).result(WAIT)
            assert_close(gradients(client), expected, 1e-5)
        parts = len(client.sweep(batch) or ())
        assert parts > 1
        assert len(seen) == parts


def test_a_part_whose_backward_does_not_fit_is_computed_in_smaller_ones() -> None:
    batch = data(4, 4, 3, 2)
    with tiny() as client:
        forward_backward_custom(client, batch, "cross_entropy").result(WAIT)
        expected = gradients(client)
    with tiny(micro_batch_tokens="auto") as client:
        client._limits.tokens = 8  # pyright: ignore[reportPrivateUsage]
        assert len(client.sweep(batch) or ()) == 2
        full = run_out_once(client)
        forward_backward_custom(client, batch, "cross_entropy").result(WAIT)
        assert not full
        assert_close(gradients(client), expected, 1e-5)


def test_a_backward_that_fails_trains_nothing() -> None:
    with tiny(micro_batch_tokens=8) as client:
        run_out_once(client)
        with pytest.raises(torch.OutOfMemoryError):
            forward_backward_custom(client, data(4, 4, 3, 2), "cross_entropy").result(WAIT)
        assert not gradients(client)
