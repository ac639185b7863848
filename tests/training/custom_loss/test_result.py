"""The result of a call, waited for and awaited."""

import asyncio
import threading
import time
from typing import Any

import pytest
import torch

import penalties as pn
from penalties.training import forward_backward_custom, forward_backward_custom_async
from tests.training.clients import RemoteClient, batch
from tests.training.custom_loss.cases import assert_trained_alike, squared


class TestTheResult:
    def test_is_the_clients_with_ours_in_it(self) -> None:
        client, data = RemoteClient(), batch(3, 2)
        future = forward_backward_custom(client, data, squared, regularizers=[pn.Term("l1", 0.1, inputs="logprobs")])
        result = future.result(60)
        assert future.result(60) is result
        assert result.loss_fn_output_type == "Fake"
        assert result.metrics["mine"] == 7.0
        assert result.metrics["loss:sum"] == pytest.approx(result.custom_loss.total)
        assert result.metrics["loss:sum"] == pytest.approx(result.metrics["total"])
        assert "surrogate_loss:sum" in result.metrics
        assert all(type(number) is float for number in result.metrics.values())
        assert result.custom_loss.to_dict()["regularizers"]["l1"]["weight"] == 0.1
        assert client.calls == [("forward", "cross_entropy"), ("forward_backward", "cross_entropy")]

    def test_numbers_of_terms_are_not_those_of_the_base(self) -> None:
        def base(data: Any, logprobs: Any) -> Any:
            return logprobs[0].sum(), {"l1": 7.0, "total": 123.0, "loss:sum": 5.0, "mine": 1.0}

        terms = [pn.Term("l1", 0.5, inputs="logprobs")]
        found = forward_backward_custom(RemoteClient(), batch(3), base, regularizers=terms).result(60)
        assert found.metrics["l1"] == pytest.approx(found.custom_loss["l1"].value)
        assert found.metrics["total"] == found.metrics["loss:sum"] == pytest.approx(found.custom_loss.total)
        assert (found.metrics["mine"], found.metrics["base_loss/l1"]) == (1.0, 7.0)

    def test_of_clients_that_return_no_futures(self) -> None:
        class Plain(RemoteClient):
            def _answer(self, make: Any) -> Any:
                return make()

        class Coroutines(RemoteClient):
            def _answer(self, make: Any) -> Any:
                async def later() -> Any:
                    return make()

                return later()

        for kind in (Plain, Coroutines):
            client, data = kind(), batch(3)
            assert forward_backward_custom(client, data, squared).result(60).metrics["mine"] == 7.0
            assert_trained_alike(client, data, lambda lp, data=data: squared(data, lp)[0])

    def test_an_optimizer_step_sent_next_comes_after_it(self) -> None:
        client = RemoteClient()
        forward_backward_custom(client, batch(3), squared)
        assert [name for name, _ in client.calls] == ["forward", "forward_backward"]

    def test_of_classes_without_a_field_for_it(self) -> None:
        import dataclasses

        @dataclasses.dataclass(frozen=True)
        class Theirs:
            loss_fn_outputs: list[Any]
            metrics: dict[str, float]

        class Plain:
            def __init__(self, outputs: Any, metrics: Any) -> None:
                self.loss_fn_outputs, self.metrics = outputs, metrics

        for kind in (Theirs, Plain):
            client = RemoteClient()
            client._output = lambda data, logprobs, loss, kind=kind: kind(  # type: ignore[method-assign]
                [{"logprobs": one.tolist()} for one in logprobs], {}
            )
            result = forward_backward_custom(client, batch(3), squared).result(60)
            assert isinstance(result, kind)
            assert result.custom_loss.total == pytest.approx(result.metrics["loss:sum"])

    def test_can_be_awaited(self) -> None:
        async def main() -> Any:
            client, data = RemoteClient(), batch(3, 2)
            future = await forward_backward_custom_async(client, data, squared)
            result = await future
            assert await future.result_async(60) is result
            assert_trained_alike(client, data, lambda lp: squared(data, lp)[0])
            return result

        assert asyncio.run(main()).metrics["mine"] == 7.0

    def test_timeouts_do_not_stop_the_request(self) -> None:
        client, go = RemoteClient(), threading.Event()
        client.delay = lambda: None if len(client.calls) == 1 else go.wait(20) and None
        late = forward_backward_custom(client, batch(3), squared)
        with pytest.raises(TimeoutError):
            late.result(0.01)
        with pytest.raises(TimeoutError):
            asyncio.run(late.result_async(0.01))
        go.set()
        assert late.result(60).metrics["mine"] == 7.0


class TestAsync:
    def test_the_loop_is_never_blocked(self) -> None:
        def slow(logprobs: Any) -> Any:
            time.sleep(0.3)
            return logprobs[0].sum()

        gaps: list[float] = []

        async def beat() -> None:
            before = time.monotonic()
            while True:
                await asyncio.sleep(0.005)
                now = time.monotonic()
                gaps.append(now - before)
                before = now

        async def main() -> None:
            beating = asyncio.create_task(beat())
            future = await forward_backward_custom_async(RemoteClient(), batch(3), squared, regularizers=[slow])
            await future
            beating.cancel()

        asyncio.run(main())
        assert len(gaps) > 10

    def test_modes_of_the_thread_are_not_ours_to_change(self) -> None:
        async def main() -> None:
            with torch.no_grad():
                await forward_backward_custom_async(RemoteClient(), batch(3), squared)

        with pytest.raises(pn.GradientError, match="was awaited inside torch.no_grad"):
            asyncio.run(main())

    def test_one_that_is_cancelled_before_the_forward_is_there_runs_nothing(self) -> None:
        client, ran, go = RemoteClient(), [], threading.Event()
        client.delay = lambda: go.wait(20) and None

        def term(logprobs: Any) -> Any:
            ran.append(1)
            return logprobs[0].sum()

        async def main() -> None:
            call = asyncio.create_task(forward_backward_custom_async(client, batch(3), squared, regularizers=[term]))
            await asyncio.sleep(0.2)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            go.set()
            await asyncio.sleep(0.3)

        asyncio.run(main())
        assert ran == []

    def test_one_that_is_cancelled_sends_nothing(self) -> None:
        client = RemoteClient()
        begun, go = threading.Event(), threading.Event()

        def slow(logprobs: Any) -> Any:
            begun.set()
            go.wait(20)
            return logprobs[0].sum()

        async def main() -> None:
            call = asyncio.create_task(
                forward_backward_custom_async(
                    client, batch(3), squared, regularizers=[pn.Term(slow, runs="thread", timeout=30.0)]
                )
            )
            while not begun.is_set():
                await asyncio.sleep(0.01)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            go.set()
            await asyncio.sleep(0.1)

        asyncio.run(main())
        assert [name for name, _ in client.calls] == ["forward"]
