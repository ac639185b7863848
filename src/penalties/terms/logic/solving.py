"""Rows of decisions, one after another: which rules they violate, why, and the nearest ones that violate none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from .errors import ContradictionError, UndecidedError
from .formulas import Formulas, solver_library

__all__ = ["Finding", "Row", "Solver"]

_DIGITS: Final = 6
"""Prices are rounded to so many digits after the point, relative to the largest of their row."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What Z3 found out about one row of decisions."""

    decisions: Mapping[str, Any]
    violated: tuple[str, ...]
    """The names of the rules that do not hold; empty where all do."""
    core: tuple[str, ...]
    """Names of rules and decisions that exclude one another, as few as Z3 can do with."""
    nearest: Mapping[str, Any] | None
    """The decisions of the lowest price that satisfy all rules; None where there are none."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of decisions."""

    number: int
    decisions: Sequence[Any]
    """Whole numbers, or flags."""
    prices: Any
    """What it costs to decide otherwise: for each class; for a flag; for a number the number itself, not rounded."""
    facts: Mapping[str, Any]


class Solver:
    """The rules of a call, ready to be asked about rows."""

    def __init__(self, formulas: Formulas, kind: str, seconds: float) -> None:
        """Hand over all that rows share."""
        self._z3 = solver_library()
        self._formulas = formulas
        self._kind = kind
        self._seconds = seconds
        self._rules = {name: self._z3.Bool(f"rule {name}", formulas.context) for name in formulas.rules}
        self._solver = self._z3.Solver(ctx=formulas.context)
        self._solver.set(timeout=self._milliseconds)
        self._solver.set("core.minimize", True)
        self._solver.add(formulas.domain)
        for name, formula in formulas.rules.items():
            self._solver.add(self._z3.Implies(self._rules[name], formula))

    @property
    def _milliseconds(self) -> int:
        return max(1, round(1000 * self._seconds))

    def find(self, row: Row) -> Finding:
        """What is to be said of a row. Raises where Z3 does not know."""
        z3, given = self._z3, self._formulas
        names = list(given.variables)
        decisions = dict(zip(names, row.decisions, strict=True))
        known = [(given.facts[name], self._value(value)) for name, value in row.facts.items()]
        decided = [(given.variables[name], self._value(value)) for name, value in decisions.items()]
        violated = tuple(name for name, rule in given.rules.items() if not self._holds(row, rule, known + decided))
        if not violated:
            return Finding(decisions, (), (), decisions)
        self._solver.push()
        try:
            self._solver.add([variable == value for variable, value in known])
            nearest = self._nearest(row, known)
            labels = {str(rule): name for name, rule in self._rules.items()}
            if nearest is not None:
                # Rules that can hold: what excludes them is among the decisions.
                for (variable, value), name in zip(decided, names, strict=True):
                    label = z3.Bool(f"decision {name}", given.context)
                    self._solver.add(z3.Implies(label, variable == value))
                    labels[str(label)] = name
            self._ask(row, self._solver, [z3.Bool(label, given.context) for label in labels])
            found = {labels[label.decl().name()] for label in self._solver.unsat_core()}
        finally:
            self._solver.pop()
        core = tuple(name for name in labels.values() if name in found)
        return Finding(decisions, violated, core, None if nearest is None else dict(zip(names, nearest, strict=True)))

    def nearest_or_raise(self, row: Row) -> Finding:
        """What is to be said of a row for which there has to be a solution."""
        finding = self.find(row)
        if finding.nearest is None:
            raise ContradictionError(row.number, finding.core)
        return finding

    def _value(self, value: Any) -> Any:
        if isinstance(value, bool):
            return self._z3.BoolVal(value, self._formulas.context)
        return self._z3.IntVal(int(value), self._formulas.context)

    def _holds(self, row: Row, rule: Any, values: Sequence[tuple[Any, Any]]) -> bool:
        z3 = self._z3
        said = z3.simplify(z3.substitute(rule, *values)) if values else z3.simplify(rule)
        if z3.is_true(said) or z3.is_false(said):
            return bool(z3.is_true(said))
        # Quantifiers, which a function may have made.
        solver = z3.Solver(ctx=self._formulas.context)
        solver.set(timeout=self._milliseconds)
        solver.add(said)
        return self._ask(row, solver, [])

    def _ask(self, row: Row, solver: Any, assumptions: Sequence[Any]) -> bool:
        verdict = solver.check(*assumptions)
        if verdict == self._z3.unknown:
            raise UndecidedError(row.number, solver.reason_unknown(), self._seconds)
        return bool(verdict == self._z3.sat)

    def _nearest(self, row: Row, known: Sequence[tuple[Any, Any]]) -> list[Any] | None:
        """The decisions of the lowest price that satisfy all rules, if there are any."""
        z3, given = self._z3, self._formulas
        optimizer = z3.Optimize(ctx=given.context)
        # Twice as fast as the default on rules of a few variables.
        optimizer.set(maxsat_engine="wmax", timeout=self._milliseconds)
        optimizer.add(given.domain)
        optimizer.add([variable == value for variable, value in known])
        optimizer.add(list(given.rules.values()))
        variables = list(given.variables.values())
        prices = np.asarray(row.prices, np.float64)
        if self._kind == "numbers":
            whole = [z3.RealVal(f"{price:.{_DIGITS}f}", given.context) for price in prices]
            gaps = [z3.ToReal(variable) - price for variable, price in zip(variables, whole, strict=True)]
            optimizer.minimize(z3.Sum([z3.If(gap >= 0, gap, -gap) for gap in gaps]))
        else:
            largest = prices.max(initial=0.0, where=np.isfinite(prices)) or 1.0
            # What is impossible costs more than all else together.
            relative = np.where(np.isfinite(prices), prices / largest, float(prices.size + 1))
            for variable, decision, costs in zip(variables, row.decisions, relative, strict=True):
                if self._kind == "booleans":
                    wishes = [(variable == self._value(decision), costs)]
                else:
                    wishes = [(variable != option, cost) for option, cost in enumerate(costs)]
                for wish, cost in wishes:
                    if (weight := f"{cost:.{_DIGITS}f}").strip("0."):
                        optimizer.add_soft(wish, weight)
        if not self._ask(row, optimizer, []):
            return None
        model = optimizer.model()
        values = [model.eval(variable, model_completion=True) for variable in variables]
        return [z3.is_true(value) if self._kind == "booleans" else value.as_long() for value in values]
