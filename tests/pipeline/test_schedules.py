"""Schedules: shapes, composition, tables, and weights of terms."""

import json
import math
import pickle
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import penalties as pn
from penalties import schedules


def test_cosine_is_slow_at_both_ends() -> None:
    fade = schedules.cosine(2.0, 0.0, steps=9)
    values = [fade(step) for step in range(9)]
    assert values[0] == 2.0
    assert values[4] == pytest.approx(1.0)
    assert values[8] == pytest.approx(0.0)
    assert fade(100) == pytest.approx(0.0)
    assert values[0] - values[1] < values[3] - values[4]
    assert schedules.cosine(1.0, 0.5, 1)(0) == 1.0


def test_piecewise() -> None:
    phases = schedules.piecewise({10: 1.0, 5: 0.5})
    assert [phases(step) for step in (0, 5, 9, 10, 99)] == [0.5, 0.5, 0.5, 1.0, 1.0]


def test_chain_counts_each_part_from_its_own_beginning() -> None:
    plan = schedules.chain((schedules.warmup(1.0, 4), 4), (schedules.exponential(1.0, 0.5), 2), schedules.constant(9.0))
    assert [plan(step) for step in range(8)] == [0.0, 0.25, 0.5, 0.75, 1.0, 0.5, 9.0, 9.0]
    assert schedules.chain(schedules.constant(3.0))(5) == 3.0


def test_product() -> None:
    plan = schedules.product(schedules.linear(0.0, 1.0, 3), schedules.constant(4.0))
    assert [plan(step) for step in range(4)] == [0.0, 2.0, 4.0, 4.0]


def test_any_function_is_a_schedule() -> None:
    assert schedules.weights({"a": lambda step: 2.0 * step}, 3) == {"a": 6.0}


def test_apply() -> None:
    pipeline = pn.Pipeline(["l1", "l2"])
    changed = schedules.apply(pipeline, {"l1": schedules.warmup(0.5, 10)}, 5)
    assert changed.weights == {"l1": 0.25, "l2": 1.0}
    assert pipeline.weights == {"l1": 1.0, "l2": 1.0}
    with pytest.raises(pn.InputError, match='with_weights: no term is named "l3"'):
        schedules.apply(pipeline, {"l3": schedules.constant(1.0)}, 0)


def test_weights_for_a_call_reach_the_loss(library: Any) -> None:
    pipeline = pn.Pipeline(["l1"])
    plan = {"l1": schedules.linear(0.0, 1.0, 5)}
    x = library.array([2.0])
    assert [pipeline(x, weights=schedules.weights(plan, step)).metrics()["total"] for step in range(5)] == [
        0.0,
        0.5,
        1.0,
        1.5,
        2.0,
    ]


@pytest.mark.parametrize("step", [-1, 1.5, "3", None, True])
def test_wrong_step(step: Any) -> None:
    with pytest.raises(pn.OptionError, match="schedules: step=.*a whole number of at least 0"):
        schedules.weights({"a": schedules.constant(1.0)}, step)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedules.constant(-1.0), "constant: value=-1.0; expected a finite number of at least 0"),
        (lambda: schedules.constant(math.nan), "constant: value=nan"),
        (lambda: schedules.linear(-1.0, 1.0, 5), "linear: start"),
        (lambda: schedules.linear(0.0, "1", 5), "linear: end"),
        (lambda: schedules.linear(0.0, 1.0, 0), "linear: steps=0; expected a whole number of at least 1"),
        (lambda: schedules.warmup(1.0, -1), "warmup: steps=-1"),
        (lambda: schedules.warmup(-1.0, 1), "warmup: value"),
        (lambda: schedules.cosine(1.0, math.inf, 5), "cosine: end"),
        (lambda: schedules.cosine(-1.0, 1.0, 5), "cosine: start"),
        (lambda: schedules.cosine(1.0, 1.0, 2.5), "cosine: steps"),
        (lambda: schedules.exponential(1.0, -0.5), "exponential: rate"),
        (lambda: schedules.exponential(-1.0, 0.5), "exponential: value"),
        (lambda: schedules.piecewise({}), "piecewise: values={}; expected a mapping"),
        (lambda: schedules.piecewise([1.0]), "a mapping from steps to weights"),
        (lambda: schedules.piecewise({-1: 1.0}), "piecewise: step=-1"),
        (lambda: schedules.piecewise({0: -1.0}), "piecewise: the value at 0"),
        (lambda: schedules.chain(), "chain: parts="),
        (lambda: schedules.chain((schedules.constant(1.0), 5)), "a last schedule without steps"),
        (lambda: schedules.chain(schedules.constant(1.0), schedules.constant(1.0)), r"a pair \(schedule, steps\)"),
        (lambda: schedules.chain((schedules.constant(1.0), 0), schedules.constant(1.0)), "chain: steps=0"),
        (lambda: schedules.product(), "product: schedules="),
        (lambda: schedules.product(3.0), "functions of the step"),
    ],
)
def test_wrong(make: Any, message: str) -> None:
    with pytest.raises(pn.OptionError, match=message):
        make()


