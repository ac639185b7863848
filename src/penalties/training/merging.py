"""What comes of a custom loss: the client's own output, with ours in it."""

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from typing import Any

from ..pipeline.output import LossOutput
from .promises import promise

__all__ = ["CustomLossFuture", "merged"]


class CustomLossFuture:
    """The output of a backward that was sent: `.result(timeout)`, or `await` it."""

    def __init__(self, sent: Sequence[Any], merge: Callable[[list[Any]], Any]) -> None:
        """The client's futures, and what makes one output of theirs."""
        self._sent = sent
        self._merge = merge
        self._lock = threading.Lock()
        self._output: Any = None
        self._promised: Future[Any] | None = None

    def result(self, timeout: float | None = None) -> Any:
        """Wait for it; `TimeoutError` where that takes longer."""
        return self._merged([one.result(timeout) for one in self._sent])

    async def result_async(self, timeout: float | None = None) -> Any:
        """The same without blocking the event loop."""
        promised, loop = self._arrival(), asyncio.get_running_loop()
        told: asyncio.Future[None] = loop.create_future()

        def tell(_: "Future[Any]") -> None:
            # The loop may be gone, and who waited with it.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(lambda: told.done() or told.set_result(None))

        promised.add_done_callback(tell)
        async with asyncio.timeout(timeout):
            await told
        return promised.result()

    def _arrival(self) -> "Future[Any]":
        """The result in a thread of ours: who stops waiting must not cancel the client's own request."""
        with self._lock:
            if self._promised is None:
                self._promised = promise(self.result)
            return self._promised

    def __await__(self) -> Generator[Any, Any, Any]:
        """The output."""
        return self.result_async().__await__()

    def _merged(self, results: list[Any]) -> Any:
        with self._lock:
            # Once: the client's future may give the same object again, and its metrics are changed.
            if self._output is None:
                self._output = self._merge(results)
            return self._output


def merged(results: Sequence[Any], output: LossOutput) -> Any:
    """The client's output with the numbers of ours among its metrics, and ours as `custom_loss`."""
    first: Any = results[0]
    metrics = _reduced([(dict(one.metrics), len(one.loss_fn_outputs)) for one in results])
    if "loss:sum" in metrics:
        # As the SDK has it: the loss that was asked for has the name, and what the server computed another.
        metrics["surrogate_loss:sum"] = metrics["loss:sum"]
    metrics["loss:sum"] = float(output.total.detach())
    metrics |= output.metrics()
    base = output.read().base
    if base is not None:
        metrics |= {str(name): float(number) for name, number in base.metrics.items()}
    changes: dict[str, Any] = {"metrics": metrics}
    if len(results) > 1:
        changes["loss_fn_outputs"] = [part for one in results for part in one.loss_fn_outputs]
    if "custom_loss" in getattr(first, "__dataclass_fields__", ()):
        return dataclasses.replace(first, **changes, custom_loss=output)
    made: Any
    if hasattr(first, "__dataclass_fields__"):
        made = dataclasses.replace(first, **changes)
    else:
        made = first.model_copy() if hasattr(first, "model_copy") else first
        for name, value in changes.items():
            object.__setattr__(made, name, value)
    # The class is the client's, and need not know of it.
    object.__setattr__(made, "custom_loss", output)
    return made


def _reduced(parts: Sequence[tuple[dict[str, float], int]]) -> dict[str, float]:
    """The metrics of several requests as one, by what their names say of how they add up."""
    if len(parts) == 1:
        return parts[0][0]
    found: dict[str, float] = {}
    for name in parts[0][0]:
        there = [(metrics[name], count) for metrics, count in parts if name in metrics]
        numbers = [number for number, _ in there]
        if name.endswith(":sum"):
            found[name] = sum(numbers)
        elif name.endswith((":min", ":max")):
            found[name] = min(numbers) if name.endswith(":min") else max(numbers)
        else:
            found[name] = sum(number * count for number, count in there) / sum(count for _, count in there)
    return found
