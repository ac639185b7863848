"""Terms that raise, return what is no value, or cannot be sent: every error names its term."""

import asyncio
import os
import threading
import traceback
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import penalties as pn

from .terms import ELSEWHERE, EVERYWHERE, healthy, probe


class TestRaise:
    @pytest.mark.parametrize("where", EVERYWHERE)
    def test_names_the_term_and_its_cause_and_keeps_the_others(self, executor: pn.Executor, where: Any) -> None:
        def broken(x: Any) -> Any:
            raise ValueError("no luck")

        pipeline = pn.Pipeline([pn.Term(broken, 2.0, runs=where), pn.Term(healthy, 0.5, runs=where), "l1"])
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
        probe(executor, where)

    @pytest.mark.parametrize("where", EVERYWHERE)
    def test_skip_leaves_it_out_and_says_so(self, executor: pn.Executor, where: Any) -> None:
        def broken(x: Any) -> Any:
            raise ValueError("no luck")

        pipeline = pn.Pipeline([pn.Term(broken, 2.0, runs=where, on_error="skip"), "l1"])
        x = torch.tensor([3.0, -1.0], requires_grad=True)
        for out in (executor.run(pipeline, x), executor.run(pipeline, x, wrt="input")):
            assert out.total.item() == 4.0
            assert out["broken"].value is None
            assert isinstance(out["broken"].error, pn.TermError)
            assert "broken" not in out.metrics()

    def test_every_failure_is_named(self, executor: pn.Executor) -> None:
        def broken(x: Any) -> Any:
            raise ValueError("no luck")

        pipeline = pn.Pipeline([pn.Term(broken, name=where, runs=where) for where in ELSEWHERE])
        with pytest.raises(pn.TermError) as caught:
            executor.run(pipeline, np.ones(2))
        assert caught.value.term == "thread"
        assert [note.split(":")[1].strip() for note in caught.value.__notes__] == ["process", "async"]

    @pytest.mark.parametrize("where", ELSEWHERE)
    def test_what_is_no_value_is_the_same_error_as_inline(self, executor: pn.Executor, where: Any) -> None:
        for returned, message in (("a string", "returned a str"), (None, "returned None"), (np.ones(2), "of shape")):
            term = pn.Term(lambda x, returned=returned: returned, name="garbage", runs=where, inputs="x")
            with pytest.raises(pn.TermError, match=f"garbage: .*{message}"):
                executor.run(pn.Pipeline([term]), {"x": np.ones(2)})

    def test_an_exception_that_cannot_travel_is_reported_as_text(self, executor: pn.Executor) -> None:
        def broken(x: Any) -> Any:
            class Local(Exception):
                def __init__(self, first: int, second: int) -> None:
                    super().__init__("cannot be made of one argument")
                    self.lock = threading.Lock()

            raise Local(1, 2)

        with pytest.raises(pn.TermError, match="raised Local: cannot be made") as caught:
            executor.run(pn.Pipeline([pn.Term(broken, runs="process")]), np.ones(2))
        assert any("in broken" in note for note in caught.value.__cause__.__notes__)

    @pytest.mark.parametrize("where", ELSEWHERE)
    def test_a_missing_input_is_an_error_before_anything_runs(self, executor: pn.Executor, where: Any) -> None:
        ran: list[int] = []

        def note(x: Any) -> Any:
            ran.append(1)
            return x.sum()

        pipeline = pn.Pipeline([pn.Term(note, runs="thread"), pn.Term("l1", inputs="y", runs=where)])
        with pytest.raises(pn.InputError, match='l1: no input is named "y"'):
            executor.run(pipeline, {"x": np.ones(2)})
        assert not ran


class TestNonFinite:
    @pytest.mark.parametrize("where", EVERYWHERE)
    @pytest.mark.parametrize(("number", "kind"), [(np.nan, "nan"), (np.inf, "inf")])
    def test_is_an_error_that_names_the_term(self, executor: pn.Executor, where: Any, number: float, kind: str) -> None:
        pipeline = pn.Pipeline([pn.Term(lambda x, n=number: n * x.sum(), name="odd", inputs="x", runs=where), "l1"])
        pipeline = pipeline.replace("l1", pn.Term("l1", inputs="x"))
        for wrt in (None, "x"):
            with pytest.raises(pn.NonFiniteError, match=f"odd: the value is {kind}") as caught:
                executor.run(pipeline, {"x": torch.ones(2, requires_grad=True)}, wrt=wrt)
            assert (caught.value.kind, caught.value.term) == (kind, "odd")
            assert caught.value.output.total.item() == 2.0

    @pytest.mark.parametrize("where", EVERYWHERE)
    def test_may_be_skipped_and_its_gradient_is_left_out(self, executor: pn.Executor, where: Any) -> None:
        term = pn.Term(lambda x: np.nan * x.sum(), name="odd", inputs="x", runs=where, on_error="skip")
        x = torch.ones(2, requires_grad=True)
        out = executor.run(pn.Pipeline([term, pn.Term("l1", inputs="x")]), {"x": x}, wrt="x")
        assert out.gradient["x"].tolist() == [1.0, 1.0]
        assert isinstance(out["odd"].error, pn.NonFiniteError)
        out.total.backward()
        assert x.grad.tolist() == [1.0, 1.0]


