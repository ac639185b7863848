"""A client that answers at once, and data for it."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
from tinker import types as sdk

from penalties.training import Datum, ModelInput, TensorData
from penalties.training.reading import numpy_of

WAIT = 10


def datum(tokens: Sequence[int], candidates: int | None = None, **inputs: Any) -> Datum:
    targets = np.asarray(tokens) + 1
    if candidates is not None:
        targets = targets[:, None] + np.arange(candidates)
    return Datum(ModelInput.from_ints(tokens), {"target_tokens": targets, **inputs})


def sdk_datum(tokens: Sequence[int], **inputs: Any) -> sdk.Datum:
    return sdk.Datum(
        model_input=sdk.ModelInput.from_ints(list(tokens)),
        loss_fn_inputs={"target_tokens": [token + 1 for token in tokens], **inputs},
    )


def truth(one: Any, trained: float = 0.0) -> np.ndarray[Any, Any]:
    """What a client says of a datum: a number for each target that depends on what comes before, and on training."""
    tokens = np.cumsum(one.model_input.to_ints()).astype(np.float32)
    targets = numpy_of(one.loss_fn_inputs["target_tokens"]).astype(np.float32)
    before = tokens if targets.ndim == 1 else tokens[:, None]
    return -(before + targets / 100 + np.float32(trained)).astype(np.float32)


class Later:
    """A future as an SDK's is: `result(timeout)` and awaitable, and nothing else."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def result(self, timeout: float | None = None) -> Any:
        return self.make()

    def __await__(self) -> Any:
        yield from ()
        return self.make()


class Client:
    """Answers from `truth`, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.losses: list[str] = []
        self.trained = 0.0
        self.go = threading.Event()
        self.go.set()
        self.error: Exception | None = None
        self.change: Callable[[Any], Any] = lambda output: output

    def forward(self, data: Sequence[Any], loss_fn: str, loss_fn_config: Any = None) -> Any:
        self.asked.append(list(data))
        self.losses.append(loss_fn)
        # A server's turn comes when it was asked, whenever it is waited for.
        return self.later(data, self.trained)

    def later(self, data: Sequence[Any], trained: float) -> Any:
        def make() -> Any:
            assert self.go.wait(WAIT)
            if self.error is not None:
                raise self.error
            return self.change(
                SimpleNamespace(loss_fn_outputs=[{"logprobs": TensorData(truth(one, trained))} for one in data])
            )

        return Later(make)

    @property
    def count(self) -> int:
        """Data that it was asked for in all."""
        return sum(map(len, self.asked))


class Resettable(Client):
    """Can go back to where it began."""

    def forward_initial(self, data: Sequence[Any]) -> Any:
        self.asked.append(list(data))
        return self.later(data, 0.0)


def got(future: "Future[Any]") -> list[Any]:
    assert isinstance(future, Future)
    return future.result(WAIT)


def same(found: Sequence[Any], expected: Sequence[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert isinstance(one, np.ndarray)
        assert (one.dtype, one.shape) == (np.float32, other.shape)
        np.testing.assert_array_equal(one, other)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "penalties-future"]


BATCH = [datum([1, 2, 3]), datum([4]), datum([5, 6])]


def _changed(output: Any, second: Any) -> Any:
    outputs = list(output.loss_fn_outputs)
    if isinstance(second, dict) and "logprobs" in second:
        second = {"logprobs": TensorData(np.asarray(second["logprobs"], np.float32))}
    outputs[1] = second
    return SimpleNamespace(loss_fn_outputs=outputs)


def _key(one: Any) -> bytes:
    from penalties.training.references.memory import key_of

    return key_of(0, one)
