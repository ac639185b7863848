"""Terms that remember."""

import math
from typing import Any

import numpy as np
import pytest

import penalties as pn
from tests.libraries import LIBRARIES, TORCH, close


def counted(x: Any, state: Any) -> Any:
    count = 1 if state is None else state["count"] + 1
    return pn.Evaluation(count * x.sum(), state={"count": count, "last": x.sum()}, metrics={"count": count})


def minus(a: Any, b: Any) -> Any:
    return (a - b).sum()


def run(library: Any, pipeline: pn.Pipeline, *values: float) -> list[float]:
    state, totals = None, []
    for step, value in enumerate(values):
        out = pipeline(library.array([value]), state=state, step=step)
        state = out.state
        totals.append(out.read().total)
    return totals


class TestAverage:
    def test_formula(self, library: Any) -> None:
        pipeline = pn.Pipeline([pn.EMA(pn.Term(pn.l1, weight=2.0), decay=0.9)])
        close(run(library, pipeline, 1.0, 2.0, 3.0), [2.0, 2.2, 2 * (0.9 * 1.1 + 0.1 * 3.0)])

    def test_gradient_flows_through_the_current_value(self, autodiff: Any) -> None:
        pipeline = pn.Pipeline([pn.EMA(pn.Term(pn.l2), decay=0.75)])
        first = pipeline.value_and_grad(autodiff.array([3.0]), wrt="input")
        second = pipeline.value_and_grad(autodiff.array([3.0]), wrt="input", state=first.state)
        close(autodiff.numpy(first.gradient), [6.0])
        close(autodiff.numpy(second.gradient), [1.5])

    def test_state_carries_no_graph(self) -> None:
        if TORCH not in LIBRARIES:
            pytest.skip("needs PyTorch")
        out = pn.Pipeline([pn.EMA(pn.Term(pn.l1))])(TORCH.array([1.0]).requires_grad_())
        assert not out.state["l1"]["before"].requires_grad


class TestNormalized:
    def test_formula(self, library: Any) -> None:
        pipeline = pn.Pipeline([pn.Normalized(pn.Term(lambda x: -x.sum(), name="minus"), decay=0.5)])
        close(run(library, pipeline, 4.0, 2.0), [-1.0, -2.0 / 3.0])

    def test_zero_stays_zero(self, library: Any) -> None:
        assert run(library, pn.Pipeline([pn.Normalized(pn.Term(pn.l1))]), 0.0, 0.0) == [0.0, 0.0]

    def test_scale_is_a_constant(self, autodiff: Any) -> None:
        out = pn.Pipeline([pn.Normalized(pn.Term(pn.l2))]).value_and_grad(autodiff.array([2.0]), wrt="input")
        close(autodiff.numpy(out.gradient), [1.0])


