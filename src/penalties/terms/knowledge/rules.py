"""Rules along paths, and the instances of them that given facts can break."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ...errors import OptionError
from ...pipeline.kinds import is_row
from .base import Thing
from .lookups import Asked

__all__ = ["Assumptions", "Atoms", "Candidates", "Instance", "Rule", "instances"]

Atoms: TypeAlias = frozenset[int]
"""Facts of the model, by their index."""

Candidates: TypeAlias = Mapping[tuple[str, Thing], Mapping[Thing, int]]
"""By relation and subject: the objects that the model has a probability for, and the index of each fact."""

Instance: TypeAlias = tuple[Atoms, int | None]
"""What a rule says here: if all of the first facts hold, so must the second; None where that is known not to hold."""

_MOST: Final = 250_000
"""Paths of a rule in one call."""


@dataclass(frozen=True)
class Rule:
    """`r₁(x, y) ∧ r₂(y, z) ∧ … ⇒ r(x, z)`: whoever follows the relations of the body arrives where the head leads.

    - `body`: one relation or several, each from where the one before it arrives.
    - `head`: the relation that must then hold between the start and the end.

    >>> from penalties.terms.knowledge import Rule
    >>> print(Rule(("shows", "lies in"), "taken in"))
    shows(x, y) ∧ lies in(y, z) ⇒ taken in(x, z)
    """

    body: tuple[str, ...]
    head: str

    def __post_init__(self) -> None:
        """Check that all of them are names."""
        if not is_row(self.body) or not self.body or not all(isinstance(name, str) for name in self.body):
            raise OptionError("Rule", "body", self.body, "a tuple of the names of relations, at least one")
        head: Any = self.head
        if not isinstance(head, str):
            raise OptionError("Rule", "head", head, "the name of a relation")
        # A list from a config; rules are kept in sets.
        object.__setattr__(self, "body", tuple(self.body))

    def __str__(self) -> str:
        """As a formula."""
        places = ["x", *(f"y{number}" if len(self.body) > 2 else "y" for number in range(1, len(self.body))), "z"]
        atoms = [f"{name}({a}, {b})" for name, a, b in zip(self.body, places[:-1], places[1:], strict=True)]
        return f"{' ∧ '.join(atoms)} ⇒ {self.head}(x, z)"


@dataclass(frozen=True)
class Assumptions:
    """What follows from a base that does not have a fact.

    - `functional`: relations with one object for each subject: any other is wrong, once the base has one.
    - `closed`: relations of which the base has all facts: what it does not have is wrong.
    """

    functional: frozenset[str]
    closed: frozenset[str]

    def contradict(self, relation: str, known: frozenset[Thing]) -> bool:
        """Whether an object that is not among those that are known is wrong."""
        if relation in self.functional and len(known) > 1:
            shown = ", ".join(sorted(map(str, known))[:3])
            expected = (
                f"relations with one object for each subject: the base has {len(known)} for one, such as {shown}; "
                "turn it round, or declare it closed= instead, if the base has all of them"
            )
            raise OptionError("Knowledge", "functional", relation, expected)
        return relation in self.closed or (relation in self.functional and bool(known))


def instances(
    rule: Rule, candidates: Candidates, subjects: Collection[Thing], asked: Asked, assumed: Assumptions
) -> Iterator[Instance | None]:
    """What the rule says about the subjects, where the model can break it; None where that is unknown."""
    paths: dict[Thing, set[tuple[Thing, Atoms]]] = {subject: {(subject, frozenset())} for subject in subjects}
    for relation in rule.body:
        asked.ask(relation, {node for ends in paths.values() for node, _ in ends})
        paths = {
            subject: {
                (end, atoms | more) for node, atoms in ends for end, more in _next(relation, node, candidates, asked)
            }
            for subject, ends in paths.items()
        }
        if sum(map(len, paths.values())) > _MOST:
            expected = f"one with at most {_MOST} paths from the facts of a call: leave out unlikely facts"
            raise OptionError("Knowledge", "rule", str(rule), expected)
    asked.ask(rule.head, [subject for subject, ends in paths.items() if ends])
    for subject, ends in paths.items():
        known = asked.objects(rule.head, subject)
        own = candidates.get((rule.head, subject), {})
        for end, atoms in ends:
            head = own.get(end)
            if end in known or head in atoms:
                continue
            if head is None and not own and not assumed.contradict(rule.head, known):
                yield None
            elif atoms or head is not None:
                yield atoms, head


def _next(relation: str, node: Thing, candidates: Candidates, asked: Asked) -> Iterator[tuple[Thing, Atoms]]:
    """Where a relation leads: for certain by the base, or if a fact of the model holds."""
    known = asked.objects(relation, node)
    for end in known:
        yield end, frozenset()
    for end, index in candidates.get((relation, node), {}).items():
        if end not in known:
            yield end, frozenset((index,))
