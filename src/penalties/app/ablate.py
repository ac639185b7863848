"""Ablations and sweeps: a run without each of its terms, with other weights, with other seeds.

Every variant is a run in its own folder. Variants of one seed start with the same model and see the same data in the
same order, so that they differ in nothing else.
"""

import contextlib
import json
import math
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..encoding import encode
from ..errors import said
from ..files import write_atomically
from ..pipeline.table import table
from .privacy import hide
from .runs.disk import RunError, writing
from .runs.lock import Lock
from .runs.run import Run
from .train import check_config, train
from .train.progress import Progress, short

if TYPE_CHECKING:
    from .config import Config
    from .config.tables import TermTable

__all__ = ["ALL", "Comparison", "Outcome", "Variant", "ablate", "compared", "holds_ablation", "shown", "variants"]

ALL: Final = "all"
"""The variant with every term, as in the config: the others are compared with it."""

_SUMMARY: Final = "ablation.json"
_LAST: Final = 0.1
"""The fraction of a run's steps whose mean counts if there are no held-out data."""


class Variant(NamedTuple):
    """One run of an ablation."""

    name: str
    """Such as "all", "without kl", "only kl", "kl.weight=0.1"."""
    seed: int
    config: "Config"

    @property
    def folder(self) -> str:
        """A name for its folder."""
        return re.sub(r"[^\w.=+-]+", "-", f"{self.name} seed {self.seed}")


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


def variants(
    load: "Callable[[Sequence[str]], Config]", *, sweeps: Sequence[str] = (), seeds: int = 1, keep: bool = False
) -> list[Variant]:
    """The variants of a config, all of them checked; `load` reads the config with some values set.

    Without sweeps each term is removed in turn, or, with `keep`, all others are. A sweep is `key=value,value,…`.
    """
    whole = load(())
    made: list[Variant] = []
    for seed in range(whole.train.seed, whole.train.seed + seeds):
        seeded = f"train.seed={seed}"
        first = load([seeded])
        made.append(Variant(ALL, seed, first))
        if sweeps:
            swept = [f"{key}={value}" for key, values in map(_sweep, sweeps) for value in values]
            made += [Variant(one, seed, load([seeded, one])) for one in swept]
        else:
            made += [Variant(name, seed, config) for name, config in _without(first, keep)]
    for variant in made:
        _check(variant, whole)
    # A sweep often includes the config's own value, or one value in two spellings.
    return [
        variant
        for index, variant in enumerate(made)
        if not any((variant.seed, variant.config) == (other.seed, other.config) for other in made[:index])
    ]


def _without(config: "Config", keep: bool) -> "list[tuple[str, Config]]":
    tables = _enabled(config)
    if not tables:
        raise RunError("the config has no enabled [[term]], so there is nothing to remove; add one, or use --sweep", 2)
    made: list[tuple[str, Config]] = []
    for name in tables:
        terms = [table for other, table in tables.items() if (other == name) is keep]
        made.append((f"{'only' if keep else 'without'} {name}", config.model_copy(update={"term": terms})))
    return made


def _enabled(config: "Config") -> "dict[str, TermTable]":
    return {name: table for name, table in zip(config.pipeline().names, config.term, strict=True) if table.enabled}


def _check(variant: Variant, whole: "Config") -> None:
    """Raise if a variant lacks what it is trained on, or a term by which the best checkpoint is picked."""
    from .config.objective import NONE

    config, terms = variant.config, _enabled(variant.config)
    if config.train.loss == NONE and not terms:
        raise RunError(f'the variant "{variant.name}" has neither a loss nor a term; set train.loss, or use --sweep', 2)
    by = config.train.best_by or ""
    for name in _enabled(whole):
        if name not in terms and (by in (name, f"{name}_weighted") or by.startswith(f"{name}/")):
            lacks = (
                f'the variant "{variant.name}" does not have "{by}", by which train.best_by picks the best checkpoint'
            )
            raise RunError(f"{lacks}; choose a metric that all variants have, such as base_loss", 2)


def _sweep(text: str) -> tuple[str, list[str]]:
    """The key of a sweep, and its values.

    >>> _sweep('kl.options={estimator = "k1", x = 1}, {}')
    ('kl.options', ['{estimator = "k1", x = 1}', '{}'])
    """
    key, _, rest = text.partition("=")
    values: list[str] = [""]
    depth, quoted = 0, ""
    for sign in rest:
        if quoted:
            quoted = "" if sign == quoted else quoted
        elif sign in "\"'":
            quoted = sign
        else:
            depth += (sign in "[{") - (sign in "]}")
            if sign == "," and depth == 0:
                values.append("")
                continue
        values[-1] += sign
    values = [value.strip() for value in values]
    if not key.strip() or not all(values):
        raise RunError(f"--sweep {text}: expected a key and its values, such as kl.weight=0.01,0.1,1", 2)
    return key.strip(), values


def holds_ablation(folder: Path) -> bool:
    """Whether a folder has an ablation."""
    return (folder / _SUMMARY).is_file()


