"""A run as `pn.explain` sees one call: its usual gradients and cosines, explained with the same thresholds."""

import dataclasses

import numpy as np

from ....pipeline.explanation import Finding, Kind, explain
from ....pipeline.output import BASE, LossOutput, TermOutput
from ..runlog import RunLog, TermLog
from ..summary import Summary

__all__ = ["explained", "usual"]


def explained(run: RunLog, summary: Summary) -> dict[Kind, list[Finding]]:
    """What `pn.explain` finds in a call with the usual numbers of this run, by kind.

    Terms that never ran are left out, and so are the gradients that were measured at other inputs than most.
    """
    rows = [_row(term, summary) for name, term in run.terms.items() if summary.terms[name].ran]
    base = next((row for row in rows if row.name == BASE), None)
    out = LossOutput.of([row for row in rows if row is not base], base=base)
    means = {(pair.first, pair.second): pair.mean for pair in summary.pairs}
    if means and rows:
        names = out.names
        matrix = [[means.get((a, b), means.get((b, a), 0.0)) for b in names] for a in names]
        out = dataclasses.replace(out, cosines=matrix)
    found: dict[Kind, list[Finding]] = {}
    for finding in explain(out).findings:
        found.setdefault(finding.kind, []).append(finding)
    return found


def usual(term: TermLog) -> float | None:
    """The usual norm of a term's weighted gradient: its median, or its mean if it is mostly 0; None if not measured."""
    pulls = term.pull.finite.values
    if not len(pulls):
        return None
    return float(np.median(pulls)) or float(pulls.mean())


def _row(term: TermLog, summary: Summary) -> TermOutput:
    norm = None if summary.terms[term.name].inputs else usual(term)
    # Of the contribution, so that signs which alternate do not cancel out.
    added = np.abs(term.contribution.finite.values)
    value = float(added.mean()) if len(added) else 0.0
    weight = 1.0 if term.name == BASE or np.any(term.weight.values) else 0.0
    reason = term.grad_error if norm is None else None
    return TermOutput(term.name, value, weight, norm, reason)
