"""A batch whose forward has more targets per position: besides the data's own, the likeliest tokens of references."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .batch import Batch
from .packing import LOGPROBS, PACKED, likeliest_of
from .references.likeliest import Likeliest

__all__ = ["Widening", "top_k_of"]


def top_k_of(reference: Any) -> int | None:
    """How many tokens a reference has at each position; None if it has the targets."""
    return getattr(reference, "top_k", None)


@dataclass(frozen=True)
class Widening:
    """The references of whose likeliest tokens terms read the model's log-probabilities, and how many there are."""

    counts: Mapping[str, int]

    @classmethod
    def of(cls, reads: Iterable[str], references: Mapping[str, Any]) -> "Widening":
        """Those that these inputs name."""
        named = dict.fromkeys(one for name in reads if (one := likeliest_of(name)) is not None)
        return cls({name: top_k_of(references[name]) or 0 for name in named})

    @property
    def targets(self) -> int:
        """How many targets a position has."""
        return 1 + sum(self.counts.values())

    @property
    def inputs(self) -> list[str]:
        """The names of the packed arrays besides that of the data's own targets."""
        return [f"{PACKED}.{name}" for name in self.counts]

    def batch(self, batch: Batch, found: Mapping[str, Sequence[Likeliest]]) -> Batch:
        """The batch with all targets, from the likeliest tokens of each reference."""
        tokens = [[found[name][index][0] for name in self.counts] for index in range(len(batch.data))]
        return batch.widened(tokens)

    def split(self, packed: Any) -> dict[str, Any]:
        """The log-probabilities of all targets, (T, targets), by the names of inputs."""
        if not self.counts:
            return {PACKED: packed}
        first, *others = packed.split([1, *self.counts.values()], dim=1)
        return {PACKED: first[:, 0], **dict(zip(self.inputs, others, strict=True))}

    def join(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """Tensors by the names of the model's, those of log-probabilities as one again; one that is None is zero."""
        names = [LOGPROBS, *(f"{LOGPROBS}.{name}" for name in self.counts)]
        rest = {name: part for name, part in parts.items() if name not in names}
        there = next((part for name in names if (part := parts[name]) is not None), None)
        if len(names) == 1 or there is None:
            return {**rest, LOGPROBS: parts[LOGPROBS]}
        columns = [
            there.new_zeros(len(there), width) if parts[name] is None else parts[name].reshape(-1, width)
            for name, width in zip(names, (1, *self.counts.values()), strict=True)
        ]
        import torch

        return {**rest, LOGPROBS: torch.cat(columns, dim=1)}
