"""Terms that are awaited, and runs that are."""

import asyncio
import os
import threading
import time
from concurrent.futures import Future
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import penalties as pn

from .terms import ELSEWHERE


class TestAsync:
    def test_the_callers_loop_goes_on(self, executor: pn.Executor) -> None:
        def slow(x: Any) -> Any:
            time.sleep(0.3)
            return x.sum()

        async def main() -> tuple[float, int]:
            beats = 0

            async def beat() -> None:
                nonlocal beats
                while True:
                    await asyncio.sleep(0.01)
                    beats += 1

            beating = asyncio.ensure_future(beat())
            out = await executor.run_async(pn.Pipeline([pn.Term(slow), pn.Term("l1", inputs="x")]), {"x": np.ones(2)})
            beating.cancel()
            return float(out.total), beats

        total, beats = asyncio.run(main())
        assert total == 4.0
        assert beats > 5

    def test_terms_are_awaited_on_another_loop(self, executor: pn.Executor) -> None:
        async def whose(x: Any) -> Any:
            return x.sum(), {"thread": threading.get_ident(), "loop": id(asyncio.get_running_loop())}

        async def main() -> None:
            out = await executor.run_async(pn.Pipeline([whose]), {"x": np.ones(2)})
            metrics = out.metrics()
            assert metrics["whose/loop"] != id(asyncio.get_running_loop())
            assert metrics["whose/thread"] != threading.get_ident()

        asyncio.run(main())

    def test_inputs_may_be_awaited(self, executor: pn.Executor) -> None:
        async def forward() -> Any:
            await asyncio.sleep(0.05)
            return torch.ones(2, requires_grad=True)

        async def main() -> pn.LossOutput:
            return await executor.run_async(pn.Pipeline([pn.Term("l1", inputs="x")]), {"x": forward()}, wrt="x")

        assert asyncio.run(main()).gradient["x"].tolist() == [1.0, 1.0]

    def test_the_one_input_may_be_promised(self, executor: pn.Executor) -> None:
        async def forward() -> Any:
            return np.ones(2)

        async def main() -> float:
            return float((await executor.run_async(pn.Pipeline(["l1"]), forward())).total)

        assert asyncio.run(main()) == 2.0
        promised: Future[Any] = Future()
        promised.set_result(np.ones(3))
        assert float(executor.run(pn.Pipeline(["l1"]), promised).total) == 3.0

    def test_cancelling_while_an_input_is_awaited(self, executor: pn.Executor) -> None:
        async def forward() -> Any:
            await asyncio.sleep(60)

        async def main() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(executor.run_async(pn.Pipeline(["l1"]), {"x": forward()}), 0.2)

        asyncio.run(main())

    def test_sequential_in_a_loop_raises_what_the_term_raises(self) -> None:
        async def broken(x: Any) -> Any:
            raise ValueError("no luck")

        async def main() -> None:
            with pn.Executor(sequential=True) as executor:
                executor.run(pn.Pipeline([broken]), {"x": np.ones(3)})

        with pytest.raises(pn.TermError, match="broken: raised ValueError: no luck"):
            asyncio.run(main())

    def test_an_input_that_fails_is_raised(self, executor: pn.Executor) -> None:
        async def forward() -> Any:
            raise ConnectionError("no forward")

        async def main() -> None:
            await executor.run_async(pn.Pipeline([pn.Term("l1", inputs="x")]), {"x": forward()})

        with pytest.raises(ConnectionError, match="no forward"):
            asyncio.run(main())

    @pytest.mark.parametrize("where", ELSEWHERE)
    def test_cancelling_stops_the_terms(self, executor: pn.Executor, where: Any) -> None:
        async def forever(x: Any) -> Any:
            await asyncio.sleep(60)

        def long(x: Any) -> Any:
            time.sleep(60 if where == "process" else 1.0)
            return x.sum()

        async def main() -> None:
            pipeline = pn.Pipeline([pn.Term(forever if where == "async" else long, name="long", runs=where)])
            running = asyncio.ensure_future(executor.run_async(pipeline, {"x": np.ones(1)}))
            await asyncio.sleep(1.0)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

        start = time.monotonic()
        asyncio.run(main())
        assert time.monotonic() - start < 20.0

    def test_many_wait_at_once(self, executor: pn.Executor) -> None:
        waiting: list[int] = []

        async def wait(x: Any) -> Any:
            waiting.append(1)
            while len(waiting) < 100:
                await asyncio.sleep(0.01)
            return x.sum()

        pipeline = pn.Pipeline([pn.Term(wait, name=f"t{i}") for i in range(100)])
        assert float(executor.run(pipeline, {"x": np.ones(1)}).total) == 100.0

    def test_a_call_may_return_a_future(self, executor: pn.Executor) -> None:
        def promised(x: Any) -> Future[Any]:
            found: Future[Any] = Future()
            threading.Timer(0.05, found.set_result, [x.sum()]).start()
            return found

        for where in ("async", "thread"):
            out = executor.run(pn.Pipeline([pn.Term(promised, runs=where)]), {"x": np.ones(2)})
            assert float(out.total) == 2.0

    def test_a_coroutine_function_in_a_process(self, executor: pn.Executor) -> None:
        async def there(x: Any) -> Any:
            await asyncio.sleep(0.01)
            return (x**2).sum(), {"pid": os.getpid()}

        x = torch.tensor([2.0], requires_grad=True)
        out = executor.run(pn.Pipeline([pn.Term(there, runs="process")]), x)
        out.total.backward()
        assert x.grad.tolist() == [4.0]
        assert out.metrics()["there/pid"] != os.getpid()

    def test_a_coroutine_is_differentiated_by_jax(self, executor: pn.Executor) -> None:
        async def squares(x: Any) -> Any:
            await asyncio.sleep(0.01)
            return jnp.sum(x**2)

        gradient = jax.grad(lambda x: executor.run(pn.Pipeline([squares]), {"x": x}).total)(jnp.array([3.0]))
        assert gradient.tolist() == [6.0]

    def test_a_pipeline_alone_awaits_nothing(self) -> None:
        def sneaky(x: Any) -> Any:
            return asyncio.sleep(0, x.sum())

        with pytest.raises(pn.TermError, match='sneaky: returned an awaitable; give it runs="async"'):
            pn.Pipeline([sneaky])(np.ones(1))


def test_a_cancelled_run_evaluates_no_further_term(executor: pn.Executor) -> None:
    running, go_on = threading.Event(), threading.Event()
    ran: list[str] = []

    def first(x: Any) -> Any:
        running.set()
        assert go_on.wait(30)
        return x.sum()

    def second(x: Any) -> Any:
        ran.append("second")
        return x.sum()

    async def main() -> None:
        run = asyncio.ensure_future(executor.run_async(pn.Pipeline([first, second]), np.ones(2)))
        await asyncio.to_thread(running.wait, 30)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        go_on.set()

    asyncio.run(main())
    time.sleep(0.05)
    assert ran == []
