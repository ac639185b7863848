"""Rules: statements about named variables, written with `&`, `|`, `~` and `>>`."""

import keyword
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, cast

__all__ = ["RESERVED", "Connectives", "Joined", "Negated", "Rule", "Var"]

RESERVED: Final = tuple(keyword.kwlist)
"""Words of Python, which cannot be names."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Connectives(Generic[T]):
    """What `and`, `or` and `not` are for some kind of truth value; `a >> b` is `~a | b`."""

    both: Callable[[T, T], T]
    either: Callable[[T, T], T]
    negation: Callable[[T], T]


class Rule(ABC):
    """A statement about named variables. Build it from `Var` by `&` (and), `|` (or), `~` (not) and `>>` (if … then).

    `str(rule)` writes it with every parenthesis, and `parse` reads that again. `>>` binds more tightly than `&` and `|`
    in Python: write `(a & b) >> c`.

    >>> rain, umbrella, wet = Var("rain"), Var("umbrella"), Var("wet")
    >>> (rain & ~umbrella) >> wet
    (rain & ~umbrella) >> wet
    """

    __slots__ = ()

    @abstractmethod
    def evaluate(self, values: Mapping[str, T], connectives: Connectives[T]) -> T:
        """Its truth value, from those of the variables."""

    @property
    @abstractmethod
    def variables(self) -> tuple[str, ...]:
        """The names of its variables, in order of appearance, each once."""

    def __and__(self, other: "Rule") -> "Rule":
        """Both hold."""
        return Joined("&", self, other) if isinstance(cast("Any", other), Rule) else NotImplemented

    def __or__(self, other: "Rule") -> "Rule":
        """At least one holds."""
        return Joined("|", self, other) if isinstance(cast("Any", other), Rule) else NotImplemented

    def __rshift__(self, other: "Rule") -> "Rule":
        """If this holds, so does the other."""
        return Joined(">>", self, other) if isinstance(cast("Any", other), Rule) else NotImplemented

    def __invert__(self) -> "Rule":
        """It does not hold."""
        return Negated(self)

    def __bool__(self) -> bool:
        """Nothing that Python could know: `and`, `or`, `not` and `if` would silently drop half of a rule."""
        raise TypeError(f"the rule {self} is neither true nor false; write & | ~ instead of and, or, not")


@dataclass(frozen=True, slots=True, repr=False)
class Var(Rule):
    """A variable of rules, by its name, which is an identifier of Python.

    >>> a, b = Var("a"), Var("b")
    >>> (a >> b).variables
    ('a', 'b')
    """

    name: str

    def __post_init__(self) -> None:
        """Check the name: it has to be one that a rule in a string can have, too."""
        if not isinstance(cast("Any", self.name), str) or not self.name.isidentifier() or self.name in RESERVED:
            raise TypeError(f'Var: name={self.name!r}; expected an identifier, such as "rain"')

    def evaluate(self, values: Mapping[str, T], connectives: Connectives[T]) -> T:
        """The value of the variable."""
        return values[self.name]

    @property
    def variables(self) -> tuple[str, ...]:
        """The name."""
        return (self.name,)

    def __repr__(self) -> str:
        """The name."""
        return self.name


@dataclass(frozen=True, slots=True, repr=False)
class Negated(Rule):
    """What another rule is not."""

    inner: Rule

    def evaluate(self, values: Mapping[str, T], connectives: Connectives[T]) -> T:
        """The opposite."""
        return connectives.negation(self.inner.evaluate(values, connectives))

    @property
    def variables(self) -> tuple[str, ...]:
        """Those of the other rule."""
        return self.inner.variables

    def __repr__(self) -> str:
        """As in Python."""
        return f"~{_enclosed(self.inner)}"


@dataclass(frozen=True, slots=True, repr=False)
class Joined(Rule):
    """Two rules with a sign between them: `&`, `|` or `>>`."""

    sign: str
    left: Rule
    right: Rule

    def evaluate(self, values: Mapping[str, T], connectives: Connectives[T]) -> T:
        """What the sign makes of both."""
        left, right = self.left.evaluate(values, connectives), self.right.evaluate(values, connectives)
        if self.sign == "&":
            return connectives.both(left, right)
        return connectives.either(connectives.negation(left) if self.sign == ">>" else left, right)

    @property
    def variables(self) -> tuple[str, ...]:
        """Those of both."""
        return tuple(dict.fromkeys((*self.left.variables, *self.right.variables)))

    def __repr__(self) -> str:
        """As in Python, with every parenthesis."""
        return f"{_enclosed(self.left)} {self.sign} {_enclosed(self.right)}"


def _enclosed(rule: Rule) -> str:
    return f"({rule})" if isinstance(rule, Joined) else str(rule)
