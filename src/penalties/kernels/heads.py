"""Logits of some rows at a time, and the gradients at hidden states and output layer that go with them."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..arrays import Logits

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Head", "Rows", "head_of"]


def head_of(x: Any, wanted: Sequence[str], shown: Any) -> "Rows | Head":
    """The rows of logits or of a tensor, with a gradient at the wanted parts; `shown` says which count at all."""
    return Head(x, wanted, shown) if isinstance(x, Logits) else Rows(x, wanted)


class Rows:
    """A tensor, some rows at a time."""

    def __init__(self, x: "Tensor", wanted: Sequence[str]) -> None:
        """Start at no gradient."""
        self.wanted: Sequence[str] = wanted
        self.shape: Sequence[int] = x.shape
        self.x: Any = x.detach().reshape(-1, x.shape[-1])
        self.gradient: Any = _blank(self.x, x) if wanted else None

    def block(self, rows: slice) -> "Tensor":
        """Some rows."""
        return self.x[rows]

    def add(self, rows: slice, gradient: "Tensor") -> None:
        """Take the gradient at the rows of the last block."""
        self.gradient[rows] = gradient

    def gradients(self) -> "dict[str, Tensor]":
        """By part."""
        return {"": self.gradient.reshape(self.shape)} if self.wanted else {}


class Head:
    """Logits, some rows at a time, and the gradients at what they are made of."""

    def __init__(self, logits: Logits, wanted: Sequence[str], shown: Any = None) -> None:
        """Start at no gradient."""
        import torch

        self.wanted: Sequence[str] = wanted
        self.given: Logits = logits
        hidden = logits.hidden.detach().reshape(-1, logits.hidden.shape[-1])
        if shown is not None:
            # NaN in padding would reach the gradient of the weight.
            hidden = torch.where(shown[:, None], hidden, 0.0)
        weight = logits.weight.detach().to(hidden.dtype)
        bias = None if logits.bias is None else logits.bias.detach().to(hidden.dtype)
        self.logits: Logits = Logits(hidden, weight, bias, logits.softcap)
        self.found: dict[str, Any] = {}
        for part in wanted:
            array = hidden if part == "hidden" else getattr(logits, part)
            wide = torch.promote_types(array.dtype, torch.float32)
            # The weight and the bias are added up over the blocks, in float32 at least.
            self.found[part] = _blank(array, array) if part == "hidden" else torch.zeros_like(array, dtype=wide)
        self._capped: Any = None

    def block(self, rows: slice) -> "Tensor":
        """Some rows."""
        logits = self.logits.with_hidden(self.logits.hidden[rows]).materialize()
        self._capped = logits if self.given.softcap is not None and self.wanted else None
        return logits

    def add(self, rows: slice, gradient: "Tensor") -> None:
        """Take the gradient at the rows of the last block."""
        import torch

        if self._capped is not None:
            gradient = gradient * (1 - (self._capped.to(gradient.dtype) / self.given.softcap).square())
            self._capped = None
        hidden, weight = self.logits.hidden[rows], self.logits.weight
        scale: Any = None
        if hidden.dtype == torch.float16:
            # Within its range: the largest element becomes 1, and one that is infinite stays so.
            largest = gradient.abs().amax()
            scale = torch.where((largest > 0) & (largest < math.inf), largest, 1.0)
        slope = (gradient if scale is None else gradient / scale).to(hidden.dtype)
        if "hidden" in self.found:
            product = slope @ weight
            self.found["hidden"][rows] = product if scale is None else product.float() * scale
        if "weight" in self.found:
            total = self.found["weight"]
            if total.dtype == slope.dtype:
                total.addmm_(slope.T, hidden)
            elif scale is None:
                # Widened as it is added: another array of the layer's size in float32 would be the largest of all.
                total.add_(slope.T @ hidden)
            else:
                # In float32: sums over rows leave the range of float16, and a CPU adds up in the dtype of its operands.
                total.addmm_(gradient.T.to(total.dtype), hidden.to(total.dtype))
        if "bias" in self.found:
            self.found["bias"] += gradient.sum(0, dtype=self.found["bias"].dtype)

    def gradients(self) -> "dict[str, Tensor]":
        """By part."""
        made: dict[str, Any] = {}
        for part, gradient in self.found.items():
            like = getattr(self.given, part)
            made[part] = gradient.reshape(like.shape).to(_wide(like))
        return made


def _wide(like: "Tensor") -> Any:
    """The dtype of a gradient: float16 would lose what is small before a loss is scaled."""
    import torch

    return torch.float32 if like.dtype == torch.float16 else like.dtype


def _blank(x: "Tensor", like: "Tensor") -> "Tensor":
    import torch

    return torch.zeros_like(x, dtype=_wide(like))
