"""What a base says about subjects, kept."""

import math
import threading
from collections.abc import Collection, Iterable
from typing import Any, Final

from ...training.libraries import library
from .base import Base, Thing

__all__ = ["Asked", "Lookups", "new_cache"]

_NONE: Final[frozenset[Thing]] = frozenset()


def new_cache(size: int, max_age: float) -> Any:
    """A mapping that drops what was least recently used, and what is older than `max_age` seconds."""
    cachetools = library("a cache of facts", "cachetools", extra="knowledge")
    return cachetools.LRUCache(size) if math.isinf(max_age) else cachetools.TTLCache(size, max_age)


class Lookups:
    """A base behind a cache of bounded size, by relation and subject: what was asked before is not asked again.

    Answers are kept for `max_age` seconds. Threads share it.
    """

    def __init__(self, base: Base, size: int, max_age: float) -> None:
        """An empty cache."""
        self._base = base
        self._relations = frozenset(base.relations)
        self._kept = new_cache(size, max_age)
        self._lock = threading.Lock()

    def of_call(self) -> "Asked":
        """Lookups of one call, which are counted."""
        return Asked(self)

    def find(self, relation: str, subjects: Collection[Thing]) -> tuple[dict[Thing, frozenset[Thing]], int]:
        """The objects of each subject, and how many of the answers were kept from before."""
        if relation not in self._relations:
            return {}, 0
        with self._lock:
            kept = {subject: self._kept.get((relation, subject)) for subject in subjects}
        found = {subject: objects for subject, objects in kept.items() if objects is not None}
        hits = len(found)
        missing = [subject for subject, objects in kept.items() if objects is None]
        if missing:
            # Not under the lock: it may take its time.
            answers = self._base.objects(relation, missing)
            new = {subject: frozenset(answers.get(subject, _NONE)) for subject in missing}
            with self._lock:
                for subject, objects in new.items():
                    self._kept[relation, subject] = objects
            found |= new
        return found, hits


class Asked:
    """What one call asked; within it nothing is asked twice."""

    def __init__(self, lookups: Lookups) -> None:
        """Nothing yet."""
        self._lookups = lookups
        self._found: dict[tuple[str, Thing], frozenset[Thing]] = {}
        self.hits: int = 0
        """Answers that the cache had."""
        self.queries: int = 0
        """Answers that came from the base."""

    def ask(self, relation: str, subjects: Iterable[Thing]) -> None:
        """Look up several subjects together."""
        missing = {subject for subject in subjects if (relation, subject) not in self._found}
        found, hits = self._lookups.find(relation, missing)
        self.hits += hits
        self.queries += len(found) - hits
        for subject, objects in found.items():
            self._found[relation, subject] = objects

    def objects(self, relation: str, subject: Thing) -> frozenset[Thing]:
        """What was asked before: the objects that the base has."""
        return self._found.get((relation, subject), _NONE)
