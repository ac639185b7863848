"""Wrappers in a configuration, and as parts of terms that are changed, printed, compared and sent elsewhere."""

import pickle
from typing import Any

import numpy as np
import pytest

import penalties as pn
from penalties.pipeline.wrappers import WRAPPERS
from tests.libraries import LIBRARIES, TORCH, close

from .functions import counted, lookup, quadratic, shifted, squares

TERMS: dict[str, Any] = {
    "ema": lambda folder: pn.EMA(pn.Term(pn.l1), decay=0.5),
    "normalized": lambda folder: pn.Normalized(pn.Term(pn.l1)),
    "score_function": lambda folder: pn.ScoreFunction(
        pn.Term(lookup, inputs={"samples": "drawn"}, options={"table": [1.0, 2.0]}),
        logprobs="lp",
        baseline="leave_one_out",
        mask="m",
    ),
    "straight_through": lambda folder: pn.StraightThrough(pn.Term(pn.l2, inputs="w"), shifted, wrt="w"),
    "spsa": lambda folder: pn.SPSA(pn.Term(quadratic), samples=2, wrt="x", seed=3),
    "evolution_strategies": lambda folder: pn.EvolutionStrategies(pn.Term(quadratic), population=4, ranks=True),
    "cached": lambda folder: pn.Cached(pn.Term(counted), folder, version="2"),
    "stale": lambda folder: pn.Stale(pn.Term(squares, inputs="w"), steps=3, wrt="w"),
}


@pytest.fixture(params=TERMS)
def term(request: Any, tmp_path: Any) -> Any:
    return TERMS[request.param](tmp_path)


def test_every_kind_is_here() -> None:
    assert TERMS.keys() == WRAPPERS.keys()


def test_config_makes_the_same_term(term: Any) -> None:
    pipeline = pn.Pipeline([term, pn.EMA(term.replace(name="around"))])
    config = pipeline.to_config()
    assert pn.Pipeline.from_config(config) == pipeline
    assert [layer["kind"] for layer in config[1]["wrap"]][-1] == "ema"


def test_pickle_makes_the_same_term(term: Any) -> None:
    assert pickle.loads(pickle.dumps(term)) == term


def test_prints_with_its_arguments(term: Any) -> None:
    assert term.fn.title in repr(term)
    assert term.fn.title in str(pn.Pipeline([term]))


def test_is_equal_only_with_the_same_arguments(term: Any, tmp_path: Any) -> None:
    assert term == term.replace()
    assert hash(term) == hash(term.replace())
    others = [make(tmp_path) for make in TERMS.values()]
    assert sum(term == other for other in others) == 1


def test_inputs_are_renamed_inside() -> None:
    term = pn.SPSA(pn.Term(quadratic), wrt="x").replace(inputs={"x": "point"})
    out = pn.Pipeline([term]).value_and_grad(point=np.ones(3), wrt="point", step=0)
    assert out.gradient["point"].shape == (3,)
    score = TERMS["score_function"](None).replace(inputs={"samples": "s", "score_logprobs": "l", "score_mask": "k"})
    out = pn.Pipeline([score]).value_and_grad(s=[0, 1], l=np.zeros(2), k=np.ones(2), wrt="l")
    close(out.gradient["l"], [-0.5, 0.5])


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"kind": "spsa", "sample": 2}, "wrap: sample=2; expected only the keys kind, .*; did you mean samples?"),
        ({"kind": "stale", "steps": 2}, "expected the key wrt too"),
        ({"kind": "cashed"}, "expected a dict with a kind: ema or normalized or score_function"),
    ],
)
def test_wrong_configs(layer: Any, message: str) -> None:
    with pytest.raises(pn.OptionError, match=message):
        pn.Pipeline.from_config([{"fn": "l2", "wrap": [layer]}])


def test_function_without_a_path_has_no_config() -> None:
    pipeline = pn.Pipeline([pn.StraightThrough(pn.Term(pn.l2), lambda x: x)])
    with pytest.raises(pn.OptionError, match="StraightThrough: discretize=.* expected a function that can be imported"):
        pipeline.to_config()


@pytest.mark.skipif(TORCH not in LIBRARIES, reason="needs PyTorch")
@pytest.mark.parametrize("runs", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_elsewhere_as_here(runs: Any, tmp_path: Any) -> None:
    inputs: dict[str, Any] = {
        "x": TORCH.array([0.3, -0.7, 1.1]).requires_grad_(),
        "w": TORCH.array([0.4, 1.6]).requires_grad_(),
        "params": {"p": TORCH.array([2.0]).requires_grad_()},
        "drawn": [0, 1],
        "lp": TORCH.array([-0.5, -1.0]).requires_grad_(),
        "m": TORCH.array([1.0, 1.0]),
        "data": TORCH.array([1.0, 2.0]),
    }
    terms = {kind: make(tmp_path).replace(name=kind, runs=runs) for kind, make in TERMS.items()}
    terms["cached"] = terms["cached"].replace(inputs="data", differentiable=False)
    terms["stale"] = pn.Stale(pn.Term(squares, name="stale", runs=runs), steps=3, wrt="params")
    for kind in ("ema", "normalized"):
        terms[kind] = terms[kind].replace(inputs="x")
    pipeline = pn.Pipeline(list(terms.values()))
    with pn.Executor() as executor, pn.Executor(sequential=True) as here:
        outputs = []
        for one in (here, executor):
            first = one.run(pipeline, inputs, step=0)
            outputs.append(one.run(pipeline, inputs, step=1, state=first.state, wrt=("x", "w", "params", "lp")))
    for name in ("x", "w", "lp"):
        close(TORCH.numpy(outputs[1].gradient[name]), TORCH.numpy(outputs[0].gradient[name]))
    close(TORCH.numpy(outputs[1].gradient["params"]["p"]), [4.0])
    assert outputs[1].metrics() == outputs[0].metrics()
