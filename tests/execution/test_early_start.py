"""Terms that start before all inputs are there."""

import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn

from .terms import ELSEWHERE


class TestEarly:
    @pytest.mark.parametrize("where", ELSEWHERE)
    def test_terms_start_before_inputs_that_they_do_not_read(
        self, executor: pn.Executor, where: Any, tmp_path: Path
    ) -> None:
        mark = tmp_path / "started"

        def early(data: Any) -> Any:
            mark.touch()
            return data.sum()

        late: Future[Any] = Future()

        def forward() -> None:
            # Only once the other term has begun.
            end = time.monotonic() + 20.0
            while not mark.exists() and time.monotonic() < end:
                time.sleep(0.01)
            late.set_result(np.array([1.0, 2.0]) if mark.exists() else np.zeros(2))

        threading.Thread(target=forward).start()
        pipeline = pn.Pipeline(
            [pn.Term(early, runs=where), pn.Term("l1", inputs="logprobs"), pn.Term("l2", inputs="logprobs", runs=where)]
        )
        out = executor.run(pipeline, {"data": np.ones(3), "logprobs": late})
        assert [float(term.value) for term in out] == [3.0, 3.0, 5.0]

    @pytest.mark.parametrize("wrt", [None, "x"])
    def test_terms_that_run_here_use_the_time_too(self, executor: pn.Executor, wrt: Any) -> None:
        late: Future[Any] = Future()
        calls: list[str] = []
        scale = torch.tensor(2.0, requires_grad=True)

        def counts(data: Any) -> Any:
            calls.append("counts")
            if len(calls) == 1:
                late.set_result(torch.ones(2, requires_grad=True))
            return torch.tensor(3.0), {"here": 1.0}

        def fails(data: Any) -> Any:
            calls.append("fails")
            raise ValueError("no")

        def learned(data: Any) -> Any:
            return scale * 5

        pipeline = pn.Pipeline(
            [counts, pn.Term(fails, on_error="skip"), learned, pn.Term("l2", inputs="x"), pn.Term("l1", inputs="data")]
        )
        out = executor.run(pipeline, {"data": torch.ones(3), "x": late}, wrt=wrt)
        assert calls == ["counts", "fails"]
        assert out.metrics()["counts/here"] == 1.0
        assert "raised ValueError: no" in str(out["fails"].error)
        assert out.total.item() == 3.0 + 10.0 + 2.0 + 3.0
        out.total.backward()
        assert scale.grad.item() == 5.0
        assert late.result().grad.tolist() == [2.0, 2.0]
        if wrt:
            assert out["counts"].grad_error == "it does not read x"

    def test_terms_here_that_a_gradient_is_wanted_of_wait_for_the_others(self, executor: pn.Executor) -> None:
        late: Future[Any] = Future()
        threading.Timer(0.1, late.set_result, [torch.ones(2)]).start()
        pipeline = pn.Pipeline([pn.Term("l2", inputs="data"), pn.Term("l1", inputs="x")])
        out = executor.run(pipeline, {"data": torch.ones(3), "x": late}, wrt=["data", "x"])
        assert out.gradient["data"].tolist() == [2.0, 2.0, 2.0]

    def test_gradients_asked_for_are_taken_early_too(self, executor: pn.Executor) -> None:
        late: Future[Any] = Future()
        threading.Timer(0.1, late.set_result, [torch.ones(2)]).start()
        pipeline = pn.Pipeline([pn.Term("l2", inputs="data", runs="thread"), pn.Term("l1", inputs="logprobs")])
        out = executor.run(pipeline, {"data": torch.ones(3), "logprobs": late}, wrt=["data", "logprobs"])
        assert out.gradient["data"].tolist() == [2.0, 2.0, 2.0]
        assert out.gradient["logprobs"].tolist() == [1.0, 1.0]

    def test_an_input_that_fails_ends_what_has_begun(self, executor: pn.Executor) -> None:
        late: Future[Any] = Future()
        late.set_exception(ConnectionError("no forward"))
        pipeline = pn.Pipeline(
            [
                pn.Term(lambda data: time.sleep(30), name="long", inputs="data", runs="process"),
                pn.Term("l1", inputs="x"),
            ]
        )
        start = time.monotonic()
        with pytest.raises(ConnectionError, match="no forward"):
            executor.run(pipeline, {"data": np.ones(1), "x": late})
        assert time.monotonic() - start < 20.0

    def test_terms_that_rest_or_are_off_do_not_start(self, executor: pn.Executor) -> None:
        late: Future[Any] = Future()
        late.set_result(np.ones(2))
        rests = pn.Term("l1", name="rests", inputs="data", runs="thread", every=2)
        off = pn.Term("l1", name="off", inputs="data", runs="thread", enabled=False)
        out = executor.run(
            pn.Pipeline([rests, off, pn.Term("l1", inputs="x")]), {"data": np.ones(3), "x": late}, step=1
        )
        assert out.names == ("l1",)

    def test_sequential_waits_for_all(self) -> None:
        late: Future[Any] = Future()
        late.set_result(np.ones(2))
        with pn.Executor(sequential=True) as executor:
            pipeline = pn.Pipeline([pn.Term("l1", inputs="data", runs="process"), pn.Term("l2", inputs="x")])
            assert float(executor.run(pipeline, {"data": np.ones(3), "x": late}).total) == 5.0

    def test_an_awaitable_is_for_run_async(self, executor: pn.Executor) -> None:
        async def forward() -> Any:
            return np.ones(2)

        coming = forward()
        with pytest.raises(pn.InputError, match='the input "x" is an awaitable; await it, or use run_async'):
            executor.run(pn.Pipeline([pn.Term("l1", inputs="x")]), {"x": coming})
        coming.close()
