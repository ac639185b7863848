"""The expected number of contradictions with a knowledge base."""

import itertools
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import cloudpickle
import jax
import numpy as np
import pytest
import torch

import penalties as pn
from penalties.terms.knowledge import Facts, Graph, Knowledge, Rule, Thing
from penalties.testing import check_term
from tests.libraries import DTYPE, EPSILON

CITIES = Graph(
    [
        ("Lyon", "lies in", "Rhône"),
        ("Bern", "lies in", "canton Bern"),
        ("Rhône", "lies in", "France"),
        ("canton Bern", "lies in", "Switzerland"),
        ("Lyon", "twin of", "Leipzig"),
    ]
)
SHOWN = Rule(("shows", "lies in", "lies in"), "taken in")
PHOTO = [
    ("photo", "shows", "Lyon"),
    ("photo", "shows", "Bern"),
    ("photo", "taken in", "France"),
    ("photo", "taken in", "Switzerland"),
]


class Counting:
    """A base of one's own, which counts what it is asked."""

    def __init__(self, base: Graph) -> None:
        self.base = base
        self.asked: list[tuple[str, Thing]] = []

    @property
    def relations(self) -> Collection[str]:
        return self.base.relations

    def objects(self, relation: str, subjects: Collection[Thing]) -> Mapping[Thing, Collection[Thing]]:
        self.asked += [(relation, subject) for subject in subjects]
        return self.base.objects(relation, subjects)


def enumerated(p: Sequence[float], broken: Callable[[tuple[bool, ...]], int]) -> float:
    """The expectation over all worlds."""
    worlds = itertools.product([False, True], repeat=len(p))
    return sum(broken(w) * math.prod(q if there else 1 - q for q, there in zip(p, w, strict=True)) for w in worlds)


def test_mass_on_a_second_object_of_a_functional_relation_is_the_value(library: Any):
    term = Knowledge(CITIES, functional=["lies in"])
    facts = [("Lyon", "lies in", "Rhône"), ("Lyon", "lies in", "France"), ("Basel", "lies in", "France")]
    value, metrics = term(library.array([0.9, 0.3, 0.8]), facts)
    assert float(value) == pytest.approx(0.3, abs=EPSILON[DTYPE])
    assert (metrics["checked"], metrics["unknown"], float(metrics["violated"])) == (2, 1, 0)


def test_what_a_closed_relation_does_not_have_is_a_contradiction():
    facts = [("Lyon", "twin of", "Leipzig"), ("Lyon", "twin of", "Bern"), ("Bern", "twin of", "Lyon")]
    p = np.array([0.9, 0.75, 0.25])
    value, metrics = Knowledge(CITIES, closed=["twin of"])(p, facts)
    assert float(value) == pytest.approx(1.0)
    assert (metrics["checked"], metrics["unknown"], float(metrics["violated"])) == (3, 0, 1)
    # A functional one says nothing about a subject that it does not have.
    value, metrics = Knowledge(CITIES, functional=["twin of"])(p, facts)
    assert (float(value), metrics["checked"], metrics["unknown"]) == (0.75, 2, 1)


def test_a_path_rule_is_the_expectation_over_all_worlds(library: Any):
    p = [0.7, 0.2, 0.4, 0.1]

    def broken(world: tuple[bool, ...]) -> int:
        lyon, bern, france, switzerland = world
        return (lyon and not france) + (bern and not switzerland)

    value, metrics = Knowledge(CITIES, rules=[SHOWN])(library.array(p), PHOTO)
    assert float(value) == pytest.approx(enumerated(p, broken), abs=EPSILON[DTYPE])
    assert (metrics["checked"], metrics["unknown"], float(metrics["violated"])) == (2, 0, 1)


def test_a_rule_with_facts_of_the_model_alone_is_the_expectation_over_all_worlds():
    rule = Rule(("parent", "parent"), "grandparent")
    facts = [("a", "parent", "b"), ("b", "parent", "c"), ("b", "parent", "d"), ("a", "grandparent", "c")]
    p = [0.5, 0.6, 0.9, 0.3]

    def broken(world: tuple[bool, ...]) -> int:
        ab, bc, bd, ac = world
        return (ab and bc and not ac) + (ab and bd)  # the model gives a → d no probability at all

    value, _ = Knowledge(Graph([]), rules=[rule])(np.array(p), facts)
    assert float(value) == pytest.approx(enumerated(p, broken))