class TestWrapping:
    def test_is_a_term_of_the_same_name(self) -> None:
        inner = pn.Term(pn.kl_estimate, 0.3, "kl", ("a", "b"), every=2, on_error="skip", timeout=3.0)
        for outer in (pn.EMA(inner), pn.Normalized(inner), pn.EMA(pn.Normalized(inner))):
            assert isinstance(outer, pn.Term)
            for argument in ("name", "weight", "every", "on_error", "timeout", "enabled", "differentiable"):
                assert getattr(outer, argument) == getattr(inner, argument)
            assert list(outer.inputs.values()) == ["a", "b"]

    def test_one_inside_another(self, library: Any) -> None:
        pipeline = pn.Pipeline([pn.EMA(pn.Normalized(pn.Term(pn.l1), decay=0.5), decay=0.5)])
        close(run(library, pipeline, 4.0, 2.0), [1.0, 0.5 + 0.5 * 2 / 3])

    def test_named_inputs_masks_and_steps(self, library: Any) -> None:
        def stepped(logprobs: Any, mask: Any = None, step: Any = None) -> Any:
            return (logprobs * mask).sum() * step

        term = pn.EMA(pn.Term(stepped, inputs={"logprobs": "lp", "mask": "kept"}))
        out = pn.Pipeline([term])(lp=library.array([1.0, 2.0]), kept=library.array([0.0, 1.0]), step=3)
        assert out.read().total == 6.0

    def test_renaming_its_inputs_renames_those_of_the_term_inside(self, library: Any) -> None:
        term = pn.EMA(pn.Normalized(pn.Term(minus, inputs=("a", "b")), decay=0.5), decay=0.5)
        swapped = term.replace(inputs={"a": "b", "b": "a"})
        a, b = library.array([3.0]), library.array([1.0])
        assert pn.Pipeline([term])(a=a, b=b).read().total == 1.0
        assert pn.Pipeline([swapped])(a=a, b=b).read().total == -1.0
        assert swapped == pn.EMA(pn.Normalized(pn.Term(minus, inputs=("b", "a")), decay=0.5), decay=0.5)

    def test_a_mask_can_be_mapped_afterwards(self, library: Any) -> None:
        term = pn.EMA(pn.Term(pn.kl_estimate)).replace(inputs={"logprobs": "p", "reference": "q", "mask": "m"})
        p, q, m = library.array([-1.0, -2.0]), library.array([-2.0, -2.0]), library.array([0.0, 1.0])
        assert pn.Pipeline([term])(p=p, q=q, m=m).read().total == 0.0

    def test_options_can_be_changed_afterwards(self, library: Any) -> None:
        term = pn.EMA(pn.Term(pn.l1)).replace(options={"reduction": "mean"})
        assert term == pn.EMA(pn.Term(pn.l1, options={"reduction": "mean"}))
        pipeline = pn.Pipeline([term]).with_options({"l1": {"reduction": "sum"}})
        assert pipeline(library.array([1.0, 2.0])).read().total == 3.0
        with pytest.raises(pn.OptionError, match=r"reducton=.*did you mean reduction\?"):
            term.replace(options={"reducton": "mean"})

    def test_around_a_regularizer(self, library: Any) -> None:
        class Length:
            def compute(self, data: Any, logprobs: Any, options: Any) -> Any:
                return options["factor"] * abs(logprobs).sum()

        term = pn.EMA(pn.Term(Length(), options={"factor": 2.0})).replace(inputs=("batch", "lp"))
        assert pn.Pipeline([term])(batch=[], lp=library.array([-1.5])).read().total == 3.0
        doubled = pn.Pipeline([term]).with_options({"Length": {"factor": 4.0}})
        assert doubled(batch=[], lp=library.array([-1.5])).read().total == 6.0

    def test_further_inputs(self, library: Any) -> None:
        def together(first: Any, *others: Any) -> Any:
            return first.sum() - sum(other.sum() for other in others)

        term = pn.EMA(pn.Term(together, inputs=("a", "b", "c")))
        out = pn.Pipeline([term])(a=library.array([5.0]), b=library.array([1.0]), c=library.array([2.0]))
        assert out.read().total == 2.0

    def test_the_gradient_that_a_term_brought_follows_the_names(self) -> None:
        def brought(x: Any) -> Any:
            return pn.Evaluation(float(x.sum()), gradient={"x": np.ones_like(x)})

        out = pn.Pipeline([pn.EMA(pn.Term(brought)).replace(inputs="h")]).value_and_grad(h=np.array([3.0]), wrt="h")
        assert out.gradient["h"].tolist() == [1.0]

    def test_chunks_are_those_of_the_term_inside(self, library: Any) -> None:
        x = library.array([[1.0], [2.0], [3.0]])
        assert pn.Pipeline([pn.EMA(pn.Term(pn.l1, chunk=2))])(x).read().total == 6.0
        with pytest.raises(pn.OptionError, match="give chunk= to the term inside"):
            pn.EMA(pn.Term(pn.l1)).replace(chunk=2)

    def test_metrics_pass_through(self, library: Any) -> None:
        out = pn.Pipeline([pn.EMA(pn.Term(counted))])(library.array([2.0]))
        assert out.metrics()["counted/count"] == 1.0

    def test_repr_and_equality(self) -> None:
        term = pn.EMA(pn.Term(pn.l1), decay=0.5)
        assert repr(term) == "Term(EMA(l1, decay=0.5), weight=1.0)"
        renamed = pn.Normalized(pn.EMA(pn.Term(pn.l1, 0.5, "size", "h"), decay=0.5), decay=0.25)
        assert repr(renamed) == "Term(Normalized(EMA(size, decay=0.5), decay=0.25), weight=0.5, inputs={'x': 'h'})"
        table = repr(pn.Pipeline([pn.EMA(pn.Term(pn.l1, every=2, options={"reduction": "mean"}))]))
        assert table.splitlines()[-1].split("  ")[-1].strip() == "reduction=mean, EMA 0.9, every 2"
        assert term == pn.EMA(pn.Term(pn.l1), decay=0.5)
        assert term != pn.EMA(pn.Term(pn.l1), decay=0.6)
        assert term != pn.Normalized(pn.Term(pn.l1), decay=0.5)
        assert hash(term.fn) == hash(pn.EMA(pn.Term(pn.l1), decay=0.5).fn)

    @pytest.mark.parametrize("decay", [1.0, -0.1, math.nan, "0.9", True])
    def test_wrong_decay(self, decay: Any) -> None:
        for wrap in (pn.EMA, pn.Normalized):
            with pytest.raises(pn.OptionError, match="decay=.* a number from 0 to below 1"):
                wrap(pn.Term(pn.l1), decay)

    def test_wrong_term(self) -> None:
        async def later(x: Any) -> Any:
            return x.sum()

        with pytest.raises(pn.OptionError, match="a term that is not asynchronous"):
            pn.EMA(pn.Term(later))
        with pytest.raises(pn.OptionError, match="expected a Term"):
            pn.EMA(pn.l1)  # type: ignore[arg-type]


