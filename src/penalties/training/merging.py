"""What is put together: the output of a client and that of a loss; the metrics of a term over parts of a batch."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import TermError
from ..pipeline.output import LossOutput
from .separable import Rule
from .shares import Merge

__all__ = ["merged", "merged_metrics"]


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


def merged_metrics(term: str, rule: Rule, parts: Sequence[tuple[Mapping[str, Any], float, float]]) -> dict[str, Any]:
    """The metrics of a term over a batch, from those of its parts, the factors of its values, and their shares."""
    names = list(dict.fromkeys(name for metrics, _, _ in parts for name in metrics))
    if rule.metrics is None:
        if names:
            raise TermError(
                term, f"returned the metric {names[0]} of a part of the batch; a separable term returns a value alone"
            )
        return {}
    found: dict[str, Any] = {}
    counting = [part for part in parts if part[2]] or parts[:1]
    for name in names:
        merge = rule.metrics[name]
        if callable(merge):
            found[name] = merge(found)
        else:
            there = [(metrics[name], *rest) for metrics, *rest in counting if name in metrics]
            if there:
                found[name] = _merged(merge, there)
    return found


def _merged(merge: Merge, parts: Sequence[Any]) -> Any:
    """One metric, from its values, the factors of the term's values, and the shares of the parts."""
    if merge in ("max", "min"):
        return functools.reduce(
            lambda a, b: a.maximum(b) if merge == "max" else a.minimum(b), [one[0] for one in parts]
        )
    if merge == "same":
        return parts[0][0]
    if merge == "sum":
        return sum(value for value, _, _ in parts)
    return sum(value * (factor if merge == "value" else share) for value, factor, share in parts)
