"""What a base loss is a measure of: losses of different functions or data cannot be compared."""

from typing import Final

__all__ = ["HELD_OUT", "MEASURED", "TRAINED"]

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
