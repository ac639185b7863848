"""The variants of a config: without each of its terms, with other values, with other seeds.

Variants of one seed start with the same model and see the same data in the same order, so that they differ in nothing
else.
"""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ..problems import nearest
from ..runs.disk import RunError
from .measures import HELD_OUT, MEASURED, SUMMED, TRAINED, is_sum
from .outcomes import ALL

if TYPE_CHECKING:
    from ..config import Config
    from ..config.tables import TermTable

__all__ = ["Variant", "check_baseline", "variants"]


class Variant(NamedTuple):
    """One run of an ablation."""

    name: str
    """Such as "all", "without kl", "only kl", "kl.weight=0.1"."""
    seed: int
    config: "Config"
    settings: Mapping[str, Any] = {}
    """What was set, by key; of the full objective, the values of the keys that others vary."""
    removed: str | None = None
    """The term that it lacks."""

    @property
    def measure(self) -> dict[str, Any]:
        """What its base loss is a measure of, by key: losses of different functions or data cannot be compared."""
        found = self.config.model_dump(mode="json")
        data = TRAINED if self.config.data.eval_path is None else HELD_OUT
        summed = SUMMED if is_sum(found["train"]) else {}
        return {f"{table}.{name}": found[table][name] for table, name in (*MEASURED, *summed, *data)}

    @property
    def folder(self) -> str:
        """A name for its folder."""
        return re.sub(r"[^\w.=+-]+", "-", f"{self.name} seed {self.seed}")


def variants(
    load: "Callable[[Sequence[str]], Config]",
    *,
    sweeps: Sequence[str] = (),
    grids: Sequence[str] = (),
    seeds: int = 1,
    keep: bool = False,
) -> list[Variant]:
    """The variants of a config, all of them checked; `load` reads the config with some values set.

    Without sweeps and grids each term is removed in turn, or, with `keep`, all others are. A sweep is
    `key=value,value,…`, and varies that key alone. Grids are written in the same way, and are combined: one variant for
    each combination of their values.
    """
    whole = load(())
    swept = [_varied("--sweep", one) for one in sweeps]
    gridded = [_varied("--grid", one) for one in grids]
    combined = [key for key, _ in gridded]
    for key in combined:
        if combined.count(key) > 1:
            raise RunError(f"--grid {key}: given twice; expected all values of a key in one --grid", 2)
    chosen = [[(key, value)] for key, values in swept for value in values]
    if gridded:
        chosen += [list(one) for one in itertools.product(*([(key, value) for value in few] for key, few in gridded))]
    before = {key: found for key, _ in [*swept, *gridded] if (found := _value_at(whole, key)) is not None}
    made: list[Variant] = []
    for seed in range(whole.train.seed, whole.train.seed + seeds):
        seeded = f"train.seed={seed}"
        first = load([seeded])
        made.append(Variant(ALL, seed, first, before))
        for settings in chosen:
            given = [f"{key}={value}" for key, value in settings]
            made.append(Variant(", ".join(given), seed, load([seeded, *given]), dict(settings)))
        if not chosen:
            made += _without(first, seed, keep)
    for variant in made:
        _check(variant, whole)
    # A sweep often includes the config's own value, or one value in two spellings.
    return [
        _settled(variant)
        for index, variant in enumerate(made)
        if not any((variant.seed, variant.config) == (other.seed, other.config) for other in made[:index])
    ]


def check_baseline(chosen: Sequence[Variant], baseline: str) -> None:
    """Raise if no variant has this name."""
    names = list(dict.fromkeys(variant.name for variant in chosen))
    if baseline not in names:
        there = ", ".join(names)
        raise RunError(f"--baseline {baseline}: no variant has this name{nearest(baseline, names)} ({there})", 2)


def _without(config: "Config", seed: int, keep: bool) -> list[Variant]:
    tables = _enabled(config)
    if not tables:
        raise RunError("the config has no enabled [[term]], so there is nothing to remove; add one, or use --sweep", 2)
    made: list[Variant] = []
    for name in tables:
        terms = [table for other, table in tables.items() if (other == name) is keep]
        other = config.model_copy(update={"term": terms})
        made.append(Variant(f"{'only' if keep else 'without'} {name}", seed, other, {}, None if keep else name))
    return made


def _enabled(config: "Config") -> "dict[str, TermTable]":
    return {name: table for name, table in zip(config.pipeline().names, config.term, strict=True) if table.enabled}


def _check(variant: Variant, whole: "Config") -> None:
    """Raise if a variant lacks what it is trained on, or a term by which the best checkpoint is picked."""
    from ..config.objective import NONE

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


def _settled(variant: Variant) -> Variant:
    """The variant with the values that its config has, rather than their spellings."""
    found = {key: _value_at(variant.config, key) for key in variant.settings}
    return variant._replace(settings={key: value for key, value in found.items() if value is not None})


def _value_at(config: "Config", key: str) -> Any:
    """The plain value of a key, as `--set` has it; None if it has none."""
    path = [part.strip() for part in key.split(".")]
    tables: dict[str, Any] = config.model_dump(mode="json")
    terms = {table["name"]: table for table in tables.pop("term")}
    if path[0] == "term" or (path[0] not in tables and path[0] in terms):
        tables, path = terms, path[1:] if path[0] == "term" else path
    found: Any = tables
    for part in path:
        found = cast("dict[str, Any]", found).get(part) if isinstance(found, dict) else None
    return found if isinstance(found, str | int | float) else None


def _varied(option: str, text: str) -> tuple[str, list[str]]:
    """The key of a sweep or a grid, and its values.

    >>> _varied("--sweep", 'kl.options={estimator = "k1", x = 1}, {}')
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
        raise RunError(f"{option} {text}: expected a key and its values, such as kl.weight=0.01,0.1,1", 2)
    return key.strip(), values
