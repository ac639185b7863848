"""Which of the facts and rules a base contradicts: everything about a call but the probabilities."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...errors import OptionError, did_you_mean
from .base import Thing
from .facts import Facts
from .lookups import Lookups
from .rules import Assumptions, Instance, Rule, instances

__all__ = ["NAME", "Plan", "made"]

NAME: Final = "Knowledge"
"""In errors."""


@dataclass(frozen=True)
class Plan:
    """What to add up: indices into the probabilities, after which stand a 1 and a 0."""

    contradicted: "np.ndarray[Any, Any]"
    """Facts that the base contradicts."""
    bodies: "np.ndarray[Any, Any]"
    """For each instance of a rule the facts that it needs; filled up with the 1."""
    heads: "np.ndarray[Any, Any]"
    """For each instance what then must hold; the 0 where that is known not to."""
    subjects: int
    checked: int
    """Facts that the base confirms or contradicts, and instances of rules."""
    unknown: int
    """Facts that the base says nothing about, and instances whose head is unknown."""
    idle: int
    """Rules that cannot be broken here: neither the base nor the facts have one of their relations."""
    hits: int
    queries: int


def made(
    facts: Facts,
    lookups: Lookups,
    relations: Collection[str],
    rules: Sequence[Rule],
    assumed: Assumptions,
) -> Plan:
    """Look up what the facts and rules need."""
    asked = lookups.of_call()
    candidates: dict[tuple[str, Thing], dict[Thing, int]] = {}
    by_relation: dict[str, dict[Thing, None]] = {}
    for index, (subject, relation, object_) in enumerate(facts):
        candidates.setdefault((relation, subject), {})[object_] = index
        by_relation.setdefault(relation, {})[subject] = None
    used = {*relations, *(rule.head for rule in rules), *(name for rule in rules for name in rule.body)}
    for relation, subjects in by_relation.items():
        if relation not in used:
            known = ", ".join(f'"{name}"' for name in sorted(used))
            expected = f"a relation of the base or a rule: {known}{did_you_mean(relation, used)}"
            raise OptionError(NAME, "relation", relation, expected)
        asked.ask(relation, subjects)

    contradicted: list[int] = []
    confirmed = unknown = 0
    for (relation, subject), objects in candidates.items():
        if relation not in relations:
            continue
        known = asked.objects(relation, subject)
        others = [index for object_, index in objects.items() if object_ not in known]
        confirmed += len(objects) - len(others)
        if assumed.contradict(relation, known):
            _check_types(relation, subject, objects, known)
            contradicted += others
        else:
            unknown += len(others)

    subjects = dict.fromkeys(subject for subject, _, _ in facts)
    found = [one for rule in rules for one in instances(rule, candidates, subjects, asked, assumed)]
    broken = sorted((one for one in found if one is not None), key=_order)
    there = {*relations, *by_relation}
    certain, impossible = len(facts), len(facts) + 1
    width = max((len(atoms) for atoms, _ in broken), default=0)
    bodies = [[*sorted(atoms), *[certain] * (width - len(atoms))] for atoms, _ in broken]
    return Plan(
        contradicted=np.array(contradicted, np.int64),
        bodies=np.array(bodies, np.int64).reshape(len(broken), width),
        heads=np.array([impossible if head is None else head for _, head in broken], np.int64),
        subjects=len(subjects),
        checked=confirmed + len(contradicted) + len(broken),
        unknown=unknown + len(found) - len(broken),
        idle=sum(not there.issuperset((*rule.body, rule.head)) for rule in rules),
        hits=asked.hits,
        queries=asked.queries,
    )


def _check_types(relation: str, subject: Thing, objects: Collection[Thing], known: Collection[Thing]) -> None:
    """Raise for an object that is one of the base's but for its type: what is right would count as wrong."""
    written = {str(one): one for one in known}
    for object_ in objects:
        there = written.get(str(object_))
        if there is not None and object_ not in known:
            expected = f"objects of the base's type: there it is the {type(there).__name__} {there!r}"
            raise OptionError(NAME, "facts", (subject, relation, object_), expected)


def _order(instance: Instance) -> tuple[tuple[int, ...], int]:
    """Sets of strings have another order in each process, and sums should be the same to the last bit."""
    atoms, head = instance
    return tuple(sorted(atoms)), -1 if head is None else head