ALL = [
    schedules.constant(1.0),
    schedules.linear(0.0, 2.0, 7),
    schedules.warmup(1.0, 3),
    schedules.cosine(1.0, 0.25, 6),
    schedules.exponential(1.0, 0.9),
    schedules.piecewise({0: 1.0, 4: 2.0}),
    schedules.chain((schedules.warmup(1.0, 3), 3), schedules.cosine(1.0, 0.0, 4)),
    schedules.product(schedules.warmup(1.0, 3), schedules.exponential(1.0, 0.5)),
]


@pytest.mark.parametrize("schedule", ALL, ids=lambda schedule: type(schedule).__name__)
def test_equality_pickling_and_arrays(library: Any, schedule: Any) -> None:
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    for step in range(9):
        found = schedule(library.array(step, "int64"))
        np.testing.assert_allclose(
            library.numpy(found) if hasattr(found, "shape") else found, schedule(step), rtol=1e-6
        )


class TestTables:
    @pytest.mark.parametrize("schedule", ALL, ids=lambda schedule: type(schedule).__name__)
    def test_round_trip(self, schedule: Any) -> None:
        table = json.loads(json.dumps(schedules.to_config(schedule)))
        assert schedules.from_config(table, 0.3, steps=7) == schedule

    @pytest.mark.parametrize(
        ("table", "expected"),
        [
            ({"kind": "constant"}, schedules.constant(0.5)),
            ({"kind": "constant", "value": 0.1}, schedules.constant(0.1)),
            ({"kind": "linear"}, schedules.linear(0.0, 0.5, 60)),
            ({"kind": "linear", "start": 1, "end": 0.2, "steps": 5}, schedules.linear(1.0, 0.2, 5)),
            ({"kind": "warmup", "steps": 20}, schedules.warmup(0.5, 20)),
            ({"kind": "warmup", "steps": 0, "value": None}, schedules.warmup(0.5, 0)),
            ({"kind": "cosine"}, schedules.cosine(0.5, 0.0, 60)),
            ({"kind": "exponential", "rate": 0.9}, schedules.exponential(0.5, 0.9)),
            ({"kind": "piecewise", "values": {"0": 0.0, 30: 0.1}}, schedules.piecewise({0: 0.0, 30: 0.1})),
            (
                {"kind": "product", "schedules": [{"kind": "linear"}, {"kind": "exponential", "rate": 0.9}]},
                schedules.product(schedules.linear(0.0, 0.5, 60), schedules.exponential(1.0, 0.9)),
            ),
            (
                {"kind": "chain", "parts": [{"steps": 5, "schedule": {"kind": "linear"}}], "last": {"kind": "cosine"}},
                schedules.chain((schedules.linear(0.0, 0.5, 5), 5), schedules.cosine(0.5, 0.0, 60)),
            ),
        ],
    )
    def test_what_is_left_out_is_the_weight_and_the_length_of_the_run(self, table: Any, expected: Any) -> None:
        assert schedules.from_config(table, 0.5, steps=60) == expected

    @pytest.mark.parametrize(
        ("table", "message"),
        [
            ("warmup", "schedule: table=.*a table, such as"),
            ({"steps": 3}, "schedule: kind=None; expected one of constant, linear"),
            ({"kind": "warmpu"}, r"schedule: kind=.*did you mean warmup\?"),
            ({"kind": "warmup", "step": 3}, r"warmup: step=3; expected only the keys kind, value, steps; did you mean"),
            ({"kind": "warmup"}, "warmup: steps=None; expected a value"),
            ({"kind": "cosine"}, "cosine: steps=None; expected a value: this key is required outside the program"),
            ({"kind": "piecewise", "values": [1]}, "piecewise: values="),
            ({"kind": "piecewise", "values": {"x": 1}}, 'piecewise: step="x"'),
            ({"kind": "product", "schedules": []}, "product: schedules=.*a list of tables"),
            ({"kind": "chain", "parts": [{"steps": 2}], "last": {"kind": "constant"}}, "chain: parts=.*the keys"),
            ({"kind": "chain", "parts": [{"steps": 0, "schedule": {"kind": "constant"}}], "last": None}, "chain: last"),
        ],
    )
    def test_wrong(self, table: Any, message: str) -> None:
        with pytest.raises(pn.OptionError, match=message):
            schedules.from_config(table)


