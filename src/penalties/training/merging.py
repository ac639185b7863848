"""The result of a custom loss: the client's own output, with the loss output merged in."""

import dataclasses
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any

from ..pipeline.output import LossOutput
from .futures import arrival, in_thread, result_of

__all__ = ["CustomLossFuture", "merged"]


class CustomLossFuture:
    """The output of a backward that was sent: `.result(timeout)`, or `await` it."""

    def __init__(self, sent: Any, merge: Callable[[Any], Any]) -> None:
        """Wrap the client's future; `merge` makes the result of its output."""
        self._sent: Any = sent
        self._merge: Any = merge
        self._lock = threading.Lock()
        self._output: Any = None
        self._future: Future[Any] | None = None

    def result(self, timeout: float | None = None) -> Any:
        """Wait for it; raises `TimeoutError` after `timeout` seconds."""
        with self._lock:
            if self._output is not None:
                return self._output
        sent = self._sent
        return self._merged(sent.result(timeout) if callable(getattr(sent, "result", None)) else result_of(sent))

    async def result_async(self, timeout: float | None = None) -> Any:
        """Wait without blocking the event loop."""
        return await arrival(self._arrival(), timeout)

    def _arrival(self) -> "Future[Any]":
        """The result, awaited in a thread: cancelling the caller's wait must not cancel the client's own request."""
        with self._lock:
            if self._future is None:
                self._future = in_thread(self.result)
            return self._future

    def __await__(self) -> Generator[Any, Any, Any]:
        """The output."""
        return self.result_async().__await__()

    def _merged(self, result: Any) -> Any:
        with self._lock:
            # Once: the client's future may return the same object again, whose metrics are modified here.
            if self._output is None:
                self._output = self._merge(result)
                # Free whatever it was made from.
                self._sent = self._merge = None
            return self._output


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
