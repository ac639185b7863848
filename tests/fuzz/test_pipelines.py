"""Properties of any pipeline of built-in penalties: sums, configurations, edits, names."""

import json
import pickle
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import penalties as pn
from penalties.functional.penalty import facts_of
from penalties.pipeline.catalogue import BUILT_IN
from penalties.pipeline.term import weight_at
from tests.fuzz.cases import seeds

STEP = 3
many = settings(max_examples=len(seeds(30)))

_random = np.random.default_rng(0)
_scores = [_random.normal(size=(3, 4)) for _ in range(4)]
INPUTS = {
    "x": _scores[0],
    "nest": {"first.part": _scores[1], "second": [_scores[0]]},
    "p": pn.renormalize(_scores[2]),
    "q": pn.renormalize(_scores[3]),
    "rows": np.array([1.0, 0.0, 2.0]),
    "labels": np.array([1, -100, 3]),
    "scalar": np.array(1.25),
}
NAMES = [name for name, fn in BUILT_IN.items() if not facts_of(fn).needs_gradient]  # type: ignore[union-attr]

weights = st.one_of(
    st.integers(0, 3),
    st.floats(0.0, 10.0),
    st.builds(pn.schedules.warmup, st.floats(0.0, 2.0), st.integers(0, 6)),
    st.builds(pn.schedules.linear, st.floats(0.0, 2.0), st.floats(0.0, 2.0), st.integers(1, 6)),
    st.builds(pn.schedules.piecewise, st.dictionaries(st.integers(0, 6), st.floats(0.0, 2.0), min_size=1, max_size=3)),
)


@st.composite
def terms(draw: Any, name: str) -> pn.Term:
    fn = draw(st.sampled_from(NAMES))
    plain = pn.Term(fn)
    facts = facts_of(plain.fn)
    assert facts is not None
    distribution = facts.distribution
    readable = ["p", "q"] if distribution else ["p", "q", "x", "nest.first.part", "nest.second.0"]
    reduces = "reduction" in facts.defaults
    inputs = {
        parameter: "labels" if parameter in facts.labels else draw(st.sampled_from(readable if reduces else ["scalar"]))
        for parameter in plain.inputs
    }
    if distribution and "mask" in plain.unmapped and draw(st.booleans()):
        inputs["mask"] = "rows"
    term = pn.Term(
        fn,
        draw(weights),
        name,
        inputs,
        {"reduction": draw(st.sampled_from(["sum", "mean"]))} if reduces else {},
        enabled=draw(st.booleans()) or draw(st.booleans()),
        every=draw(st.sampled_from([1, 1, STEP, 2])),
        on_error=draw(st.sampled_from(["raise", "skip"])),
    )
    wrap = draw(st.sampled_from([None, None, pn.EMA, pn.Normalized]))
    return term if wrap is None else wrap(term, draw(st.floats(0.0, 0.99)))


@st.composite
def pipelines(draw: Any) -> pn.Pipeline:
    count = draw(st.integers(0, 5))
    base = draw(st.sampled_from([None, "l2", pn.Term("consistency", inputs=("p", "q"))]))
    return pn.Pipeline([draw(terms(f"term {index}")) for index in range(count)], base=base)


def run(pipeline: pn.Pipeline) -> pn.LossOutput:
    return pipeline(**INPUTS, step=STEP).read()


def read(path: str) -> Any:
    return {"nest.first.part": _scores[1], "nest.second.0": _scores[0]}.get(path, INPUTS.get(path))


def by_hand(term: pn.Term) -> float:
    """The weighted value of a term's first call, from the function alone."""
    value = BUILT_IN[term.path or inner(term).path](  # type: ignore[index]
        **{parameter: read(name) for parameter, name in term.inputs.items()}, **term.options
    )
    if isinstance(term.fn, type(pn.Normalized(pn.Term("l1")).fn)):
        value = np.sign(value)
    return float(weight_at(term, STEP) * value)


def inner(term: pn.Term) -> pn.Term:
    return inner(term.fn.term) if hasattr(term.fn, "term") else term


@many
@given(pipelines())
def test_the_total_is_the_weighted_sum(pipeline: pn.Pipeline) -> None:
    due = [term for term in pipeline if term.enabled and STEP % term.every == 0]
    expected = sum(by_hand(term) for term in due)
    if pipeline.base is not None:
        expected += by_hand(pipeline.base)
    assert run(pipeline).total == pytest.approx(expected, rel=1e-9, abs=1e-9)


@many
@given(pipelines())
def test_a_configuration_makes_the_same_pipeline(pipeline: pn.Pipeline) -> None:
    again = pn.Pipeline.from_config(json.loads(json.dumps(pipeline.to_config())))
    assert again == pipeline
    assert run(again).metrics() == run(pipeline).metrics()
    assert pickle.loads(pickle.dumps(pipeline)) == pipeline


@many
@given(pipelines(), st.data())
def test_edits_take_each_other_back(pipeline: pn.Pipeline, data: Any) -> None:
    if not len(pipeline):
        return
    name = data.draw(st.sampled_from(pipeline.names))
    term = pipeline[name]
    assert pipeline.replace(name, pn.Term("l1", name="other")).replace("other", term) == pipeline
    assert pipeline.with_weights({name: 7.0}).with_weights({name: term.weight}) == pipeline
    assert pipeline.with_base(None).with_base(pipeline.base) == pipeline
    switched = pipeline.disable(name).enable(name)
    assert switched == (pipeline if term.enabled else pipeline.replace(name, term.replace(enabled=True)))
    assert set(run(pipeline.disable(name)).names) == set(run(pipeline.remove(name)).names)
    assert run(pipeline.disable(name)).total == run(pipeline.remove(name)).total
    assert pipeline.remove(name).add(term).remove(name) == pipeline.remove(name)


@many
@given(pipelines(), st.data())
def test_the_total_is_linear_in_a_weight(pipeline: pn.Pipeline, data: Any) -> None:
    if not len(pipeline):
        return
    name = data.draw(st.sampled_from(pipeline.names))

    def total(weight: float) -> float:
        return pipeline(**INPUTS, step=STEP, weights={name: weight}).read().total

    assert total(3.0) - total(1.0) == pytest.approx(2 * (total(2.0) - total(1.0)), rel=1e-9, abs=1e-6)


@many
@given(pipelines())
def test_renamed_inputs_give_the_same_numbers(pipeline: pn.Pipeline) -> None:
    def renamed(term: pn.Term) -> pn.Term:
        return term.replace(inputs={parameter: f"batch.{name}" for parameter, name in term.inputs.items()})

    base = None if pipeline.base is None else renamed(pipeline.base)
    moved = pn.Pipeline([renamed(term) for term in pipeline], base=base)
    assert moved(batch=INPUTS, step=STEP).read().metrics() == run(pipeline).metrics()


@many
@given(pipelines())
def test_a_second_call_with_the_state_of_the_first_repeats(pipeline: pn.Pipeline) -> None:
    state = run(pipeline).state
    one, other = (pipeline(**INPUTS, step=STEP, state=state).read() for _ in range(2))
    assert one.metrics() == other.metrics()
    # The inputs are the same, and so are a running mean and a running scale.
    assert one.total == pytest.approx(run(pipeline).total, rel=1e-9, abs=1e-9)
