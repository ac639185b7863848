"""Hard rules: violations, cores and repairs that are right, gradients that lead there, and Z3 that may not know."""

import functools
import itertools
import pickle
import threading
from typing import Any

import jax
import numpy as np
import pytest
import torch
import z3

import penalties as pn
from penalties.terms.logic import ContradictionError, UndecidedError, Var, explain, hard_rules
from tests.libraries import TORCH

DIGITS = {"rules": {"sum": "10 * tens + ones + other == total"}, "variables": ["tens", "ones", "other"]}
COLOURS = {"rules": ["a != b", "b != c", "a < c", "(a == 0) >> (c == 2)"], "variables": ["a", "b", "c"]}
HARD = "(" + " + ".join(f"{10 ** (5 - i)} * a{i}" for i in range(6)) + ") * ("
HARD += " + ".join(f"{10 ** (5 - i)} * b{i}" for i in range(6)) + ") == 999962000357"
FACTORS = {"rules": {"product": HARD}, "variables": [f"{name}{i}" for name in "ab" for i in range(6)]}


def scores(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def allowed(a: int, b: int, c: int) -> bool:
    return a != b and b != c and a < c and (a != 0 or c == 2)


def test_repairs_are_the_best_of_all_assignments() -> None:
    x = scores(20, 3, 3)
    for row, finding in zip(x, explain(x, **COLOURS), strict=True):
        best = max(
            sum(row[i, v] for i, v in enumerate(w)) for w in itertools.product(range(3), repeat=3) if allowed(*w)
        )
        assert allowed(**finding.nearest)
        assert sum(row[i, v] for i, v in enumerate(finding.nearest.values())) == pytest.approx(best, abs=1e-5)


def test_the_margin_is_what_the_repair_costs() -> None:
    x = scores(20, 3, 3)
    value, metrics = hard_rules(x, **COLOURS, reduction="sum")
    costs = 0.0
    for row in x:
        worlds = [w for w in itertools.product(range(3), repeat=3) if allowed(*w)]
        costs += row.max(-1).sum() - max(sum(row[i, v] for i, v in enumerate(w)) for w in worlds)
    assert value == pytest.approx(costs, abs=1e-4)
    assert hard_rules(x, **COLOURS)[0] == pytest.approx(costs / 20, abs=1e-5)
    assert metrics["satisfied"] == pytest.approx(np.mean([allowed(*row.argmax(-1)) for row in x]))


@pytest.mark.parametrize("kind", ["booleans", "numbers"])
def test_flags_and_numbers_are_repaired_at_the_lowest_price(kind: Any) -> None:
    x = 2 * scores(15, 3)
    if kind == "booleans":
        rules, worlds = ["(a & b) >> c", "a | b | c"], list(itertools.product([False, True], repeat=3))
        worlds = [(a, b, c) for a, b, c in worlds if (c or not (a and b)) and (a or b or c)]
        cost = lambda row, world: np.abs(row)[(row > 0) != np.array(world)].sum()
    else:
        rules = ["a + b == c", "a < b"]
        worlds = [(a, b, a + b) for a, b in itertools.product(range(-9, 10), repeat=2) if a < b]
        cost = lambda row, world: np.abs(row - world).sum()
    for row, finding in zip(x, explain(x, rules=rules, variables=["a", "b", "c"], kind=kind), strict=True):
        nearest = tuple(finding.nearest.values())
        assert nearest in worlds
        if finding.violated:
            assert cost(row, nearest) == pytest.approx(min(cost(row, world) for world in worlds), abs=1e-5)


def test_a_core_excludes_itself_and_no_part_of_it_does() -> None:
    x = scores(30, 3, 3)
    formulas = {"a != b": lambda a, b, c: a != b, "b != c": lambda a, b, c: b != c, "a < c": lambda a, b, c: a < c}
    formulas["(a == 0) >> (c == 2)"] = lambda a, b, c: a != 0 or c == 2
    cores = [finding for finding in explain(x, **COLOURS) if finding.violated]
    assert len(cores) > 10

    def possible(names: tuple[str, ...], decisions: Any) -> bool:
        for world in itertools.product(range(3), repeat=3):
            kept = all(world["abc".index(name)] == decisions[name] for name in names if name in decisions)
            if kept and all(formulas[name](*world) for name in names if name in formulas):
                return True
        return False

    for finding in cores:
        assert not possible(finding.core, finding.decisions)
        for left_out in finding.core:
            assert possible(tuple(name for name in finding.core if name != left_out), finding.decisions)


def test_metrics_name_what_is_violated_and_why() -> None:
    x = np.zeros((2, 2, 3))
    x[0, 0, 1] = x[0, 1, 1] = x[1, 0, 2] = x[1, 1, 0] = 1.0  # (1, 1) and (2, 0)
    _, metrics = hard_rules(x, rules={"apart": "a != b", "small": "a <= 1", "any": "a >= 0"}, variables=["a", "b"])
    assert metrics == {
        "satisfied": 0.0,
        "violated": 1.0,
        "changed": 1.0,
        "core": 2.5,
        "contradictions": 0.0,
        "violated/apart": 0.5,
        "violated/small": 0.5,
        "violated/any": 0.0,
        "core/apart": 0.5,
        "core/small": 0.5,
        "core/any": 0.0,
        "core/a": 1.0,
        "core/b": 0.5,
    }


@pytest.mark.parametrize("loss", ["cross_entropy", pytest.param("margin", marks=pytest.mark.slow)])
def test_values_and_gradients_are_those_of_the_repair(library: Any, loss: Any) -> None:
    x, fn = scores(8, 3, 3), functools.partial(hard_rules, **COLOURS, loss=loss, reduction="sum")
    right, slope = 0.0, np.zeros_like(x)
    logprobs = x - np.log(np.exp(x).sum(-1, keepdims=True))
    for number, finding in enumerate(explain(x, **COLOURS)):
        for place, (name, value) in enumerate(finding.nearest.items()):
            read = finding.decisions[name]
            if value == read:
                continue
            if loss == "margin":
                right += x[number, place, read] - x[number, place, value]
                slope[number, place, read] += 1
            else:
                right -= logprobs[number, place, value]
                slope[number, place] += np.exp(logprobs[number, place])
            slope[number, place, value] -= 1
    array = library.array(x, "float64")
    np.testing.assert_allclose(library.numpy(fn(array)[0]), right, rtol=1e-9)
    if library.differentiates:
        np.testing.assert_allclose(library.gradients(lambda x: fn(x)[0], array)[0], slope, atol=1e-9)


@pytest.mark.parametrize("kind", ["booleans", pytest.param("numbers", marks=pytest.mark.slow)])
def test_gradients_of_flags_and_numbers_are_finite_differences(kind: Any) -> None:
    x, step = 2 * scores(3, 2, seed=1), 1e-4
    rules = ["a != b"] if kind == "booleans" else ["a + b == 5"]
    for loss in ("margin", "cross_entropy") if kind == "booleans" else ("margin",):
        fn = lambda x, loss=loss: hard_rules(x, rules=rules, variables=["a", "b"], kind=kind, loss=loss)[0]
        (slope,) = TORCH.gradients(fn, TORCH.array(x, "float64"))
        assert slope.any()
        for index in np.ndindex(x.shape):
            nudge = np.zeros_like(x)
            nudge[index] = step
            assert slope[index] == pytest.approx((fn(x + nudge) - fn(x - nudge)) / (2 * step), abs=1e-4)


def test_a_row_without_a_violation_pulls_at_nothing() -> None:
    x = torch.tensor([[[0.0, 3.0], [2.0, 0.0]]], requires_grad=True)
    value, metrics = hard_rules(x, rules=["a != b"], variables=["a", "b"], loss="cross_entropy")
    value.backward()
    assert value.item() == 0
    assert not x.grad.any()
    assert metrics["satisfied"] == 1


def test_facts_are_of_each_row() -> None:
    x = scores(4, 3, 10)
    for total in (np.array([57, 23, 99, 0]), torch.tensor([57, 23, 99, 0]), [57, 23, 99, 0]):
        for finding, right in zip(explain(x, {"total": total}, **DIGITS), [57, 23, 99, 0], strict=True):
            tens, ones, other = finding.nearest.values()
            assert 10 * tens + ones + other == right
    flags = {"swapped": np.array([True, False])}
    found = explain(np.ones((2, 1)), flags, rules=["a == swapped"], variables=["a"], kind="booleans")
    assert [bool(finding.violated) for finding in found] == [False, True]


def test_rules_that_exclude_one_another_raise_with_their_names() -> None:
    x = scores(2, 2, 3)
    rules = {"small": "a < k", "large": "a > 1", "other": "b >= 0"}
    facts = {"k": np.array([3, 1])}
    with pytest.raises(ContradictionError, match="no decisions satisfy the rules of row 1.*: small, large") as caught:
        hard_rules(x, facts, rules=rules, variables=["a", "b"])
    assert caught.value.core == ("small", "large")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    value, metrics = hard_rules(x, facts, rules=rules, variables=["a", "b"], contradictions="skip")
    assert np.isfinite(value)
    assert metrics["contradictions"] == 0.5
    assert explain(x, facts, rules=rules, variables=["a", "b"])[1].nearest is None


def test_what_z3_does_not_know_is_an_error() -> None:
    with pytest.raises(UndecidedError, match="could not decide row 0 within 0.05 s") as caught:
        hard_rules(scores(1, 12, 10), **FACTORS, seconds=0.05)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_rules_may_come_from_python_and_from_a_function() -> None:
    x = scores(10, 3)
    variables = ["a", "b", "c"]

    def rules(v: Any) -> Any:
        return {"then": z3.Implies(z3.And(v["a"], v["b"]), v["c"])}

    as_function = hard_rules(x, rules=rules, variables=variables, kind="booleans")
    a, b, c = map(Var, variables)
    as_rule = hard_rules(x, rules={"then": (a & b) >> c}, variables=variables, kind="booleans")
    as_text = hard_rules(x, rules={"then": "(a & b) >> c"}, variables=variables, kind="booleans")
    assert as_function == as_rule == as_text


def test_quantifiers_are_decided() -> None:
    def rules(v: Any) -> Any:
        n = z3.Int("n", v["a"].ctx)
        return {"largest": z3.ForAll([n], z3.Implies(z3.And(n >= 0, n < 3), n <= v["a"]))}

    (finding,) = explain(np.array([[[1.0, 0.5, 0.0]]]), rules=rules, variables=["a"])
    assert finding.violated == ("largest",)
    assert finding.nearest == {"a": 2}


def test_no_variable_is_left_open() -> None:
    with pytest.raises(pn.OptionError, match="no variables but those that the function was given: a"):
        hard_rules(scores(1, 1, 2), rules=lambda v: {"free": v["a"] == z3.Int("n", v["a"].ctx)}, variables=["a"])


def test_threads_have_solvers_of_their_own() -> None:
    x = scores(10, 3, 3)
    expected, found = hard_rules(x, **COLOURS), []
    threads = [threading.Thread(target=lambda: found.append(hard_rules(x, **COLOURS))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 3


def test_a_class_that_cannot_be_is_not_chosen() -> None:
    x = np.array([[[1.0, -np.inf, 0.0]]])
    (finding,) = explain(x, rules=["a >= 1"], variables=["a"])
    assert finding.nearest == {"a": 2}


def test_inside_compilers_it_says_why_not() -> None:
    fn = lambda x: hard_rules(x, **COLOURS)[0]
    with pytest.raises(pn.BackendError, match="outside, as an executor does"):
        jax.jit(fn)(scores(1, 3, 3))


@pytest.mark.parametrize(
    ("x", "options", "kind", "message"),
    [
        (np.ones((2, 3, 3)), {"rules": "a == 1"}, pn.ShapeError, r"expected \(…, 2, classes\)"),
        (np.ones((2, 3)), {"rules": "a", "kind": "booleans"}, pn.ShapeError, r"expected \(…, 2\)"),
        (np.full((2, 3), np.nan), {"rules": "a == 1"}, pn.NonFiniteError, "6 values that are not finite"),
        (np.ones((2, 3)), {"rules": "a == d"}, pn.OptionError, "names among a, b"),
        (np.ones((2, 3)), {"rules": "a + b"}, pn.OptionError, "a condition, such as a"),
        (np.ones((2, 3)), {"rules": "a & b == 1"}, pn.OptionError, "a condition where a is a number"),
        (np.ones((2, 3)), {"rules": "(a == 1) + 1 == 2"}, pn.OptionError, "a number where a == 1 is a condition"),
        (np.ones((2, 3)), {"rules": "(a == 1) == 1"}, pn.OptionError, "comparisons of numbers with numbers"),
        (np.ones((2, 3)), {"rules": "(a == 1) & (b == 1) >> (a == b)"}, pn.OptionError, "parentheses around each >>"),
        (np.ones((2, 3)), {"rules": "a in b"}, pn.OptionError, "comparisons, distinct"),
        (np.ones((2, 3)), {"rules": "a == 1.5"}, pn.OptionError, "comparisons, distinct"),
        (np.ones((2, 3)), {"rules": "print(a)"}, pn.OptionError, "comparisons, distinct"),
        (np.ones((2, 3)), {"rules": "a =="}, pn.OptionError, "comparisons, distinct"),
        (np.ones((2, 3)), {"rules": "a == 1 #" + "x" * 10_000}, pn.OptionError, "a rule of 1 to 10000 characters"),
        (np.ones((2, 3)), {"rules": {"a": "a == 1"}}, pn.OptionError, "names differ from those of variables and facts"),
        (np.ones((2, 3)), {"rules": lambda v: {}}, pn.OptionError, "a function that returns {name: formula of Z3}"),
        (np.ones((2, 3)), {"rules": "a == 1", "kind": "class"}, pn.OptionError, "classes"),
        (np.ones((2, 3)), {"rules": "a == 1", "loss": "mse"}, pn.OptionError, "cross_entropy"),
        (np.ones(2), {"rules": "a == 1", "kind": "numbers", "loss": "cross_entropy"}, pn.OptionError, "margin"),
        (np.ones((2, 3)), {"rules": "a == 1", "seconds": 0}, pn.OptionError, "seconds above 0"),
        (np.ones((2, 3)), {"rules": "a == 1", "facts": {"a": np.array(1)}}, pn.OptionError, "names other than"),
        (np.ones((2, 3)), {"rules": "a == 1", "facts": {"k": np.array(1.5)}}, pn.OptionError, "whole numbers or flags"),
        (np.ones((2, 3)), {"rules": "a == 1", "facts": {"k": np.ones(4, int)}}, pn.ShapeError, "one for each row"),
        (np.ones((2, 3)), {"rules": "a == 1", "facts": [1]}, pn.OptionError, "{name: whole numbers or flags}"),
    ],
)
def test_what_is_wrong_is_said(x: Any, options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        hard_rules(x, **{"variables": ["a", "b"], **options})


def test_names_may_be_anything() -> None:
    rules = {"é | (x) \\u{1F600} |y|": "größe == 1", "a b": "größe == 2"}
    (finding,) = explain(np.array([[[1.0, 0.0, 0.5]]]), rules=rules, variables=["größe"])
    assert finding.violated == finding.core == tuple(rules)
    assert finding.nearest is None


def test_distinct_and_chains_are_understood() -> None:
    rules = ["distinct(a, b, c)", "0 < a < c", "-b * 2 <= 0"]
    for finding in explain(scores(10, 3, 3), rules=rules, variables=["a", "b", "c"]):
        assert finding.nearest == {"a": 1, "b": 0, "c": 2}


def test_without_z3_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "z3", None)
    with pytest.raises(pn.MissingLibraryError, match=r'hard_rules needs z3-solver: pip install "penalties\[logic\]"'):
        hard_rules(scores(1, 3, 3), **COLOURS)


@pytest.mark.slow
def test_in_a_process_it_is_the_same_and_can_be_killed() -> None:
    x = torch.tensor(scores(4, 3, 10), requires_grad=True)
    facts = {"total": torch.tensor([57, 23, 99, 0])}
    read = {"scores": "scores", "facts": "known"}
    term = pn.Term(hard_rules, inputs=read, options=DIGITS, runs="process", timeout=60)
    endless = pn.Term(
        hard_rules,
        name="endless",
        inputs={"scores": "digits"},
        options={**FACTORS, "seconds": 3600},
        runs="process",
        timeout=3,
        on_error="skip",
    )
    inputs = {"scores": x, "known": facts, "digits": torch.tensor(scores(12, 10))}
    with pn.Executor(max_workers=2) as executor:
        out = executor.run(pn.Pipeline([term, endless]), inputs, wrt="scores")
    (right,) = torch.autograd.grad(hard_rules(x, facts, **DIGITS)[0], x)
    torch.testing.assert_close(out.gradient["scores"], right)
    assert isinstance(out["endless"].error, pn.TermTimeoutError)
    assert not out["endless"].error.abandoned
