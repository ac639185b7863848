"""A forward whose graph is kept, so that the gradient of any loss is propagated in one backward pass."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ...arrays import Logits
from ...errors import GradientError, InputError, OptionError, ShapeError
from ..futures import TrainingFuture
from ..types import ForwardBackwardOutput
from .batch import Batch
from .forward import by_parameter, trained_parts
from .model import LocalModel
from .passes import Pass, added, leaf_of

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Backward", "Graph", "layers_read"]

Backward = Callable[[Pass, Mapping[str, "Tensor"], Mapping[str, "Tensor"]], TrainingFuture[None]]


def layers_read(model: LocalModel, reads: Sequence[str]) -> tuple[bool, list[int]]:
    """Whether logits are requested, and the hidden states of which layers; `params` is always available."""
    names = (reads,) if isinstance(reads, str) else reads
    layers: list[int] = []
    for name in names:
        kind, _, number = str(name).partition(".")
        if kind == "hidden" and number.isdecimal() and int(number) <= model.layers:
            layers.append(int(number))
        elif name != "logits" and kind != "params":
            expected = f'"params", "logits", or "hidden.<layer>" with a layer from 0 to {model.layers}'
            raise OptionError("forward_with_graph", "reads", name, expected)
    return "logits" in names, layers


class Graph:
    """A forward, and what its gradient can be propagated by: its graph, or the forward once more.

    `logprobs` has one tensor per datum. `inputs` has what was requested: `"params"`, and `"logits"` and
    `"hidden.<layer>"` as lists with one tensor per datum. All require gradients, and have no padding.
    """

    logprobs: "list[Tensor]"
    """One per datum, with the shape of its targets, in float32."""
    inputs: dict[str, Any]
    """The other requested tensors, by name."""
    output: ForwardBackwardOutput
    """The output of a plain forward."""
    check: Callable[[], None]
    """Raises once the parameters have changed."""

    def __init__(
        self,
        batch: Batch,
        passed: Pass,
        output: ForwardBackwardOutput,
        parameters: "Mapping[str, Tensor]",
        check: Callable[[], None],
        backward: Backward,
    ) -> None:
        """Wrap a pass; `backward` takes it with the gradients at its tensors, and gradients of parameters to add."""
        self._batch = batch
        self._pass: Pass | None = passed
        self._parameters = dict(parameters)
        self.inputs = {"params": dict(parameters)}
        self.inputs |= {name: batch.split(packed) for name, packed in passed.packed.items() if name != "logprobs"}
        self.logprobs = batch.unpack(passed.packed["logprobs"])
        self.output = output
        self.check = check
        self._backward = backward
        self._lock = threading.Lock()

    @property
    def packed(self) -> dict[str, Any]:
        """The lists, each as one tensor, or `Logits`, with one datum after the other; empty after the backward.

        Without log-probabilities if the data differ in their number of targets per position.
        """
        packed = {} if self._pass is None else dict(self._pass.packed)
        flat = packed.pop("logprobs", None)
        widths = {tuple(one.shape[1:]) for one in self.logprobs}
        if flat is not None and len(widths) == 1:
            packed["logprobs"] = flat.reshape(-1, *widths.pop())
        return packed

    def backward(self, gradients: Mapping[str, Any]) -> ForwardBackwardOutput:
        """Propagate gradients at the inputs to the parameters, in one pass, and accumulate them; it works once.

        `"logprobs"`, `"logits"` and `"hidden.<layer>"` take a list with one gradient per datum, or one tensor like that
        in `packed`; `"params"` takes a dict. None instead of any gradient or entry means zero.
        """
        return self.submit(gradients).result()

    def submit(self, gradients: Mapping[str, Any]) -> TrainingFuture[ForwardBackwardOutput]:
        """`backward` without waiting; whatever is submitted to the client next comes after it."""
        with self._lock:
            passed, slopes, direct = self._given("backward", gradients)
            # Freed by the backward: a graph holds everything that the model computed.
            self._pass = None
        return self._backward(passed, slopes, direct).then(lambda _: self.output)

    def pulled(self, gradients: Mapping[str, Any]) -> "dict[str, Tensor | None]":
        """The parameter gradients that `backward` would add, by name, without adding them; the graph is kept.

        It is a separate backward pass, in the caller's thread, to measure a part of the loss before `backward`.
        """
        passed, slopes, direct = self._given("pulled", gradients)
        self.check()
        found = passed.pull(slopes, keep=True)
        return dict(zip(self._parameters, added(found, [direct.get(name) for name in self._parameters]), strict=True))

    def _given(self, method: str, gradients: Mapping[str, Any]) -> "tuple[Pass, dict[str, Tensor], dict[str, Tensor]]":
        """The pass, the gradients at its tensors, and those at parameters, checked."""
        passed = self._pass
        if passed is None:
            raise GradientError(f"Graph.{method}: an earlier backward freed the graph; run forward_with_graph again")
        own = dict(gradients)
        direct = self._of_parameters(own.pop("params", None))
        if "logits" in own and isinstance(logits := passed.packed.get("logits"), Logits):
            for name, slope in self._of_head(logits, own["logits"]).items():
                direct[name] = direct[name] + slope if name in direct else slope
        slopes = {name: self._of_data(name, given) for name, given in own.items()}
        shapes = {name: leaf_of(tensor).shape for name, tensor in passed.packed.items()}
        return (
            passed,
            {name: slope.reshape(shapes[name]) for name, slope in slopes.items() if slope is not None},
            direct,
        )

    def _of_data(self, name: str, given: Any) -> Any:
        """The gradient at a packed tensor; None if it is zero."""
        import torch

        lists = {**self.inputs, "logprobs": self.logprobs}
        if name not in lists:
            there = ", ".join(f'"{known}"' for known in lists)
            raise InputError(f'Graph.backward: got a gradient of "{name}"; this graph has {there}')
        parts = [leaf_of(part) for part in lists[name]]
        if isinstance(given, Logits):
            given = given.hidden
        elif isinstance(given, list):
            given = [one.hidden if isinstance(one, Logits) else one for one in cast("list[Any]", given)]
        if isinstance(given, torch.Tensor):
            if name not in self.packed:
                raise ShapeError(
                    "Graph.backward: the data differ in targets per position; expected a list, one per datum"
                )
            return _like(f"Graph.backward: the gradient of {name}", given, leaf_of(self.packed[name]))
        if given is not None and not hasattr(given, "__len__"):
            kind = type(given).__name__
            raise InputError(f"Graph.backward: got {kind} as the gradient of {name}; expected a list, one per datum")
        if given is None or all(one is None for one in given):
            return None
        if len(given) != len(parts):
            raise ShapeError(
                f"Graph.backward: got {len(given)} gradients of {name}; expected {len(parts)}, one per datum"
            )
        made = [
            torch.zeros_like(part) if slope is None else _like(f"datum {index}: the gradient of {name}", slope, part)
            for index, (slope, part) in enumerate(zip(given, parts, strict=True))
        ]
        return self._batch.pack(made) if name == "logprobs" else torch.cat(made)

    def _of_head(self, logits: Logits, given: Any) -> "dict[str, Tensor]":
        """The gradients at a trained output layer, by the names of its parameters."""
        if not trained_parts(logits):
            return {}
        pieces = cast("list[Any]", given if isinstance(given, list) else [given])
        there = [piece for piece in pieces if piece is not None]
        if not all(isinstance(piece, Logits) for piece in there):
            raise InputError(
                "Graph.backward: got the gradient of lazy logits at their hidden states alone, but their output layer "
                "is trained too; expected Logits of gradients, as value_and_grad returns them"
            )
        found: dict[str, Tensor] = {}
        for piece in there:
            slopes = by_parameter(self._parameters, logits, {"weight": piece.weight, "bias": piece.bias})
            for name, slope in slopes.items():
                checked = _like(f"Graph.backward: the gradient of {name}", slope, self._parameters[name])
                found[name] = found[name] + checked if name in found else checked
        return found

    def _of_parameters(self, given: Mapping[str, Any] | None) -> "dict[str, Tensor]":
        made: dict[str, Tensor] = {}
        for name, slope in (given or {}).items():
            if name not in self._parameters:
                raise InputError(f'Graph.backward: got a gradient of "{name}", which is not a trainable parameter')
            if slope is not None:
                # A copy: it becomes the parameter's gradient.
                made[name] = _like(f"Graph.backward: the gradient of {name}", slope, self._parameters[name]).clone()
        return made


def _like(what: str, slope: Any, tensor: "Tensor") -> "Tensor":
    import torch

    found = torch.as_tensor(slope, dtype=tensor.dtype, device=tensor.device)
    if found.shape != tensor.shape:
        raise ShapeError(f"{what} has shape {tuple(found.shape)}; expected {tuple(tensor.shape)}")
    return found.detach()
