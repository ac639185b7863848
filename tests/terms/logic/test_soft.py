"""Soft rules: fuzzy logic that is classical logic at 0 and 1, with right and finite gradients in between."""

import functools
import itertools
from typing import Any

import jax
import numpy as np
import pytest
import torch

import penalties as pn
from penalties.terms.logic import Rule, Var, parse, soft_rules
from tests.libraries import NUMPY, TORCH, check, close, value_and_gradients
from tests.terms.logic.test_rules import BOOLEAN

NAMES = ("a", "b", "c")
RULES = {"both": "a & b", "either": "a | ~c", "then": "(a & ~b) >> c"}
NORMS = ("product", "lukasiewicz", "godel")


def probabilities(rows: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.05, 0.95, (rows, 3))


def logit(p: np.ndarray) -> np.ndarray:
    return np.log(p) - np.log1p(-p)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("text", [*RULES.values(), "~(a >> (b | c)) & b"])
def test_at_zero_and_one_it_is_classical_logic(norm: Any, text: str) -> None:
    corners = np.array(list(itertools.product([0.0, 1.0], repeat=3)))
    value, metrics = soft_rules(corners, rules=[text], variables=NAMES, norm=norm, reduction="none")
    rule = parse(text)
    holds = [rule.evaluate(dict(zip(NAMES, map(bool, row), strict=True)), BOOLEAN) for row in corners]
    np.testing.assert_allclose(value, 1.0 - np.array(holds), atol=1e-12)
    assert metrics["satisfied"] == np.mean(holds)
    assert metrics[f"truth/{rule}"] == pytest.approx(np.mean(holds))


@pytest.mark.parametrize(
    ("norm", "both", "either", "then"),
    [("product", 0.28, 0.82, 0.58), ("lukasiewicz", 0.1, 1.0, 0.7), ("godel", 0.4, 0.7, 0.4)],
)
def test_norms_are_what_the_literature_says(norm: Any, both: float, either: float, then: float) -> None:
    p = {"a": np.array([0.7]), "b": np.array([0.4])}
    a, b = Var("a"), Var("b")
    for rule, truth in ((a & b, both), (a | b, either), (a >> b, then)):
        assert 1 - soft_rules(p, rules=[rule], norm=norm)[0] == pytest.approx(truth)


def test_the_product_of_different_variables_is_their_probability_if_they_are_independent() -> None:
    p = probabilities(4)
    value, _ = soft_rules(p, rules=[RULES["then"]], variables=NAMES, loss="log", reduction="none")
    for row, loss in zip(p, value, strict=True):
        held = 0.0
        for world in itertools.product([False, True], repeat=3):
            if parse(RULES["then"]).evaluate(dict(zip(NAMES, world, strict=True)), BOOLEAN):
                held += np.prod(np.where(world, row, 1 - row))
        assert loss == pytest.approx(-np.log(held))


@pytest.mark.parametrize("norm", NORMS)
def test_libraries_and_logits_agree(library: Any, norm: Any) -> None:
    p = probabilities()
    expected, numbers = soft_rules(p, rules=RULES, variables=NAMES, norm=norm)
    for x, logits in ((p, False), (logit(p), True)):
        fn = functools.partial(soft_rules, rules=RULES, variables=NAMES, norm=norm, logits=logits)
        value, metrics = library.compiled(fn)(library.array(x))
        close(library.numpy(value), expected)
        assert metrics.keys() == numbers.keys()
        for name, number in numbers.items():
            close(library.numpy(metrics[name]), number)


@pytest.mark.parametrize(("norm", "loss"), [(norm, "linear") for norm in NORMS] + [("product", "log")])
def test_gradients_are_finite_differences(autodiff: Any, norm: Any, loss: Any) -> None:
    p, step = probabilities(), 1e-6

    def fn(x: Any) -> Any:
        return soft_rules(x, rules=RULES, variables=NAMES, norm=norm, loss=loss)[0]

    slope = autodiff.numpy(value_and_gradients(autodiff, fn)(autodiff.array(p, "float64"))[1][0])
    for index in np.ndindex(p.shape):
        nudge = np.zeros_like(p)
        nudge[index] = step
        assert slope[index] == pytest.approx((fn(p + nudge) - fn(p - nudge)) / (2 * step), abs=1e-6)


