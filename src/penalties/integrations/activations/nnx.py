"""Activations of Flax NNX modules, by `nnx.capture`."""

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from ..matching import Pattern, matches, no_match
from .captured import Captured

__all__ = ["capture"]


@contextmanager
def capture(model: Any, patterns: Sequence[Pattern]) -> Generator[Captured]:
    """Record the outputs of modules and methods, and what modules sow, where the names match, until the block ends."""
    captured = Captured(None, (), lambda name, output: output, "; call the model of the capture, captured.model(x)")
    seen: dict[str, Any] = {}
    captured.model = _recording(model, patterns, captured.calls, seen)
    yield captured
    if not seen:
        captured.check([(pattern, ()) for pattern in patterns])
    for pattern in patterns:
        if not any(matches(pattern, name, module) for name, module in seen.items()):
            raise no_match("capture", "names", pattern, "module", seen)


def _recording(
    model: Any, patterns: Sequence[Pattern], calls: dict[str, list[Any]], seen: dict[str, Any]
) -> Callable[..., Any]:
    """The model as a function that records."""
    nnx: Any = sys.modules["flax.nnx"]
    # A separate class: what the model sows has one, too, and its users may filter by it.
    outputs = type("Output", (nnx.Variable,), {})

    modules = {".".join(map(str, path)): node for path, node in nnx.iter_graph(model) if isinstance(node, nnx.Module)}

    def forward(*args: Any, **kwargs: Any) -> Any:
        result, returned, sown = nnx.capture(model, outputs, nnx.Intermediate, method_outputs=outputs)(*args, **kwargs)
        for path, variable in [*nnx.to_flat_state(returned), *nnx.to_flat_state(sown)]:
            name = ".".join(str(key) for key in path if key != "__call__")
            # What a method returned, and what was sown, belongs to the module that it is in.
            seen[name] = modules.get(name, modules.get(name.rpartition(".")[0]))
            if name and any(matches(pattern, name, seen[name]) for pattern in patterns):
                calls.setdefault(name, []).extend(variable.get_value())
        return result

    return forward