def ablate(
    chosen: Sequence[Variant],
    folder: Path,
    *,
    resume: bool = False,
    progress: Callable[[Variant, int], Progress],
) -> list[Outcome]:
    """Train every variant in its folder; returns the outcome of each. One that fails does not stop the others.

    `progress` makes the display for the run of a variant. With `resume`, finished runs are kept and others are
    resumed.
    """
    if holds_ablation(folder) and not resume:
        raise RunError(f"{folder} already has an ablation; use --resume, or choose another folder with --run", 2)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as ending:
        ending.callback(Lock(folder / "lock").release)
        folders = [folder / name for name in _folders(chosen)]
        for variant, one in zip(chosen, folders, strict=True):
            if Run(one).begun():
                # Before the first is trained: no results are lost to a slip.
                check_config(Run(one), variant.config)
        if not resume:
            _write(folder, [])
        outcomes: list[Outcome] = []
        for number, (variant, one) in enumerate(zip(chosen, folders, strict=True)):
            outcomes.append(_trained(variant, one, progress(variant, number), first=number == 0))
            if not resume:
                # A reader sees the outcomes so far.
                _write(folder, outcomes)
        _write(folder, outcomes)
    return outcomes


def _trained(variant: Variant, folder: Path, progress: Progress, *, first: bool) -> Outcome:
    try:
        return _outcome(variant, train(variant.config, folder, resume=True, progress=progress))
    except RunError:
        # An interruption, a disk, a key: the others would fail for the same reason.
        raise
    except Exception as error:
        if first and not Run(folder).begun():
            # The config itself cannot be trained.
            raise
        return Outcome(variant.name, variant.seed, folder, None, {}, hide(said(error)))


def _folders(chosen: Sequence[Variant]) -> list[str]:
    """Unique names for the folders of variants, which may differ only in characters that a name cannot have."""
    found: list[str] = []
    for variant in chosen:
        name, number = variant.folder, 1
        while name in found:
            number += 1
            name = f"{variant.folder}-{number}"
        found.append(name)
    return found


def _outcome(variant: Variant, run: Run) -> Outcome:
    evaluated: dict[str, Any] | None = None
    last: list[dict[str, Any]] = []
    keep = max(1, round(_LAST * variant.config.train.steps))
    for record in run.records():
        if record.get("kind") == "eval":
            evaluated = record
        elif record.get("kind") == "step":
            last = [*last, record][-keep:]
    losses = [record["loss"] for record in ([evaluated] if evaluated is not None else last)]
    values: dict[str, list[float]] = {}
    for loss in losses:
        for name, part in loss["regularizers"].items():
            if part["value"] is not None:
                values.setdefault(name, []).append(part["value"])
    terms = {name: _mean(found) for name, found in values.items()}
    base = [loss["base_loss"]["value"] for loss in losses if "base_loss" in loss]
    return Outcome(variant.name, variant.seed, run.folder, _mean(base) if base else None, terms)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _write(folder: Path, outcomes: Sequence[Outcome]) -> None:
    described = [{**outcome._asdict(), "folder": outcome.folder.name} for outcome in outcomes]
    path = folder / _SUMMARY
    with writing(path):
        write_atomically(path, (json.dumps(encode({"runs": described}), indent=2) + "\n"))


class Comparison(NamedTuple):
    """A variant over its seeds."""

    variant: str
    base_loss: tuple[float, float] | None
    """Mean and standard deviation; None if every run failed, or has no base loss."""
    difference: tuple[float, float] | None
    """From "all", seed by seed."""
    terms: dict[str, float]
    errors: list[str]


def compared(outcomes: Sequence[Outcome]) -> list[Comparison]:
    """The variants, in the order in which they were run."""
    whole = {outcome.seed: outcome.base_loss for outcome in outcomes if outcome.variant == ALL}
    made: list[Comparison] = []
    for name in dict.fromkeys(outcome.variant for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome.variant == name]
        losses = [outcome.base_loss for outcome in own if outcome.base_loss is not None]
        differences = [
            outcome.base_loss - before
            for outcome in own
            if outcome.base_loss is not None and (before := whole.get(outcome.seed)) is not None
        ]
        terms = {
            term: _mean([one.terms[term] for one in own if term in one.terms]) for one in own for term in one.terms
        }
        errors = [outcome.error for outcome in own if outcome.error is not None]
        made.append(Comparison(name, _spread(losses), _spread(differences), terms, errors))
    return made


def _spread(values: Sequence[float]) -> tuple[float, float] | None:
    if not values:
        return None
    return _mean(values), statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else math.nan


def shown(comparisons: Sequence[Comparison]) -> list[str]:
    """The comparison as the lines of a table."""
    terms = list(dict.fromkeys(term for one in comparisons for term in one.terms))
    header = ["variant", "base loss", "difference", *terms]
    lines = [
        [
            one.variant,
            _shown(one.base_loss, "failed" if one.errors else "-"),
            "" if one.variant == ALL else _shown(one.difference, ""),
            *[short(one.terms.get(term)) for term in terms],
        ]
        for one in comparisons
    ]
    return [*table(header, lines), *(f"{one.variant}: {error}" for one in comparisons for error in one.errors)]


def _shown(spread: tuple[float, float] | None, otherwise: str) -> str:
    if spread is None:
        return otherwise
    mean, deviation = spread
    return short(mean) if math.isnan(deviation) else f"{short(mean)} ± {short(deviation)}"