def test_a_fact_that_a_rule_needs_twice_counts_once():
    rule = Rule(("knows", "knows"), "friend")
    facts = [("a", "knows", "a"), ("a", "friend", "a")]
    value, _ = Knowledge(Graph([]), rules=[rule])(np.array([0.5, 0.2]), facts)
    assert float(value) == pytest.approx(0.5 * 0.8)


def test_a_head_that_nobody_knows_is_unknown_and_one_that_the_base_contradicts_is_broken():
    rule = Rule(("shows", "lies in"), "district")
    facts = [("photo", "shows", "Lyon")]
    value, metrics = Knowledge(CITIES, rules=[rule])(np.array([0.75]), facts)
    assert (float(value), metrics["checked"], metrics["unknown"]) == (0, 0, 1)
    known = Graph([("Lyon", "lies in", "Rhône"), ("photo", "district", "canton Bern")])
    for assumed in ({"functional": ["district"]}, {"closed": ["district"]}):
        value, metrics = Knowledge(known, rules=[rule], **assumed)(np.array([0.75]), facts)
        assert (float(value), metrics["checked"], float(metrics["violated"])) == (0.75, 1, 1)


def test_a_head_that_the_base_has_is_never_broken():
    known = Graph([("Lyon", "lies in", "Rhône"), ("photo", "district", "Rhône")])
    facts = [("photo", "shows", "Lyon"), ("photo", "district", "Rhône")]
    value, _ = Knowledge(known, rules=[Rule(("shows", "lies in"), "district")])(np.array([0.9, 0.0]), facts)
    assert float(value) == 0


def test_gradients_are_those_of_finite_differences(autodiff: Any):
    term = Knowledge(CITIES, functional=["lies in"], rules=[SHOWN])
    facts = [*PHOTO, ("Lyon", "lies in", "France")]
    inputs = {"p": autodiff.array([0.7, 0.2, 0.4, 0.1, 0.6], "float64"), "facts": facts}
    verdict = check_term(pn.Term(term), inputs, wrt="p", edges=["zeros", "tiny"], compile=False)
    assert verdict.ok


def test_the_mean_is_per_subject_and_shapes_are_those_of_the_facts():
    facts = [(photo, *fact[1:]) for photo in (1, 2) for fact in PHOTO]
    p = torch.tensor([[0.7, 0.2, 0.4, 0.1]] * 2)
    total, mean = (float(Knowledge(CITIES, rules=[SHOWN], reduction=r)(p, facts)[0]) for r in ("sum", "mean"))
    assert mean == pytest.approx(total / 2)


def test_what_was_asked_is_not_asked_again():
    base = Counting(CITIES)
    term = Knowledge(base, rules=[SHOWN])
    p = np.array([0.7, 0.2, 0.4, 0.1])
    _, first = term(p, PHOTO)
    asked = list(base.asked)
    assert (first["hits"], first["queries"]) == (0, len(asked) == len(set(asked)) and len(asked))
    _, second = term(p, PHOTO)
    assert (second["hits"], second["queries"]) == (len(asked), 0)
    # Other facts about the same cities.
    _, third = term(p, [("another", *fact[1:]) for fact in PHOTO])
    assert base.asked == asked
    assert (third["hits"], third["queries"]) == (len(asked), 0)
    term.forget()
    term(p, PHOTO)
    assert len(base.asked) == 2 * len(asked)


def test_the_cache_is_bounded_and_drops_what_was_used_least_recently():
    base = Counting(CITIES)
    term = Knowledge(base, closed=["twin of"], cache=2)
    for city in ("a", "b", "a", "c", "a", "b"):
        # A list of its own each time, as plans are kept too.
        term(np.array([0.5]), [(city, "twin of", len(base.asked) * 100 + ord(city))])
    assert [city for _, city in base.asked] == ["a", "b", "c", "b"]


def test_facts_are_looked_up_again_after_their_time():
    base = Counting(CITIES)
    term = Knowledge(base, closed=["twin of"], max_age=0.05)
    facts = [("Lyon", "twin of", "Bern")]
    term(np.array([0.5]), facts)
    term(np.array([0.5]), facts)
    assert len(base.asked) == 1
    time.sleep(0.06)
    term(np.array([0.5]), facts)
    assert len(base.asked) == 2


