"""What an executor does where a term fails, is late, or is lost."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor

import penalties as pn
from penalties.execution.ambient import Modes
from penalties.execution.pools import threads as threads_module
from penalties.execution.pools.asynchronous import Async, _InModes
from penalties.execution.pools.threads import Threads
from penalties.execution.task import Task

PLACES = ("thread", "process", "async")
EVERYWHERE = ("inline", *PLACES)


def healthy(x: Any) -> Any:
    return (x**2).sum()


def probe(executor: pn.Executor, place: Any) -> None:
    """The place still works."""
    assert float(executor.run(pn.Pipeline([pn.Term(healthy, runs=place)]), np.array([3.0])).total) == 9.0


def settled(executor: Any) -> None:
    """Nothing runs on any more, or soon."""
    end = time.monotonic() + 10.0
    while executor.abandoned and time.monotonic() < end:
        time.sleep(0.01)
    assert executor.abandoned == 0


def hang(x: Any) -> Any:
    time.sleep(2.0)
    return x.sum()


def hang_long(x: Any) -> Any:
    time.sleep(60.0)
    return x.sum()


async def hang_politely(x: Any) -> Any:
    await asyncio.sleep(60.0)


def hanging(place: str) -> Any:
    return {"async": hang_politely, "process": hang_long, "thread": hang}[place]


def _task(fn: Any, timeout: float = 30.0, seconds: float = 1.0) -> Task:
    term = pn.Term(fn, name="term", inputs="x", runs="thread")
    return Task(term, {"x": np.array([seconds])}, (), None, None, timeout, Modes())


class TestRaise:
    @pytest.mark.parametrize("place", EVERYWHERE)
    def test_names_the_term_and_its_cause_and_keeps_the_others(self, executor: pn.Executor, place: Any) -> None:
        def broken(x: Any) -> Any:
            raise ValueError("no luck")

        pipeline = pn.Pipeline([pn.Term(broken, 2.0, runs=place), pn.Term(healthy, 0.5, runs=place), "l1"])
        with pytest.raises(pn.TermError, match=r"^broken: raised ValueError: no luck$") as caught:
            executor.run(pipeline, np.array([3.0, -1.0]))
        error = caught.value
        assert error.term == "broken"
        assert isinstance(error.__cause__, ValueError)
        assert float(error.output.total) == 0.5 * 10.0 + 4.0
        assert error.output["broken"].error is error
        assert error.output["broken"].value is None
        shown = "".join(traceback.format_exception(error))
        assert 'raise ValueError("no luck")' in shown, "where it failed is seen"
        probe(executor, place)

    @pytest.mark.parametrize("place", EVERYWHERE)
    def test_skip_leaves_it_out_and_says_so(self, executor: pn.Executor, place: Any) -> None:
        def broken(x: Any) -> Any:
            raise ValueError("no luck")

        pipeline = pn.Pipeline([pn.Term(broken, 2.0, runs=place, on_error="skip"), "l1"])
        x = torch.tensor([3.0, -1.0], requires_grad=True)
        for out in (executor.run(pipeline, x), executor.run(pipeline, x, wrt="input")):
            assert out.total.item() == 4.0
            assert out["broken"].value is None
            assert isinstance(out["broken"].error, pn.TermError)
            assert "broken" not in out.metrics()

    def test_every_failure_is_named(self, executor: pn.Executor) -> None:
        def broken(x: Any) -> Any:
            raise ValueError("no luck")

        pipeline = pn.Pipeline([pn.Term(broken, name=place, runs=place) for place in PLACES])
        with pytest.raises(pn.TermError) as caught:
            executor.run(pipeline, np.ones(2))
        assert caught.value.term == "thread"
        assert [note.split(":")[1].strip() for note in caught.value.__notes__] == ["process", "async"]

    @pytest.mark.parametrize("place", PLACES)
    def test_garbage_is_refused_as_inline(self, executor: pn.Executor, place: Any) -> None:
        for returned, message in (("a string", "returned a str"), (None, "returned None"), (np.ones(2), "of shape")):
            term = pn.Term(lambda x, returned=returned: returned, name="garbage", runs=place, inputs="x")
            with pytest.raises(pn.TermError, match=f"garbage: .*{message}"):
                executor.run(pn.Pipeline([term]), {"x": np.ones(2)})

    def test_an_exception_that_cannot_travel_is_told_as_text(self, executor: pn.Executor) -> None:
        def broken(x: Any) -> Any:
            class Local(Exception):
                def __init__(self, first: int, second: int) -> None:
                    super().__init__("cannot be made of one argument")
                    self.lock = threading.Lock()

            raise Local(1, 2)

        with pytest.raises(pn.TermError, match="raised Local: cannot be made") as caught:
            executor.run(pn.Pipeline([pn.Term(broken, runs="process")]), np.ones(2))
        assert any("in broken" in note for note in caught.value.__cause__.__notes__)

    @pytest.mark.parametrize("place", PLACES)
    def test_a_missing_input_is_an_error_before_anything_runs(self, executor: pn.Executor, place: Any) -> None:
        ran: list[int] = []

        def note(x: Any) -> Any:
            ran.append(1)
            return x.sum()

        pipeline = pn.Pipeline([pn.Term(note, runs="thread"), pn.Term("l1", inputs="y", runs=place)])
        with pytest.raises(pn.InputError, match='l1: no input is named "y"'):
            executor.run(pipeline, {"x": np.ones(2)})
        assert not ran


class TestNonFinite:
    @pytest.mark.parametrize("place", EVERYWHERE)
    @pytest.mark.parametrize(("number", "kind"), [(np.nan, "nan"), (np.inf, "inf")])
    def test_is_an_error_that_names_the_term(self, executor: pn.Executor, place: Any, number: float, kind: str) -> None:
        pipeline = pn.Pipeline([pn.Term(lambda x, n=number: n * x.sum(), name="odd", inputs="x", runs=place), "l1"])
        pipeline = pipeline.replace("l1", pn.Term("l1", inputs="x"))
        for wrt in (None, "x"):
            with pytest.raises(pn.NonFiniteError, match=f"odd: the value is {kind}") as caught:
                executor.run(pipeline, {"x": torch.ones(2, requires_grad=True)}, wrt=wrt)
            assert (caught.value.kind, caught.value.term) == (kind, "odd")
            assert caught.value.output.total.item() == 2.0

    @pytest.mark.parametrize("place", EVERYWHERE)
    def test_may_be_skipped_and_its_gradient_is_left_out(self, executor: pn.Executor, place: Any) -> None:
        term = pn.Term(lambda x: np.nan * x.sum(), name="odd", inputs="x", runs=place, on_error="skip")
        x = torch.ones(2, requires_grad=True)
        out = executor.run(pn.Pipeline([term, pn.Term("l1", inputs="x")]), {"x": x}, wrt="x")
        assert out.gradient["x"].tolist() == [1.0, 1.0]
        assert isinstance(out["odd"].error, pn.NonFiniteError)
        out.total.backward()
        assert x.grad.tolist() == [1.0, 1.0]


class TestTimeout:
    @pytest.mark.parametrize("place", PLACES)
    def test_names_the_term_and_its_neighbours_live(self, executor: pn.Executor, place: Any) -> None:
        # A thread that is abandoned belongs to no shared executor.
        own = pn.Executor(max_workers=2) if place == "thread" else contextlib.nullcontext(executor)
        with own as executor:
            probe(executor, place)
            late = pn.Term(hanging(place), name="late", runs=place, timeout=0.3)
            pipeline = pn.Pipeline([late, pn.Term(healthy, runs=place), pn.Term("l1", inputs="x")])
            start = time.monotonic()
            with pytest.raises(pn.TermTimeoutError, match=r"late: took more than 0\.3 s") as caught:
                executor.run(pipeline, {"x": np.array([3.0])})
            assert time.monotonic() - start < (1.9 if place == "thread" else 30.0)
            assert float(caught.value.output.total) == 12.0
            assert caught.value.abandoned == (place == "thread")
            if place == "thread":
                assert executor.abandoned == 1
            else:
                settled(executor)
            probe(executor, place)

    def test_a_thread_that_comes_back_is_no_longer_abandoned(self) -> None:
        done = threading.Event()

        def wait(x: Any) -> Any:
            done.wait(10.0)
            return x.sum()

        with pn.Executor(max_workers=1) as executor:
            out = executor.run(
                pn.Pipeline([pn.Term(wait, runs="thread", timeout=0.1, on_error="skip")]), {"x": np.ones(1)}
            )
            assert out["wait"].error.abandoned
            assert executor.abandoned == 1
            done.set()
            settled(executor)
            probe(executor, "thread")

    def test_threads_beyond_what_may_be_abandoned_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(threads_module, "_ABANDONED", 2)
        done = threading.Event()

        def wait(x: Any) -> Any:
            done.wait(10.0)
            return x.sum()

        with pn.Executor(max_workers=1) as executor:
            pipeline = pn.Pipeline([pn.Term(wait, runs="thread", timeout=0.05)])
            for _ in range(2):
                with pytest.raises(pn.TermTimeoutError):
                    executor.run(pipeline, {"x": np.ones(1)})
            with pytest.raises(pn.TermError, match='2 threads were abandoned and still run.*runs="process"'):
                executor.run(pipeline, {"x": np.ones(1)})
            done.set()

    def test_a_thread_that_was_late_is_late_whenever_it_is_asked(self, executor: pn.Executor) -> None:
        def slow(x: Any) -> Any:
            time.sleep(0.3)
            return x.sum()

        first = pn.Term(slow, name="first", runs="thread")
        late = pn.Term(slow, name="late", runs="thread", timeout=0.1)
        with pytest.raises(pn.TermTimeoutError, match=r"late: took 0\.3\d* s; expected at most 0\.1 s"):
            executor.run(pn.Pipeline([first, late]), np.ones(1))

    def test_waiting_for_a_thread_does_not_count(self) -> None:
        def slow(x: Any) -> Any:
            time.sleep(0.2)
            return x.sum()

        terms = [pn.Term(slow, name=f"t{i}", runs="thread", timeout=0.4) for i in range(4)]
        with pn.Executor(max_workers=1) as executor:
            assert float(executor.run(pn.Pipeline(terms), np.ones(1)).total) == 4.0

    def test_the_clock_starts_with_the_thread(self) -> None:
        def slow(x: Any) -> Any:
            time.sleep(float(x.sum()))
            return x.sum()

        place = Threads(1)
        first = place.start(_task(slow, seconds=0.5))
        second = place.start(_task(slow, timeout=0.3, seconds=0.2))
        assert float(second.result().value) == 0.2
        assert float(first.result().value) == 0.5
        place.close()

    def test_waiting_for_a_process_does_not_count(self, executor: pn.Executor) -> None:
        def slow(x: Any) -> Any:
            time.sleep(0.3)
            return x.sum()

        terms = [pn.Term(slow, name=f"t{i}", runs="process", timeout=0.5) for i in range(5)]
        assert float(executor.run(pn.Pipeline(terms), np.ones(1)).total) == 5.0

    def test_loading_does_not_count(self, executor: pn.Executor) -> None:
        class Slow:
            def __setstate__(self, state: Any) -> None:
                time.sleep(0.8)

            def __getstate__(self) -> Any:
                return {"some": "state"}

            def __call__(self, x: Any) -> Any:
                return x.sum()

        term = pn.Term(Slow(), name="slow", runs="process", timeout=0.5)
        assert float(executor.run(pn.Pipeline([term]), np.ones(2)).total) == 2.0

    def test_a_coroutine_that_will_not_stop_is_reported(self) -> None:
        ended = threading.Event()

        async def stubborn(x: Any) -> Any:
            while not ended.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.05)

        with pn.Executor() as executor:
            with pytest.raises(pn.TermTimeoutError, match="could not be cancelled") as caught:
                executor.run(pn.Pipeline([pn.Term(stubborn, timeout=0.2)]), {"x": np.ones(1)})
            assert caught.value.abandoned
            assert executor.abandoned == 1
            probe(executor, "async")
            ended.set()

    def test_a_coroutine_that_blocks_its_loop_is_reported_and_the_next_has_another(self) -> None:
        ended = threading.Event()

        async def blocking(x: Any) -> Any:
            ended.wait(10.0)

        async def polite(x: Any) -> Any:
            await asyncio.sleep(0.01)
            return x.sum()

        with pn.Executor() as executor:
            with pytest.raises(pn.TermTimeoutError, match="could not be cancelled") as caught:
                executor.run(pn.Pipeline([pn.Term(blocking, timeout=0.2)]), {"x": np.ones(1)})
            assert caught.value.abandoned
            assert float(executor.run(pn.Pipeline([polite]), {"x": np.ones(2)}).total) == 2.0
            ended.set()

    def test_an_inline_term_is_reported_after_the_fact(self, executor: pn.Executor) -> None:
        def slow(x: Any) -> Any:
            time.sleep(0.05)
            return x.sum()

        with pytest.warns(RuntimeWarning, match=r"slow: took 0\.\d+ s, more than its timeout of 0\.01 s"):
            out = executor.run(pn.Pipeline([pn.Term(slow, timeout=0.01)]), {"x": np.ones(2)})
        assert float(out.total) == 2.0


class TestLost:
    @pytest.mark.parametrize(
        ("end", "message"),
        [(lambda: os._exit(3), "exit status 3"), (lambda: os.kill(os.getpid(), signal.SIGKILL), "signal 9")],
    )
    def test_a_process_that_dies_is_named(self, executor: pn.Executor, end: Any, message: str) -> None:
        def dies(x: Any) -> Any:
            end()
            return x.sum()

        pipeline = pn.Pipeline([pn.Term(dies, runs="process"), pn.Term(healthy, runs="process")])
        with pytest.raises(pn.WorkerLostError, match=f"dies: its process died .*{message}.*idempotent=True") as caught:
            executor.run(pipeline, {"x": np.array([3.0])})
        assert float(caught.value.output.total) == 9.0
        probe(executor, "process")

    def test_an_idempotent_term_runs_again_once(self, executor: pn.Executor, tmp_path: Path) -> None:
        mark = tmp_path / "ran"

        def once(x: Any) -> Any:
            if not mark.exists():
                mark.touch()
                os._exit(1)
            return x.sum()

        def never(x: Any) -> Any:
            os._exit(1)

        pipeline = pn.Pipeline([pn.Term(once, runs="process", idempotent=True)])
        assert float(executor.run(pipeline, {"x": np.ones(2)}).total) == 2.0
        pipeline = pn.Pipeline([pn.Term(never, runs="process", idempotent=True)])
        with pytest.raises(pn.WorkerLostError, match="never: its process died .* twice"):
            executor.run(pipeline, {"x": np.ones(2)})

    def test_the_second_attempt_sees_the_inputs_that_the_first_saw(self, executor: pn.Executor, tmp_path: Path) -> None:
        mark = tmp_path / "ran"

        def changes(x: Tensor) -> Tensor:
            value = x.sum()
            x.mul_(3)
            if not mark.exists():
                mark.touch()
                os._exit(5)
            return value

        x = torch.ones(100_000)
        out = executor.run(pn.Pipeline([pn.Term(changes, runs="process", idempotent=True)]), x)
        assert float(out.total) == len(x)

    def test_idle_workers_that_are_killed_are_replaced(self, executor: pn.Executor) -> None:
        def who(x: Any) -> Any:
            return x.sum(), {"pid": os.getpid()}

        pipeline = pn.Pipeline([pn.Term(who, runs="process")])
        for _ in range(3):
            pid = int(executor.run(pipeline, {"x": np.ones(2)}).metrics()["who/pid"])
            os.kill(pid, signal.SIGKILL)
            time.sleep(0.3)
        assert float(executor.run(pipeline, {"x": np.ones(2)}).total) == 2.0

    def test_a_term_that_forks_leaves_no_second_worker(self, executor: pn.Executor) -> None:
        def forks(x: Any) -> Any:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                os.fork()
            return x.sum()

        for _ in range(3):
            assert float(executor.run(pn.Pipeline([pn.Term(forks, runs="process")]), {"x": np.ones(2)}).total) == 2.0


class TestWords:
    @pytest.mark.parametrize("place", PLACES)
    def test_an_inner_pipeline_does_not_lend_its_name(self, executor: pn.Executor, place: Any) -> None:
        def outer(x: Any) -> Any:
            return pn.Pipeline([pn.Term(lambda x: None, name="inner", inputs="x")])(x=x).total

        with pytest.raises(pn.TermError, match="^outer: raised TermError: inner: returned None") as caught:
            executor.run(pn.Pipeline([pn.Term(outer, runs=place)]), {"x": np.ones(1)})
        assert caught.value.term == "outer"

    @pytest.mark.parametrize("place", PLACES)
    def test_other_errors_of_ours_are_the_terms_own(self, executor: pn.Executor, place: Any) -> None:
        def bad(x: Any) -> Any:
            raise pn.InputError("no such key")

        out = executor.run(
            pn.Pipeline([pn.Term(bad, runs=place, on_error="skip"), pn.Term("l1", inputs="x")]), {"x": np.ones(1)}
        )
        assert str(out["bad"].error) == "bad: raised InputError: no such key"

    @pytest.mark.parametrize("place", PLACES)
    def test_a_term_that_exits_ends_nothing_else(self, executor: pn.Executor, place: Any) -> None:
        def leaves(x: Any) -> Any:
            raise SystemExit(3)

        async def leaves_later(x: Any) -> Any:
            await asyncio.sleep(0)
            raise KeyboardInterrupt

        fn = leaves_later if place == "async" else leaves
        with pytest.raises(pn.TermError, match="^leaves: raised (SystemExit: 3|KeyboardInterrupt: )$"):
            executor.run(pn.Pipeline([pn.Term(fn, name="leaves", runs=place)]), {"x": np.ones(1)})
        probe(executor, place)

    @pytest.mark.parametrize("place", PLACES)
    def test_a_step_that_is_missing_is_an_error_at_once(self, executor: pn.Executor, place: Any) -> None:
        def scheduled(x: Any, step: int) -> Any:
            return step * x.sum()

        pipeline = pn.Pipeline([pn.Term(scheduled, runs=place)])
        with pytest.raises(pn.InputError, match="scheduled: takes the step"):
            executor.run(pipeline, {"x": np.ones(1)})
        assert float(executor.run(pipeline, {"x": np.ones(1)}, step=torch.tensor(2)).total) == 2.0


class TestSecondDerivatives:
    def test_are_an_error_of_torch(self, executor: pn.Executor) -> None:
        x = torch.tensor([1.0, -2.0], requires_grad=True)
        out = executor.run(
            pn.Pipeline([pn.Term(lambda x: (x**3).sum(), name="cube", inputs="x"), pn.Term(healthy, runs="thread")]),
            {"x": x},
        )
        (first,) = torch.autograd.grad(out.total, x, create_graph=True)
        torch.testing.assert_close(first.detach(), 3 * x.detach() ** 2 + 2 * x.detach())
        with pytest.raises(pn.GradientError, match="second derivatives are unavailable"):
            torch.autograd.grad(first.sum(), x)

    def test_are_an_error_of_jax(self, executor: pn.Executor) -> None:
        pipeline = pn.Pipeline([pn.Term(healthy, runs="thread")])
        with pytest.raises(pn.GradientError, match="second derivatives are unavailable"):
            jax.hessian(lambda x: executor.run(pipeline, {"x": x}).total)(jnp.ones(2))


class TestCaptured:
    @pytest.mark.parametrize("place", PLACES)
    def test_a_tensor_that_requires_a_gradient_is_an_error(self, executor: pn.Executor, place: Any) -> None:
        hidden = torch.ones(2, requires_grad=True)
        pipeline = pn.Pipeline([pn.Term(lambda x: (hidden * x).sum(), name="hidden", inputs="x", runs=place)])
        for x in (torch.ones(2), torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.bfloat16)):
            with pytest.raises(pn.TermError, match="hidden: its function holds a tensor.*pass it as an input"):
                executor.run(pipeline, {"x": x})

    def test_parameters_of_a_module_are_too(self, executor: pn.Executor) -> None:
        layer = torch.nn.Linear(2, 1)
        pipeline = pn.Pipeline([pn.Term(lambda x: layer(x).sum(), name="layer", inputs="x", runs="process")])
        with pytest.raises(pn.TermError, match="layer: its function holds a tensor of shape"):
            executor.run(pipeline, {"x": torch.ones(2)})

    @pytest.mark.parametrize("place", PLACES)
    def test_one_that_does_not_is_a_constant(self, executor: pn.Executor, place: Any) -> None:
        factor = torch.tensor([1.0, 2.0])
        pipeline = pn.Pipeline([pn.Term(lambda x: (factor * x).sum(), name="scaled", inputs="x", runs=place)])
        assert float(executor.run(pipeline, {"x": torch.ones(2)}).total) == 3.0


class TestWhatCannotTravel:
    def test_a_function_is_named(self, executor: pn.Executor) -> None:
        lock = threading.Lock()
        term = pn.Term(lambda x: (lock.locked(), x.sum())[1], name="locked", inputs="x", runs="process")
        with pytest.raises(pn.TermError, match="locked: cannot be sent to another process: TypeError"):
            executor.run(pn.Pipeline([term]), {"x": np.ones(1)})

    def test_an_input_is_named(self, executor: pn.Executor) -> None:
        term = pn.Term(lambda data: data[1].sum(), name="data", inputs="data", runs="process")
        with pytest.raises(pn.TermError, match="data: its inputs cannot be sent to another process: TypeError"):
            executor.run(pn.Pipeline([term]), {"data": (threading.Lock(), np.ones(1))})

    def test_a_function_that_cannot_be_loaded_there_is_named(self, executor: pn.Executor) -> None:
        class Picky:
            def __reduce__(self) -> Any:
                return os.path.relpath, (3,)

            def __call__(self, x: Any) -> Any:
                return x.sum()

        pipeline = pn.Pipeline([pn.Term(Picky(), name="picky", runs="process")])
        for _ in range(3):
            with pytest.raises(pn.TermError, match="picky: could not be loaded in a worker: TypeError"):
                executor.run(pipeline, {"x": np.ones(1)})


class TestOptions:
    @pytest.mark.parametrize("options", [{"max_workers": 0}, {"timeout": 0}, {"timeout": 301.0}, {"sequential": "yes"}])
    def test_wrong_ones_are_refused(self, options: Any) -> None:
        with pytest.raises(pn.OptionError, match=f"Executor: {next(iter(options))}="):
            pn.Executor(**options)

    def test_processes_need_a_system_that_forks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "platform", "win32")
        with pn.Executor() as executor, pytest.raises(pn.OptionError, match='runs="process"; expected "thread"'):
            executor.run(pn.Pipeline([pn.Term("l1", runs="process")]), np.ones(1))

    def test_a_pipeline_is_needed(self, executor: pn.Executor) -> None:
        with pytest.raises(pn.OptionError, match="expected a Pipeline"):
            executor.run([pn.Term("l1")], np.ones(1))  # pyright: ignore

    def test_inputs_are_named_by_strings(self, executor: pn.Executor) -> None:
        with pytest.raises(pn.OptionError, match="names, each a string"):
            executor.run(pn.Pipeline(["l1"]), {1: np.ones(1)})

    def test_a_closed_executor_runs_nothing(self) -> None:
        executor = pn.Executor()
        executor.close()
        executor.close()
        with pytest.raises(RuntimeError, match="this Executor is closed"):
            executor.run(pn.Pipeline(["l1"]), np.ones(1))

    def test_repr(self) -> None:
        assert repr(pn.Executor(3, timeout=5)) == "Executor(max_workers=3, timeout=5, sequential=False)"

    @pytest.mark.parametrize("missing", ["pebble", "cloudpickle"])
    def test_a_missing_library_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
        from penalties.execution import portable

        portable._pickler_class.cache_clear()
        monkeypatch.setitem(__import__("sys").modules, missing, None)
        with (
            pn.Executor() as executor,
            pytest.raises(pn.MissingLibraryError, match=r'pip install "penalties\[process\]"'),
        ):
            executor.run(pn.Pipeline([pn.Term(healthy, runs="process")]), {"x": np.ones(1)})
        portable._pickler_class.cache_clear()

    def test_inside_torch_func_is_an_error(self, executor: pn.Executor) -> None:
        pipeline = pn.Pipeline([pn.Term("l1", runs="thread")])
        with pytest.raises(pn.BackendError, match=r"called inside a transform of torch\.func"):
            torch.func.grad(lambda x: executor.run(pipeline, x).total)(torch.ones(2))

    def test_inside_torch_compile_is_an_error(self, executor: pn.Executor, monkeypatch: pytest.MonkeyPatch) -> None:
        from penalties.execution import run

        monkeypatch.setattr(run, "compiling", lambda: True)
        with pytest.raises(pn.BackendError, match=r"called inside torch\.compile"):
            executor.run(pn.Pipeline(["l1"]), torch.ones(2))

    @pytest.mark.parametrize("transform", [jax.jit, jax.vmap])
    def test_inside_jit_and_vmap_is_an_error(self, executor: pn.Executor, transform: Any) -> None:
        pipeline = pn.Pipeline([pn.Term("l1", runs="thread")])
        with pytest.raises(pn.BackendError, match="called inside jax.jit or jax.vmap"):
            transform(lambda x: executor.run(pipeline, x).total)(jnp.ones((2, 2)))


class TestClosing:
    def test_while_terms_run_ends_them(self) -> None:
        executor = pn.Executor(max_workers=1)
        probe(executor, "process")
        found: Future[Any] = Future()

        def run() -> None:
            try:
                executor.run(
                    pn.Pipeline([pn.Term(lambda x: time.sleep(60), name="long", runs="process")]), {"x": np.ones(1)}
                )
            except BaseException as error:
                found.set_exception(error)

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.5)
        executor.close()
        with pytest.raises(pn.TermError, match="long: the executor was closed"):
            found.result(10.0)
        thread.join()

    def test_a_place_of_a_closed_executor_is_an_error(self) -> None:
        executor = pn.Executor()
        executor.close()
        with pytest.raises(RuntimeError, match="this Executor is closed"):
            executor.pool(pn.Term("l1", runs="thread"))

    def test_with_threads_that_have_not_begun(self) -> None:
        done = threading.Event()

        def wait(x: Any) -> Any:
            done.wait(20.0)
            return x.sum()

        executor = pn.Executor(max_workers=1)
        place = executor.pool(pn.Term("l1", runs="thread"))
        first, second = (
            place.start(_task(wait, timeout=60.0 if name == "first" else 0.05)) for name in ("first", "second")
        )
        executor.close()
        with pytest.raises(pn.TermError, match="term: the executor was closed before it began"):
            second.result()
        done.set()
        assert float(first.result().value) == 1.0
        with pytest.raises(pn.TermError, match="term: the executor is closed"):
            place.start(_task(wait))

    def test_a_forgotten_executor_is_closed(self) -> None:
        executor = pn.Executor(max_workers=1)
        probe(executor, "process")
        folder = Path(executor._pools["process"].folder)
        assert folder.exists()
        del executor
        assert not folder.exists()


def test_a_retained_input_does_not_change_under_the_term(executor: pn.Executor) -> None:
    size = 100_000

    def first_element(x: Any) -> Any:
        import builtins

        kept = builtins.__dict__.setdefault("kept_for_the_test", [])
        kept.append(x)
        return x.sum(), {"first": float(kept[0][0]), "pid": os.getpid()}

    seen: dict[float, set[float]] = {}
    for step in range(6):
        out = executor.run(pn.Pipeline([pn.Term(first_element, runs="process")]), {"x": np.full(size, float(step))})
        metrics = out.metrics()
        assert metrics["first_element"] == step * size
        seen.setdefault(metrics["first_element/pid"], set()).add(metrics["first_element/first"])
    assert all(len(values) == 1 for values in seen.values())


def test_torch_memory_that_a_term_changes_is_not_the_callers(executor: pn.Executor) -> None:
    def zeroed(x: Tensor) -> Tensor:
        total = x.sum()
        with torch.no_grad():
            x.zero_()
        return total

    x = torch.ones(100_000)
    for _ in range(2):
        assert float(executor.run(pn.Pipeline([pn.Term(zeroed, runs="process")]), x).total) == len(x)
    assert float(x.sum()) == len(x)


class TestThreads:
    def test_a_task_cancelled_before_it_begins_never_does(self) -> None:
        done, ran = threading.Event(), []

        def wait(x: Any) -> Any:
            done.wait(20.0)
            return x.sum()

        def note(x: Any) -> Any:
            ran.append(1)
            return x.sum()

        place = Threads(1)
        first, second = place.start(_task(wait)), place.start(_task(note))
        second.cancel()
        done.set()
        assert float(first.result().value) == 1.0
        with pytest.raises(pn.TermError, match="term: was cancelled"):
            second.result()
        place.close()
        assert not ran

    def test_a_task_that_ends_as_it_is_given_up_is_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def slow(x: Any) -> Any:
            time.sleep(0.1)
            return x.sum()

        place = Threads(1)
        running = place.start(_task(slow, timeout=0.05))
        monkeypatch.setattr(place, "abandon", lambda running: False)
        with pytest.raises(pn.TermTimeoutError, match=r"term: took 0\.1\d* s; expected at most 0\.05 s") as caught:
            running.result()
        assert not caught.value.abandoned
        place.close()

    def test_leaving_twice_counts_once(self) -> None:
        done = threading.Event()

        def wait(x: Any) -> Any:
            done.wait(20.0)
            return x.sum()

        place = Threads(1)
        running = place.start(_task(wait))
        while running.started is None:
            time.sleep(0.01)
        assert place.abandon(running)
        assert place.abandon(running)
        assert place.abandoned == 1
        done.set()
        place.close()


class TestLoop:
    def test_a_term_that_hangs_before_it_gives_an_awaitable_is_abandoned(self) -> None:
        done = threading.Event()

        def wait(x: Any) -> Any:
            done.wait(20.0)
            return x.sum()

        place = Async()
        running = place.start(_task(wait, timeout=0.05))
        with pytest.raises(pn.TermTimeoutError, match="it was abandoned"):
            running.result()
        running.cancel()
        assert place.abandoned == 1
        done.set()
        place.close()

    def test_cancelling_before_the_awaitable_is_there(self) -> None:
        done = threading.Event()

        def late(x: Any) -> Any:
            done.wait(20.0)
            return asyncio.sleep(20.0)

        place = Async()
        running = place.start(_task(late))
        while running.thread.started is None:
            time.sleep(0.01)
        running.cancel()
        done.set()
        with pytest.raises(pn.TermError, match="term: was cancelled"):
            running.result()
        place.close()

    def test_closing_under_a_coroutine_that_will_not_stop(self, capfd: pytest.CaptureFixture[str]) -> None:
        ended = threading.Event()

        async def stubborn(x: Any) -> Any:
            while not ended.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.05)

        place = Async()
        running = place.start(_task(stubborn, timeout=0.1))
        with pytest.raises(pn.TermTimeoutError):
            running.result()
        thread = place._thread
        place.close()
        thread.join(5.0)
        ended.set()
        import gc

        gc.collect()
        assert "destroyed" not in capfd.readouterr().err

    def test_a_coroutine_that_finds_its_loop_gone_is_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        gone = asyncio.new_event_loop()
        gone.close()

        async def never(x: Any) -> Any:
            raise AssertionError("nobody awaits it")

        place = Async()
        monkeypatch.setattr(place, "loop", lambda: gone)
        with pytest.raises(pn.TermError, match="term: raised RuntimeError: Event loop is closed"):
            place.start(_task(never)).result()
        place.close()

    def test_a_loop_that_is_gone_has_nothing_on_it(self) -> None:
        place = Async()
        loop = place.loop()
        place.close()
        while not loop.is_closed():
            time.sleep(0.01)
        assert not place.runs_on(None, loop)

    def test_a_blocked_loop_is_counted_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from penalties.execution.pools import asynchronous

        monkeypatch.setattr(asynchronous, "_BEAT", 0.05)
        place, done = Async(), threading.Event()
        loop = place.loop()
        loop.call_soon_threadsafe(done.wait, 20.0)
        assert place.runs_on(None, loop)
        assert place.runs_on(None, loop)
        assert place.abandoned == 1
        done.set()
        settled(place)
        place.close()

    def test_a_coroutine_that_is_given_up_is_closed(self) -> None:
        closed: list[int] = []

        async def forever() -> None:
            try:
                await asyncio.sleep(60.0)
            finally:
                closed.append(1)

        async def main() -> None:
            steps = _InModes(forever(), Modes()).__await__()
            next(steps)
            steps.close()

        asyncio.run(main())
        assert closed

    def test_modes_of_coroutines_do_not_mix(self, executor: pn.Executor) -> None:
        async def fetches(x: Any) -> Any:
            with torch.no_grad():
                await asyncio.sleep(0.05)
                assert not torch.is_grad_enabled()
            return (x**2).sum()

        async def later(x: Any) -> Any:
            await asyncio.sleep(0.01)
            with torch.no_grad():
                await asyncio.sleep(0.08)
            return (x**2).sum()

        async def between(x: Any) -> Any:
            await asyncio.sleep(0.03)
            return (x**2).sum()

        for _ in range(2):
            x = torch.tensor([1.0, 2.0], requires_grad=True)
            executor.run(pn.Pipeline([fetches, later, between]), {"x": x}).total.backward()
            assert x.grad.tolist() == [6.0, 12.0]


def test_late_errors_travel() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(pn.TermTimeoutError("a", "took long", abandoned=True)))
    assert (error.term, error.message, error.abandoned) == ("a", "took long", True)
