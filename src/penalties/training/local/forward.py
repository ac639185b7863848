"""A forward pass of a batch: logits at the real positions only, and the log-probabilities of the targets."""

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...arrays import Logits
from ...backends import backend_of
from ...functional import target_logprobs
from ...functional.blocks import block_rows
from ...kernels.heads import Head
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
        """(T, K) in float32. Of logits that do not exist each block is computed once more in the backward."""
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

    head = Head(logits, ["hidden", *trained_parts(logits)])
    ops = backend_of("forward_backward", hidden=logits.hidden)
    size, found = block_rows(ops, logits), dict[str, list[Any]](logprobs=[], elementwise_loss=[])
    for start in range(0, len(targets), size):
        rows = slice(start, start + size)
        with torch.no_grad():
            point = head.block(rows).requires_grad_()
        with torch.enable_grad():
            logprobs = target_logprobs(point, targets[rows], logits=True).float()
        lost, slope = values(logprobs.detach(), {name: array[rows] for name, array in arrays.items()})
        (gradient,) = torch.autograd.grad(logprobs, point, slope)
        with torch.no_grad():
            head.add(rows, gradient)
        found["logprobs"].append(logprobs.detach())
        found["elementwise_loss"].append(lost)
    return {name: torch.cat(pieces) for name, pieces in found.items()}, head.gradients()


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

    return torch.from_numpy(array).to(model.device)  # pyright: ignore[reportUnknownMemberType]
