"""What a base loss is a measure of: losses of different functions or data cannot be compared."""

from collections.abc import Mapping
from typing import Any, Final, cast

__all__ = ["HELD_OUT", "MEASURED", "SUMMED", "TRAINED", "is_sum"]

MEASURED: Final = {
    ("model", "name"): "models (and so perhaps tokenizers)",
    ("train", "loss"): "base losses",
    ("train", "loss_options"): "options of the base loss",
    ("train", "reduction"): "reductions",
    ("data", "max_length"): "maximum lengths",
    ("data", "mask_prompt"): "masks of prompts",
    ("data", "end_token"): "end tokens",
}
"""What it depends on besides the data: the keys of a config, and what they are."""
HELD_OUT: Final = {("data", "eval_path"): "held-out data"}
"""The data of a loss on held-out data."""
TRAINED: Final = {("data", "path"): "training data", ("data", "weights"): "odds of training data"}
"""The data of a loss in training."""
SUMMED: Final = {("train", "batch_size"): "batch sizes"}
"""What a sum over a batch depends on as well; held-out data go through the model in batches, too."""


def is_sum(train: Mapping[str, Any]) -> bool:
    """Whether the base loss of a `[train]` table is a sum over a batch."""
    options = train.get("loss_options")
    own = cast("Mapping[str, Any]", options).get("reduction") if isinstance(options, Mapping) else None
    return "sum" in (train.get("reduction"), own)
