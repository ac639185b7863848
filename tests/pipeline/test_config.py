"""Pipelines as lists of dicts, and back."""

import json
from typing import Any

import numpy as np
import pytest

import penalties as pn


def own(x: Any, *, factor: float = 1.0) -> Any:
    return factor * x.sum()


def fit(prediction: Any, target: Any) -> Any:
    return ((prediction - target) ** 2).mean()


def together(first: Any, *others: Any) -> Any:
    return first.sum() + sum(other.sum() for other in others)


def gathered(*parts: Any) -> Any:
    return sum(part.sum() for part in parts)


class Holder:
    @staticmethod
    def nested(x: Any) -> Any:
        return x.sum()

    def method(self, x: Any) -> Any:
        return x.sum()


PIPELINES = {
    "built-in": pn.Pipeline(["l1", pn.Term("l2", 0.5, "decay", "params", {"clip": 1.0})]),
    "function": pn.Pipeline([pn.Term(own, 0.1, options={"factor": 2.0}), pn.Term(Holder.nested, every=3)]),
    "two inputs": pn.Pipeline([pn.Term(pn.kl_divergence, inputs={"p": "s", "q": "t", "mask": "m"}, chunk=8)]),
    "switches": pn.Pipeline(
        [
            pn.Term(
                pn.l1, enabled=False, differentiable=False, runs="process", timeout=3, on_error="skip", idempotent=True
            )
        ]
    ),
    "base": pn.Pipeline(["l1"], base=fit),
    "base term": pn.Pipeline(base=pn.Term(fit, inputs=("logits", "labels"))),
    "wrapped": pn.Pipeline(
        [pn.EMA(pn.Normalized(pn.Term(own, inputs="h", options={"factor": 3.0}), decay=0.5)).with_weight(0.7)]
    ),
    "scheduled": pn.Pipeline(
        [
            pn.Term(pn.l1, pn.schedules.warmup(0.05, 20)),
            pn.EMA(pn.Term(pn.l2, pn.schedules.piecewise({0: 0.0, 9: 1.0}))),
        ]
    ),
    "further inputs": pn.Pipeline([pn.Term(together, inputs=("a", "b", "c")), pn.Term(gathered, inputs="a")]),
    "empty": pn.Pipeline(),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_round_trip(name: str) -> None:
    pipeline = PIPELINES[name]
    config = json.loads(json.dumps(pipeline.to_config()))
    again = pn.Pipeline.from_config(config)
    assert again == pipeline
    assert again.to_config() == pipeline.to_config()


def test_reads_as_written() -> None:
    assert PIPELINES["built-in"].to_config() == [
        {"fn": "l1"},
        {"fn": "l2", "weight": 0.5, "name": "decay", "inputs": {"x": "params"}, "options": {"clip": 1.0}},
    ]
    assert PIPELINES["wrapped"].to_config() == [
        {
            "fn": "tests.pipeline.test_config:own",
            "weight": 0.7,
            "inputs": {"x": "h"},
            "options": {"factor": 3.0},
            "wrap": [{"kind": "normalized", "decay": 0.5}, {"kind": "ema", "decay": 0.9}],
        }
    ]
    assert PIPELINES["base"].to_config()[0] == {
        "fn": "tests.pipeline.test_config:fit",
        "base": True,
    }


def test_a_path_is_kept_as_it_was_given() -> None:
    config = [{"fn": "tests.pipeline.test_config:Holder.nested"}]
    assert pn.Pipeline.from_config(config).to_config() == config


def test_a_wrapped_base_is_equal_after_a_round_trip() -> None:
    pipeline = pn.Pipeline([pn.EMA(pn.Term("l1", name="size"))], base=pn.Normalized(pn.Term("l2")))
    assert pn.Pipeline.from_config(pipeline.to_config()) == pipeline


def test_names_and_learned_weights() -> None:
    assert pn.Pipeline.from_config([{"fn": "l1"}], name="objective").name == "objective"
    import torch

    weight = torch.tensor(0.25, requires_grad=True)
    assert pn.Pipeline([pn.Term(pn.l1, weight)]).to_config() == [{"fn": "l1", "weight": 0.25}]


def test_it_runs() -> None:
    config = [{"fn": "l1", "weight": 0.5}, {"fn": "tests.pipeline.test_config:own", "options": {"factor": 2.0}}]
    assert pn.Pipeline.from_config(config)(np.array([1.0, 2.0])).metrics()["total"] == 7.5


class TestSchedules:
    def test_the_weight_of_the_table_is_that_of_the_term(self) -> None:
        config = [{"fn": "l1", "weight": 0.05, "schedule": {"kind": "warmup", "steps": 20}}]
        pipeline = pn.Pipeline.from_config(config)
        assert pipeline["l1"].weight == pn.schedules.warmup(0.05, 20)
        assert pipeline.to_config() == [{"fn": "l1", "schedule": {"kind": "warmup", "value": 0.05, "steps": 20}}]
        assert pipeline(np.array([2.0]), step=10).metrics()["total"] == 0.05

    @pytest.mark.parametrize(
        ("schedule", "message"),
        [
            ({"kind": "warmpu", "steps": 3}, r"term 1: schedule: kind=.*did you mean warmup\?"),
            ({"kind": "warmup", "stpes": 3}, r"term 1: schedule: stpes=3.*did you mean steps\?"),
            ({"kind": "linear"}, "term 1: schedule: steps=None; expected a value"),
            ({"kind": "warmup", "steps": -1}, "term 1: schedule: steps=-1; expected a whole number"),
            ("warmup", "term 1: schedule: table=.*such as"),
        ],
    )
    def test_wrong(self, schedule: Any, message: str) -> None:
        with pytest.raises(pn.OptionError, match=message):
            pn.Pipeline.from_config([{"fn": "l1", "schedule": schedule}])

    def test_a_schedule_of_your_own_cannot_be_saved(self) -> None:
        with pytest.raises(pn.OptionError, match="l1: weight=.*a schedule of penalties.schedules"):
            pn.Pipeline([pn.Term(pn.l1, weight=lambda step: 0.1 * step)]).to_config()


@pytest.mark.parametrize("fn", [lambda x: x.sum(), Holder().method, type("Made", (), {"__call__": own})()])
def test_functions_without_a_path(fn: Any) -> None:
    with pytest.raises(pn.OptionError, match="a function that can be imported by its path"):
        pn.Pipeline([pn.Term(fn, name="term")]).to_config()


def test_a_function_that_its_path_no_longer_leads_to() -> None:
    def shadow(x: Any) -> Any:
        return x.sum()

    shadow.__qualname__ = "own"
    with pytest.raises(pn.OptionError, match="imported by its path"):
        pn.Pipeline([pn.Term(shadow)]).to_config()
    shadow.__qualname__ = "gone"
    with pytest.raises(pn.OptionError, match="imported by its path"):
        pn.Pipeline([pn.Term(shadow)]).to_config()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("l1", "from_config: config=.*a list of dicts"),
        ({"fn": "l1"}, "from_config: config=.*a list of dicts"),
        (["l1"], "from_config: term 1: entry=.*a dict with the arguments of a term"),
        ([{"weight": 1.0}], "from_config: term 1: fn=None; expected the name of a penalty"),
        ([{"fn": "l1"}, {"fn": "l2", "wieght": 1.0}], r"from_config: term 2: wieght=.*did you mean weight\?"),
        ([{"fn": "l1", "zzz": 1.0}], "from_config: term 1: zzz=1.0; expected only the keys fn, weight"),
        ([{"fn": "l4"}], 'Term: fn="l4"; expected one of'),
        ([{"fn": "l1", "base": True}, {"fn": "l2", "base": True}], "at most one base loss"),
        ([{"fn": "l1", "wrap": "ema"}], "term 1: wrap=.*a list, such as"),
        ([{"fn": "l1", "wrap": [{"kind": "median"}]}], "wrap=.*a dict with a kind: ema or normalized"),
        ([{"fn": "l1", "wrap": ["ema"]}], "wrap=.*a dict with a kind"),
        ([{"fn": "l1", "wrap": [{"kind": "ema", "dekay": 1}]}], "wrap: dekay=1; expected only the keys kind, decay; "),
        ([{"fn": "l1"}, {"fn": "l1"}], "different names"),
    ],
)
def test_wrong(config: Any, message: str) -> None:
    with pytest.raises(pn.OptionError, match=message):
        pn.Pipeline.from_config(config)
