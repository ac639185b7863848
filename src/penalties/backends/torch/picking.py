"""Log-probabilities of a few classes out of many: of targets, within a vocabulary."""

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from .arrays import tracing, upcast

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["log_softmax_at"]

# How many numbers are processed at a time: on a CPU what fits into its cache, on a GPU what keeps it busy.
_PIECE: Final = {"cpu": 1 << 20, "cuda": 1 << 26}


def log_softmax_at(x: "Tensor", indices: "Tensor", shown: "Tensor | None", temperature: float) -> "Tensor":
    # In pieces of rows: besides x there is one more tensor of its size, its gradient, and no float32 copy of half
    # precision. Measured on a CPU at V = 32000: 4 times as fast as log_softmax and gather.
    import torch

    x = x if x.is_floating_point() else upcast("log_softmax", x)
    if type(x) not in (torch.Tensor, torch.nn.Parameter) or tracing(x):
        # A compiler fuses these operations itself, and transforms of torch.func look into them.
        return _plain(x, indices, shown, temperature)
    rows = x.reshape(-1, x.shape[-1])
    flags = None if shown is None else shown.reshape(-1, 1)
    found = _function().apply(rows, indices.reshape(-1, indices.shape[-1]), flags, temperature)
    return found.reshape(indices.shape)


def _plain(x: Any, indices: Any, shown: Any, temperature: float) -> Any:
    import torch

    if shown is None:
        return _divided(x, temperature).log_softmax(-1).gather(-1, indices)
    flags = shown.reshape(*indices.shape[:-1], 1)
    found = _divided(torch.where(flags, x, 0.0), temperature).log_softmax(-1).gather(-1, indices)
    return torch.where(flags, found, 0.0)


def _divided(x: Any, temperature: float) -> Any:
    wide = upcast("log_softmax", x)
    return wide if temperature == 1 else wide / temperature


@cache
def _function() -> Any:
    import torch

    class Pick(torch.autograd.Function):
        """`log_softmax(x)[index]`; the gradient is 1 at the index, minus the softmax."""

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            x, indices, shown, temperature = inputs
            ctx.save_for_backward(x, indices, shown)
            ctx.temperature = temperature
            pieces = _pieces(x, x, indices)
            found = [_divided(some, temperature).log_softmax(-1).gather(-1, index) for some, index in pieces]
            whole = found[0] if len(found) == 1 else torch.cat(found)
            return whole if shown is None else whole.masked_fill_(~shown, 0.0)

        @staticmethod
        def backward(ctx: Any, *grad_outputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            x, indices, shown = ctx.saved_tensors
            (upstream,) = grad_outputs
            if torch.is_grad_enabled():
                # To be differentiated again.
                found = _plain(x, indices, shown, ctx.temperature)
                return *torch.autograd.grad(found, x, upstream, create_graph=True), None, None, None
            gradient: Any = torch.empty_like(x)
            flags = upstream if shown is None else shown
            for some, index, slope, flag, out in _pieces(x, x, indices, upstream, flags, gradient):
                slopes = _slopes(some, index, slope, ctx.temperature)
                out.copy_(slopes if shown is None else slopes.masked_fill_(~flag, 0.0))
            return gradient, None, None, None

    return Pick


def _slopes(x: Any, indices: Any, upstream: Any, temperature: float) -> Any:
    """The gradient at x, in the dtype of the log-probabilities."""
    upstream = upstream / temperature
    slopes = _divided(x, temperature).softmax(-1).mul_(-upstream.sum(-1, keepdim=True))
    # One index of each row at a time: a GPU would add up colliding ones in any order.
    for index, one in zip(indices.split(1, -1), upstream.split(1, -1), strict=True):
        slopes.scatter_add_(-1, index, one)
    return slopes


def _pieces(x: Any, *tensors: Any) -> list[tuple[Any, ...]]:
    """The tensors in blocks of rows."""
    rows = max(1, _PIECE.get(x.device.type, 1 << 22) // x.shape[-1])
    if rows >= len(x):
        return [tensors]
    return list(zip(*(tensor.split(rows) for tensor in tensors), strict=True))
