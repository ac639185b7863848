"""The random numbers that a model draws, as dropout does: saved before a pass, and drawn again for its repetition."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from ...errors import OptionError
from .model import LocalModel

__all__ = ["Draws", "repeated"]


class Draws:
    """The states of the generators that a model draws from, and whether it has drawn since."""

    def __init__(self, model: LocalModel) -> None:
        """Take the states as they are now."""
        self._model = model
        self._states = _states(model)
        self.drew: bool = False

    def compared(self) -> "Draws":
        """Itself, once it has found out whether anything was drawn since."""
        self.drew = any(not bool((a == b).all()) for a, b in zip(self._states, _states(self._model), strict=True))
        return self

    @contextmanager
    def again(self) -> Generator[None]:
        """Draw the same numbers inside; afterwards the generators are as if nothing had been drawn."""
        if not self.drew:
            yield
            return
        before = _states(self._model)
        _restore(self._model, self._states)
        try:
            yield
        finally:
            _restore(self._model, before)


def repeated(draws: Sequence[Draws], parts: int, tokens: int | None) -> list[Draws]:
    """What so many parts draw when they are repeated; raises if they are not those that drew."""
    if not any(one.drew for one in draws):
        return []
    if len(draws) != parts:
        expected = (
            f"a number, such as {tokens}: memory ran out in the backward, and a forward that drew random numbers, as "
            "dropout does, cannot be repeated in smaller parts"
        )
        raise OptionError("LocalTrainingClient", "micro_batch_tokens", "auto", expected)
    return list(draws)


def _states(model: LocalModel) -> list[Any]:
    import torch

    own = [] if model.device.type == "cpu" else [torch.get_device_module(model.device).get_rng_state(model.device)]
    return [torch.get_rng_state(), *own]


def _restore(model: LocalModel, states: list[Any]) -> None:
    import torch

    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.get_device_module(model.device).set_rng_state(state, model.device)
