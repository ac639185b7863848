"""A forward pass of a batch: logits at the real positions only, and the log-probabilities of the targets."""

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from ...arrays import Logits
from ...backends import backend_of
from ...functional import target_logprobs
from ...functional.blocks import block_rows
from ...kernels.heads import Head
from ...kernels.picking import picked
from .batch import Batch
from .model import LocalModel

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Passed", "by_parameter", "differentiated", "head_reads", "on_device", "run", "trained_parts"]


@dataclass(frozen=True)
class Passed:
    """The results of a pass, on the graph if gradients are enabled."""

    logits: "Tensor | Logits"
    """(T, V); not computed where the output layer can do that later, a block of rows at a time."""
    targets: "Tensor"
    """(T, K)."""
    hidden: "dict[int, Tensor]"
    """(T, H) by layer: 0 is the embedding, n the output of the nth layer; the last is normalised."""

    @cached_property
    def logprobs(self) -> "Tensor":
        """(T, K) in float32. Logits that do not exist are computed once, unless their layer is trained or K > 1."""
        import torch

        if isinstance(self.logits, Logits) and self.targets.shape[1] == 1:
            if not torch.is_grad_enabled() or not self.logits.hidden.requires_grad:
                return _in_blocks(self.logits, self.targets, None)[0]
            if not trained_parts(self.logits):
                # The gradient at a row is that of its log-probability times a number that comes with the backward.
                ones = torch.ones_like
                logprobs, slopes = _in_blocks(self.logits, self.targets, lambda rows, logprobs: ones(logprobs))
                return _row_by_row().apply(self.logits.hidden, logprobs, slopes["hidden"])
        logits: Any = self.logits
        return target_logprobs(logits, self.targets, logits=True).float()


def run(model: LocalModel, batch: Batch, hidden: Sequence[int] = ()) -> Passed:
    """One pass, with the hidden states of these layers."""
    tokens, positions, targets = (on_device(model, array) for array in (batch.tokens, batch.positions, batch.targets))
    whole = len(batch.positions) == batch.tokens.size and batch.position_ids is None
    lazy, read = model.lazy, list[Any]()

    def packed(states: "Tensor") -> "Tensor":
        flat = states.flatten(0, 1)
        return flat if whole else flat.index_select(0, positions)

    def change(states: "Tensor") -> "Tensor":
        if not lazy:
            return packed(states).unsqueeze(0)
        read.append(packed(states))
        return states[:, :0]

    # Transformers collects hidden states by hooks, which compiled code may have left out.
    with head_reads(model, change), model.eager() if hidden else nullcontext():
        # Without a mask: padding comes after every real position, where a causal model does not look.
        more = {} if batch.position_ids is None else {"position_ids": on_device(model, batch.position_ids)}
        output = model.base(input_ids=tokens, use_cache=False, output_hidden_states=bool(hidden), **more)
    logits = model.logits(read[0]) if lazy else output.logits.squeeze(0)
    return Passed(logits, targets, {layer: packed(output.hidden_states[layer]) for layer in hidden})


def differentiated(
    logits: Logits,
    targets: "Tensor",
    values: "Callable[[Tensor, Mapping[str, Tensor]], tuple[Tensor, Tensor]]",
    arrays: "Mapping[str, Tensor]",
) -> "tuple[dict[str, Tensor], dict[str, Tensor]]":
    """The log-probabilities and the loss of each target, and the gradient of their sum at the parts of the logits.

    `values` returns the loss of targets from their log-probabilities, and its gradient there; it gets their part of
    `arrays`. Each block of logits is computed once: what the gradient there is multiplied by is known with its values.
    """
    import torch

    pieces: list[Tensor] = []

    def slopes_of(rows: slice, logprobs: "Tensor") -> "Tensor":
        lost, slopes = values(logprobs, {name: array[rows] for name, array in arrays.items()})
        pieces.append(lost)
        return slopes

    logprobs, gradients = _in_blocks(logits, targets, slopes_of)
    return {"logprobs": logprobs, "elementwise_loss": torch.cat(pieces)}, gradients


