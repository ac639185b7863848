"""Warnings during training: terms that dominate, conflict or fail, each reported once rather than at every step."""

from collections.abc import Mapping
from typing import Any, Final

from ...pipeline.explanation import Finding, explain
from ...pipeline.output import LossOutput

__all__ = ["Findings"]

_PATIENCE: Final = {"failed": 1, "dominates": 3, "conflicts": 3}
"""The kinds that are reported, and how many times in a row one must be seen: a batch or two say little.

An explosion is not among them: the length of a gradient depends on the tokens of a batch.
"""
_AGAIN: Final = 200
"""Steps of absence after which a finding is reported again."""


class Findings:
    """The findings so far, so that each is reported when it starts, and again only after a long absence.

    >>> from penalties import TermOutput
    >>> out = LossOutput.of([TermOutput("l1", 1000.0), TermOutput("l2", 1.0)])
    >>> findings = Findings()
    >>> [found.message for step in range(10) for found in findings.look(out, step)]
    ['l1 dominates l2: its contribution is 1000 times as large']
    """

    def __init__(self, notes: Mapping[str, Any] | None = None) -> None:
        """Nothing yet, or the result of `notes`."""
        self._seen: dict[str, list[int]] = {key: list(value) for key, value in (notes or {}).items()}
        """By finding: how many times in a row, the last step, and whether it was reported."""

    def notes(self) -> dict[str, Any]:
        """The findings so far, as plain data."""
        return {key: list(value) for key, value in self._seen.items()}

    def look(self, out: LossOutput, step: int, *, measured: bool = True) -> list[Finding]:
        """New findings in the output of a step; between measurements of gradients only failures count."""
        found: list[Finding] = []
        # Without cosines, nothing is known about conflicts.
        looked = [kind for kind in _PATIENCE if kind != "conflicts" or out.cosines is not None]
        if not measured:
            looked = ["failed"]
        present: set[str] = set()
        for finding in explain(out).findings:
            if finding.kind not in looked:
                continue
            key = f"{finding.kind}: {', '.join(finding.terms)}"
            present.add(key)
            times, last, reported = self._seen.get(key, (0, step, 0))
            if step - last > _AGAIN:
                reported = 0
            if not reported and times + 1 >= _PATIENCE[finding.kind]:
                found.append(finding)
                reported = 1
            self._seen[key] = [times + 1, step, reported]
        for key, entry in self._seen.items():
            if key not in present and key.partition(":")[0] in looked:
                entry[0] = 0
        return found