@pytest.mark.parametrize("precision", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("norm", "loss"), [(norm, "linear") for norm in NORMS] + [("product", "log")])
def test_gradients_at_the_corners_are_finite(autodiff: Any, precision: str, norm: Any, loss: Any) -> None:
    corners = np.array(list(itertools.product([0.0, 0.5, 1.0], repeat=3)))
    for x, logits in ((corners, False), (np.array(list(itertools.product([-300.0, 0.0, 300.0], repeat=3))), True)):

        def fn(x: Any, logits: bool = logits) -> Any:
            return soft_rules(x, rules=RULES, variables=NAMES, norm=norm, loss=loss, logits=logits, reduction="sum")[0]

        _, (slope,) = value_and_gradients(autodiff, fn)(autodiff.array(x, precision))
        assert np.isfinite(autodiff.numpy(slope)).all()


def test_the_slope_at_zero_is_that_of_the_polynomial(autodiff: Any) -> None:
    # 1 − ab at a = 0, b = ½.
    fn = lambda x: soft_rules(x, rules=["a & b"], variables=["a", "b"])[0]
    check(autodiff, "float32", fn, [[[0.0, 0.5]]], 1.0, [[[-0.5, 0.0]]])


def test_logits_of_any_size_have_a_log_loss_with_its_digits(autodiff: Any) -> None:
    # −log σ(−400)σ(400): probabilities would be 0.
    fn = lambda x: soft_rules(x, rules=["a & b"], variables=["a", "b"], loss="log", logits=True)[0]
    check(autodiff, "float32", fn, [[[-400.0, 400.0]]], 400.0, [[[-1.0, 0.0]]])


def test_probabilities_keep_their_digits_however_small(autodiff: Any) -> None:
    fn = lambda x: soft_rules(x, rules=["a & b"], variables=["a", "b"], loss="log")[0]
    check(autodiff, "float32", fn, [[[1e-30, 0.5]]], 30 * np.log(10) + np.log(2), [[[-1e30, -2.0]]])


def test_a_rule_that_is_surely_false_has_an_infinite_log_loss_and_no_gradient() -> None:
    for x, logits in (([[0.0, 0.3]], False), ([[-float("inf"), 0.3]], True)):
        p = torch.tensor(x, requires_grad=True)
        value, _ = soft_rules(p, rules=["a & b"], variables=["a", "b"], loss="log", logits=logits)
        value.backward()
        assert value.item() == float("inf")
        assert p.grad.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("loss", ["linear", "log"])
def test_padding_reaches_nothing(library: Any, loss: Any) -> None:
    p = probabilities(3)
    padded = p.copy()
    padded[1] = np.nan
    mask = library.array([1.0, 0.0, 2.0])
    fn = lambda x: soft_rules(x, rules=RULES, variables=NAMES, loss=loss, mask=mask)
    value, metrics = library.compiled(fn)(library.array(padded))
    rows = [soft_rules(row, rules=RULES, variables=NAMES, loss=loss) for row in p]
    close(library.numpy(value), (rows[0][0] + 2 * rows[2][0]) / 3)
    close(library.numpy(metrics["truth/then"]), (rows[0][1]["truth/then"] + 2 * rows[2][1]["truth/then"]) / 3)
    if library.differentiates:
        slope = library.numpy(value_and_gradients(library, lambda x: fn(x)[0])(library.array(padded))[1][0])
        assert np.isfinite(slope).all()
        assert not slope[1].any()


@pytest.mark.parametrize("norm", NORMS)
def test_nan_is_not_hidden(norm: Any) -> None:
    for place in range(3):
        p = probabilities(1)
        p[0, place] = np.nan
        for rule in ("a & b & c", "a | b | c", "(a >> b) & c"):
            value, metrics = soft_rules(p, rules=[rule], variables=NAMES, norm=norm)
            assert np.isnan(value)
            assert np.isnan(metrics[f"truth/{rule}"])


def test_reductions_are_sum_and_mean_of_rows() -> None:
    p = probabilities()
    rows = soft_rules(p, rules=RULES, variables=NAMES, reduction="none")[0]
    assert rows.shape == (5,)
    assert soft_rules(p, rules=RULES, variables=NAMES, reduction="sum")[0] == pytest.approx(rows.sum())
    assert soft_rules(p, rules=RULES, variables=NAMES)[0] == pytest.approx(rows.mean())


def test_metrics_say_which_rule_holds_how_often() -> None:
    p = np.array([[0.9, 0.9], [0.9, 0.1], [0.1, 0.9], [0.5, 0.5]])
    _, metrics = soft_rules(p, rules={"then": "a >> b", "first": "a"}, variables=["a", "b"])
    assert metrics["satisfied/then"] == 0.75
    assert metrics["satisfied/first"] == 0.5
    assert metrics["satisfied"] == 0.25
    assert metrics["truth/first"] == pytest.approx(0.6)


