"""Pipeline events, delivered to attached handlers, and sinks that forward them to other tools.

A sink's module is loaded on first use, and the library that it writes to when a sink is created.

>>> from penalties import telemetry
>>> heard = []
>>> handler_id = telemetry.attach(lambda event, measurements, metadata: heard.append(event), events="pipeline.stop")
>>> telemetry.detach(handler_id)
True
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any, Final

from .events import EVENTS, Handler, attach, detach
from .logger import attach_logger

if TYPE_CHECKING:
    from .json_lines import JSONLines
    from .mlflow import MLflow
    from .opentelemetry import OpenTelemetry
    from .tensorboard import TensorBoard
    from .wandb import WeightsAndBiases

__all__ = [
    "EVENTS",
    "Handler",
    "JSONLines",
    "MLflow",
    "OpenTelemetry",
    "TensorBoard",
    "WeightsAndBiases",
    "attach",
    "attach_logger",
    "detach",
]

_SINKS: Final = {
    "JSONLines": "json_lines",
    "MLflow": "mlflow",
    "OpenTelemetry": "opentelemetry",
    "TensorBoard": "tensorboard",
    "WeightsAndBiases": "wandb",
}


def __getattr__(name: str) -> Any:
    """Load a sink on first use, and keep it."""
    if name not in _SINKS:
        # Given name and obj, Python itself suggests the nearest name.
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    sink = getattr(importlib.import_module(f".{_SINKS[name]}", __name__), name)
    globals()[name] = sink
    return sink


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__})
