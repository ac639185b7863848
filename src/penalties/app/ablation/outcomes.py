"""What came out of the runs of an ablation, and the file that has it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...encoding import decode, encode
from ...files import read_plain, write_atomically
from ..runs.disk import RunError, validated, writing
from ..runs.run import Run

if TYPE_CHECKING:
    from .variants import Variant

__all__ = ["ALL", "Facts", "Outcome", "Recorded", "facts_of", "holds_ablation", "outcome_of", "recorded", "write"]

ALL: Final = "all"
"""The variant with every term, as in the config: the others are compared with it, unless another one is chosen."""

_SUMMARY: Final = "ablation.json"
_LAST: Final = 0.1
"""The fraction of a run's steps whose mean counts if there are no held-out data."""


class Outcome(NamedTuple):
    """The result of a variant's run."""

    variant: str
    seed: int
    folder: Path
    base_loss: float | None
    """On held-out data at the end, or else the mean of the last tenth of the steps; None if it failed or has none."""
    terms: dict[str, float]
    """The value of each term, in the same way."""
    error: str | None = None
    step: int | None = None
    """The last step that was measured."""
    held_out: bool = False
    """Whether the base loss is that on held-out data."""


class Facts(NamedTuple):
    """What sets a variant apart."""

    settings: Mapping[str, Any]
    """The plain values of the keys that it sets; of the full objective, of all keys that others set."""
    removed: str | None
    """The term that it lacks."""
    measure: Mapping[str, Any]
    """What its base loss is a measure of."""


class Recorded(NamedTuple):
    """An ablation as its folder has it."""

    baseline: str
    variants: dict[str, Facts]
    outcomes: list[Outcome]
    runs: int | None = None
    """How many runs there are to be; None if that was not recorded."""


def holds_ablation(folder: Path) -> bool:
    """Whether a folder has an ablation."""
    return (folder / _SUMMARY).is_file()


def outcome_of(variant: "Variant", run: Run) -> Outcome:
    """The outcome of a run that ended, from its log."""
    evaluated: dict[str, Any] | None = None
    last: list[dict[str, Any]] = []
    keep = max(1, round(_LAST * variant.config.train.steps))
    for record in run.records():
        if record.get("kind") == "eval":
            evaluated = record
        elif record.get("kind") == "step":
            last = [*last, record][-keep:]
    measured = last if evaluated is None else [evaluated]
    losses = [record["loss"] for record in measured]
    values: dict[str, list[float]] = {}
    for loss in losses:
        for name, part in loss["regularizers"].items():
            if part["value"] is not None:
                values.setdefault(name, []).append(part["value"])
    base = [loss["base_loss"]["value"] for loss in losses if "base_loss" in loss]
    return Outcome(
        variant.name,
        variant.seed,
        run.folder,
        _mean(base) if base else None,
        {name: _mean(found) for name, found in values.items()},
        step=measured[-1]["step"] if measured else None,
        held_out=evaluated is not None,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def facts_of(chosen: "Sequence[Variant]") -> dict[str, Facts]:
    """What sets each variant apart."""
    return {one.name: Facts(one.settings, one.removed, one.measure) for one in chosen}


def write(folder: Path, record: Recorded) -> None:
    """Write the outcomes so far; a reader never sees an incomplete file."""
    described = {
        "baseline": record.baseline,
        "total": record.runs,
        "variants": {name: facts._asdict() for name, facts in record.variants.items()},
        "runs": [{**outcome._asdict(), "folder": outcome.folder.name} for outcome in record.outcomes],
    }
    path = folder / _SUMMARY
    with writing(path):
        write_atomically(path, json.dumps(encode(described), indent=2) + "\n")


def recorded(folder: Path) -> Recorded:
    """The ablation in a folder; one that cannot be read is an error."""
    path = folder / _SUMMARY
    try:
        found: Any = decode(json.loads(read_plain(path)))
        outcomes = [{**run, "folder": folder / run["folder"]} for run in found["runs"]]
        whole = {"variants": found["variants"], "outcomes": outcomes, "runs": found.get("total")}
        return validated(Recorded, {"baseline": found["baseline"], **whole})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(
            f"{path} cannot be read ({type(error).__name__}: {error}); resume the ablation to write it again", 2
        ) from error