def test_compilers_see_the_same() -> None:
    p = probabilities()
    fn = lambda x: soft_rules(x, rules=RULES, variables=NAMES, logits=True, loss="log")
    expected = fn(p)[0]
    found, metrics = torch.compile(fn, fullgraph=True, backend="aot_eager")(TORCH.array(p, "float64"))
    close(TORCH.numpy(found), expected, "float64")
    assert "satisfied/then" in metrics
    close(NUMPY.numpy(jax.jit(fn)(p)[0]), expected, "float64")


def test_a_term_of_a_config_has_rules_as_strings() -> None:
    options = {"rules": {"wet": "rain >> wet"}, "variables": ["rain", "wet"], "logits": True}
    entry = {"fn": "penalties.terms.logic:soft_rules", "weight": 0.5, "inputs": "logits", "options": options}
    pipeline = pn.Pipeline.from_config([entry])
    out = pipeline.value_and_grad(logits=torch.tensor([[2.0, -1.0]]), wrt="logits")
    assert out.metrics()["soft_rules/satisfied/wet"] == 0
    assert out.gradient["logits"][0, 0] > 0 > out.gradient["logits"][0, 1]
    assert pn.Pipeline.from_config(pipeline.to_config()) == pipeline


def test_what_is_wrong_is_said() -> None:
    p = probabilities()
    wrong: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        (p, {"rules": ["a & d"], "variables": NAMES}, pn.OptionError, "variables among a, b, c"),
        (p, {"rules": [], "variables": NAMES}, pn.OptionError, "rules by name"),
        (p, {"rules": 3, "variables": NAMES}, pn.OptionError, "rules by name"),
        (p, {"rules": {"": "a"}, "variables": NAMES}, pn.OptionError, "rules by name"),
        (p, {"rules": "a"}, pn.OptionError, "names for the last axis of p, or a mapping"),
        (p, {"rules": "a", "variables": ["a", "a", "b"]}, pn.OptionError, "different names"),
        (p, {"rules": "a", "variables": "abc"}, pn.OptionError, "different names"),
        (p, {"rules": "a", "variables": ["a"]}, pn.ShapeError, "a last axis of 1 variables"),
        (p, {"rules": "a", "variables": NAMES, "norm": "min"}, pn.OptionError, "product"),
        (p, {"rules": "a", "variables": NAMES, "loss": "log", "norm": "godel"}, pn.OptionError, "linear"),
        (p, {"rules": "a", "variables": NAMES, "mask": np.ones(3)}, pn.ShapeError, "mask has shape"),
        (p, {"rules": "a", "variables": NAMES, "weight": 2}, pn.OptionError, "strength is a factor"),
        (p + 1, {"rules": "a", "variables": NAMES}, pn.OptionError, "probabilities, from 0 to 1, or logits=True"),
        ({"a": p}, {"rules": "a", "variables": ["a"]}, pn.OptionError, "None: p is a mapping"),
        ({"a": p, "b": p[0]}, {"rules": "a & b"}, pn.ShapeError, "nothing is broadcast"),
    ]
    for x, options, kind, message in wrong:
        with pytest.raises(kind, match=message):
            soft_rules(x, **options)


def test_where_values_cannot_be_looked_at_no_probability_is_nan() -> None:
    value = jax.jit(lambda x: soft_rules(x, rules=["a"], variables=["a"], norm="lukasiewicz")[0])(np.array([[1.5]]))
    assert np.isnan(value)


def test_rules_and_strings_mean_the_same() -> None:
    p = probabilities()
    rule: Rule = (Var("a") & ~Var("b")) >> Var("c")
    assert soft_rules(p, rules=[rule], variables=NAMES)[0] == soft_rules(p, rules=[str(rule)], variables=NAMES)[0]


@pytest.mark.parametrize("norm", ["product", "lukasiewicz", "godel"])
def test_a_sum_of_probabilities_that_is_rounded_up_is_one(autodiff: Any, norm: Any) -> None:
    # Of a softmax, as that of all kinds of animals.
    above = autodiff.array([[1 + 1.2e-7, 0.5]], "float32")
    one = autodiff.array([[1.0, 0.5]], "float32")

    def value(p: Any) -> Any:
        return soft_rules(p, rules=["a & b"], variables=["a", "b"], norm=norm)[0]

    (rounded, (slopes,)), (exact, (expected,)) = (value_and_gradients(autodiff, value)(p) for p in (above, one))
    assert float(rounded) == float(exact)
    assert np.array_equal(autodiff.numpy(slopes), autodiff.numpy(expected))