def _in_blocks(
    logits: Logits, targets: "Tensor", slopes_of: "Callable[[slice, Tensor], Tensor] | None"
) -> "tuple[Tensor, dict[str, Tensor]]":
    """The log-probabilities of targets, and the gradients at the parts of the logits from their slopes, block by block.

    `slopes_of` has the gradient at the log-probabilities of some rows; without it none is formed.
    """
    import torch

    head = Head(logits, [] if slopes_of is None else ["hidden", *trained_parts(logits)])
    size = block_rows(backend_of("forward_backward", hidden=logits.hidden), logits)
    found: list[Tensor] = []
    with torch.no_grad():
        for start in range(0, len(targets), size):
            rows = slice(start, start + size)
            logprobs, pull = _picked(head.block(rows), targets[rows], pulled=slopes_of is not None)
            found.append(logprobs)
            if slopes_of is not None:
                head.add(rows, pull(slopes_of(rows, logprobs)))
    return torch.cat(found), head.gradients()


def _picked(logits: "Tensor", targets: "Tensor", *, pulled: bool) -> "tuple[Tensor, Callable[[Tensor], Tensor]]":
    """Log-probabilities of targets in float32, and what turns a gradient there into one at the logits, if it is."""
    import torch

    if targets.shape[1] == 1 and (found := picked(logits, targets[:, 0])) is not None:
        return found.logprobs[:, None], lambda slopes: found.gradient(slopes[:, 0])
    point = logits.requires_grad_(pulled)
    with torch.set_grad_enabled(pulled):
        logprobs = target_logprobs(point, targets, logits=True).float()
    return logprobs.detach(), lambda slopes: torch.autograd.grad(logprobs, point, slopes)[0]


@cache
def _row_by_row() -> Any:
    import torch
    from torch.autograd.function import once_differentiable

    class RowByRow(torch.autograd.Function):
        """Numbers for rows of hidden states, whose gradient is that of each number at its row."""

        @staticmethod
        def forward(ctx: Any, hidden: Any, numbers: Any, slopes: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            ctx.save_for_backward(slopes)
            ctx.dtype = hidden.dtype
            return numbers.clone()

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, upstream: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            (slopes,) = ctx.saved_tensors
            return (slopes * upstream).to(ctx.dtype), None, None

    return RowByRow


def trained_parts(logits: Logits) -> "dict[str, Tensor]":
    """The parts of the output layer that are trained: its weight, its bias."""
    parts = {"weight": logits.weight, "bias": logits.bias}
    return {name: one for name, one in parts.items() if one is not None and one.requires_grad}


def by_parameter(
    parameters: "Mapping[str, Tensor]", logits: Logits, gradients: "Mapping[str, Tensor | None]"
) -> "dict[str, Tensor]":
    """Of gradients by part of the logits, those at the output layer, by the names of its parameters.

    A weight that is tied to the embedding has the embedding's name.
    """
    names = {id(one): name for name, one in parameters.items()}
    return {
        names[id(part)]: slope
        for key, part in trained_parts(logits).items()
        if (slope := gradients.get(key)) is not None
    }


@contextmanager
def head_reads(model: LocalModel, change: "Callable[[Tensor], Tensor]") -> Generator[None]:
    """Change the input of the output layer, so that logits are computed only where they are needed.

    That layer is the widest by far, and whatever a model does to its logits afterwards is per position.
    """
    here = threading.get_ident()

    def hook(module: Any, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        # Another thread that uses the model meanwhile is unaffected.
        return (change(args[0]), *args[1:]) if threading.get_ident() == here else None

    handle = model.head.register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def on_device(model: LocalModel, array: Any) -> "Tensor":
    """A NumPy array as a tensor on the model's device."""
    import torch

    made: Any = torch.from_numpy(array)  # pyright: ignore[reportUnknownMemberType]
    if model.device.type != "cuda":
        return made.to(model.device)
    # From memory that is pinned: a copy from any other waits for everything queued on the GPU.
    return made.pin_memory().to(model.device, non_blocking=True)
