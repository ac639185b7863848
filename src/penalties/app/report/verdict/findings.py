"""The parts of a verdict."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .sentences import Sentence, plain

__all__ = ["Finding", "Verdict"]

_LABELS: Final = {
    "held out": "Held out",
    "outcome": "Training",
    "broken": "Not finite",
    "spiked": "Spiked",
    "exploded": "Exploded",
    "gradient": "Gradient",
    "small": "Small",
    "conflicts": "Conflicts",
    "agreed": "Alike",
    "failed": "Failed",
    "slow": "Slow",
    "run": "The run",
    "ranking": "Ranking",
    "lengths": "Steps",
    "unlike": "Not alike",
    "compared": "Compared",
    "metrics": "Metrics",
}
"""The kinds of findings, and what a page calls each."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a run shows."""

    kind: str
    text: Sentence
    headline: Sentence = ()
    """The same in a few words, for the headline; empty if it does not belong there."""

    def __str__(self) -> str:
        """The text, without markup."""
        return plain(self.text)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A headline, and the findings behind it."""

    headline: Sentence
    findings: Sequence[Finding]

    @property
    def summary(self) -> str:
        """The headline, without markup."""
        return plain(self.headline)

    @property
    def grouped(self) -> list[tuple[str, str, list[Sentence]]]:
        """The findings by kind, in order: kind, label and texts."""
        kinds = dict.fromkeys(finding.kind for finding in self.findings)
        return [(kind, _LABELS[kind], [one.text for one in self.findings if one.kind == kind]) for kind in kinds]

    def __str__(self) -> str:
        """The headline, then a line per finding."""
        return "\n".join([self.summary, *map(str, self.findings)])
