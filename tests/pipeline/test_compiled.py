"""`Term(compile=True)`: functions as graphs of torch.compile, one by one or together, with the same numbers."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from tests.libraries import JAX, NUMPY

QUICK = "aot_eager"
"""A backend that traces forward and backward, and does not generate code."""


def waves(x: Any) -> Any:
    return (x * x).sin().sum()


def logs(x: Any) -> Any:
    return (x.abs() + 1).log().mean(), {"largest": x.max()}


def distance(x: Any, y: Any) -> Any:
    return ((x - y) ** 2).sum()


def branching(x: Any) -> Any:
    return x.sum() if float(x.sum()) > 0 else -x.sum()


def raising(x: Any) -> Any:
    raise ArithmeticError("on purpose")


TERMS = [
    pn.Term(fn, weight, compile=QUICK, differentiable=True)
    for fn, weight in ((waves, 0.1), (logs, 0.2), (distance, 0.3))
]
COMPILED = pn.Pipeline(TERMS)
PLAIN = pn.Pipeline([term.replace(compile=False) for term in TERMS])


def inputs(rows: int = 5) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    x, y = torch.randn(2, rows, 4, generator=generator, dtype=torch.float64)
    return {"x": x.requires_grad_(), "y": y}


def assert_same(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.value, other.value)
        torch.testing.assert_close(one.grad_norm, other.grad_norm)
        assert one.metrics.keys() == other.metrics.keys()
    torch.testing.assert_close(found.gradient, expected.gradient)
    torch.testing.assert_close(found.total_grad_norm, expected.total_grad_norm)


class TestTogether:
    def test_one_graph_with_the_numbers_of_each_function(self) -> None:
        given = inputs()
        (group,) = COMPILED.plan(**given)
        assert len(group.jobs) == 3
        assert group.reason == "one graph of torch.compile for all of them"
        assert_same(COMPILED.value_and_grad(**given), PLAIN.value_and_grad(**given))
        kept, expected = (one.value_and_grad(**given, keep=True, cosines=True) for one in (COMPILED, PLAIN))
        torch.testing.assert_close(kept["logs"].gradient, expected["logs"].gradient)
        torch.testing.assert_close(kept.gram, expected.gram)

    def test_nothing_is_compiled_again(self) -> None:
        """For other weights, other numbers, or equal terms that were made anew."""
        given = inputs()
        COMPILED.value_and_grad(**given)
        again = pn.Pipeline([term.replace(weight=7.0) for term in TERMS])
        with torch._dynamo.config.patch(error_on_recompile=True):
            COMPILED.value_and_grad(**given, weights={"waves": 3.0})
            out = again.value_and_grad(x=given["x"].detach() + 1, y=given["y"], wrt="x")
        assert float(out["waves"].weight) == 7.0

    def test_a_call_and_a_backward(self) -> None:
        given = inputs()
        out = COMPILED(**given)
        torch.testing.assert_close(out.total, PLAIN(**given).total)
        (slope,) = torch.autograd.grad(out.total, given["x"])
        torch.testing.assert_close(slope, PLAIN.value_and_grad(**given).gradient["x"])

    def test_the_total_is_on_the_graph(self) -> None:
        """Of the input, and of a parameter that a function took from elsewhere."""
        parameter = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
        scaled = lambda x: (parameter * x).sum()
        terms = [pn.Term(scaled, 0.5, "scaled", compile=QUICK), TERMS[0]]
        slopes = []
        for chosen in (terms, [term.replace(compile=False) for term in terms]):
            x = inputs()["x"]
            pn.Pipeline(chosen).value_and_grad(x=x).total.backward()
            slopes += [(x.grad, parameter.grad)]
            parameter.grad = None
        torch.testing.assert_close(slopes[0], slopes[1])

    @pytest.mark.slow
    def test_one_input_by_position(self) -> None:
        x = inputs()["x"]
        found, expected = (pn.Pipeline(one.terms[:2]).value_and_grad(x) for one in (COMPILED, PLAIN))
        torch.testing.assert_close(found.gradient, expected.gradient)

    @pytest.mark.parametrize(
        "change", [{"on_error": "skip"}, {"compile": "eager"}, {"compile": False}, {"differentiable": False}], ids=str
    )
    def test_who_is_by_itself(self, change: dict[str, Any]) -> None:
        plan = pn.Pipeline([TERMS[0], TERMS[2].replace(**change)]).plan(**inputs())
        assert [len(group.jobs) for group in plan] == [1, 1]
        assert plan.groups[0].reason == "by itself: a graph of torch.compile"

    def test_a_kernel_does_not_take_a_compiled_penalty(self) -> None:
        x = torch.randn(1 << 18, requires_grad=True)
        plan = pn.Pipeline([pn.Term(pn.l1, compile=QUICK), pn.Term(pn.l2)]).plan(x)
        assert plan.groups[0].reason == "by itself: a graph of torch.compile"

    def test_penalties_over_lazy_logits_are_compiled_too(self) -> None:
        logits = pn.Logits(torch.randn(6, 4), torch.randn(7, 4))
        term = pn.Term(pn.entropy, inputs="logits", options={"logits": True}, compile="eager")
        (group,) = pn.Pipeline([term]).plan(logits=logits)
        assert group.reason == "by itself: a graph of torch.compile; computed in blocks of rows"
        found, expected = (pn.Pipeline([one])(logits=logits).total for one in (term, term.replace(compile=False)))
        torch.testing.assert_close(found, expected)

    def test_a_gradient_at_a_part_of_what_a_term_reads(self) -> None:
        terms = [
            pn.Term(lambda nest: (nest["x"] * nest["y"]).sum(), name="whole", inputs="nest", compile="eager"),
            pn.Term(waves, inputs="nest.x", compile="eager"),
        ]
        with pytest.raises(pn.InputError, match='whole: reads all of "nest", and wrt names only "nest.x" in it'):
            pn.Pipeline(terms).value_and_grad(nest=inputs(), wrt="nest.x")

    @pytest.mark.parametrize("fn", [branching, pytest.param(raising, marks=pytest.mark.slow)])
    def test_an_error_names_the_term_that_fails(self, fn: Callable[..., Any]) -> None:
        terms = pn.Pipeline([pn.Term(waves, compile="eager"), pn.Term(fn, compile="eager")])
        with pytest.raises(pn.TermError, match="failed as a graph of torch.compile.*compile=False") as caught:
            terms(x=inputs()["x"].detach())
        assert caught.value.term == fn.__name__
        assert caught.value.__cause__ is not None


class TestAlone:
    def test_each_choice_of_options_has_a_graph_of_its_own(self) -> None:
        term = pn.Term(pn.l2, compile="eager")
        with torch._dynamo.config.patch(recompile_limit=1):
            for reduction in ("sum", "mean"):
                pn.Pipeline([term.replace(options={"reduction": reduction})])(x=inputs()["x"])

    def test_too_many_graphs(self) -> None:
        pipeline = pn.Pipeline([pn.Term(lambda x: x.sum(), name="sum", compile="eager")])
        with torch._dynamo.config.patch(recompile_limit=1):
            pipeline(x=torch.ones(2))
            with pytest.raises(pn.TermError, match=r"sum: needs more graphs .*compiler\.config\.recompile_limit"):
                pipeline(x=torch.ones(2, 2))

    @pytest.mark.parametrize("wrap", [pn.Term.replace, pytest.param(pn.EMA, marks=pytest.mark.slow)])
    def test_the_numbers_of_the_function(self, wrap: Callable[[pn.Term], pn.Term]) -> None:
        x = inputs()["x"]
        found = pn.Pipeline([wrap(pn.Term(logs, compile=QUICK))]).value_and_grad(x=x)
        assert_same(found, pn.Pipeline([pn.Term(logs)]).value_and_grad(x=x))

    def test_nothing_is_compiled_again(self) -> None:
        x = inputs()["x"]
        pn.Pipeline([TERMS[0]]).value_and_grad(x=x)
        with torch._dynamo.config.patch(error_on_recompile=True):
            pn.Pipeline([TERMS[0].replace(weight=3.0)]).value_and_grad(x=x)

    def test_an_error_may_be_skipped(self) -> None:
        out = pn.Pipeline([pn.Term(branching, compile="eager", on_error="skip")])(x=inputs()["x"].detach())
        assert "failed as a graph" in str(out["branching"].error)

    @pytest.mark.parametrize("other", [NUMPY, JAX], ids=["numpy", "jax"])
    def test_other_libraries_are_an_error(self, other: Any) -> None:
        with pytest.raises(pn.TermError, match=f"compile=True is for PyTorch tensors.*{other.errors} array"):
            pn.Pipeline([pn.Term(waves, compile=True)])(x=other.array(np.ones(3)))

    @pytest.mark.slow
    def test_inside_another_graph_it_is_inlined(self) -> None:
        given = inputs()
        outer = torch.compile(lambda x, y: COMPILED(x=x, y=y).total, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(outer(**given), PLAIN(**given).total)

    def test_inside_a_transform_it_is_the_function(self) -> None:
        given = inputs()
        slope = torch.func.grad(lambda x: COMPILED(x=x, y=given["y"]).total)(given["x"].detach())
        torch.testing.assert_close(slope, PLAIN.value_and_grad(**given).gradient["x"])


class TestTerm:
    def test_it_is_an_argument_like_any_other(self) -> None:
        assert repr(TERMS[0]) == "Term(waves, weight=0.1, compile='aot_eager')"
        assert repr(pn.Term(waves, compile=True)) == "Term(waves, weight=1.0, compile=True)"
        assert pickle.loads(pickle.dumps(TERMS[0])) == TERMS[0]
        assert TERMS[0] != TERMS[0].replace(compile=True)

    @pytest.mark.parametrize("wrap", [lambda term: term, pn.Normalized], ids=["plain", "inside another"])
    def test_configs_keep_it(self, wrap: Callable[[pn.Term], pn.Term]) -> None:
        pipeline = pn.Pipeline([wrap(pn.Term("l1", compile=True))])
        (entry,) = pipeline.to_config()
        assert entry["compile"] is True
        assert pn.Pipeline.from_config([entry]).to_config() == [entry]

    @pytest.mark.parametrize("runs", ["thread", "process", "async", "ray"])
    def test_elsewhere_is_an_error(self, runs: Any) -> None:
        with pytest.raises(
            pn.OptionError, match=f'compile=True; expected False with runs="{runs}": a graph runs inline'
        ):
            pn.Term(waves, runs=runs, compile=True)

    def test_an_async_function_is_an_error(self) -> None:
        async def later(x: Any) -> Any:
            return x.sum()

        with pytest.raises(pn.OptionError, match="expected False with an async function"):
            pn.Term(later, compile=True)

    @pytest.mark.parametrize("value", [1, None, ""])
    def test_a_value_that_is_not_allowed(self, value: Any) -> None:
        with pytest.raises(pn.OptionError, match="expected True, False or the name of a backend of torch.compile"):
            pn.Term(waves, compile=value)

    def test_around_a_wrapper_is_an_error(self) -> None:
        with pytest.raises(pn.OptionError, match="give compile= to the term inside"):
            pn.EMA(pn.Term(waves)).replace(compile=True)


@pytest.mark.slow
def test_with_the_real_compiler() -> None:
    given = inputs()
    real = pn.Pipeline([term.replace(compile=True) for term in TERMS])
    assert_same(real.value_and_grad(**given), PLAIN.value_and_grad(**given))
    (slope,) = torch.autograd.grad(real(**given).total, given["x"])
    torch.testing.assert_close(slope, PLAIN.value_and_grad(**given).gradient["x"])
