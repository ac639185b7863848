"""Base losses of a batch, by name: functions of the data and the log-probabilities of their targets.

Each takes the data, one tensor of log-probabilities per datum, and perhaps a reference, one array per datum, and
returns `(loss, metrics)`. `weights` and the other inputs of a loss are in each datum's `loss_fn_inputs`; without
`weights` every target counts 1. An error names the datum.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from ..backends import owner
from ..errors import InputError
from ..functional import kl_divergence, kl_estimate
from ..functional import renormalize as renormalized
from ..functional.options import POSITIVE, check_choice, check_flag, check_number
from ..functional.penalty import strict_options
from ..functional.reduction import reduce
from .adapters.packing import REDUCTIONS, candidates, extremes
from .libraries import library
from .reading import inputs_of, numpy_of, targets_of, weights_of
from .shares import Known, sequences, shared

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BY_NAME", "cross_entropy", "dpo", "importance_sampling", "reverse_kl"]

Result: TypeAlias = tuple["Tensor", dict[str, Any]]
"""A loss, and detached metrics."""


def _weight(known: Known) -> np.ndarray[Any, Any]:
    """Σ|weight| of each datum."""
    found = [weights_of(index, datum, known.shapes[index]) for index, datum in enumerate(known.data)]
    return np.array([np.abs(array).sum(dtype=np.float64) for array in found])


def _advantages(known: Known) -> np.ndarray[Any, Any]:
    """How many targets of each datum have an advantage."""
    found = [_input("importance_sampling", index, datum, "advantages") for index, datum in enumerate(known.data)]
    return np.array([np.count_nonzero(numpy_of(one)) for one in found], np.float64)


def _pairs(known: Known) -> np.ndarray[Any, Any]:
    """Every datum alike, if each has its partner."""
    _check_pairs(known.data, known.shapes)
    return sequences(known)


def _candidates(known: Known) -> np.ndarray[Any, Any]:
    """Σ|weight| of the positions of each datum."""
    _check_widths(known.shapes)
    found = [weights_of(index, datum, known.shapes[index]) for index, datum in enumerate(known.data)]
    each = np.abs(_per_position(np.concatenate(found), known.shapes))
    return np.array([part.sum() for part in np.split(each, np.cumsum([len(one) for one in found])[:-1])])


@shared("sum", _weight, metrics={"mean_nll": "mean", "perplexity": lambda merged: merged["mean_nll"].exp()})
@strict_options
def cross_entropy(data: Sequence[Any], logprobs: "Sequence[Tensor]") -> "Result":
    """`Σ −logprob·weight`, as the service computes it.

    Metrics: `mean_nll`, the mean of −logprob weighted by |weight|, and `perplexity`, its exponential. A batch whose
    weights are all 0 has neither.

    >>> import torch
    >>> from penalties.training import Datum, ModelInput
    >>> datum = Datum(ModelInput.from_ints([1, 2]), {"target_tokens": [2, 3], "weights": [0.0, 2.0]})
    >>> loss, metrics = cross_entropy([datum], [torch.tensor([-5.0, -1.0])])
    >>> loss.item(), metrics["mean_nll"].item()
    (2.0, 1.0)
    """
    batch = _read("cross_entropy", data, logprobs)
    given = batch.weights()
    weights = batch.beside(given)
    nll = -batch.shown(weights != 0)
    loss = (weights * nll).sum()
    total = float(np.abs(given).sum())
    if total == 0:
        return loss, {}
    mean = (weights.abs() * nll.detach()).sum() / total
    return loss, {"mean_nll": mean, "perplexity": mean.exp()}


@shared("sum", _advantages, metrics={"ratio_mean": "mean", "ratio_max": "max", "kl": "mean"})
@strict_options
def importance_sampling(data: Sequence[Any], logprobs: "Sequence[Tensor]") -> "Result":
    """`−Σ exp(logprob − old)·advantage`, with the old `logprobs` and `advantages` in the data, as in the service.

    A target with advantage 0 does not count; `weights` only matter to regularizers. Metrics over the targets that
    count, or 0 if none does: `ratio_mean`, `ratio_max`, and `kl`, an estimate (k3) of how far the model has moved from
    the one that sampled them.

    >>> import torch
    >>> from penalties.training import Datum, ModelInput
    >>> inputs = {"target_tokens": [2, 3], "logprobs": [-1.0, -1.0], "advantages": [0.5, -1.0]}
    >>> loss, metrics = importance_sampling([Datum(ModelInput.from_ints([1, 2]), inputs)], [torch.tensor([-1.0, -1.0])])
    >>> loss.item(), metrics["ratio_mean"].item()
    (0.5, 1.0)
    """
    batch = _read("importance_sampling", data, logprobs)
    advantages, old = batch.inputs("advantages"), batch.inputs("logprobs")
    counts = advantages != 0
    now = batch.shown(counts)
    before = old.where(counts, 0.0)
    ratio = (now - before).exp()
    loss = -(ratio * advantages).sum()
    counted = counts.to(ratio)
    still = ratio.detach()
    return loss, {
        "ratio_mean": (still * counted).sum() / counted.sum().clamp(min=1.0),
        "ratio_max": (still * counted).amax(),
        "kl": kl_estimate(before, now.detach(), mask=counted),
    }


@shared(
    "mean",
    _pairs,
    metrics=dict.fromkeys(("accuracy", "margin", "chosen_reward", "rejected_reward"), "mean"),
    together=2,
)
@strict_options
def dpo(data: Sequence[Any], logprobs: "Sequence[Tensor]", reference: Sequence[Any], *, beta: float = 0.1) -> "Result":
    """Direct preference optimization (Rafailov et al., 2023) of pairs of data, the chosen one first.

    With the reward of a sequence `r = β·Σ weight·(logprob − reference)`, the loss is the mean over pairs of
    `−log σ(r_chosen − r_rejected)`. Metrics, means over pairs: `accuracy`, how often the chosen one has the larger
    reward, `margin` between the two, `chosen_reward` and `rejected_reward`.

    >>> import torch
    >>> from penalties.training import Datum, ModelInput
    >>> pair = [Datum(ModelInput.from_ints([1]), {"target_tokens": [token]}) for token in (2, 3)]
    >>> initial = [torch.tensor([-1.0]), torch.tensor([-1.0])]
    >>> loss, metrics = dpo(pair, [torch.tensor([-0.5]), torch.tensor([-2.0])], initial, beta=1.0)
    >>> round(loss.item(), 4), metrics["margin"].item()
    (0.2014, 1.5)
    """
    torch = library("dpo", "torch", "torch")
    beta = check_number("dpo", "beta", beta, "a finite number above 0", low=POSITIVE)
    batch = _read("dpo", data, logprobs)
    _check_pairs(data, batch.shapes)
    weights = batch.beside(batch.weights())
    counts = weights != 0
    moved: Any = (batch.shown(counts) - batch.arrays("reference", reference).where(counts, 0.0)) * weights
    parts = moved.split([shape[0] for shape in batch.shapes])
    rewards = beta * torch.stack([part.sum() for part in parts])
    chosen, rejected = rewards[0::2], rewards[1::2]
    margins = chosen - rejected
    still = margins.detach()
    return -torch.nn.functional.logsigmoid(margins).mean(), {
        "accuracy": (still > 0).to(still).mean(),
        "margin": still.mean(),
        "chosen_reward": chosen.detach().mean(),
        "rejected_reward": rejected.detach().mean(),
    }


@shared(
    "mean",
    _candidates,
    metrics={
        "reverse_kl": "mean",
        "reverse_kl_max": "max",
        "reverse_kl_min": "min",
        "student_mass": "mean",
        "teacher_mass": "mean",
    },
)
@strict_options
def reverse_kl(
    data: Sequence[Any],
    logprobs: "Sequence[Tensor]",
    reference: Sequence[Any],
    *,
    renormalize: bool = True,
    reduction: str = "mean",
) -> "Result":
    """KL(student ‖ teacher) at each position over its K candidates; `reference` has the teacher's log-probabilities.

    `renormalize=True` compares the two distributions restricted to the K candidates; `False` sums `p·(log p − log q)`
    over the K as they are, which is part of the divergence over all tokens and may be negative. Each position is
    weighted, and the mean divides by Σ|weight|; a candidate of weight 0 is excluded. Metrics: `reverse_kl`, the mean,
    `reverse_kl_max` and `reverse_kl_min`, and `student_mass` and `teacher_mass`, the mean total probability of the K
    before renormalisation.

    >>> import numpy as np
    >>> import torch
    >>> from penalties.training import Datum, ModelInput
    >>> datum = Datum(ModelInput.from_ints([1]), {"target_tokens": [[2, 3]]})
    >>> loss, metrics = reverse_kl([datum], [torch.tensor([[0.5, 0.5]]).log()], [np.log([[0.09, 0.01]])])
    >>> round(loss.item(), 6), round(metrics["teacher_mass"].item(), 6)
    (0.510826, 0.1)
    """
    check_flag("reverse_kl", "renormalize", renormalize)
    check_choice("reverse_kl", "reduction", reduction, REDUCTIONS)
    batch = _read("reverse_kl", data, logprobs)
    width = _check_widths(batch.shapes)
    weights = batch.weights().reshape(-1, width)
    per_position = batch.beside(_per_position(weights, batch.shapes))
    ops = owner(batch.flat)
    assert ops is not None, "it is a tensor"
    shown = batch.beside(weights) != 0
    student = candidates(ops, batch.flat.reshape(-1, width), shown)
    teacher = candidates(ops, batch.arrays("reference", reference).reshape(-1, width), shown)
    p, q = (renormalized(student), renormalized(teacher)) if renormalize else (student, teacher)
    values = kl_divergence(p, q, reduction="none")
    loss = (per_position * values).sum()
    counted = per_position.abs()
    size = counted.sum()
    metrics = {
        **extremes(ops, values, counted, "reverse_kl"),
        "student_mass": reduce(ops, student.detach().exp().sum(-1), "mean", counted),
        "teacher_mass": reduce(ops, teacher.exp().sum(-1), "mean", counted),
    }
    return loss if reduction == "sum" else loss / size.where(size > 0, 1.0), metrics


BY_NAME: Final[dict[str, Callable[..., Any]]] = {
    "cross_entropy": cross_entropy,
    "importance_sampling": importance_sampling,
    "dpo": dpo,
    "reverse_kl": reverse_kl,
}
"""The base losses by name."""


class _Read(NamedTuple):
    """A batch, checked, with all log-probabilities in one row."""

    loss: str
    data: Sequence[Any]
    shapes: list[tuple[int, ...]]
    flat: "Tensor"

    def weights(self) -> np.ndarray[Any, Any]:
        """How much each target counts."""
        found = [weights_of(index, datum, self.shapes[index]) for index, datum in enumerate(self.data)]
        return np.concatenate([array.reshape(-1) for array in found])

    def inputs(self, name: str) -> "Tensor":
        """An array of each datum's `loss_fn_inputs`."""
        found = [_input(self.loss, index, datum, name) for index, datum in enumerate(self.data)]
        return self.arrays(name, found)

    def arrays(self, name: str, given: Sequence[Any]) -> "Tensor":
        """One array per datum, each with the shape of its targets, as one row."""
        if len(given) != len(self.data):
            first = min(len(given), len(self.data))
            raise InputError(
                f"datum {first}: {self.loss} has {len(self.data)} data and {len(given)} entries in {name}; expected "
                "one per datum"
            )
        parts: list[Any] = []
        for index, (one, shape) in enumerate(zip(given, self.shapes, strict=True)):
            if one is None:
                raise InputError(f"datum {index}: {self.loss}: {name} is None; expected an array of shape {shape}")
            array = one.detach() if hasattr(one, "detach") else np.array(numpy_of(one))
            if tuple(array.shape) != shape:
                raise InputError(
                    f"datum {index}: its {name} has shape {tuple(array.shape)} and its target_tokens {shape}"
                )
            parts.append(self.beside(array).reshape(-1))
        flat = library(self.loss, "torch", "torch").cat(parts)
        _check_numbers(name, flat, self.shapes)
        return flat

    def beside(self, array: Any) -> "Tensor":
        """An array as a tensor with the dtype and device of the log-probabilities."""
        return library(self.loss, "torch", "torch").as_tensor(array, dtype=self.flat.dtype, device=self.flat.device)

    def shown(self, counts: "Tensor") -> "Tensor":
        """The log-probabilities that count, and 0 elsewhere, whatever the value there."""
        return self.flat.where(counts, 0.0)


