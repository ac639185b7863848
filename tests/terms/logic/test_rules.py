"""Rules: what they mean, how they are written, and what cannot be one."""

import itertools
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penalties as pn
from penalties.terms.logic import Rule, Var, parse
from penalties.terms.logic.rules import Connectives

BOOLEAN: Connectives[bool] = Connectives(lambda a, b: a and b, lambda a, b: a or b, lambda a: not a)
A, B, C = Var("a"), Var("b"), Var("c")

RULES = st.recursive(
    st.sampled_from([A, B, C]),
    lambda inner: (
        inner.map(lambda rule: ~rule)
        | st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1])
        | st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1])
        | st.tuples(inner, inner).map(lambda pair: pair[0] >> pair[1])
    ),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("rule", "meaning"),
    [
        (A & B, lambda a, b: a and b),
        (A | B, lambda a, b: a or b),
        (A >> B, lambda a, b: not a or b),
        (~A | B, lambda a, b: not a or b),
        (~(A & ~B), lambda a, b: not a or b),
    ],
)
def test_operators_are_those_of_logic(rule: Rule, meaning: Any) -> None:
    for a, b in itertools.product([False, True], repeat=2):
        assert rule.evaluate({"a": a, "b": b}, BOOLEAN) == meaning(a, b)


@given(RULES)
@settings(max_examples=100, deadline=None)
def test_a_rule_can_be_read_from_what_it_prints(rule: Rule) -> None:
    assert parse(str(rule)) == rule


def test_rules_are_data() -> None:
    rule = (A & ~B) >> C
    assert pickle.loads(pickle.dumps(rule)) == rule
    assert hash(rule) == hash(parse("(a & ~b) >> c"))
    assert rule.variables == ("a", "b", "c")
    with pytest.raises(AttributeError):
        rule.left = A


def test_a_rule_is_neither_true_nor_false() -> None:
    with pytest.raises(TypeError, match="the rule a is neither true nor false; write & | ~ instead of and, or, not"):
        _ = A and B


@pytest.mark.parametrize("other", ["b", 1, None])
def test_only_rules_are_joined(other: Any) -> None:
    for join in (lambda: A & other, lambda: A | other, lambda: A >> other):
        with pytest.raises(TypeError, match="unsupported operand"):
            join()


@pytest.mark.parametrize("name", ["", "a b", "1a", "and", 3])
def test_a_variable_has_the_name_of_an_identifier(name: Any) -> None:
    with pytest.raises(TypeError, match="expected an identifier"):
        Var(name)


@pytest.mark.parametrize("text", ["a & b >> c", "a >> b & c", "(a) & (b) >> c", "a >> b >> c", "a | b >> c"])
def test_what_python_would_read_otherwise_than_logic_needs_parentheses(text: str) -> None:
    with pytest.raises(pn.OptionError, match="expected parentheses around each >>"):
        parse(text)


@pytest.mark.parametrize("text", ["a & (b >> c)", "(a & b) >> c", "a >> (b >> c)", "( a|b )>>( c )", "é_ & (a >> b)"])
def test_parentheses_are_seen(text: str) -> None:
    assert str(parse(text)).replace(" ", "") == text.replace(" ", "").replace("(c)", "c")


@pytest.mark.parametrize("text", ["a and b", "not a"])
def test_words_are_answered_with_their_signs(text: str) -> None:
    with pytest.raises(pn.OptionError, match="instead of the word"):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "a &",
        "f(a)",
        "a.b",
        "a == 1",
        "1",
        "lambda: a",
        "if",
        "a b",
        "a) (b",
        "a ^ b",
        "a\0",
        "(" * 900,
        "a & " * 4000,
    ],
)
def test_anything_else_is_no_rule_and_never_runs(text: str) -> None:
    with pytest.raises(pn.OptionError, match="parse: text="):
        parse(text)


def test_text_is_text() -> None:
    with pytest.raises(pn.OptionError, match="a rule of 1 to 10000 characters, such as"):
        parse(A)  # what is a rule needs no reading
