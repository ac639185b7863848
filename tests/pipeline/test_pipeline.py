"""Pipelines: calls, terms that do not run at every step, and constants."""

import dataclasses
from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import penalties as pn
from tests.libraries import DIFFERENTIABLE, JAX, LIBRARIES, TORCH, close

Pair = namedtuple("Pair", ["first", "second"])


@dataclasses.dataclass
class Heads:
    policy: Any
    value: Any


def norms() -> pn.Pipeline:
    return pn.Pipeline([pn.Term(pn.l1, weight=0.1), pn.Term(pn.l2, weight=0.01)])


class TestCalls:
    def test_empty(self, library: Any) -> None:
        for out in (pn.Pipeline()(), pn.Pipeline()(library.array([1.0])), pn.Pipeline()(x=library.array([1.0]))):
            assert out.metrics() == {"total": 0.0}
        total = pn.Pipeline().total(library.array([1.0]))
        assert type(total) is type(library.array([1.0]).sum()) or library.name == "numpy"

    def test_all_disabled(self, library: Any) -> None:
        assert norms().disable("l1", "l2")(library.array([1.0])).metrics() == {"total": 0.0}

    def test_one_positional_input_goes_to_every_term(self, library: Any) -> None:
        pipeline = pn.Pipeline([pn.Term(pn.l1), pn.Term(pn.l2, inputs="params")], base=lambda h: h.sum())
        assert float(pipeline.total(library.array([1.0, 2.0]))) == 11.0

    def test_a_nest_as_input(self, library: Any) -> None:
        nest = {"a": library.array([1.0]), "b": [library.array([2.0, 3.0])]}
        assert float(norms().total(nest)) == pytest.approx(0.74)

    def test_an_iterator_is_read_once_for_all_terms(self, library: Any) -> None:
        arrays = (library.array([1.0]) for _ in range(3))
        assert float(norms().total(arrays)) == pytest.approx(0.33)
        named = pn.Pipeline([pn.Term(pn.l1, inputs="p"), pn.Term(pn.l2, inputs="p")])
        assert float(named.total(p=iter([library.array([1.0])]))) == 2.0

    @pytest.mark.parametrize("nest", [dict, Heads, Pair, SimpleNamespace], ids=lambda kind: kind.__name__)
    def test_paths_lead_into_nests(self, library: Any, nest: Any) -> None:
        logits = library.array([1.0, -1.0])
        fields = ("first", "second") if nest is Pair else ("policy", "value")
        heads = nest(**dict(zip(fields, ({"logits": logits}, [logits, logits]), strict=True)))
        terms = [
            pn.Term(pn.l1, inputs=f"heads.{fields[0]}.logits"),
            pn.Term(pn.l2, inputs=f"heads.{fields[1]}.1"),
        ]
        assert float(pn.Pipeline(terms).total(heads=heads)) == 4.0

    def test_a_name_with_dots_wins_over_a_path(self, library: Any) -> None:
        pipeline = pn.Pipeline([pn.Term(pn.l1, inputs="hidden.3")])
        assert float(pipeline.total(**{"hidden.3": library.array([5.0]), "hidden": [library.array([1.0])]})) == 5.0

    def test_objects_as_inputs_where_jax_is_not_loaded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import sys

        monkeypatch.delitem(sys.modules, "jax")
        term = pn.Term(lambda fn, x: fn(x), name="called")
        assert pn.Pipeline([term])(fn=lambda x: x.sum(), x=np.ones(2)).metrics()["total"] == 2.0

    def test_inputs_that_no_term_reads_are_fine(self, library: Any) -> None:
        assert float(pn.Pipeline(["l1"]).total(x=library.array([1.0]), labels="whatever")) == 1.0

    @pytest.mark.parametrize(
        ("inputs", "message"),
        [
            ({}, 'l1: no input is named "heads.policy"; given: none'),
            ({"head": 1}, 'given: "head"'),
            ({"heads": {"value": 1}}, 'the input "heads.policy" has no part "policy"; heads holds "value"'),
            ({"heads": {}}, "heads holds nothing"),
            ({"heads": [1]}, "heads holds a list"),
            ({"heads": object()}, "heads holds an object"),
        ],
    )
    def test_missing_input(self, inputs: dict[str, Any], message: str) -> None:
        pipeline = pn.Pipeline([pn.Term(pn.l1, inputs="heads.policy")])
        with pytest.raises(pn.InputError, match=message):
            pipeline(**inputs)
        with pytest.raises(KeyError):
            pipeline(**inputs)

    def test_an_index_beyond_the_end(self) -> None:
        with pytest.raises(pn.InputError, match='no part "2"; heads holds 1 elements'):
            pn.Pipeline([pn.Term(pn.l1, inputs="heads.2")])(heads=[np.ones(1)])

    def test_positional_and_named_together(self) -> None:
        with pytest.raises(pn.InputError, match="1 positional and 1 named"):
            norms()(np.ones(2), x=np.ones(2))
        with pytest.raises(pn.InputError, match="2 positional and 0 named"):
            norms()(np.ones(2), np.ones(2))

    def test_a_term_of_two_inputs_cannot_take_a_single_one(self) -> None:
        pipeline = pn.Pipeline([pn.Term(pn.kl_divergence)])
        with pytest.raises(pn.InputError, match="kl_divergence: .* p, q; pass inputs by name"):
            pipeline(np.zeros(2))
        assert float(pipeline.disable("kl_divergence").total(np.zeros(2))) == 0.0

    def test_weights_override(self, library: Any) -> None:
        x = library.array([1.0, 2.0])
        assert norms()(x, weights={"l1": 1.0}).metrics()["total"] == pytest.approx(3.05)
        assert float(norms().total(x, weights={"l1": 0, "l2": library.array(2.0)})) == pytest.approx(10.0)

    @pytest.mark.parametrize(
        ("weights", "error", "message"),
        [
            ({"l3": 1.0}, pn.InputError, 'weights: no term is named "l3"; expected one of: "l1", "l2"'),
            ({"l1": -1.0}, pn.OptionError, "l1: weight=-1.0"),
            ({"l1": float("nan")}, pn.OptionError, "l1: weight=nan"),
            ([0.1, 0.2], pn.OptionError, "a mapping from the names of terms"),
        ],
    )
    def test_wrong_weights(self, weights: Any, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            norms()(np.ones(2), weights=weights)

    @pytest.mark.skipif(len(DIFFERENTIABLE) < 2, reason="needs two libraries")
    def test_a_weight_of_another_library(self) -> None:
        with pytest.raises(pn.BackendError, match="l1: the weight is not a PyTorch array"):
            norms()(TORCH.array([1.0]), weights={"l1": JAX.array(1.0)})

    def test_weight_zero_still_reports(self, library: Any) -> None:
        assert norms()(library.array([2.0]), weights={"l1": 0.0}).metrics()["l1"] == 2.0

    @pytest.mark.parametrize("runs", ["thread", "process", "async", "ray"])
    def test_terms_that_run_elsewhere_need_an_executor(self, runs: Any) -> None:
        with pytest.raises(pn.TermError, match=f'l1: runs="{runs}", .* use an Executor'):
            pn.Pipeline([pn.Term(pn.l1, runs=runs)])(np.ones(2))

    def test_asynchronous_terms_need_an_executor(self) -> None:
        async def later(x: Any) -> Any:
            return x.sum()

        with pytest.raises(pn.TermError, match="later: is asynchronous, .* use an Executor"):
            pn.Pipeline([pn.Term(later)])(np.ones(2))

    def test_half_precision_adds_up_in_float32(self, library: Any) -> None:
        out = norms()(library.array([300.0], "float16"))
        assert library.dtype(out.total) == "float32"
        assert float(out["l2"].value) == 90000.0

    def test_a_term_that_returns_half_precision_is_widened(self, autodiff: Any) -> None:
        pipeline = pn.Pipeline([pn.Term(lambda x: x.sum(), name="sum")])
        assert autodiff.dtype(pipeline(autodiff.array([1.0], "float16"))["sum"].value) == "float32"

    def test_a_single_array_or_a_nest_with_parameters(self) -> None:
        import torch

        layer = torch.nn.Linear(2, 1)
        out = norms()(layer.parameters())
        out.total.backward()
        assert layer.weight.grad is not None


class TestEvery:
    def test_runs_when_the_step_says_so(self, library: Any) -> None:
        pipeline = pn.Pipeline([pn.Term(pn.l1), pn.Term(pn.l2, every=3)])
        x = library.array([2.0])
        for step in range(7):
            found = pipeline(x, step=step).metrics()
            assert ("l2" in found) == (step % 3 == 0)
            assert found["total"] == (6.0 if step % 3 == 0 else 2.0)

    def test_needs_the_step(self) -> None:
        with pytest.raises(pn.InputError, match="l1: runs every 2 steps; pass step="):
            pn.Pipeline([pn.Term(pn.l1, every=2)])(np.ones(1))

    @pytest.mark.parametrize("step", [-1, 1.5, "2", True])
    def test_wrong_step(self, step: Any) -> None:
        with pytest.raises(pn.OptionError, match="step=.* a whole number of at least 0"):
            norms()(np.ones(1), step=step)

    def test_a_term_that_asks_for_the_step(self, library: Any) -> None:
        def ramp(x: Any, step: Any) -> Any:
            return step * x.sum()

        assert float(pn.Pipeline([pn.Term(ramp)]).total(library.array([2.0]), step=3)) == 6.0
        with pytest.raises(pn.InputError, match="ramp: takes the step"):
            pn.Pipeline([pn.Term(ramp)]).total(library.array([2.0]))

    def test_a_traced_step_computes_and_masks(self) -> None:
        if JAX not in LIBRARIES:
            pytest.skip("needs JAX")
        import jax
        import jax.numpy as jnp

        pipeline = pn.Pipeline([pn.EMA(pn.Term(pn.l1, every=2), decay=0.5)])
        run = jax.jit(lambda x, step, state=None: pipeline.value_and_grad(x, step=step, state=state))
        first = run(jnp.array([4.0]), 0)
        resting = run(jnp.array([jnp.inf]), 1, first.state)
        third = run(jnp.array([8.0]), 2, resting.state)
        assert [float(out.total) for out in (first, resting, third)] == [4.0, 0.0, 6.0]
        assert [float(out.gradient[0]) for out in (first, resting, third)] == [1.0, 0.0, 0.5]

    def test_a_traced_step_masks_state_of_every_shape(self) -> None:
        if JAX not in LIBRARIES:
            pytest.skip("needs JAX")
        import jax

        def remembering(x: Any, state: Any) -> Any:
            past = (x.sum(), [x.sum()], "label") if state is None else (state[0] + 1, [state[1][0] + 1], "label")
            return pn.Evaluation(x.sum(), state=past)

        pipeline = pn.Pipeline([pn.Term(remembering, every=2)])
        first = pipeline(JAX.array([1.0]), step=0)
        kept: list[Any] = []

        @jax.jit
        def run(x: Any, step: Any, numbers: Any) -> Any:
            state = {"remembering": (numbers[0], [numbers[1]], "label")}
            new = pipeline(x, step=step, state=state).state["remembering"]
            kept.append(new[2])
            return new[0], new[1][0]

        numbers = first.state["remembering"][0], first.state["remembering"][1][0]
        assert [float(n) for n in run(JAX.array([1.0]), 1, numbers)] == [1.0, 1.0]
        assert [float(n) for n in run(JAX.array([1.0]), 2, numbers)] == [2.0, 2.0]
        assert kept == ["label"]

    def test_a_tensor_as_step_masks_too(self) -> None:
        if TORCH not in LIBRARIES:
            pytest.skip("needs PyTorch")
        import torch

        pipeline = pn.Pipeline([pn.Term(pn.l1, every=2)])
        totals = [float(pipeline.total(TORCH.array([3.0]), step=torch.tensor(step))) for step in range(3)]
        assert totals == [3.0, 0.0, 3.0]

    def test_seeds_are_folded_with_the_step(self, library: Any) -> None:
        term = pn.Term(pn.orthogonality, options={"sample_size": 4, "seed": 7})
        x = library.array(np.random.default_rng(0).normal(size=(40, 5)))
        pipeline = pn.Pipeline([term])
        first, again, other = (float(pipeline.total(x, step=step)) for step in (1, 1, 2))
        assert first == again
        assert first != other
        assert float(pipeline.total(x)) == float(pn.orthogonality(x, sample_size=4, seed=7))

    def test_seeds_are_folded_with_a_traced_step(self) -> None:
        if JAX not in LIBRARIES:
            pytest.skip("needs JAX")
        import jax

        pipeline = pn.Pipeline([pn.Term(pn.orthogonality, options={"sample_size": 4})])
        x = JAX.array(np.random.default_rng(0).normal(size=(40, 5)))
        run = jax.jit(lambda step: pipeline.total(x, step=step))
        assert float(run(1)) == float(run(1)) != float(run(2))


class TestConstants:
    @pytest.mark.parametrize("constant", [3, 3.0, np.float32(3.0), np.array(3.0)])
    def test_a_number_counts_where_the_term_is_not_differentiable(self, library: Any, constant: Any) -> None:
        term = pn.Term(lambda x: constant, name="constant", differentiable=False, weight=0.5)
        out = pn.Pipeline([term, "l1"])(library.array([1.0]))
        assert float(out.total) == 2.5
        assert float(pn.Pipeline([term]).total(library.array([1.0]))) == 1.5

    def test_without_any_array(self) -> None:
        term = pn.Term(lambda data: len(data), name="length", differentiable=False)
        assert pn.Pipeline([term])(data=["a", "b"]).metrics() == {"length": 2.0, "length_weighted": 2.0, "total": 2.0}

    def test_beside_terms_of_another_library(self, autodiff: Any) -> None:
        terms = [pn.Term(lambda data: len(data), name="length", differentiable=False), pn.Term(pn.l1)]
        out = pn.Pipeline(terms).value_and_grad(data=["a", "b"], x=autodiff.array([3.0]), wrt="x")
        assert out.read().total == 5.0
        close(autodiff.numpy(out.gradient["x"]), [1.0])


FINITE = st.floats(-5, 5).filter(lambda x: abs(x) > 1e-3)
WEIGHTS = st.floats(0, 3)


@hypothesis.settings(max_examples=10)
@hypothesis.given(
    st.lists(FINITE, min_size=3, max_size=3), st.lists(WEIGHTS, min_size=4, max_size=4), st.integers(0, 3)
)
def test_properties_of_the_sum(x: list[float], weights: list[float], rotation: int) -> None:
    names = ["l1", "l2", "smooth_l1", "entropy"]
    terms = [pn.Term(name, weight) for name, weight in zip(names, weights, strict=True)]
    for library in DIFFERENTIABLE:
        array = library.array(x, "float64")
        pipeline = pn.Pipeline(terms)
        out = pipeline.value_and_grad(array, wrt="input")
        plain = out.read()
        # Contributions sum to the total.
        close(plain.total, sum(term.contribution for term in plain))
        # The total's gradient is plain autodiff's.
        (gradient,) = library.gradients(lambda z, p=pipeline: p.total(z), array)
        close(library.numpy(out.gradient), gradient)
        # Another order of terms changes nothing but rounding.
        turned = pn.Pipeline(terms[rotation:] + terms[:rotation])
        close(float(turned.total(array)), plain.total)
        # A disabled term is as if absent.
        off, gone = pipeline.disable(names[rotation]), pipeline.remove(names[rotation])
        assert off(array).metrics() == gone(array).metrics()
        close(
            library.numpy(off.value_and_grad(array, wrt="input").gradient),
            library.numpy(gone.value_and_grad(array, wrt="input").gradient),
        )
