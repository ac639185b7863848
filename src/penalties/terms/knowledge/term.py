"""The term: the probability that a model assigns to what contradicts a knowledge base."""

import math
import threading
from collections.abc import Collection, Sequence
from typing import Any, Final, Literal, cast

import numpy as np

from ...arrays import Array
from ...backends import Backend, backend_of
from ...errors import NonFiniteError, OptionError, ShapeError, did_you_mean
from ...functional.options import POSITIVE, check_choice, check_count, check_number
from ...pipeline.kinds import described, is_row
from .base import Base, Triple
from .facts import Facts
from .lookups import Lookups, new_cache
from .plan import NAME, Plan, made
from .rules import Assumptions, Rule

__all__ = ["Knowledge"]

_MOST: Final = 1 + 1e-4
"""What rounding may make of a probability of 1."""

_PLANS: Final = 64
"""Lists of facts whose plan is kept."""


class Knowledge:
    """The expected number of contradictions between facts that a model believes and a knowledge base.

        Σ P(fact)                                  over facts that the base contradicts
        + Σ P(a₁)·…·P(aₙ)·(1 − P(head))            over instances of rules

    taking facts to be independent. A fact of a rule that the base has is certain. An instance whose head has no
    probability counts as broken where the base contradicts the head, or where the model has other candidates for it;
    elsewhere it is unknown, and does not count. The gradient is exact, and 0 for facts that nothing contradicts.

    A call reads `p`, probabilities of any shape, and `facts`, as many triples `(subject, relation, object)`: `Facts`,
    or a list, which is checked at each call.

    Metrics: `violated`, the contradictions that the model believes with more than ½; `checked` and `unknown`, how many
    facts and instances of rules could be decided and could not; `idle`, rules with a relation that neither the base nor
    the facts have; `hits`, lookups that the cache answered, and `queries`, those that the base did.

    - `base`: a `Graph`, a `Database`, or your own `Base`.
    - `functional`: relations with one object for each subject: another one than the base's is a contradiction. If the
      base has several, that is an error.
    - `closed`: relations of which the base has every fact: what it does not have is a contradiction.
    - `rules`: a `Rule` each, over relations of the base and of the model.
    - `reduction`: "sum", or "mean" over the subjects of the facts.
    - `cache`: subjects whose facts are kept, with the least recently used one dropped first.
    - `max_age`: seconds after which they are looked up again.

    >>> import numpy as np
    >>> from penalties.terms.knowledge import Graph, Knowledge
    >>> base = Graph([("Paris", "capital of", "France")])
    >>> term = Knowledge(base, functional=["capital of"])
    >>> facts = [("Paris", "capital of", "France"), ("Paris", "capital of", "Spain"), ("Oslo", "capital of", "Norway")]
    >>> value, metrics = term(np.array([0.7, 0.3, 0.6]), facts)
    >>> float(value), metrics["checked"], metrics["unknown"]
    (0.3, 2, 1)
    """

    name = "knowledge"

    def __init__(
        self,
        base: Base,
        *,
        functional: Collection[str] = (),
        closed: Collection[str] = (),
        rules: Sequence[Rule] = (),
        reduction: Literal["sum", "mean"] = "sum",
        cache: int = 65_536,
        max_age: float = math.inf,
    ) -> None:
        """Check the options; the base is not asked yet."""
        given: Any = base
        if not isinstance(given, Base):
            raise OptionError(NAME, "base", given, "a Graph, a Database, or an object with relations and objects()")
        self._base = base
        self._assumed = Assumptions(
            _relations("functional", functional, base.relations), _relations("closed", closed, base.relations)
        )
        if not is_row(rules) or not all(isinstance(rule, Rule) for rule in rules):
            raise OptionError(NAME, "rules", rules, "a list of Rule(body, head)")
        self._rules = tuple(rules)
        if not (self._rules or functional or closed):
            raise OptionError(
                NAME, "rules", rules, "at least one rule, functional or closed relation: nothing else can be wrong"
            )
        check_choice(NAME, "reduction", reduction, ("sum", "mean"))
        self._reduction = reduction
        check_count(NAME, "cache", cache, 1)
        self._size = cache
        if max_age != math.inf:
            max_age = check_number(NAME, "max_age", max_age, "seconds above 0", low=POSITIVE)
        self._max_age = max_age
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._lookups = Lookups(self._base, self._size, self._max_age)
        self._plans = new_cache(_PLANS, self._max_age)

    def __call__(self, p: Array, facts: Facts | Sequence[Triple]) -> tuple[Any, dict[str, Any]]:
        """The value and the metrics."""
        ops = backend_of(NAME, p=p)
        x = ops.upcast(NAME, p).reshape(-1)
        if ops.at_hand(x):
            _check_probabilities(x)
        else:
            x = x * ops.cast(ops.where((x < 0) | (x > _MOST), math.nan, 1.0), x)
        given = facts if isinstance(facts, Facts) else _facts(facts)
        if len(given) != x.shape[0]:
            raise ShapeError(f"{NAME}: {len(given)} facts and {x.shape[0]} probabilities; expected one for each fact")
        plan, kept = self._plan(given)
        x = ops.concatenate([x, ops.constant(np.array([1.0, 0.0]), x)])
        value = _violations(ops, x, plan)
        if self._reduction == "mean":
            value = value / max(plan.subjects, 1)
        believed = ops.cast(ops.stop_gradient(x) > 0.5, x)
        return value, {
            "violated": _violations(ops, believed, plan),
            "checked": plan.checked,
            "unknown": plan.unknown,
            "idle": plan.idle,
            "hits": plan.hits + plan.queries if kept else plan.hits,
            "queries": 0 if kept else plan.queries,
        }

    def forget(self) -> None:
        """Empty the cache, after the base was changed."""
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        """Without the cache: another process has its own."""
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_lookups", "_plans")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The same, with an empty cache."""
        self.__dict__.update(state)
        self._forget()

    def _plan(self, facts: Facts) -> tuple[Plan, bool]:
        """What to add up, and whether it was kept from before."""
        # These, also if `forget` replaces them meanwhile.
        lock, lookups, plans = self._lock, self._lookups, self._plans
        with lock:
            plan = plans.get(facts)
        if plan is not None:
            return plan, True
        plan = made(facts, lookups, self._base.relations, self._rules, self._assumed)
        if math.isinf(self._max_age) or not plan.hits:
            # Of answers that have an age already, it would be kept for longer than they may be.
            with lock:
                plans[facts] = plan
        return plan, False


