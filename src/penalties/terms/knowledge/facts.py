"""Facts that a model has probabilities for."""

from collections.abc import Iterable, Iterator
from typing import Any

from ...errors import OptionError
from ...pipeline.kinds import is_row
from .base import Triple, is_triple

__all__ = ["Facts"]


class Facts:
    """Facts, checked once: for a list that is used again at each step, since checking a long one takes milliseconds.

    - `triples`: facts of the form `(subject, relation, object)`, each once.

    >>> from penalties.terms.knowledge import Facts
    >>> photos, cities = range(2), ["Lyon", "Bern"]
    >>> facts = Facts((photo, "shows", city) for photo in photos for city in cities)
    >>> len(facts), facts == Facts(list(facts))
    (4, True)
    """

    __slots__ = ("_hash", "_triples")

    def __init__(self, triples: Iterable[Triple]) -> None:
        """Check the facts."""
        # By lists in lists too, as JSON and configs have them.
        given: list[Any] = list(triples)
        found = tuple(tuple(fact) if is_row(fact) else fact for fact in given)
        for number, fact in enumerate(found):
            if not is_triple(fact):
                expected = "a triple (subject, relation, object) of strings and whole numbers"
                raise OptionError("Knowledge", f"facts[{number}]", fact, expected)
        if len(set(found)) < len(found):
            twice = next(fact for number, fact in enumerate(found) if fact in found[:number])
            raise OptionError("Knowledge", "facts", twice, "each fact once, with one probability")
        self._triples: tuple[Triple, ...] = found
        self._hash = hash(found)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._triples)

    def __iter__(self) -> Iterator[Triple]:
        """One after another."""
        return iter(self._triples)

    def __eq__(self, other: object) -> bool:
        """The same facts in the same order."""
        return self is other or (isinstance(other, Facts) and self._triples == other._triples)

    def __hash__(self) -> int:
        """Computed once."""
        return self._hash

    def __reduce__(self) -> tuple[type["Facts"], tuple[list[Triple]]]:
        """Without the hash: strings have another one in each process."""
        return Facts, (list(self._triples),)
