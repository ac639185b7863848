"""The result of a custom loss: the client's own output, with the loss output merged in."""

import dataclasses
from typing import Any

from ..pipeline.output import LossOutput

__all__ = ["merged"]


def merged(result: Any, output: LossOutput) -> Any:
    """The client's output with the loss output as `custom_loss`, and its numbers in the metrics."""
    plain = dataclasses.replace(output.read(), gradient=output.gradient, state=output.state)
    metrics: dict[str, float] = dict(result.metrics or {})
    if "loss:sum" in metrics:
        # As in the SDK: "loss:sum" is the requested loss, not the surrogate that the server computed.
        metrics["surrogate_loss:sum"] = metrics["loss:sum"]
    # The base's own metrics also under their plain names, unless a term has that name.
    if plain.base is not None:
        metrics |= {str(name): float(number) for name, number in plain.base.metrics.items()}
    metrics |= {**plain.metrics(), "loss:sum": plain.total}
    if "custom_loss" in getattr(result, "__dataclass_fields__", ()):
        return dataclasses.replace(result, metrics=metrics, custom_loss=plain)
    made: Any
    if hasattr(result, "__dataclass_fields__"):
        made = dataclasses.replace(result, metrics=metrics)
    else:
        made = result.model_copy() if hasattr(result, "model_copy") else result
        object.__setattr__(made, "metrics", metrics)
    # The class is the client's, and need not have such a field.
    object.__setattr__(made, "custom_loss", plain)
    return made
