"""What changed in a config since its run began, where a run cannot be resumed with it."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

__all__ = ["differences"]

# What may change when a run is resumed: its length, where terms run, how the model computes and what goes through it at
# once, and what is written, measured and checked, not what is trained. Data are compared by their contents.
_FREE: Final = (
    "model.attention",
    "model.compile",
    "model.checkpointing",
    "train.steps",
    "train.micro_batch_tokens",
    "train.packing",
    "train.shard",
    "train.checkpoint_every",
    "train.keep",
    "train.eval_every",
    "train.eval_examples",
    "train.patience",
    "train.gradients_every",
    "data.path",
    "data.eval_path",
    "data.sampled",
    "executor",
    "folder",
    "samples",
    "sinks",
)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Changes of a config with which a run cannot be resumed, such as `"term.0.weight was 0.1 and is 0.2"`.

    >>> differences({"train": {"steps": 3, "seed": 0}}, {"train": {"steps": 9, "seed": 1}})
    ['train.seed was 0 and is 1']
    """
    # A schedule without its own steps lasts as long as the run, and the last lines are grouped with what remains.
    grouped = dict(after.get("data") or {}).get("group_by_length", False)
    free = [key for key in _FREE if key != "train.steps" or not (grouped or _depends(after))]
    return [
        f"{path} was {old} and is {new}"
        for path, old, new in _changes("", before, after)
        if not any(f"{path}.".startswith(f"{key}.") for key in free)
    ]


def _depends(config: Any) -> bool:
    """Whether a schedule lasts as long as the run."""
    if isinstance(config, Mapping):
        table = cast("Mapping[str, Any]", config)
        without = "kind" in table and "steps" in table and table["steps"] is None
        # A schedule in a chain lasts as long as its part.
        return without or any(_depends(part) for key, part in table.items() if key != "parts")
    return isinstance(config, list) and any(_depends(part) for part in cast("list[Any]", config))


def _changes(path: str, before: Any, after: Any) -> Iterator[tuple[str, str, str]]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        old, new = cast("Mapping[str, Any]", before), cast("Mapping[str, Any]", after)
    elif isinstance(before, list) and isinstance(after, list):
        old = {str(index): part for index, part in enumerate(cast("list[Any]", before))}
        new = {str(index): part for index, part in enumerate(cast("list[Any]", after))}
    else:
        if before != after:
            yield path, _shown(before), _shown(after)
        return
    for key in dict.fromkeys((*old, *new)):
        yield from _changes(f"{path}.{key}" if path else key, old.get(key, _NOTHING), new.get(key, _NOTHING))


_NOTHING: Final = object()


def _shown(value: Any) -> str:
    return "missing" if value is _NOTHING else json.dumps(value, default=str)
