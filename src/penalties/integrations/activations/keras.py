"""Activations of Keras layers, by their activity regularizers."""

import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from ...errors import OptionError
from ..layers import named_layers
from ..matching import Pattern
from ..recomputing import recomputing
from .captured import Captured
from .choosing import choose

__all__ = ["capture"]


@contextmanager
def capture(model: Any, patterns: Sequence[Pattern]) -> Generator[Captured]:
    """Record the outputs of the layers whose names match, until the block ends.

    Keras calls the activity regularizer of a layer with each tensor that it returns: one that only looks adds 0.
    """
    named = [(name, layer) for name, layer in named_layers(model) if layer is not model]
    layers, chosen = choose(named, patterns)
    for name, count in Counter(name for name, _ in named).items():
        if name in layers and count > 1:
            raise OptionError("capture", "model", name, "one layer of each name: give the layers different names")
    captured = Captured(model, layers, lambda name, output: output)
    with ExitStack() as undo:
        for name, layer in layers.items():
            before = layer.activity_regularizer
            undo.callback(setattr, layer, "activity_regularizer", before)
            # On PyTorch one that is a layer itself has to go before a function can take its name.
            del layer.activity_regularizer
            layer.activity_regularizer = _recording(captured.calls[name], before)
        yield captured
        captured.check(chosen)


def _recording(calls: list[Any], regularizer: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    keras: Any = sys.modules["keras"]

    def record(output: Any) -> Any:
        if not recomputing():
            calls.append(output)
        return keras.ops.zeros(()) if regularizer is None else regularizer(output)

    return record
