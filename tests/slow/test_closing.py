"""Executors that are closed in the middle, runs that are cancelled: nothing stays behind."""

import asyncio
import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest
import torch

import penalties as pn

from .faults import EVERYWHERE, hangs, released, squares, waits
from .trials import probe, term

pytestmark = pytest.mark.slow

X = torch.ones(20_000, dtype=torch.float64)


def naps(x: Any) -> Any:
    time.sleep(0.4)
    return squares(x)


def napping() -> pn.Pipeline:
    async def rests(x: Any) -> Any:
        await asyncio.sleep(0.4)
        return squares(x)

    # More than there are workers: some have not begun.
    return pn.Pipeline(
        [
            *(pn.Term(naps, name=f"process_{i}", runs="process") for i in range(4)),
            *(pn.Term(naps, name=f"thread_{i}", runs="thread") for i in range(4)),
            pn.Term(rests),
        ]
    )


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.1, 0.3, 0.5])
def test_closing_while_terms_run(delay: float) -> None:
    executor = pn.Executor(max_workers=2)
    executor.run(pn.Pipeline([term(squares, "process")]), {"x": X})
    ended: list[Any] = []

    def work() -> None:
        try:
            ended.append(executor.run(napping(), {"x": X}))
        except BaseException as error:
            ended.append(error)

    caller = threading.Thread(target=work)
    caller.start()
    time.sleep(delay)
    start = time.monotonic()
    executor.close()
    closing = time.monotonic() - start
    caller.join(20)
    assert not caller.is_alive(), "run() never came back"
    assert isinstance(ended[0], RuntimeError), f"{ended[0]!r}"
    assert "closed" in str(ended[0]), f"{ended[0]!r}"
    assert closing < 10
    with pytest.raises(RuntimeError, match="closed"):
        executor.run(napping(), {"x": X})


def test_an_exception_in_the_loop_of_the_user() -> None:
    class Mine(Exception):
        pass

    def train() -> None:
        with pn.Executor(max_workers=2) as executor:
            for step in range(3):
                executor.run(pn.Pipeline([term(squares, where) for where in EVERYWHERE]), {"x": X}, step=step)
            raise Mine

    with pytest.raises(Mine):
        train()


def test_a_forgotten_executor_is_closed() -> None:
    executor = pn.Executor(max_workers=2)
    executor.run(pn.Pipeline([term(squares, where) for where in EVERYWHERE]), {"x": X})
    del executor


@pytest.mark.parametrize("delay", [0.01, 0.1, 0.3])
def test_cancelling_the_task_that_awaits(executor: pn.Executor, delay: float) -> None:
    probe(executor)

    async def main() -> None:
        await asyncio.wait_for(executor.run_async(napping(), {"x": X}), delay)

    with pytest.raises(TimeoutError):
        asyncio.run(main())
    probe(executor)


def test_an_input_that_fails_to_arrive(executor: pn.Executor) -> None:
    pipeline = pn.Pipeline([term(naps, "process"), term(naps, "thread"), pn.Term(waits, inputs="y")])
    late: Future[Any] = Future()
    threading.Timer(0.1, late.set_exception, (ConnectionError("the forward pass failed"),)).start()
    with pytest.raises(ConnectionError, match="the forward pass failed"):
        executor.run(pipeline, {"x": X, "y": late})
    probe(executor)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_ends_the_program_inline_ends_the_run(executor: pn.Executor, error: type[BaseException]) -> None:
    def ends(x: Any) -> Any:
        raise error

    with pytest.raises(error):
        executor.run(pn.Pipeline([term(naps, "process"), term(naps, "thread"), pn.Term(ends)]), {"x": X})
    probe(executor)


def test_threads_that_hang_are_counted_and_limited(executor: pn.Executor) -> None:
    pipeline = pn.Pipeline([pn.Term(hangs, runs="thread", timeout=0.01, on_error="skip")])
    errors = [executor.run(pipeline, {"x": X})["hangs"].error for _ in range(36)]
    late = [error for error in errors if isinstance(error, pn.TermTimeoutError)]
    assert all(error.abandoned for error in late)
    assert executor.abandoned == len(late) == 32
    assert "abandoned" in str(errors[-1])
    released.set()
    end = time.monotonic() + 10
    while executor.abandoned and time.monotonic() < end:
        time.sleep(0.01)
    probe(executor)