def _read(loss: str, data: Sequence[Any], logprobs: "Sequence[Tensor]") -> _Read:
    torch = library(loss, "torch", "torch")
    if len(data) == 0:
        raise InputError(f"{loss}: got no data; expected at least one datum")
    if len(data) != len(logprobs):
        first = min(len(data), len(logprobs))
        raise InputError(f"datum {first}: {loss} has {len(data)} data and {len(logprobs)} arrays of logprobs")
    shapes: list[tuple[int, ...]] = []
    for index, (datum, found) in enumerate(zip(data, logprobs, strict=True)):
        shape = targets_of(index, datum).shape
        if tuple(found.shape) != shape:
            raise InputError(
                f"datum {index}: its logprobs have shape {tuple(found.shape)} and its target_tokens {shape}"
            )
        shapes.append(shape)
    flat = torch.cat([found.reshape(-1) for found in logprobs])
    flat = flat if flat.element_size() >= 4 else flat.float()
    _check_numbers("logprobs", flat, shapes)
    return _Read(loss, data, shapes, flat)


def _check_numbers(name: str, flat: "Tensor", shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise for NaN, naming the datum."""
    missing = flat.detach().isnan()
    # One transfer per batch; the datum is looked up only if there is a NaN.
    if bool(missing.any()):
        first = int(missing.nonzero()[0])
        index = _datum_of(first, [math.prod(shape) for shape in shapes])
        raise InputError(f"datum {index}: found nan in its {name}; expected numbers")


def _check_pairs(data: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise unless the data are pairs of sequences with one target per position."""
    for index, shape in enumerate(shapes):
        if len(shape) != 1:
            raise InputError(
                f"datum {index}: its target_tokens have shape {shape}; dpo compares sequences: expected one "
                "target per position, (N,)"
            )
    if len(data) % 2:
        raise InputError(
            f"datum {len(data) - 1}: has no partner; dpo takes pairs: chosen, rejected, chosen, rejected, …"
        )


def _check_widths(shapes: Sequence[tuple[int, ...]]) -> int:
    """The number of candidates per position; raises unless all data have as many."""
    width = shapes[0][-1]
    for index, shape in enumerate(shapes):
        if len(shape) != 2 or shape[1] != width:
            expected = "(N, K)" if len(shape) != 2 else f"(N, {width}), as datum 0 has"
            raise InputError(
                f"datum {index}: its target_tokens have shape {shape}; reverse_kl compares distributions over K "
                f"candidates per position: expected {expected}"
            )
    return width


def _input(loss: str, index: int, datum: Any, name: str) -> Any:
    """An array of a datum's `loss_fn_inputs`."""
    given = inputs_of(index, datum)
    if name not in given:
        there = ", ".join(given)
        raise InputError(f"datum {index}: {loss} needs {name} in its loss_fn_inputs; there is {there}")
    return given[name]


def _datum_of(row: int, sizes: Sequence[int]) -> int:
    """The datum to which a row of a packed array belongs."""
    return int(np.searchsorted(np.cumsum(sizes), row, side="right"))


def _per_position(weights: np.ndarray[Any, Any], shapes: Sequence[tuple[int, ...]]) -> np.ndarray[Any, Any]:
    """How much each position counts: the common weight of its candidates that are not excluded."""
    counts = weights != 0
    high = np.where(counts, weights, -np.inf).max(-1)
    low = np.where(counts, weights, np.inf).min(-1)
    uneven = counts.any(-1) & (high != low)
    if uneven.any():
        row = int(np.flatnonzero(uneven)[0])
        index = _datum_of(row, [shape[0] for shape in shapes])
        raise InputError(
            f"datum {index}: the weights of the candidates at one position differ, {low[row]:g} to {high[row]:g}; "
            "reverse_kl takes one weight per position, and 0 to exclude a candidate; pass a teacher's probabilities as "
            "the reference, as log-probabilities"
        )
    return np.where(counts.any(-1), high, 0.0)