def test_answers_are_not_kept_for_longer_by_another_list_of_facts():
    base = Counting(CITIES)
    term = Knowledge(base, closed=["twin of"], max_age=0.4)
    term(np.array([0.5]), [("Lyon", "twin of", "Bern")])
    for _ in range(2):
        time.sleep(0.25)
        term(np.array([0.5]), [("Lyon", "twin of", "Basel")])
    assert len(base.asked) > 1


def test_facts_that_are_checked_once_are_the_same_facts():
    facts = Facts(PHOTO)
    p = torch.tensor([0.7, 0.2, 0.4, 0.1])
    term = Knowledge(CITIES, rules=[SHOWN])
    value, _ = term(p, PHOTO)
    again, metrics = term(p, facts)
    assert float(again) == float(value)
    assert metrics["queries"] == 0
    there = cloudpickle.loads(cloudpickle.dumps(facts))
    assert (there, hash(there), list(there)) == (facts, hash(facts), PHOTO)
    assert facts not in (Facts(PHOTO[::-1]), PHOTO)


def test_it_travels_without_its_cache_and_keeps_its_numbers():
    term = Knowledge(CITIES, rules=[SHOWN], reduction="mean")
    p = np.array([0.7, 0.2, 0.4, 0.1])
    value, _ = term(p, PHOTO)
    there = cloudpickle.loads(cloudpickle.dumps(term))
    again, metrics = there(p, PHOTO)
    assert float(again) == float(value)
    assert metrics["hits"] == 0


@pytest.mark.parametrize("runs", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_gradients_from_elsewhere_are_those_inline(runs: str):
    p = torch.tensor([0.7, 0.2, 0.4, 0.1], requires_grad=True)
    inputs = {"p": p, "facts": PHOTO}
    here = pn.Pipeline([pn.Term(Knowledge(CITIES, rules=[SHOWN]))]).value_and_grad(**inputs, wrt="p")
    with pn.Executor(max_workers=1) as executor:
        away = pn.Pipeline([pn.Term(Knowledge(CITIES, rules=[SHOWN]), runs=runs, timeout=30)])
        out = executor.run(away, inputs)
        out.total.backward()
    assert out.total.item() == here.total.item()
    assert torch.equal(p.grad, here.gradient["p"])


def test_half_precision_is_computed_in_single():
    p = torch.full((3000,), 0.3, dtype=torch.float16)
    facts = [("Lyon", "lies in", number) for number in range(3000)]
    value, _ = Knowledge(CITIES, functional=["lies in"])(p, facts)
    assert value.dtype is torch.float32
    assert float(value) == pytest.approx(3000 * float(p[0]), rel=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "at least one rule, functional or closed relation"),
        ({"functional": ["lies on"]}, 'functional="lies on"; expected a relation of the base: .*did you mean lies in'),
        ({"closed": "lies in"}, 'closed="lies in"; expected a list of the names of relations'),
        ({"rules": [("a", "b")]}, r"expected a list of Rule\(body, head\)"),
        ({"rules": [SHOWN], "reduction": "none"}, 'reduction="none"; expected "sum" or "mean"'),
        ({"rules": [SHOWN], "cache": 0}, "cache=0; expected a whole number of at least 1"),
        ({"rules": [SHOWN], "max_age": 0}, "max_age=0; expected seconds above 0"),
    ],
)
def test_a_wrong_option_is_an_error_that_says_what_was_expected(options: dict[str, Any], message: str):
    with pytest.raises(pn.OptionError, match=message):
        Knowledge(CITIES, **options)


@pytest.mark.parametrize("base", ["facts.db", None, [("a", "b", "c")]])
def test_what_is_not_a_base_is_an_error(base: Any):
    with pytest.raises(pn.OptionError, match="expected a Graph, a Database, or an object with relations and objects"):
        Knowledge(base, rules=[SHOWN])


@pytest.mark.parametrize(("there", "given"), [(7, "7"), ("7", 7)])
def test_an_object_of_another_type_than_that_of_the_base_is_an_error(there: Any, given: Any):
    term = Knowledge(Graph([("Lyon", "lies in", there)]), functional=["lies in"])
    message = f"expected objects of the base's type: there it is the {type(there).__name__} {there!r}"
    with pytest.raises(pn.OptionError, match=message):
        term(np.array([0.5]), [("Lyon", "lies in", given)])
    assert float(term(np.array([0.5]), [("Lyon", "lies in", 8)])[0]) == 0.5


