"""Workers that die, and the terms that they had."""

import os
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import penalties as pn

from .terms import healthy, probe


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