class TestWords:
    @pytest.mark.parametrize("where", ELSEWHERE)
    def test_an_inner_pipeline_does_not_lend_its_name(self, executor: pn.Executor, where: Any) -> None:
        def outer(x: Any) -> Any:
            return pn.Pipeline([pn.Term(lambda x: None, name="inner", inputs="x")])(x=x).total

        with pytest.raises(pn.TermError, match="^outer: raised TermError: inner: returned None") as caught:
            executor.run(pn.Pipeline([pn.Term(outer, runs=where)]), {"x": np.ones(1)})
        assert caught.value.term == "outer"

    @pytest.mark.parametrize("where", ELSEWHERE)
    def test_other_errors_of_ours_are_the_terms_own(self, executor: pn.Executor, where: Any) -> None:
        def bad(x: Any) -> Any:
            raise pn.InputError("no such key")

        out = executor.run(
            pn.Pipeline([pn.Term(bad, runs=where, on_error="skip"), pn.Term("l1", inputs="x")]), {"x": np.ones(1)}
        )
        assert str(out["bad"].error) == "bad: raised InputError: no such key"

    @pytest.mark.parametrize("where", ELSEWHERE)
    def test_a_term_that_exits_ends_nothing_else(self, executor: pn.Executor, where: Any) -> None:
        def leaves(x: Any) -> Any:
            raise SystemExit(3)

        async def leaves_later(x: Any) -> Any:
            await asyncio.sleep(0)
            raise KeyboardInterrupt

        fn = leaves_later if where == "async" else leaves
        with pytest.raises(pn.TermError, match="^leaves: raised (SystemExit: 3|KeyboardInterrupt: )$"):
            executor.run(pn.Pipeline([pn.Term(fn, name="leaves", runs=where)]), {"x": np.ones(1)})
        probe(executor, where)

    @pytest.mark.parametrize("where", ELSEWHERE)
    def test_a_step_that_is_missing_is_an_error_at_once(self, executor: pn.Executor, where: Any) -> None:
        def scheduled(x: Any, step: int) -> Any:
            return step * x.sum()

        pipeline = pn.Pipeline([pn.Term(scheduled, runs=where)])
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
    @pytest.mark.parametrize("where", ELSEWHERE)
    def test_a_tensor_that_requires_a_gradient_is_an_error(self, executor: pn.Executor, where: Any) -> None:
        hidden = torch.ones(2, requires_grad=True)
        pipeline = pn.Pipeline([pn.Term(lambda x: (hidden * x).sum(), name="hidden", inputs="x", runs=where)])
        for x in (torch.ones(2), torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.bfloat16)):
            with pytest.raises(pn.TermError, match="hidden: its function holds a tensor.*pass it as an input"):
                executor.run(pipeline, {"x": x})

    def test_parameters_of_a_module_are_too(self, executor: pn.Executor) -> None:
        layer = torch.nn.Linear(2, 1)
        pipeline = pn.Pipeline([pn.Term(lambda x: layer(x).sum(), name="layer", inputs="x", runs="process")])
        with pytest.raises(pn.TermError, match="layer: its function holds a tensor of shape"):
            executor.run(pipeline, {"x": torch.ones(2)})

    @pytest.mark.parametrize("where", ELSEWHERE)
    def test_one_that_does_not_is_a_constant(self, executor: pn.Executor, where: Any) -> None:
        factor = torch.tensor([1.0, 2.0])
        pipeline = pn.Pipeline([pn.Term(lambda x: (factor * x).sum(), name="scaled", inputs="x", runs=where)])
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


def test_late_errors_travel() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(pn.TermTimeoutError("a", "took long", abandoned=True)))
    assert (error.term, error.message, error.abandoned) == ("a", "took long", True)