class TestYourOwnState:
    def test_threads_from_call_to_call(self, library: Any) -> None:
        assert run(library, pn.Pipeline([pn.Term(counted)]), 1.0, 1.0, 1.0) == [1.0, 2.0, 3.0]

    def test_survives_a_gradient(self, autodiff: Any) -> None:
        pipeline = pn.Pipeline([pn.Term(counted)])
        first = pipeline.value_and_grad(autodiff.array([5.0]), wrt="input")
        second = pipeline.value_and_grad(autodiff.array([5.0]), wrt="input", state=first.state)
        assert second.state["counted"]["count"] == 2
        assert second.read().total == 10.0

    def test_a_term_that_does_not_run_keeps_it(self, library: Any) -> None:
        pipeline = pn.Pipeline([pn.EMA(pn.Term(pn.l1, every=2), decay=0.9)])
        close(run(library, pipeline, 1.0, 50.0, 3.0), [1.0, 0.0, 1.2])

    def test_a_term_that_is_skipped_keeps_it(self) -> None:
        def picky(x: Any, state: Any) -> Any:
            if x[0] < 0:
                raise ValueError("negative")
            return pn.Evaluation(x.sum(), state=(state or 0) + 1)

        pipeline = pn.Pipeline([pn.Term(picky, on_error="skip")])
        first = pipeline(np.array([1.0]))
        second = pipeline(np.array([-1.0]), state=first.state)
        assert pipeline(np.array([1.0]), state=second.state).state == {"picky": 2}

    def test_state_of_terms_that_were_removed_is_dropped(self) -> None:
        assert pn.Pipeline(["l1"])(np.ones(1), state={"other": 1}).state == {}

    def test_must_be_returned(self) -> None:
        with pytest.raises(pn.TermError, match=r"forgetful: takes state and returned an? .*expected Evaluation"):
            pn.Pipeline([pn.Term(lambda x, state: x.sum(), name="forgetful")])(np.ones(1))


class TestNotFinite:
    """One value that is not finite, as in a step that a loss scaler skips, does not stay in the state."""

    @pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
    @pytest.mark.parametrize("wrap", [pn.EMA, pn.Normalized])
    def test_is_forgotten(self, autodiff: Any, wrap: Any, bad: float) -> None:
        pipeline = pn.Pipeline([wrap(pn.Term(lambda x: x.sum(), name="own"), 0.5)])
        first, broken, second = (autodiff.array([value]) for value in (4.0, bad, 2.0))
        state = pipeline(x=first).state
        expected = float(pipeline(x=second, state=state).total)
        out = pipeline(x=broken, state=state)
        assert not np.isfinite(float(out.total))
        assert float(pipeline(x=second, state=out.state).total) == expected

    def test_at_the_first_call_there_is_none_yet(self, library: Any) -> None:
        pipeline = pn.Pipeline([pn.EMA(pn.Term(lambda x: x.sum(), name="own"), 0.5)])
        state = pipeline(x=library.array([np.inf])).state
        assert float(pipeline(x=library.array([2.0]), state=state).total) == 2.0
