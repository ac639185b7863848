"""Terms that fail: errors that name them, and terms that are skipped."""

import pickle
from typing import Any

import numpy as np
import pytest

import penalties as pn
from tests.libraries import JAX, LIBRARIES, TORCH, close


def norms() -> pn.Pipeline:
    return pn.Pipeline([pn.Term(pn.l1, weight=0.1), pn.Term(pn.l2, weight=0.01)])


class TestFailures:
    @pytest.mark.parametrize(
        ("fn", "message"),
        [
            (lambda x: 1 / 0, "bad: raised ZeroDivisionError: division by zero"),
            (lambda x: x, r"bad: returned an array of shape \(2,\); expected a scalar"),
            (lambda x: "loss", "bad: returned a str; expected a scalar"),
            (lambda x: None, "bad: returned None; expected a scalar"),
            (lambda x: 3.0, r"bad: returned a plain number \(3\), .* differentiable=False"),
            (lambda x: 3, r"bad: returned a plain number \(3\)"),
            (lambda x: True, "bad: returned a bool"),
            (lambda x: (x.sum(), 3), r"bad: returned a pair with an int; expected \(value, dict of metrics\)"),
            (lambda x: (x.sum(), {"m": "text"}), "bad: returned the metric m as a str"),
            (lambda x: (x.sum(), {"m": x}), r"bad: returned the metric m of shape \(2,\)"),
            (lambda x: (x.sum(), {3: 1.0}), "bad: returned a metric named 3"),
            (lambda x: (x.sum(), {}, 1), "bad: returned a tuple"),
        ],
    )
    def test_named(self, library: Any, fn: Any, message: str) -> None:
        with pytest.raises(pn.TermError, match=message) as caught:
            pn.Pipeline(["l1", pn.Term(fn, name="bad")])(library.array([1.0, 2.0]))
        assert caught.value.term == "bad"
        if "raised" in message:
            assert isinstance(caught.value.__cause__, ZeroDivisionError)

    def test_another_library(self) -> None:
        if len(LIBRARIES) < 3:
            pytest.skip("needs all libraries")
        x = TORCH.array([1.0])
        with pytest.raises(pn.TermError, match="bad: returned a JAX array and its inputs are PyTorch arrays"):
            pn.Pipeline([pn.Term(lambda x: JAX.array(1.0), name="bad")])(x)
        with pytest.raises(pn.TermError, match=r"bad: returned a plain number \(1\)"):
            pn.Pipeline([pn.Term(lambda x: np.float64(1.0), name="bad")])(x)
        with pytest.raises(pn.TermError, match="bad: returned a NumPy array and its inputs are PyTorch arrays"):
            pn.Pipeline([pn.Term(lambda x: np.array(1.0), name="bad")])(x)
        with pytest.raises(pn.TermError, match="l2: returned a JAX array and the terms before it PyTorch arrays"):
            pn.Pipeline([pn.Term(pn.l1, inputs="a"), pn.Term(pn.l2, inputs="b")])(a=x, b=JAX.array([1.0]))

    def test_another_device(self) -> None:
        if TORCH not in LIBRARIES:
            pytest.skip("needs PyTorch")
        import torch

        term = pn.Term(lambda x: torch.ones((), device="meta"), name="bad")
        with pytest.raises(pn.TermError, match="bad: returned a value on meta and its inputs are on"):
            pn.Pipeline([term])(TORCH.array([1.0]))

    def test_skipped(self, library: Any) -> None:
        pipeline = pn.Pipeline(["l1", pn.Term(lambda x: 1 / 0, name="bad", on_error="skip")])
        out = pipeline(library.array([1.0, 2.0]))
        assert out.metrics() == {"l1": 3.0, "l1_weighted": 3.0, "total": 3.0}
        assert out["bad"].value is None
        assert out["bad"].contribution is None
        assert isinstance(out["bad"].error, pn.TermError)
        assert out.to_dict()["regularizers"]["bad"]["error"].startswith("TermError: bad: raised ZeroDivisionError")
        assert "skipped" in repr(out)

    def test_skipped_for_what_it_returned(self, library: Any) -> None:
        pipeline = pn.Pipeline(["l1", pn.Term(lambda x: x, name="vector", on_error="skip")])
        out = pipeline(library.array([1.0, 2.0]))
        assert "returned an array of shape (2,)" in str(out["vector"].error)
        assert out.metrics()["total"] == 3.0

    def test_skipped_base(self, library: Any) -> None:
        base = pn.Term(lambda x: 1 / 0, name="base", on_error="skip")
        out = pn.Pipeline(["l1"], base=base)(library.array([1.0, 2.0]))
        assert out.metrics() == {"l1": 3.0, "l1_weighted": 3.0, "total": 3.0}

    def test_skipped_with_gradients(self, autodiff: Any) -> None:
        pipeline = pn.Pipeline(["l1", pn.Term(lambda x: 1 / 0, name="bad", on_error="skip")])
        out = pipeline.value_and_grad(autodiff.array([1.0, 2.0]), wrt="input")
        close(autodiff.numpy(out.gradient), [1.0, 1.0])
        assert out["bad"].grad_norm is None

    def test_errors_survive_a_trip_between_processes(self) -> None:
        for error in (
            pn.TermError("l1", "raised ValueError", "gradient"),
            pn.InputError("no input"),
            pn.MissingLibraryError("saving", "safetensors", "state"),
        ):
            again = pickle.loads(pickle.dumps(error))
            assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
        assert str(pn.MissingLibraryError("a", "b")) == "a needs b: pip install b"

    def test_interrupts_pass_through(self) -> None:
        def interrupted(x: Any) -> Any:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            pn.Pipeline([pn.Term(interrupted, on_error="skip")])(np.ones(1))

    def test_values_are_not_looked_at(self, library: Any) -> None:
        out = norms()(library.array([1.0, np.nan]))
        with pytest.raises(pn.NonFiniteError, match="l1: the value is nan"):
            out.check()