class TestWeightsOfTerms:
    def test_the_step_decides(self, library: Any) -> None:
        pipeline = pn.Pipeline([pn.Term(pn.l1, weight=schedules.linear(0.0, 1.0, 5)), pn.Term(pn.l2, weight=0.5)])
        x = library.array([2.0])
        totals = [pipeline(x, step=step).metrics()["l1_weighted"] for step in range(5)]
        assert totals == [0.0, 0.5, 1.0, 1.5, 2.0]
        assert pipeline(x, step=2)["l1"].weight == 0.5

    def test_any_function_of_the_step(self, library: Any) -> None:
        pipeline = pn.Pipeline([pn.Term(pn.l1, weight=lambda step: 2.0 * step)])
        assert float(pipeline.total(library.array([1.0]), step=3)) == 6.0

    def test_gradients_are_scaled_by_it(self, autodiff: Any) -> None:
        pipeline = pn.Pipeline([pn.Term(pn.l2, weight=schedules.warmup(1.0, 4))])
        out = pipeline.value_and_grad(autodiff.array([3.0]), wrt="input", step=1)
        assert autodiff.numpy(out.gradient).tolist() == [1.5]

    def test_without_a_step(self) -> None:
        pipeline = pn.Pipeline([pn.Term(pn.l1, weight=schedules.warmup(1.0, 4))])
        with pytest.raises(pn.InputError, match="l1: its weight is a schedule; pass step= to the call"):
            pipeline(np.ones(1))
        assert pipeline(np.ones(1), weights={"l1": 2.0}).metrics()["total"] == 2.0

    @pytest.mark.parametrize("bad", [-1.0, math.nan, "much"])
    def test_what_a_schedule_returns_is_checked(self, bad: Any) -> None:
        with pytest.raises(pn.OptionError, match="l1: weight="):
            pn.Pipeline([pn.Term(pn.l1, weight=lambda step: bad)])(np.ones(1), step=0)

    def test_a_schedule_without_its_arguments(self) -> None:
        with pytest.raises(pn.OptionError, match=r"a schedule: warmup\(…\), with its arguments"):
            pn.Term(pn.l1, weight=schedules.warmup)

    def test_the_weights_of_a_call_are_numbers(self) -> None:
        with pytest.raises(pn.OptionError, match="a schedule goes into Term"):
            pn.Pipeline(["l1"])(np.ones(1), weights={"l1": schedules.constant(1.0)}, step=0)

    def test_a_base_has_weight_one(self) -> None:
        with pytest.raises(pn.OptionError, match="a term of weight 1"):
            pn.Pipeline(base=pn.Term(pn.l1, weight=schedules.constant(1.0)))

    def test_terms_stay_values(self) -> None:
        term = pn.Term(pn.l1, weight=schedules.warmup(0.1, 5))
        assert pickle.loads(pickle.dumps(term)) == term == pn.Term(pn.l1, weight=schedules.warmup(0.1, 5))
        assert term != pn.Term(pn.l1, weight=schedules.warmup(0.1, 6))
        assert repr(term) == "Term(l1, weight=warmup(value=0.1, steps=5))"
        assert pn.EMA(term).weight == term.weight
        assert pn.Pipeline([term]).with_weights({"l1": schedules.constant(2.0)}).weights == {
            "l1": schedules.constant(2.0)
        }

    def test_a_traced_step(self) -> None:
        jax = pytest.importorskip("jax")
        pipeline = pn.Pipeline([pn.Term(pn.l1, weight=schedules.warmup(1.0, 4))])
        total = jax.jit(lambda x, step: pipeline.total(x, step=step))
        assert [float(total(jax.numpy.ones(1), step)) for step in range(6)] == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]

    def test_a_compiled_step(self) -> None:
        torch = pytest.importorskip("torch")
        pipeline = pn.Pipeline([pn.Term(pn.l1, weight=schedules.warmup(1.0, 4))])
        torch.compiler.reset()
        total = torch.compile(lambda x, step: pipeline.total(x, step=step), fullgraph=True, backend="eager")
        found = [float(total(torch.ones(1), torch.tensor(step))) for step in range(6)]
        assert found == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]


@hypothesis.given(st.floats(0, 10), st.floats(0, 10), st.integers(1, 50), st.integers(0, 100))
def test_ramps_stay_between_their_ends(start: float, end: float, steps: int, step: int) -> None:
    low, high = sorted((start, end))
    for ramp in (schedules.linear(start, end, steps), schedules.cosine(start, end, steps)):
        assert low - 1e-9 <= ramp(step) <= high + 1e-9
        assert ramp(0) == pytest.approx(start)
        assert ramp(max(steps - 1, 1)) == pytest.approx(end)