def _facts(facts: Any) -> Facts:
    if not is_row(facts):
        raise OptionError(NAME, "facts", described(facts), "Facts, or a list of triples (subject, relation, object)")
    return Facts(facts)


def _relations(option: str, names: Any, known: Collection[str]) -> frozenset[str]:
    """Relations of the base, checked."""
    if isinstance(names, str) or not isinstance(names, Collection):
        raise OptionError(NAME, option, names, "a list of the names of relations")
    found = frozenset(cast("Collection[str]", names))
    for name in found - frozenset(known):
        there = ", ".join(f'"{one}"' for one in known) or "none"
        raise OptionError(NAME, option, name, f"a relation of the base: {there}{did_you_mean(name, known)}")
    return found


def _check_probabilities(x: Any) -> None:
    """Logits would give a number too."""
    wrong = ~((x >= 0) & (x <= _MOST))
    if wrong.any():
        worst = float(x[wrong][0])
        message = f"{NAME}: p holds {worst:g}; expected probabilities from 0 to 1, such as logits.softmax(-1)"
        raise (
            NonFiniteError.of(worst, message)
            if not math.isfinite(worst)
            else OptionError(NAME, "p", worst, "probabilities from 0 to 1, such as logits.softmax(-1)")
        )


def _violations(ops: Backend, x: Any, plan: Plan) -> Any:
    """The facts that are contradicted and the instances of rules that are broken, by their probabilities."""
    broken = 1 - ops.take(x, ops.constant(plan.heads, x))
    for column in plan.bodies.T:
        broken = broken * ops.take(x, ops.constant(column, x))
    return ops.sum(ops.take(x, ops.constant(plan.contradicted, x))) + ops.sum(broken)
