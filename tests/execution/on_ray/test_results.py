"""Terms on a Ray cluster: the same numbers as here."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor

import penalties as pn
from penalties.pipeline.catalogue import BUILT_IN

from ..parity import check_jax, check_torch
from .terms import Noted, away, squares

ray = pytest.importorskip("ray")


@pytest.mark.slow
class TestResults:
    @pytest.mark.parametrize("name", BUILT_IN)
    def test_torch_terms_train_as_inline(self, executor: pn.Executor, name: str) -> None:
        check_torch(executor, name, "ray")

    @pytest.mark.parametrize("name", BUILT_IN)
    def test_jax_terms_are_differentiated_as_inline(self, executor: pn.Executor, name: str) -> None:
        check_jax(executor, name, "ray")

    @pytest.mark.parametrize("make", [np.array, torch.tensor, jnp.array], ids=["numpy", "torch", "jax"])
    def test_a_numpy_term_brings_its_gradient_and_metrics(self, executor: pn.Executor, make: Any) -> None:
        def own(x: Any) -> pn.Evaluation:
            plain = np.asarray(x.detach() if hasattr(x, "detach") else x)
            return pn.Evaluation(np.float64((plain**2).sum()), gradient={"x": 2 * plain}, metrics={"size": plain.size})

        out = executor.run(away(own, weight=0.5), make([1.0, -2.0]), wrt="input")
        assert out.gradient.tolist() == [1.0, -2.0]
        metrics = out.metrics()
        assert [metrics[key] for key in ("own", "own_weighted", "own/size", "total")] == [5.0, 2.5, 2.0, 2.5]

    @pytest.mark.parametrize("make", [np.array, torch.tensor, jnp.array], ids=["numpy", "torch", "jax"])
    def test_large_arrays_go_through_the_object_store(self, executor: pn.Executor, make: Any) -> None:
        data = np.random.default_rng(0).normal(size=(300, 1000)).astype(np.float32)
        x = make(data)

        def own(x: Any) -> Any:
            plain = np.asarray(x.detach() if hasattr(x, "detach") else x)
            return pn.Evaluation(np.float32(3.0), {"x": 2 * plain}, state=plain + 1)

        for _ in range(3):
            out = executor.run(away(own), x, wrt="input")
            np.testing.assert_array_equal(np.asarray(out.gradient), 2 * data)
            state = out.state["own"]
            np.testing.assert_array_equal(state, data + 1)
            # It is the caller's: not a window onto Ray's memory.
            state += 1

    @pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
    def test_dtypes_that_numpy_does_not_have_itself(self, executor: pn.Executor, dtype: str) -> None:
        def named(x: Any) -> pn.Evaluation:
            return pn.Evaluation(np.float32(x.astype(np.float32).sum()), state={"seen": str(x.dtype), "x": x})

        array = np.array([1.5, -2.0]).astype(getattr(ml_dtypes, dtype))
        for x in (array, jnp.asarray(array)):
            out = executor.run(away(named, differentiable=False), {"x": x})
            assert float(out.total) == -0.5
            assert out.state["named"]["seen"] == dtype
            assert out.state["named"]["x"].dtype == array.dtype

    def test_a_term_may_write_to_its_inputs(self, executor: pn.Executor) -> None:
        def centred(x: Any) -> Any:
            x -= x.mean()
            return np.abs(x).sum()

        for size in (4, 100_000):
            x = np.ones(size)
            assert float(executor.run(away(centred), x).total) == 0.0
            assert x[0] == 1.0

    def test_terms_run_everywhere_in_one_pipeline(self, executor: pn.Executor) -> None:
        async def awaited(x: Tensor) -> Tensor:
            await asyncio.sleep(0.01)
            return (x**3).sum()

        where_each = ("ray", "inline", "thread", "process", "async", "ray")
        fns: list[Any] = [pn.l1, pn.l2, squares, torch.logsumexp, awaited, torch.linalg.norm]
        fns[3] = lambda x: torch.logsumexp(x, 0)
        fns[5] = lambda x: torch.linalg.norm(x)

        def terms(where_each: Any) -> list[pn.Term]:
            return [
                pn.Term(fn, 0.1 * (i + 1), name=f"term{i}", inputs="x", runs=where)
                for i, (fn, where) in enumerate(zip(fns, where_each, strict=True))
            ]

        def run(where_each: Any) -> tuple[Any, Tensor]:
            x = torch.tensor([1.0, -2.0, 0.5], requires_grad=True)
            out = executor.run(pn.Pipeline(terms(where_each)), {"x": x})
            out.total.backward()
            assert x.grad is not None
            return out, x.grad

        expected, gradient = run(("inline",) * 6)
        out, found = run(where_each)
        assert [term.name for term in out.terms.values()] == [f"term{i}" for i in range(6)]
        assert out.metrics() == pytest.approx(expected.metrics(), rel=1e-6)
        torch.testing.assert_close(found, gradient, rtol=1e-6, atol=1e-9)

    def test_lambdas_closures_and_coroutines(self, executor: pn.Executor) -> None:
        scale = 3.0

        async def awaited(x: Any) -> Any:
            await asyncio.sleep(0.01)
            return scale * x.sum()

        x = np.array([1.0, 2.0])
        assert float(executor.run(away(lambda x: scale * x.sum(), name="closure"), x).total) == 9.0
        assert float(executor.run(away(awaited), x).total) == 9.0

    def test_state_and_step_arrive(self, executor: pn.Executor) -> None:
        def counted(x: Any, state: Any, step: int) -> pn.Evaluation:
            before = np.zeros(1) if state is None else state
            return pn.Evaluation(x.sum() * step, state=before + 1)

        state = None
        for step in range(3):
            out = executor.run(away(counted), np.ones(2), step=step, state=state)
            state = out.state
            assert float(out.total) == 2.0 * step
        assert state is not None
        assert state["counted"].tolist() == [3.0]

    def test_settings_that_change_numbers_follow(self, executor: pn.Executor) -> None:
        torch.set_default_dtype(torch.float64)
        try:
            out = executor.run(away(lambda x: x.sum() * torch.full((), 0.1), name="wide"), torch.ones(1))
        finally:
            torch.set_default_dtype(torch.float32)
        assert float(out.total) == 0.1
        with jax.enable_x64(True):
            out = executor.run(away(lambda x: x.sum(), name="wide"), jnp.array([0.1], jnp.float64))
            assert out.total.dtype == jnp.float64
        assert float(out.total) == 0.1

    def test_results_come_in_term_order(self, executor: pn.Executor) -> None:
        def late(seconds: float) -> Any:
            def term(x: Any) -> Any:
                time.sleep(seconds)
                return x.sum() * seconds

            return term

        waits = [0.3, 0.0, 0.1, 0.0, 0.2]
        terms = [pn.Term(late(wait), name=f"w{i}", runs="ray") for i, wait in enumerate(waits)]
        out = executor.run(pn.Pipeline(terms), np.ones(1))
        assert [(term.name, float(term.value)) for term in out.terms.values()] == [
            (f"w{i}", w) for i, w in enumerate(waits)
        ]

    def test_a_function_is_sent_once_and_not_once_a_step(self, executor: pn.Executor, tmp_path: Path) -> None:
        log = tmp_path / "loads"
        pipeline = away(Noted(log), name="noted")
        for step in range(10):
            executor.run(pipeline, np.ones(1), weights={"noted": 1.0 / (step + 1)})
        assert 1 <= len(log.read_text().splitlines()) <= 2

    def test_workers_are_limited_to_their_processor(self, executor: pn.Executor) -> None:
        def threads(x: Any) -> Any:
            shown = {key: float(os.environ[key]) for key in ("OMP_NUM_THREADS", "OMP_NUM_THREADS")}
            assert os.environ["JAX_PLATFORMS"] == "cpu"
            return x.sum(), {**shown, "torch": torch.get_num_threads()}

        metrics = executor.run(away(threads), torch.ones(1)).metrics()
        assert [metrics[f"threads/{key}"] for key in ("OMP_NUM_THREADS", "OMP_NUM_THREADS", "torch")] == [1, 1, 1]
