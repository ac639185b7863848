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
            self.found[part] = _blank(hidden, hidden) if part == "hidden" else None
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
            self.found["weight"] = _added(self.found["weight"], slope, hidden, gradient if scale is not None else None)
        if "bias" in self.found:
            # In float32 at least, as the weight.
            one = gradient.sum(0, dtype=torch.promote_types(gradient.dtype, torch.float32))
            self.found["bias"] = one if self.found["bias"] is None else self.found["bias"] + one

    def gradients(self) -> "dict[str, Tensor]":
        """By part."""
        made: dict[str, Any] = {}
        for part, gradient in self.found.items():
            like = getattr(self.given, part)
            made[part] = _blank(like, like) if gradient is None else gradient.reshape(like.shape).to(_wide(like))
        return made


def _added(total: "Tensor | None", slope: "Tensor", hidden: "Tensor", unscaled: "Tensor | None") -> "Tensor":
    """The gradient of the weight with that of one more block, in float32 at least; of the first, None before it.

    `unscaled` is the gradient at logits where `slope` had to be scaled to the range of float16.
    """
    import torch

    wide = torch.promote_types(slope.dtype, torch.float32)
    if unscaled is None and slope.is_cuda and wide != slope.dtype:
        # Added in float32 as it is computed: no array of the layer's size comes between.
        if total is None:
            return torch.mm(slope.T, hidden, out_dtype=wide)
        return torch.addmm(total, slope.T, hidden, out_dtype=wide, out=total)
    if unscaled is not None:
        # In float32: sums over rows leave the range of float16, and a CPU adds up in the dtype of its operands.
        slope, hidden = unscaled.to(wide), hidden.to(wide)
    if total is None:
        return (slope.T @ hidden).to(wide)
    # Widened as it is added: another array of the layer's size in float32 would be the largest of all.
    return total.addmm_(slope.T, hidden) if slope.dtype == wide else total.add_(slope.T @ hidden)


def _wide(like: "Tensor") -> Any:
    """The dtype of a gradient: float16 would lose what is small before a loss is scaled."""
    import torch

    return torch.float32 if like.dtype == torch.float16 else like.dtype


def _blank(x: "Tensor", like: "Tensor") -> "Tensor":
    import torch

    return torch.zeros_like(x, dtype=_wide(like))
