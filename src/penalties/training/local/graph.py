"""A forward whose graph is kept, so that the gradient of any loss is propagated in one backward pass."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import GradientError, InputError, OptionError, ShapeError
from ..futures import TrainingFuture
from ..types import ForwardBackwardOutput
from .batch import Batch
from .forward import Passed
from .model import LocalModel

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Graph", "layers_read"]

Accumulate = Callable[[Sequence["Tensor"], Sequence["Tensor"], Mapping[str, "Tensor"]], None]


def layers_read(model: LocalModel, reads: Sequence[str]) -> tuple[bool, list[int]]:
    """Whether logits are requested, and the hidden states of which layers; `params` is always available."""
    layers: list[int] = []
    for name in (reads,) if isinstance(reads, str) else reads:
        kind, _, number = str(name).partition(".")
        if kind == "hidden" and number.isdecimal() and int(number) <= model.layers:
            layers.append(int(number))
        elif name != "logits" and kind != "params":
            expected = f'"params", "logits", or "hidden.<layer>" with a layer from 0 to {model.layers}'
            raise OptionError("forward_with_graph", "reads", name, expected)
    return "logits" in ((reads,) if isinstance(reads, str) else reads), layers


class Graph:
    """A forward and its graph.

    `logprobs` has one tensor per datum. `inputs` has what was requested: `"params"`, and `"logits"` and
    `"hidden.<layer>"` as lists with one tensor per datum. All are on the graph, without padding.
    """

    logprobs: "list[Tensor]"
    """One per datum, with the shape of its targets, in float32."""
    inputs: dict[str, Any]
    """The other requested tensors, by name."""
    output: ForwardBackwardOutput
    """The output of a plain forward."""

    def __init__(
        self,
        batch: Batch,
        passed: Passed,
        output: ForwardBackwardOutput,
        parameters: "Mapping[str, Tensor]",
        logits: bool,
        submit: Callable[[Callable[[], None]], TrainingFuture[None]],
        accumulate: Accumulate,
    ) -> None:
        """Wrap a pass; `submit` queues work on the client's thread, `accumulate` adds to its gradients."""
        self._batch = batch
        self._packed: dict[str, Tensor] = {f"hidden.{layer}": states for layer, states in passed.hidden.items()}
        if logits:
            self._packed["logits"] = passed.logits
        self.logprobs = batch.unpack(passed.logprobs)
        self.inputs = {"params": dict(parameters)}
        self.inputs |= {name: batch.split(packed) for name, packed in self._packed.items()}
        self.output = output
        self._lists: dict[str, list[Tensor]] = {name: self.inputs[name] for name in self._packed}
        self._lists["logprobs"] = self.logprobs
        self._packed["logprobs"] = passed.logprobs
        self._parameters = dict(parameters)
        self._submit = submit
        self._accumulate = accumulate
        self._lock = threading.Lock()
        self._used = False

    @property
    def packed(self) -> "dict[str, Tensor]":
        """The lists, each as one tensor with one datum after the other; empty after the backward.

        Without log-probabilities if the data differ in their number of targets per position.
        """
        widths = {tuple(one.shape[1:]) for one in self.logprobs}
        return {
            name: one.reshape(-1, *next(iter(widths))) if name == "logprobs" else one
            for name, one in self._packed.items()
            if name != "logprobs" or len(widths) == 1
        }

    def backward(self, gradients: Mapping[str, Any]) -> ForwardBackwardOutput:
        """Propagate gradients at the inputs to the parameters, in one pass, and accumulate them; it works once.

        `"logprobs"`, `"logits"` and `"hidden.<layer>"` take a list with one gradient per datum, or one tensor like that
        in `packed`; `"params"` takes a dict. None instead of any gradient or entry means zero.
        """
        return self.submit(gradients).result()

    def submit(self, gradients: Mapping[str, Any]) -> TrainingFuture[ForwardBackwardOutput]:
        """`backward` without waiting; whatever is submitted to the client next comes after it."""
        slopes, parameters = self._given(gradients)
        with self._lock:
            if self._used:
                raise GradientError(
                    "Graph.backward: was called before, which freed the graph; run forward_with_graph again"
                )
            self._used = True
        # Freed by the backward: a graph holds everything that the model computed.
        packed, self._packed = self._packed, {}
        accumulate = self._accumulate
        tensors, shaped = _live(packed, slopes)
        done = self._submit(lambda: accumulate(tensors, shaped, parameters))
        return done.then(lambda _: self.output)

    def pulled(self, gradients: Mapping[str, Any]) -> "dict[str, Tensor | None]":
        """The parameter gradients that `backward` would add, by name, without adding them; the graph is kept.

        It is a backward pass of its own, in the caller's thread, to measure a part of the loss before `backward`.
        """
        import torch

        slopes, direct = self._given(gradients)
        packed = self._packed
        if not packed:
            raise GradientError(
                "Graph.pulled: backward was called before, which freed the graph; run forward_with_graph again"
            )
        tensors, shaped = _live(packed, slopes)
        found: Sequence[Tensor | None] = [None] * len(self._parameters)
        if tensors:
            parameters = list(self._parameters.values())
            found = torch.autograd.grad(tensors, parameters, shaped, retain_graph=True, allow_unused=True)
        return {
            name: more if one is None else one if more is None else one + more
            for (name, one), more in zip(
                zip(self._parameters, found, strict=True), map(direct.get, self._parameters), strict=True
            )
        }

    def _given(self, gradients: Mapping[str, Any]) -> "tuple[dict[str, Any], dict[str, Tensor]]":
        """Gradients, checked: those at packed tensors, and those at parameters."""
        own = dict(gradients)
        parameters = self._of_parameters(own.pop("params", None))
        return {name: self._of_data(name, given) for name, given in own.items()}, parameters

    def _of_data(self, name: str, given: Any) -> Any:
        """The gradient at a packed tensor; None if it is zero."""
        import torch

        if name not in self._lists:
            there = ", ".join(f'"{known}"' for known in ("params", *self._lists))
            raise InputError(f'Graph.backward: got a gradient of "{name}"; this graph has {there}')
        parts = self._lists[name]
        if isinstance(given, torch.Tensor):
            # A freed graph is reported later, with a better message.
            if not self._packed:
                return given
            if name not in self.packed:
                raise ShapeError(
                    "Graph.backward: the data differ in targets per position; expected a list, one per datum"
                )
            return _like(f"Graph.backward: the gradient of {name}", given, self.packed[name])
        if given is not None and not hasattr(given, "__len__"):
            kind = type(given).__name__
            raise InputError(f"Graph.backward: got {kind} as the gradient of {name}; expected a list, one per datum")
        if given is None or all(one is None for one in given):
            return None
        if len(given) != len(parts):
            raise ShapeError(
                f"Graph.backward: got {len(given)} gradients of {name}; expected {len(parts)}, one per datum"
            )
        made: list[Tensor] = []
        for index, (slope, part) in enumerate(zip(given, parts, strict=True)):
            if slope is None:
                made.append(torch.zeros_like(part))
            else:
                made.append(_like(f"datum {index}: the gradient of {name}", slope, part))
        return self._batch.pack(made) if name == "logprobs" else torch.cat(made)

    def _of_parameters(self, given: Mapping[str, Any] | None) -> "dict[str, Tensor]":
        made: dict[str, Tensor] = {}
        for name, slope in (given or {}).items():
            if name not in self._parameters:
                raise InputError(f'Graph.backward: got a gradient of "{name}", which is not a trainable parameter')
            if slope is not None:
                # A copy: it becomes the parameter's gradient.
                made[name] = _like(f"Graph.backward: the gradient of {name}", slope, self._parameters[name]).clone()
        return made


def _live(packed: "Mapping[str, Tensor]", slopes: Mapping[str, Any]) -> "tuple[list[Tensor], list[Tensor]]":
    """The tensors at which a backward starts, and the gradients there."""
    live = [name for name, slope in slopes.items() if slope is not None and packed[name].requires_grad]
    return [packed[name] for name in live], [slopes[name].reshape(packed[name].shape) for name in live]


def _like(what: str, slope: Any, tensor: "Tensor") -> "Tensor":
    import torch

    found = torch.as_tensor(slope, dtype=tensor.dtype, device=tensor.device)
    if found.shape != tensor.shape:
        raise ShapeError(f"{what} has shape {tuple(found.shape)}; expected {tuple(tensor.shape)}")
    return found.detach()
