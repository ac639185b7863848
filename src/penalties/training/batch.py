"""A batch of data, read and checked once: targets, lengths, and which places count."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from ..errors import InputError, NonFiniteError
from ..functional import entropy, entropy_estimate, kl_divergence, kl_estimate
from .objective import DISTRIBUTIONS, PACKED, Objective
from .reading import numpy_of, targets_of, weights_of

__all__ = ["Batch", "logprobs_of"]


class Batch(NamedTuple):
    """What is known of a batch before any forward."""

    data: list[Any]
    shapes: list[tuple[int, ...]]
    """Of each datum's targets: (N,), or (N, K)."""
    lengths: tuple[int, ...]
    masks: list[np.ndarray[Any, Any]]
    """Whether each place counts: it does where a weight is not 0."""
    candidates: int | None
    """How many targets each place has; None for one, in arrays of shape (N,)."""

    @classmethod
    def of(cls, data: Any) -> "Batch":
        """Read some data; an error names the datum."""
        if isinstance(data, str | bytes) or not isinstance(data, Sequence):
            raise InputError(f"forward_backward_custom: got data={type(data).__name__}; expected a list of data")
        listed: list[Any] = list(cast("Sequence[Any]", data))
        if not listed:
            raise InputError("forward_backward_custom: got no data; expected at least one datum")
        shapes = [targets_of(place, datum).shape for place, datum in enumerate(listed)]
        for place, shape in enumerate(shapes):
            if 0 in shape:
                raise InputError(f"datum {place}: its target_tokens have shape {shape}; expected at least one target")
            if shape[1:] != shapes[0][1:]:
                raise InputError(
                    f"datum {place}: its target_tokens have shape {shape} and those of datum 0 {shapes[0]}; expected "
                    "(N,) in all, or (N, K) with the same K"
                )
        masks = [weights_of(place, datum, shapes[place]) != 0 for place, datum in enumerate(listed)]
        masks = [mask if mask.ndim == 1 else mask.any(-1) for mask in masks]
        candidates = shapes[0][1] if len(shapes[0]) == 2 else None
        return cls(listed, shapes, tuple(shape[0] for shape in shapes), masks, candidates)

    def check(self, objective: Objective) -> None:
        """Refuse a divergence of what is no distribution, and an estimate from what is no sample."""
        base = objective.pipeline.base
        for term in (*objective.pipeline.terms, *([] if base is None else [base])):
            if PACKED not in term.inputs.values():
                continue
            if self.candidates is None and term.fn in DISTRIBUTIONS:
                instead = {kl_divergence: "kl_estimate", entropy: "entropy_estimate"}.get(term.fn)
                hint = f'; "{instead}" estimates it from them' if instead else ""
                raise InputError(
                    f"{term.name}: {term.fn.__name__} compares distributions, and these log-probabilities are of one "
                    f"sampled token at each place, which are none{hint}; or give target_tokens of shape (N, K)"
                )
            if self.candidates is not None and term.fn in _OF_SAMPLES:
                instead = "kl_divergence" if term.fn is kl_estimate else "entropy"
                raise InputError(
                    f"{term.name}: {term.fn.__name__} is for one sampled token at each place, and these target_tokens "
                    f"have {self.candidates}, which were not drawn; {instead} is for those"
                )


_OF_SAMPLES = (kl_estimate, entropy_estimate)


def logprobs_of(output: Any, batch: Batch) -> list[np.ndarray[Any, Any]]:
    """The log-probabilities in what a forward gave, one array per datum, each in the form of its targets."""
    outputs = getattr(output, "loss_fn_outputs", None)
    if not isinstance(outputs, Sequence):
        raise InputError(
            f"forward: the client gave {type(output).__name__}; expected an output with one loss_fn_outputs per datum"
        )
    listed = cast("Sequence[Any]", outputs)
    if len(listed) != len(batch.data):
        raise InputError(f"forward: the client gave {len(listed)} outputs for {len(batch.data)} data")
    found: list[np.ndarray[Any, Any]] = []
    for place, (one, shape) in enumerate(zip(listed, batch.shapes, strict=True)):
        if not isinstance(one, Mapping) or "logprobs" not in one:
            there = ", ".join(cast("Mapping[str, Any]", one)) if isinstance(one, Mapping) else type(one).__name__
            raise InputError(f"datum {place}: the forward gave {there or 'nothing'}; expected logprobs")
        try:
            array = numpy_of(cast("Any", one["logprobs"])).astype(np.float32)
        except InputError as error:
            raise InputError(f"datum {place}: the logprobs of the forward: {error}") from error
        if array.size != int(np.prod(shape)):
            raise InputError(f"datum {place}: the forward gave logprobs of shape {array.shape} for targets {shape}")
        array = array.reshape(shape)
        if not np.isfinite(array).all():
            kind = "nan" if np.isnan(array).any() else "inf"
            raise NonFiniteError(kind, f"datum {place}: the forward gave {kind} among its logprobs; the model diverged")
        found.append(array)
    return found
