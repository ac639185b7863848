"""Rules that decisions satisfy or violate, decided by Z3."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from ...backends import Backend, backend_of, owner
from ...errors import BackendError, NonFiniteError, OptionError, ShapeError
from ...functional.options import POSITIVE, check_choice, check_number
from ...functional.penalty import strict_options
from ..probabilities import log_sigmoids
from .formulas import Kind, formulas
from .rules import Rule
from .solving import Finding, Row, Solver
from .truths import check_names

__all__ = ["explain", "hard_rules"]

_NAME = "hard_rules"

Rules = Mapping[str, Rule | str] | Iterable[Rule | str] | Callable[[Mapping[str, Any]], Mapping[str, Any]]


@strict_options
def hard_rules(
    scores: Any,
    facts: Mapping[str, Any] | None = None,
    *,
    rules: Rules,
    variables: Sequence[str],
    kind: Kind = "classes",
    loss: Literal["cross_entropy", "margin"] = "margin",
    contradictions: Literal["raise", "skip"] = "raise",
    seconds: float = 5.0,
    reduction: Literal["sum", "mean"] = "mean",
) -> tuple[Any, dict[str, Any]]:
    """How far decisions are from the nearest ones that satisfy all rules, which Z3 finds, and metrics.

    A row that satisfies all rules has value and gradient 0. In any other, each decision that has to change is pulled
    towards what it has to be; the nearest decisions themselves are held constant. It looks at values, so it works
    outside of `jax.jit` and `torch.compile` only. Z3 may take forever: give the term `runs="process"` and a `timeout`.

    Metrics: `satisfied`, the fraction of rows that satisfy all rules; `violated` and `changed`, how many rules a row
    violates and how many of its decisions have to change; `core`, how many names are in the unsat core of a row that
    violates any; `violated/NAME` and `core/NAME`, in which fraction of rows; `contradictions`, the fraction of rows
    that nothing satisfies.

    - `scores`: what is decided by. For "classes" logits or log-probabilities, (…, variables, classes); for "booleans"
      log-odds, and for "numbers" the numbers, (…, variables).
    - `facts`: `{name: array}`, whole numbers or flags that are known of each row, (…).
    - `rules`: `{name: rule}` or a list. A rule is a string, such as `"10 * tens + ones == total"`, or a `Rule`. Or a
      function from `{name: variable of Z3}` to `{name: formula of Z3}`.
    - `variables`: the names of the decisions.
    - `kind`: what is decided: "classes" takes the largest score, as a number from 0, "booleans" whether a score is
      above 0, and "numbers" the nearest whole number.
    - `loss`: "margin" is the difference of scores, which the nearest decisions minimise, or the distance of numbers.
      "cross_entropy" is minus the log-probability of what has to be. Both are sums over the decisions that change.
    - `contradictions`: "raise", or "skip" to count a row that nothing satisfies as 0.
    - `seconds`: how long Z3 may think about each question. Without an answer there is an `UndecidedError`.
    - `reduction`: "mean" or "sum" over the rows.

    >>> import numpy as np
    >>> scores = np.array([[[0.1, 0.0, 2.0], [0.0, 1.0, 0.7]]])
    >>> value, metrics = hard_rules(scores, rules={"sum": "a + b == 2"}, variables=["a", "b"])
    >>> float(value), metrics["violated/sum"], metrics["core/a"]
    (1.0, 1.0, 1.0)
    """
    check_choice(_NAME, "loss", loss, ("cross_entropy", "margin"))
    check_choice(_NAME, "contradictions", contradictions, ("raise", "skip"))
    check_choice(_NAME, "reduction", reduction, ("sum", "mean"))
    if kind == "numbers" and loss != "margin":
        raise OptionError(_NAME, "loss", loss, '"margin" with kind="numbers", which have no probabilities')
    asked = _ask(scores, facts, rules, variables, kind, seconds, contradictions)
    value = _value(asked, kind, loss)
    if reduction == "mean":
        value = value / max(len(asked.findings), 1)
    return value, _metrics(asked)


@strict_options
def explain(
    scores: Any,
    facts: Mapping[str, Any] | None = None,
    *,
    rules: Rules,
    variables: Sequence[str],
    kind: Kind = "classes",
    seconds: float = 5.0,
) -> list[Finding]:
    """What is wrong with each row of decisions, by name: rules violated, the unsat core, the nearest decisions.

    The arguments are those of `hard_rules`. Of a row that nothing satisfies, the core has rules alone.

    >>> import numpy as np
    >>> (row,) = explain(np.array([[1.4, 3.2]]), rules=["a == b", "a <= 9"], variables=["a", "b"], kind="numbers")
    >>> row.violated, row.core, row.nearest["a"] == row.nearest["b"]
    (('a == b',), ('a == b', 'a', 'b'), True)
    """
    return _ask(scores, facts, rules, variables, kind, seconds, "skip").findings


class _Asked(NamedTuple):
    """Rows of decisions, and what Z3 found out about each."""

    ops: Backend
    scores: Any
    """(rows, variables, …)."""
    findings: list[Finding]
    names: tuple[str, ...]
    rules: tuple[str, ...]


def _ask(scores: Any, facts: Any, rules: Any, variables: Any, kind: Any, seconds: Any, contradictions: str) -> _Asked:
    check_choice(_NAME, "kind", kind, ("classes", "booleans", "numbers"))
    seconds = check_number(_NAME, "seconds", seconds, "seconds above 0, up to 3600", low=POSITIVE, high=3600.0)
    names = check_names(_NAME, "variables", variables)
    ops = backend_of(_NAME, scores=scores)
    own = 2 if kind == "classes" else 1
    shape = tuple(scores.shape)
    if len(shape) < own or shape[len(shape) - own] != len(names) or (own == 2 and not shape[-1]):
        wanted = f"(…, {len(names)}, classes)" if own == 2 else f"(…, {len(names)})"
        raise ShapeError(f"{_NAME}: scores has shape {shape}; expected {wanted}, as there are variables")
    x = ops.upcast(_NAME, scores)
    lead = shape[: len(shape) - own]
    count = int(np.prod(lead))
    x = x.reshape(count, *shape[len(shape) - own :])
    fixed = ops.stop_gradient(x)
    if ops.tracing(fixed):
        raise BackendError(
            f"{_NAME}: values cannot be looked at inside jax.jit, torch.compile or torch.func; call it outside, "
            'as an executor does with runs="process"'
        )
    table = np.asarray(ops.read([fixed])[0], np.float64).reshape(count, *shape[len(shape) - own :])
    # A class of −inf is one that cannot be.
    wrong = table[~(np.isfinite(table) | ((table == -np.inf) & (kind == "classes")))]
    if wrong.size:
        raise NonFiniteError.of(float(wrong[0]), f"{_NAME}: scores has {wrong.size} values that are not finite")
    known = _known(facts, lead, names)
    given = formulas(kind, names, table.shape[-1], {n: v.dtype == bool for n, v in known.items()}, rules)
    solver = Solver(given, kind, seconds)
    find = solver.find if contradictions == "skip" else solver.nearest_or_raise
    findings: list[Finding] = []
    for number, row in enumerate(table):
        decisions, prices = _decided(kind, row)
        of_row = {name: values[number].item() for name, values in known.items()}
        findings.append(find(Row(number, decisions, prices, of_row)))
    return _Asked(ops, x, findings, names, tuple(given.rules))


def _known(facts: Any, lead: tuple[int, ...], names: tuple[str, ...]) -> dict[str, Any]:
    if facts is None:
        return {}
    if not isinstance(facts, Mapping) or not all(isinstance(n, str) and n.isidentifier() for n in cast("Any", facts)):
        raise OptionError(_NAME, "facts", cast("Any", facts), "{name: whole numbers or flags}, one for each row")
    found: dict[str, Any] = {}
    for name, values in cast("Mapping[str, Any]", facts).items():
        if name in names:
            raise OptionError(_NAME, "facts", name, "names other than those of the variables")
        ops = owner(values)
        fixed = values if ops is None else ops.stop_gradient(values)
        array = np.asarray(fixed if ops is None else ops.read([fixed])[0])
        if array.dtype.kind not in "iub" and array.size:
            raise OptionError(_NAME, f"facts[{name!r}]", array.dtype.name, "whole numbers or flags")
        if array.shape != lead:
            raise ShapeError(f"{_NAME}: facts[{name!r}] has shape {array.shape}; expected {lead}, one for each row")
        found[name] = array.reshape(-1)
    return found


def _decided(kind: str, row: Any) -> tuple[list[Any], Any]:
    """What a row of scores decides, and what other decisions would cost."""
    if kind == "classes":
        return row.argmax(-1).tolist(), row.max(-1, keepdims=True) - row
    if kind == "booleans":
        return (row > 0).tolist(), np.abs(row)
    return [int(number) for number in np.rint(row)], row


def _value(asked: _Asked, kind: str, loss: str) -> Any:
    """The sum over all rows of what pulls decisions to the nearest ones that satisfy the rules."""
    ops, x = asked.ops, asked.scores
    wanted = np.array([list((row.nearest or row.decisions).values()) for row in asked.findings])
    decided = np.array([list(row.decisions.values()) for row in asked.findings])
    wanted, decided = (table.reshape(len(asked.findings), len(asked.names)) for table in (wanted, decided))
    changed = ops.constant(wanted != decided, x)
    if kind == "numbers":
        return ops.sum(ops.where(changed, ops.abs(x - ops.constant(wanted.astype(np.float64), x)), 0.0))
    if kind == "booleans":
        signed = x * ops.constant(np.where(wanted, 1.0, -1.0), x)
        if loss == "margin":
            return ops.sum(ops.where(changed, -signed, 0.0))
        return ops.sum(ops.where(changed, -log_sigmoids(ops, signed)[..., 0], 0.0))
    logits = ops.log_softmax(x) if loss == "cross_entropy" else x
    right = ops.take_along(logits, ops.constant(wanted.astype(np.int64), x)[..., None])[..., 0]
    taken = 0.0
    if loss == "margin":
        taken = ops.take_along(logits, ops.constant(decided.astype(np.int64), x)[..., None])[..., 0]
    return ops.sum(ops.where(changed, taken - right, 0.0))


def _metrics(asked: _Asked) -> dict[str, Any]:
    rows = asked.findings
    size = max(len(rows), 1)
    wrong = [row for row in rows if row.violated]
    solved = [row for row in wrong if row.nearest is not None]
    changes = sum(1 for row in solved for name, value in (row.nearest or {}).items() if value != row.decisions[name])
    metrics: dict[str, Any] = {
        "satisfied": 1 - len(wrong) / size,
        "violated": sum(len(row.violated) for row in wrong) / size,
        "changed": changes / size,
        "core": sum(len(row.core) for row in wrong) / max(len(wrong), 1),
        "contradictions": (len(wrong) - len(solved)) / size,
    }
    for name in asked.rules:
        metrics[f"violated/{name}"] = sum(name in row.violated for row in wrong) / size
    for name in (*asked.rules, *asked.names):
        metrics[f"core/{name}"] = sum(name in row.core for row in wrong) / size
    return metrics
