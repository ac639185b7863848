"""Whether runs can be ranked by a loss: what it was measured on, and in what else they differ."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from ...ablation.measures import HELD_OUT, MEASURED, SUMMED, TRAINED, is_sum
from ..runlog import RunLog
from ..verdict.findings import Finding
from ..verdict.sentences import RunName, Sentence, listed, some
from .contenders import Contender, Ranking

__all__ = ["not_ranked", "unlike"]

_CONTENTS: Final = {"held_out": "contents of held-out data", "training": "contents of training data"}
"""By kind of data, whose files may have the same path and differ all the same."""
_SEED: Final = {("train", "seed"): "seeds"}
_FUNCTION: Final = ("fn", "inputs", "options", "wrap")
"""The keys of a term that say what its value is."""
_NONE: Final = "none"


def not_ranked(order: Ranking) -> Sentence:
    """Why these runs cannot be ranked by a loss; empty if they can.

    Without a config no more is known, and said, than which terms a total has.
    """
    found = [member for group in order.groups for member in group.members]
    keys = {**_measured(found), **(HELD_OUT if order.held_out else TRAINED)}
    different = [words for key, words in keys.items() if len(_values(found, key)) > 1]
    if not order.based and _total_differs(found, order.step):
        different.append("terms or weights")
    kind = "held_out" if order.held_out else "training"
    if len(_contents(found, kind)) > 1 and not any("data" in words for words in different):
        different.append(_CONTENTS[kind])
    if not different:
        return ()
    return ("their ", *listed(different), " differ")


def unlike(found: Sequence[Contender]) -> Iterator[Finding]:
    """In which data, models and seeds runs differ, and of which nothing is known."""
    for key, words in {**_measured(found), **HELD_OUT, **TRAINED}.items():
        yield from _stated(_values(found, key), words)
    for (kind, words), paths in zip(_CONTENTS.items(), (HELD_OUT, TRAINED), strict=True):
        if not any(len(_values(found, key)) > 1 for key in paths):
            yield from _stated(_contents(found, kind), words)
    by_group: dict[int, set[str]] = {}
    for one in found:
        by_group.setdefault(one.group, set()).add(_value(one.run, ("train", "seed")))
    # Each setting with the same seeds is how runs should be compared.
    if len({frozenset(seeds) for seeds in by_group.values()}) > 1:
        yield from _stated(_values(found, ("train", "seed")), _SEED["train", "seed"])
    unknown = [RunName(one.name) for one in found if one.run.config is None]
    if unknown:
        have = "has" if len(unknown) == 1 else "have"
        text = f" {have} no config: whether data, models and seeds are alike is not known."
        yield Finding("unlike", (*some(unknown), text))


def _measured(found: Sequence[Contender]) -> dict[tuple[str, str], str]:
    """What their base losses depend on besides the data."""
    sums = any(is_sum(one.run.config.get("train", {})) for one in found if one.run.config is not None)
    return {**MEASURED, **SUMMED} if sums else {**MEASURED}


def _total_differs(found: Sequence[Contender], step: int) -> bool:
    """Whether totals at a step are sums of other terms, or with other weights; without a config, of other names."""
    weights = {
        json.dumps({name: term.weight.at(step) for name, term in one.run.terms.items()}, sort_keys=True)
        for one in found
    }
    configs = [one.run.config for one in found if one.run.config is not None]
    terms = {
        json.dumps([[table.get(key) for key in _FUNCTION] for table in config.get("term", [])], sort_keys=True)
        for config in configs
    }
    return len(weights) > 1 or len(terms) > 1


def _stated(values: Mapping[str, Sequence[str]], words: str) -> Iterator[Finding]:
    if len(values) > 1:
        parts = [(f"{value} in ", *some([RunName(name) for name in names])) for value, names in values.items()]
        listing = [piece for part in parts for piece in ("; ", *part)][1:]
        yield Finding("unlike", (f"{words[0].upper()}{words[1:]} differ: ", *listing, "."))


def _values(found: Sequence[Contender], key: tuple[str, str]) -> dict[str, list[str]]:
    """The names of runs by their value of a key; those without a config are left out."""
    values: dict[str, list[str]] = {}
    for one in found:
        if one.run.config is not None:
            values.setdefault(_value(one.run, key), []).append(one.name)
    return values


def _contents(found: Sequence[Contender], kind: str) -> dict[str, list[str]]:
    """The names of runs by the beginning of a hash of their data; those of which it is not known are left out."""
    values: dict[str, list[str]] = {}
    for one in found:
        data: Any = one.run.environments[-1].get("data", {}) if one.run.environments else {}
        if isinstance(known := data.get(kind), str):
            values.setdefault(known[:8], []).append(one.name)
    return values


def _value(run: RunLog, key: tuple[str, str]) -> str:
    table = (run.config or {}).get(key[0])
    value: Any = cast("Mapping[str, Any]", table).get(key[1]) if isinstance(table, dict) else None
    return _NONE if value in (None, {}, []) else value if isinstance(value, str) else json.dumps(value, sort_keys=True)
