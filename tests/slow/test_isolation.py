"""What a term sees of the others and of itself."""

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn

from . import resources
from .faults import squares

pytestmark = pytest.mark.slow

X = torch.ones(20_000, dtype=torch.float64)


def test_coroutines_do_not_take_each_others_gradient(executor: pn.Executor) -> None:
    async def fetches(x: Any) -> Any:
        with torch.no_grad():
            await asyncio.sleep(0.05)
            assert not torch.is_grad_enabled()
        return squares(x)

    async def fetches_later(x: Any) -> Any:
        await asyncio.sleep(0.01)
        with torch.no_grad():
            await asyncio.sleep(0.08)
            assert not torch.is_grad_enabled()
        assert torch.is_grad_enabled()
        return squares(x)

    async def computes(x: Any) -> Any:
        await asyncio.sleep(0.03)
        return squares(x)

    pipeline = pn.Pipeline([fetches, fetches_later, computes])
    for _ in range(3):
        for wrt in (None, "x"):
            x = X.clone().requires_grad_()
            out = executor.run(pipeline, {"x": x}, wrt=wrt)
            if wrt is None:
                out.total.backward()
            assert [one.grad_error for one in out] == [None] * 3
            assert torch.equal(x.grad if wrt is None else out.gradient["x"], 6 * X)


def test_a_second_attempt_sees_the_inputs_that_were_given(executor: pn.Executor, tmp_path: Path) -> None:
    tried = tmp_path / "tried"

    def changes_and_dies(x: Any) -> Any:
        value = squares(x.clone())
        x.mul_(3)
        if not tried.exists():
            tried.touch()
            os._exit(5)
        return value

    pipeline = pn.Pipeline([pn.Term(changes_and_dies, runs="process", idempotent=True)])
    assert float(executor.run(pipeline, {"x": X}).total) == 20_000.0


@pytest.mark.parametrize("runs", ["thread", "process"])
def test_what_a_term_sets_ends_with_it(runs: str) -> None:
    def sets(x: Any) -> Any:
        np.seterr(all="raise")
        if runs == "thread":
            torch.set_default_device("meta")
        return squares(x)

    def finds(x: Any) -> Any:
        assert np.geterr()["divide"] == "warn"
        return squares(x) + float(torch.zeros(1))

    with pn.Executor(max_workers=1) as executor:
        for fn in (sets, finds):
            out = executor.run(pn.Pipeline([pn.Term(fn, runs=runs)]), {"x": X})
            assert float(out.total) == 20_000.0


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
def test_memory_that_a_term_keeps_does_not_change(kind: str) -> None:
    """And what it kept and dropped again is not kept for it: a worker does not grow."""

    def keeps(x: Any, step: Any) -> Any:
        kept = globals().setdefault("_kept_for_a_test", {})
        for number, array in kept.items():
            assert float(array[0]) == number, "the memory of an earlier step has changed"
            assert float(array[-1]) == number
        kept.pop(step - 5, None)
        kept[step] = x
        with open("/proc/self/statm") as numbers:
            pages = int(numbers.read().split()[1])
        descriptors = len(os.listdir("/proc/self/fd"))
        return x.sum() * 0, {"resident": float(pages), "descriptors": float(descriptors)}

    make = {"numpy": np.full, "torch": torch.full, "jax": _jax_full}[kind]
    pipeline = pn.Pipeline([pn.Term(keeps, runs="process", differentiable=False, inputs="x")])
    resident, descriptors = [], []
    with pn.Executor(max_workers=1) as executor:
        for step in range(120):
            out = executor.run(pipeline, {"x": make((1 << 18,), float(step))}, step=step)
            resident.append(float(out["keeps"].metrics["resident"]) * os.sysconf("SC_PAGE_SIZE"))
            descriptors.append(float(out["keeps"].metrics["descriptors"]))
    # 100 steps of 1 or 2 MB each.
    assert resident[-1] < resident[20] + 30e6
    assert descriptors[-1] < descriptors[20] + 20


def _jax_full(shape: tuple[int, ...], value: float) -> Any:
    import jax.numpy as jnp

    return jnp.full(shape, value)


@pytest.mark.parametrize("then", ["end", "idle", "busy"])
def test_a_process_that_a_term_leaves_behind_holds_nothing_up(tmp_path: Path, then: str) -> None:
    """It has copies of all descriptors of the worker, and so no end of a pipe is seen."""
    child = tmp_path / "child"

    def leaves_a_child(x: Any) -> Any:
        if os.fork() == 0:
            child.write_text(str(os.getpid()))
            time.sleep(60)
            os._exit(0)
        if then == "busy":
            os._exit(7)
        return squares(x)

    executor = pn.Executor(max_workers=1)
    start = time.monotonic()
    out = executor.run(pn.Pipeline([pn.Term(leaves_a_child, runs="process", on_error="skip")]), {"x": X})
    assert (type(out["leaves_a_child"].error) is pn.WorkerLostError) == (then == "busy"), out["leaves_a_child"].error
    if then == "idle":
        orphan = int(child.read_text())
        workers, _ = resources.workers()
        for pid in set(workers) - {orphan}:
            os.kill(pid, signal.SIGKILL)
    if then != "end":
        executor.run(pn.Pipeline([pn.Term(squares, runs="process")]), {"x": X})
    executor.close()
    taken = time.monotonic() - start
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(child.read_text()), signal.SIGKILL)
    assert taken < 20
