"""Sentences in which names are marked, so that a page can colour them."""

from collections.abc import Sequence
from typing import Final, TypeAlias

__all__ = ["Name", "RunName", "Sentence", "clauses", "listed", "plain", "short", "some"]

_SPACES: Final = str.maketrans("\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}", "  ")


class Name(str):
    """The name of a term, which a page shows in its colour."""

    __slots__ = ()
    of: str = "term"


class RunName(Name):
    """The name of a run."""

    __slots__ = ()
    of: str = "run"


Sentence: TypeAlias = tuple[str, ...]
"""Pieces to be joined; names are instances of `Name`."""


def plain(sentence: Sentence) -> str:
    """The text without markup, with ordinary spaces.

    >>> plain((Name("kl"), " failed"))
    'kl failed'
    """
    return "".join(sentence).translate(_SPACES)


def listed(items: Sequence[Sentence | str]) -> Sentence:
    """Items as a list in a sentence.

    >>> plain(listed([Name("kl"), Name("l1"), Name("l2")]))
    'kl, l1 and l2'
    """
    pieces: list[str] = []
    for index, item in enumerate(items):
        if index:
            pieces.append(" and " if index == len(items) - 1 else ", ")
        pieces += [item] if isinstance(item, str) else item
    return tuple(pieces)


def some(names: Sequence[str], most: int = 4) -> Sentence:
    """Names as a list; if there are many, the first few and the number of others.

    >>> plain(some([Name("a"), Name("b"), Name("c"), Name("d")], most=3))
    'a, b and 2 others'
    """
    if len(names) <= most:
        return listed(names)
    return listed([*names[: most - 1], f"{len(names) - most + 1} others"])


def clauses(parts: Sequence[Sentence]) -> Sentence:
    """Several clauses as one sentence, without its full stop.

    >>> plain(clauses([("no single term led",), (Name("kl"), " and ", Name("l1"), " fought")]))
    'No single term led; kl and l1 fought'
    """
    pieces = [piece for part in parts for piece in ("; ", *part)][1:]
    if not isinstance(pieces[0], Name):
        pieces[0] = pieces[0][:1].upper() + pieces[0][1:]
    return tuple(pieces)


def short(name: str, most: int = 28) -> str:
    """A name of at most this many characters, cut in the middle: names that start alike often end differently.

    >>> short("penalty_of_the_first_layer_norm", 15)
    'penalty…er_norm'
    """
    if len(name) <= most:
        return str(name)
    head = most // 2
    return f"{name[:head]}…{name[head + 1 - most :]}"
