"""Custom losses through any client with the Tinker protocol, and a client in this process.

Names load when they are first used.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from . import adapters, losses, references, surrogates
    from .custom_loss import forward_backward_custom, forward_backward_custom_async
    from .local import LocalTrainingClient
    from .sdk import TinkerTrainingClient
    from .types import (
        AdamParams,
        Datum,
        ForwardBackwardOutput,
        ModelInput,
        OptimStepResponse,
        SampledSequence,
        SampleResponse,
        SamplingParams,
        SaveWeightsResponse,
        TensorData,
    )

__all__ = [
    "AdamParams",
    "Datum",
    "ForwardBackwardOutput",
    "LocalTrainingClient",
    "ModelInput",
    "OptimStepResponse",
    "SampleResponse",
    "SampledSequence",
    "SamplingParams",
    "SaveWeightsResponse",
    "TensorData",
    "TinkerTrainingClient",
    "adapters",
    "forward_backward_custom",
    "forward_backward_custom_async",
    "losses",
    "references",
    "surrogates",
]

_HOMES: Final = {
    "forward_backward_custom": "custom_loss",
    "forward_backward_custom_async": "custom_loss",
    "LocalTrainingClient": "local",
    "TinkerTrainingClient": "sdk",
    "adapters": "adapters",
    "losses": "losses",
    "references": "references",
    "surrogates": "surrogates",
}
"""The module of each name; the others are in `types`."""


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name not in __all__:
        # With name and obj Python itself suggests the nearest name.
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    home = _HOMES.get(name, "types")
    module = importlib.import_module(f".{home}", __name__)
    value = module if home == name else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__})
