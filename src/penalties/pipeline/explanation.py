"""Which terms drive training, which conflict, and which do nothing."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast

from ..errors import OptionError
from ..functional.options import check_number
from .output import LossOutput, TermOutput
from .output.rendering import shares as shares_of
from .table import Table

__all__ = [
    "CONFLICT",
    "DOMINANCE",
    "EXPLOSION",
    "EXPLOSION_RATIO",
    "Explanation",
    "Finding",
    "Kind",
    "Share",
    "check_thresholds",
    "explain",
]

Kind: TypeAlias = Literal["dominates", "conflicts", "does nothing", "explodes", "failed", "no gradient"]
"""What a finding says about its terms."""

DOMINANCE: Final = 100.0
"""A term dominates another when its weighted gradient, or contribution, is more than this many times as large."""

CONFLICT: Final = -0.3
"""Two terms conflict when the cosine between their gradients is below this."""

EXPLOSION: Final = 100.0
"""The gradient of the total explodes when it is longer than this."""

EXPLOSION_RATIO: Final = 100.0
"""Over a run, it exploded when it was at least this many times as long as usual."""


@dataclass(frozen=True, slots=True)
class Share:
    """One term's part of the whole. Shares are of sums of magnitudes, so that opposite signs do not cancel out."""

    name: str
    value: float | None
    weight: float
    contribution: float | None
    loss_share: float | None
    grad_norm_weighted: float | None
    grad_share: float | None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth knowing, and the terms it is about."""

    kind: Kind
    terms: tuple[str, ...]
    message: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Each term's share of the loss and of the gradient, and the findings, most urgent first. `str()` is a table.

    >>> import torch
    >>> import penalties as pn
    >>> pipeline = pn.Pipeline([pn.Term(pn.l1, weight=1e-3), pn.Term(pn.l2)])
    >>> print(pn.explain(pipeline.value_and_grad(torch.tensor([1.0, 2.0, 3.0]), wrt="input")))
    total 14.006, gradient 7.48492
    term  contribution  of the loss  gradient  of the gradient
    l1    0.006         0.0 %        0.00173   0.0 %
    l2    14            100.0 %      7.48      100.0 %
    l2 dominates l1: its gradient is 4320 times as long
    """

    total: float
    total_grad_norm: float | None
    shares: tuple[Share, ...]
    findings: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        """Nested plain data."""
        plain = dataclasses.asdict(self)
        plain["shares"] = {share.pop("name"): share for share in plain["shares"]}
        plain["findings"] = [{**finding, "terms": list(finding["terms"])} for finding in plain["findings"]]
        return plain

    def __str__(self) -> str:
        """A table, and a line for each finding."""
        return self._table().text(indent="")

    def _repr_html_(self) -> str:
        """The same in a notebook."""
        return self._table().html()

    def _table(self) -> Table:
        norm = "" if self.total_grad_norm is None else f", gradient {self.total_grad_norm:.6g}"
        tracked = any(share.grad_norm_weighted is not None for share in self.shares)
        header = ["term", "contribution", "of the loss", *(["gradient", "of the gradient"] if tracked else [])]
        lines = [
            [
                share.name,
                _short(share.contribution, ".6g"),
                _percent(share.loss_share),
                *([_short(share.grad_norm_weighted, ".3g"), _percent(share.grad_share)] if tracked else []),
            ]
            for share in self.shares
        ]
        return Table(f"total {self.total:.6g}{norm}", header, lines, [finding.message for finding in self.findings])


def _short(number: float | None, form: str) -> str:
    return "-" if number is None else format(number, form)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def explain(
    out: LossOutput,
    *,
    dominance: float = DOMINANCE,
    conflict: float = CONFLICT,
    explosion: float = EXPLOSION,
) -> Explanation:
    """Each term's share of the loss and of the gradient, and which terms dominate, conflict, do nothing or explode.

    A term dominates another when its weighted gradient is more than `dominance` times as long (without gradients: when
    its contribution is that much larger). Two conflict when the cosine between their gradients is below `conflict`. A
    term does nothing when its weight or its gradient is 0. The objective explodes when the total's gradient is longer
    than `explosion`, or when anything is not finite. Gradients are those of `out`, from `value_and_grad` or
    `gradients.track`.

    >>> import numpy as np
    >>> import penalties as pn
    >>> explained = pn.explain(pn.Pipeline([pn.Term(pn.l1, weight=0), pn.Term(pn.l2)])(np.ones(3)))
    >>> [share.loss_share for share in explained.shares], explained.findings[0].message
    ([0.0, 1.0], 'l1 does nothing: its weight is 0')
    """
    if not isinstance(cast("object", out), LossOutput):
        raise OptionError("explain", "out", type(out).__name__, "the output of a pipeline")
    check_thresholds("explain", dominance=dominance, conflict=conflict, explosion=explosion)
    plain = out.read()
    rows = [*([plain.base] if plain.base is not None else []), *plain]
    loss = shares_of([row.contribution for row in rows])
    norms = [None if row.grad_norm_weighted is None else abs(row.grad_norm_weighted) for row in rows]
    gradient = shares_of(norms)
    shares = tuple(
        Share(row.name, row.value, row.weight, row.contribution, of_loss, size, of_gradient)
        for row, of_loss, size, of_gradient in zip(rows, loss, norms, gradient, strict=True)
    )
    findings = [
        *_failures(rows),
        *_explosions(plain, rows, explosion),
        *_conflicts(plain, conflict),
        *_dominance(rows, norms, dominance),
        *_idle(rows),
    ]
    return Explanation(plain.total, plain.total_grad_norm, shares, tuple(findings))


