"""A forward pass whose gradient is yet to come: with its graph kept, or in parts that are computed again for it."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ...arrays import Logits
from .batch import Batch
from .forward import Passed, by_parameter, differentiated, run
from .model import LocalModel
from .parts import Parts
from .randomness import Draws, repeated

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Kept", "Pass", "Reads", "Recomputed", "added", "leaf_of", "parameter_gradients", "pull_parts"]


class Pass(Protocol):
    """What a model computed for some data, packed, and how a gradient there reaches its parameters."""

    @property
    def packed(self) -> dict[str, Any]:
        """The tensors by name: `"logprobs"`, (T, K), and `"logits"` and `"hidden.<layer>"` if they were requested."""
        ...

    def pull(self, slopes: "Mapping[str, Tensor]", *, keep: bool = False) -> "list[Tensor | None]":
        """The gradient at each parameter, from those at the tensors; with `keep` it can be called again."""
        ...


@dataclass(frozen=True)
class Reads:
    """What is requested of a pass besides log-probabilities."""

    logits: bool = False
    lazy: bool = False
    """Whether logits may be `Logits`, where the output layer allows it."""
    layers: Sequence[int] = ()
    """The layers whose hidden states are requested."""

    def of(self, model: LocalModel, batch: Batch) -> dict[str, Any]:
        """One pass through the model: the tensors by name."""
        return self.among(run(model, batch, self.layers))

    def among(self, passed: Passed, *, logprobs: bool = True) -> dict[str, Any]:
        """The tensors of a pass by name."""
        if self.logits and not self.lazy and isinstance(passed.logits, Logits):
            passed = Passed(passed.logits.materialize(), passed.targets, passed.hidden)
        found: dict[str, Any] = {f"hidden.{layer}": states for layer, states in passed.hidden.items()}
        found |= {"logits": passed.logits} if self.logits else {}
        return found | ({"logprobs": passed.logprobs} if logprobs else {})


class Kept:
    """One pass with its graph, as long as that fits: once memory has run out, parts are computed again."""

    def __init__(self, model: LocalModel, parts: Parts, reads: Reads, batch: Batch, *, evaluate: bool) -> None:
        """Run the model; with `evaluate` there is no graph."""
        import torch

        self._model, self._parts, self._reads = model, parts, reads
        draws = Draws(model)
        with torch.set_grad_enabled(not evaluate):
            self._on_graph: dict[str, Any] | None = reads.of(model, batch)
        self._draws = draws.compared()
        self.packed: dict[str, Any] = dict(self._on_graph)
        self._compiled: bool = bool(model.options.compile)
        if parts.limits.auto or self._compiled:
            # Tensors of their own, so that nobody else holds a graph that may have to go.
            self.packed = {name: _apart(packed) for name, packed in self._on_graph.items()}

    def pull(self, slopes: "Mapping[str, Tensor]", *, keep: bool = False) -> "list[Tensor | None]":
        """One backward."""

        def attempt(batches: Sequence[Batch]) -> "list[Tensor | None]":
            # Taken out first: a graph that did not fit is gone at the next attempt, when parts are smaller.
            on_graph, self._on_graph = self._on_graph, None
            # The backward of compiled code may write over what it reads, and then works only once.
            if on_graph is None or (keep and self._compiled):
                del on_graph
                draws = repeated([self._draws], len(batches), self._parts.limits.tokens)
                return pull_parts(self._model, batches, self._reads, slopes, draws)
            gradients = _propagated(self._model, on_graph, slopes, keep=keep)
            self._on_graph = on_graph if keep else None
            return gradients

        return self._parts.fit(attempt)


class Recomputed:
    """A pass in parts, without a graph: each part goes through the model again when its gradient is due.

    Only the graph of one part exists at a time. What the model draws, as dropout does, it draws again the second time.
    """

    def __init__(self, model: LocalModel, parts: Parts, reads: Reads, *, evaluate: bool) -> None:
        """Run the model for the first time; with `evaluate` there is no second."""
        import torch

        def first(batches: Sequence[Batch]) -> dict[str, Any]:
            self._draws.clear()
            pieces: list[dict[str, Any]] = []
            for batch in batches:
                draws = Draws(model)
                with torch.no_grad():
                    pieces.append(reads.of(model, batch))
                self._draws.append(draws.compared())
            return _joined(pieces)

        self._model, self._parts, self._reads = model, parts, reads
        self._draws: list[Draws] = []
        self.packed: dict[str, Any] = parts.fit(first)
        for packed in self.packed.values():
            leaf_of(packed).requires_grad_(not evaluate)

    def pull(self, slopes: "Mapping[str, Tensor]", *, keep: bool = False) -> "list[Tensor | None]":
        """A forward and a backward of each part."""

        def attempt(batches: Sequence[Batch]) -> "list[Tensor | None]":
            draws = repeated(self._draws, len(batches), self._parts.limits.tokens)
            return pull_parts(self._model, batches, self._reads, slopes, draws)

        return self._parts.fit(attempt)


def pull_parts(
    model: LocalModel,
    parts: Sequence[Batch],
    reads: Reads,
    slopes: "Mapping[str, Tensor]",
    draws: Sequence[Draws] = (),
) -> "list[Tensor | None]":
    """The gradient at each parameter, from those at the tensors of all parts, by a forward and a backward of each.

    `draws` has what each part drew in its first forward; it is empty if none drew.
    """
    import torch

    gradients: list[Tensor | None] = [None] * len(model.parameters)
    start = 0
    for index, part in enumerate(parts):
        rows, width = slice(start, start + len(part.positions)), part.targets.shape[1]
        here = {name: one[rows, :width] if name == "logprobs" else one[rows] for name, one in slopes.items()}
        with torch.enable_grad(), draws[index].again() if draws else nullcontext():
            passed = run(model, part, reads.layers)
        gradients = added(gradients, _propagated_once(model, passed, reads, here))
        start = rows.stop
    return gradients


def _propagated_once(
    model: LocalModel, passed: Passed, reads: Reads, slopes: "Mapping[str, Tensor]"
) -> "list[Tensor | None]":
    """The gradient at each parameter, from those at the tensors of a pass.

    Log-probabilities are not needed, only their gradient: it takes one computation of each block of logits.
    """
    logits = passed.logits
    if "logprobs" not in slopes or not isinstance(logits, Logits) or (reads.logits and not reads.lazy):
        return _propagated(model, reads.among(passed), slopes)
    _, parts = differentiated(
        logits, passed.targets, lambda values, given: (values, given["slope"]), {"slope": slopes["logprobs"]}
    )
    at_head = by_parameter(model.parameters, logits, parts)
    others = {name: one for name, one in slopes.items() if name not in ("logprobs", "logits")}
    at_logits = parts["hidden"] if "logits" not in slopes else parts["hidden"] + slopes["logits"]
    found = _propagated(
        model, {**reads.among(passed, logprobs=False), "logits": logits}, {**others, "logits": at_logits}
    )
    return added(found, [at_head.get(name) for name in model.parameters])


def _propagated(
    model: LocalModel, on_graph: Mapping[str, Any], slopes: "Mapping[str, Tensor]", *, keep: bool = False
) -> "list[Tensor | None]":
    """The gradient at each parameter, from those at tensors on one graph."""
    tensors = {name: leaf_of(on_graph[name]) for name in slopes}
    live = [name for name in slopes if tensors[name].requires_grad]
    pairs = [tensors[name] for name in live], [slopes[name] for name in live]
    return parameter_gradients(model.parameters, *pairs, keep=keep)


def _apart(packed: Any) -> Any:
    """A packed tensor, or lazy logits, off its graph."""
    tensor = leaf_of(packed)
    leaf = tensor.detach().requires_grad_(tensor.requires_grad)
    return packed.with_hidden(leaf) if isinstance(packed, Logits) else leaf


def _joined(pieces: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The tensors of all parts, each as one."""
    import torch

    joined: dict[str, Any] = {}
    for name, first in pieces[0].items():
        tensors = [leaf_of(piece[name]) for piece in pieces]
        if name == "logprobs":
            # Data may differ in their number of targets per position.
            width = max(tensor.shape[1] for tensor in tensors)
            tensors = [torch.nn.functional.pad(tensor, (0, width - tensor.shape[1])) for tensor in tensors]
        whole = torch.cat(tensors)
        joined[name] = first.with_hidden(whole) if isinstance(first, Logits) else whole
    return joined


def parameter_gradients(
    parameters: "Mapping[str, Tensor]",
    tensors: "Sequence[Tensor]",
    slopes: "Sequence[Tensor]",
    *,
    keep: bool = False,
) -> "list[Tensor | None]":
    """The gradient at each parameter, from those at some tensors; with `keep` the graph is not freed."""
    import torch

    if not tensors:
        return [None] * len(parameters)
    found = torch.autograd.grad(tensors, list(parameters.values()), slopes, retain_graph=keep, allow_unused=True)
    return list(found)


def added(some: "Sequence[Tensor | None]", more: "Sequence[Tensor | None]") -> "list[Tensor | None]":
    """The sums of gradients, where None is zero."""
    return [b if a is None else a if b is None else a + b for a, b in zip(some, more, strict=True)]


def leaf_of(packed: Any) -> "Tensor":
    """The tensor that a backward starts at: of lazy logits, the hidden states."""
    return packed.hidden if isinstance(packed, Logits) else packed