def test_what_is_not_a_fact_is_an_error():
    with pytest.raises(pn.OptionError, match=r"triples=\('a', 'b'\); expected facts of the form"):
        Graph([("a", "b")])
    with pytest.raises(pn.OptionError, match="expected facts of the form"):
        Graph([("a", "b", True)])
    term = Knowledge(CITIES, rules=[SHOWN])
    with pytest.raises(pn.OptionError, match=r"facts\[1\]=.*; expected a triple"):
        term(np.array([0.5, 0.5]), [PHOTO[0], "photo shows Lyon"])
    with pytest.raises(pn.OptionError, match='facts="a str"; expected Facts, or a list of triples'):
        term(np.array([0.5]), "Lyon")
    with pytest.raises(pn.OptionError, match="expected each fact once"):
        term(np.array([0.5, 0.5]), [PHOTO[0], PHOTO[0]])
    with pytest.raises(pn.OptionError, match='relation="show"; expected a relation of the base or a rule: .*did you'):
        term(np.array([0.5]), [("photo", "show", "Lyon")])


def test_as_many_probabilities_as_facts_are_expected():
    with pytest.raises(pn.ShapeError, match="4 facts and 3 probabilities; expected one for each fact"):
        Knowledge(CITIES, rules=[SHOWN])(np.ones(3), PHOTO)


@pytest.mark.parametrize("wrong", [-0.5, 1.5, 3.0])
def test_logits_are_told_from_probabilities(wrong: float):
    with pytest.raises(pn.OptionError, match=r"p=.*; expected probabilities from 0 to 1, such as logits.softmax"):
        Knowledge(CITIES, rules=[SHOWN])(torch.tensor([0.5, wrong, 0.1, 0.1]), PHOTO)


def test_probabilities_that_are_not_finite_are_an_error_that_says_so():
    with pytest.raises(pn.NonFiniteError, match="p holds nan; expected probabilities") as caught:
        Knowledge(CITIES, rules=[SHOWN])(np.array([0.5, np.nan, 0.1, 0.1]), PHOTO)
    assert caught.value.kind == "nan"


@pytest.mark.parametrize("arguments", [((), "r"), ("shows", "r"), ((1,), "r"), (("a",), None)])
def test_a_rule_needs_relations(arguments: Any):
    with pytest.raises(pn.OptionError, match="Rule: (body|head)="):
        Rule(*arguments)


@pytest.mark.slow
def test_a_rule_with_too_many_paths_is_an_error():
    dense = Graph([(a, "next", b) for a in range(65) for b in range(65)])
    facts = [(number, "start", other) for number in range(65) for other in range(65)]
    term = Knowledge(dense, rules=[Rule(("start", "next"), "end")])
    with pytest.raises(pn.OptionError, match="one with at most 250000 paths from the facts of a call"):
        term(np.full(len(facts), 0.5), facts)


def test_where_values_cannot_be_looked_at_logits_are_nan():
    term = Knowledge(CITIES, rules=[SHOWN])
    for wrong in (3.0, -1.0):
        assert np.isnan(term(jax.numpy.array([0.5, wrong, 0.1, 0.1]), PHOTO)[0])
    assert np.isfinite(term(jax.numpy.array([0.5, 1.0, 0.0, 0.1]), PHOTO)[0])


@pytest.mark.parametrize("facts", [[("France", "has", "Nice")], [("photo", "shows", "France")]])
def test_a_relation_that_is_declared_the_wrong_way_round_is_an_error(facts: Any):
    """Both as a fact and as the head of a rule."""
    base = Graph([("France", "has", "Lyon"), ("France", "has", "Paris"), ("photo", "has", "a"), ("photo", "has", "b")])
    term = Knowledge(base, functional=["has"], rules=[Rule(("shows", "has"), "has")])
    with pytest.raises(pn.OptionError, match='functional="has"; expected .*: the base has 2 for one, such as'):
        term(np.array([0.5]), facts)


def test_a_rule_with_a_relation_that_nobody_has_is_counted():
    rules = [SHOWN, Rule(("shows", "lies inn"), "taken in"), Rule(("shows", "lies in"), "taken inn")]
    value, metrics = Knowledge(CITIES, rules=rules)(np.array([0.7, 0.2, 0.4, 0.1]), PHOTO)
    assert metrics["idle"] == 2
    assert float(value) == float(Knowledge(CITIES, rules=[SHOWN])(np.array([0.7, 0.2, 0.4, 0.1]), PHOTO)[0])
