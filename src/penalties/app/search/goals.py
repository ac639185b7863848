"""By what a search judges a run: metrics of its last evaluation, and limits to them."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..problems import joined, nearest
from ..runs.disk import RunError
from ..runs.run import Run

if TYPE_CHECKING:
    from ..config import Config

__all__ = ["Constraint", "Goal", "check_names", "constraint_of", "measures"]

_PREFIX: Final = "eval."
_LIMIT: Final = re.compile(r"\s*([^<>=\s]+)\s*(<=?|>=?)\s*(\S+)\s*")


@dataclass(frozen=True)
class Goal:
    """A metric that is to be low, or high."""

    name: str
    """Such as `base_loss`, `kl`, `base_loss/accuracy` or `exact_match`."""
    highest: bool = False

    @classmethod
    def of(cls, text: str, *, highest: bool = False) -> "Goal":
        """Of a name with or without `eval.` before it."""
        return cls(text.strip().removeprefix(_PREFIX), highest)

    def oriented(self, value: float) -> float:
        """The value, or its negative, so that lower is better."""
        return -value if self.highest else value


@dataclass(frozen=True)
class Constraint:
    """A limit on a metric."""

    name: str
    highest: bool
    """Whether the metric has to be above the limit."""
    limit: float

    @property
    def goal(self) -> Goal:
        """Its metric, with the side that it has to be on as the better one."""
        return Goal(self.name, self.highest)

    def excess(self, value: float) -> float:
        """By how much a value breaks it; not above 0 if it holds."""
        return self.limit - value if self.highest else value - self.limit

    def __str__(self) -> str:
        """As it is given on the command line."""
        return f"{self.name}{'>' if self.highest else '<'}{self.limit:g}"


def constraint_of(text: str) -> Constraint:
    """The constraint that `--constraint` describes; a limit itself is allowed.

    >>> constraint_of("kl<0.1"), str(constraint_of("eval.exact_match >= 0.5"))
    (Constraint(name='kl', highest=False, limit=0.1), 'exact_match>0.5')
    """
    found = _LIMIT.fullmatch(text)
    try:
        limit = math.nan if found is None else float(found[3])
    except ValueError:
        limit = math.nan
    if found is None or not math.isfinite(limit):
        raise RunError(f"--constraint {text}: expected a metric and a limit, such as kl<0.1 or exact_match>0.5", 2)
    return Constraint(Goal.of(found[1]).name, found[2].startswith(">"), limit)


def check_names(config: "Config", names: Sequence[str]) -> None:
    """Raise if no evaluation of the config can have a metric."""
    from ..config.objective import NONE

    samples = config.samples.names
    if config.data.eval_path is None:
        raise RunError("a search needs held-out data, and the config has none; set data.eval_path", 2)
    base = [] if config.train.loss == NONE else ["base_loss"]
    known = ["loss", *base, *config.pipeline().names, *samples]
    for name in names:
        own, _, _ = name.partition("/")
        if own not in known and own.removesuffix("_weighted") not in known:
            there = joined(known, "and")
            raise RunError(f'no evaluation has "{name}"{nearest(name, known, quoted=True)} (there are {there})', 2)


def measures(run: Run) -> dict[str, float]:
    """The metrics of the last evaluation of a run, and of its last samples, by name."""
    found: dict[str, float] = {}
    evaluated: Mapping[str, Any] = {}
    for record in run.records():
        if record.get("kind") == "eval":
            evaluated = record["loss"]
        elif record.get("kind") == "samples":
            found |= record["metrics"]
    if not evaluated:
        return found
    parts = dict(evaluated["regularizers"])
    found["loss"] = evaluated["loss_total"]
    if "base_loss" in evaluated:
        parts["base_loss"] = evaluated["base_loss"]
    for name, part in parts.items():
        if part["value"] is not None:
            found[name] = part["value"]
            if name != "base_loss":
                found[f"{name}_weighted"] = part["contribution"]
        found |= {f"{name}/{metric}": value for metric, value in part.get("custom", {}).items()}
    return found
