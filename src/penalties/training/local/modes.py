"""The backward of a pass in the mode of its forward."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .model import LocalModel
from .passes import Pass

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Trained"]


class Trained:
    """A training pass whose gradient is pulled in train mode too, since layers may be computed again for it."""

    def __init__(self, model: LocalModel, passed: Pass) -> None:
        """Wrap a pass."""
        self._model, self._passed = model, passed

    @property
    def packed(self) -> dict[str, Any]:
        """The tensors by name."""
        return self._passed.packed

    def pull(self, slopes: "Mapping[str, Tensor]", *, keep: bool = False) -> "list[Tensor | None]":
        """The gradient at each parameter, from those at the tensors; with `keep` it can be called again."""
        with self._model.passing(training=True):
            return self._passed.pull(slopes, keep=keep)