_THRESHOLDS: Final[dict[str, tuple[str, float, float]]] = {
    "dominance": ("a number of at least 1", 1.0, math.inf),
    "conflict": ("a number from -1 to 0", -1.0, 0.0),
    "explosion": ("a number above 0", math.ulp(0.0), math.inf),
}


def check_thresholds(function: str, **thresholds: float) -> None:
    """Raise for a threshold that is out of range."""
    for name, value in thresholds.items():
        expected, low, high = _THRESHOLDS[name]
        check_number(function, name, value, expected, low=low, high=high)


def _failures(rows: Sequence[TermOutput]) -> list[Finding]:
    failed = [Finding("failed", (row.name,), f"{row.name} was skipped: {row.error}") for row in rows if row.error]
    return failed + [
        Finding("no gradient", (row.name,), f"{row.name} has no gradient here: {row.grad_error}")
        for row in rows
        if row.grad_error
    ]


def _explosions(plain: LossOutput, rows: Sequence[TermOutput], most: float) -> list[Finding]:
    found: list[Finding] = []
    for row in rows:
        for what, number in (("value", row.value), ("gradient", row.grad_norm)):
            if number is not None and not math.isfinite(number):
                found.append(Finding("explodes", (row.name,), f"{row.name} explodes: its {what} is {number:g}"))
                break
    norm = plain.total_grad_norm
    if norm is not None and math.isfinite(norm) and norm > most:
        sizes = {row.name: abs(row.grad_norm_weighted) for row in rows if row.grad_norm_weighted is not None}
        worst = max(sizes, key=lambda name: sizes[name])
        message = f"the gradient explodes: its length is {norm:.3g}, most of it from {worst}"
        found.append(Finding("explodes", (worst,), message))
    return found


def _conflicts(plain: LossOutput, least: float) -> list[Finding]:
    found: list[Finding] = []
    if plain.cosines is None:
        return found
    names = plain.names
    pairs = [(plain.cosines[i][j], names[i], names[j]) for i in range(len(names)) for j in range(i + 1, len(names))]
    for cosine, first, second in sorted((pair for pair in pairs if pair[0] < least), key=lambda pair: pair[0]):
        message = f"{first} and {second} conflict: the cosine between their gradients is {cosine:.2f}"
        found.append(Finding("conflicts", (first, second), message))
    return found


def _dominance(rows: Sequence[TermOutput], norms: Sequence[float | None], times: float) -> list[Finding]:
    tracked = any(norm is not None for norm in norms)
    sizes = norms if tracked else [None if row.contribution is None else abs(row.contribution) for row in rows]
    counted = [(size, row.name) for row, size in zip(rows, sizes, strict=True) if size and math.isfinite(size)]
    if not counted:
        return []
    largest, first = max(counted)
    small = [(size, name) for size, name in counted if largest > times * size]
    if not small:
        return []
    what = "gradient is {} times as long" if tracked else "contribution is {} times as large"
    names = tuple(name for _, name in small)
    ratio = f"{largest / max(small)[0]:.0f}" if len(small) == 1 else f"at least {largest / max(small)[0]:.0f}"
    return [Finding("dominates", (first, *names), f"{first} dominates {_listed(names)}: its {what.format(ratio)}")]


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _idle(rows: Sequence[TermOutput]) -> list[Finding]:
    found: list[Finding] = []
    for row in rows:
        if row.value is not None and row.weight == 0:
            found.append(Finding("does nothing", (row.name,), f"{row.name} does nothing: its weight is 0"))
        elif row.grad_norm is not None and row.grad_norm == 0:
            found.append(Finding("does nothing", (row.name,), f"{row.name} does nothing: its gradient is 0"))
    return found
