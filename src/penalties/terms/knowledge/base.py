"""What a knowledge base is to the terms here, and the smallest one: a graph in memory."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

from ...errors import OptionError
from ...pipeline.kinds import is_row

__all__ = ["Base", "Graph", "Thing", "Triple", "is_thing", "is_triple"]

Thing: TypeAlias = str | int
"""What a fact is about: a subject or an object, by its name or number."""

Triple: TypeAlias = tuple[Thing, str, Thing]
"""A fact: subject, relation, object."""


@runtime_checkable
class Base(Protocol):
    """A knowledge base: write these two for your own store.

    >>> from penalties.terms.knowledge import Base, Graph
    >>> isinstance(Graph([]), Base)
    True
    """

    @property
    def relations(self) -> Collection[str]:
        """The names of the relations that it has facts of."""
        ...

    def objects(self, relation: str, subjects: Collection[Thing]) -> Mapping[Thing, Collection[Thing]]:
        """For each of the subjects that the relation has facts about, its objects."""
        ...


class Graph:
    """Facts in memory: the edges of a graph, `(subject, relation, object)`.

    - `triples`: the facts. Subjects and objects are strings or whole numbers.

    >>> from penalties.terms.knowledge import Graph
    >>> base = Graph([("Paris", "capital of", "France"), ("Bern", "capital of", "Switzerland")])
    >>> base.objects("capital of", ["Paris", "Springfield"])
    {'Paris': frozenset({'France'})}
    """

    def __init__(self, triples: Iterable[Triple]) -> None:
        """Index the facts by relation and subject."""
        found: defaultdict[str, defaultdict[Thing, set[Thing]]] = defaultdict(lambda: defaultdict(set))
        for triple in triples:
            if not is_triple(triple):
                expected = "facts of the form (subject, relation, object), of strings and whole numbers"
                raise OptionError("Graph", "triples", triple, expected)
            subject, relation, object_ = triple
            found[relation][subject].add(object_)
        self._objects = {
            relation: {subject: frozenset(objects) for subject, objects in subjects.items()}
            for relation, subjects in found.items()
        }

    @property
    def relations(self) -> Collection[str]:
        """The names of the relations that it has facts of."""
        return self._objects.keys()

    def objects(self, relation: str, subjects: Collection[Thing]) -> dict[Thing, frozenset[Thing]]:
        """For each of the subjects that the relation has facts about, its objects."""
        known = self._objects.get(relation, {})
        return {subject: known[subject] for subject in subjects if subject in known}


def is_triple(value: Any) -> bool:
    """Whether this is a subject, a relation and an object."""
    if not is_row(value) or len(value) != 3:
        return False
    subject, relation, object_ = value
    return isinstance(relation, str) and is_thing(subject) and is_thing(object_)


def is_thing(value: Any) -> bool:
    """Whether this may be a subject or an object; True and False may not."""
    return isinstance(value, str | int) and not isinstance(value, bool)
