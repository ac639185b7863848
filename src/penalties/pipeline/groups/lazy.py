"""Penalties over `Logits` of PyTorch: a block of rows at a time, their gradient formed along with their value."""

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ... import trees
from ...arrays import Logits
from ...backends import Backend, owner
from ...functional.blocks import block_rows, counted
from ...functional.penalty import facts_of
from ...functional.reduction import weighted_mean
from ...kernels.heads import Head, Rows, head_of
from ...kernels.lengths import length
from ..binding import Enclosing, reader_of_logits
from ..evaluation import Evaluation
from ..inputs import CallInputs
from ..kinds import compiling
from ..sums import Sums
from ..targets import Targets
from ..term import Term, Weight
from .fused import Combined
from .sharing import Reader, reader_of

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["NO_GRADIENT", "Lazily", "LazyGroup", "lazily"]

NO_GRADIENT: Final = (
    "the gradient of terms over Logits is formed once, for the total; differentiate out.total, or use "
    "value_and_grad(keep=True) for the gradient of each term"
)

_UNMEASURED: Final = (
    "terms over Logits have one gradient together, formed in blocks; value_and_grad(keep=True) computes that of each"
)

_PARTS: Final = ("hidden", "weight", "bias")


class Lazily(NamedTuple):
    """Penalties that are computed together, block by block."""

    indices: list[int]
    reason: str
    fused: "LazyGroup"


def lazily(
    terms: Sequence[tuple[int, Term, Weight, Any]], inputs: CallInputs, targets: Targets | None, *, hold: bool
) -> tuple[list[Lazily], dict[int, str]]:
    """The groups among these terms, each with its index, weight and whether it is due; and why others are in none.

    `hold` says that the gradient of each term is needed by itself.
    """
    reasons: dict[int, str] = {}
    groups: dict[Any, list[tuple[int, Reader]]] = {}
    holds: dict[str, bool] = {}
    """By name, whether an input is `Logits`, or contains some."""
    for index, term, weight, due in terms:
        for name in term.inputs.values():
            if name not in holds:
                holds[name] = next(trees.logits(inputs.find(term.name, name)), None) is not None
        names = [name for name in term.inputs.values() if holds[name]]
        if not names:
            continue
        reader = reader_of(term, inputs)
        reason = _alone(reader, weight, due, targets)
        if reason is None and hold:
            reason = "its gradient is held for cosines, or kept"
        if reason is not None:
            how = "in blocks of rows" if _takes_logits(term) else f"with the array of {' and '.join(names)}"
            reasons[index] = f"{reason}; computed {how}{_instead([term]) if _takes_logits(term) else ''}"
            continue
        first = next(x for _, x in reader.distributions.values() if isinstance(x, Logits))
        groups.setdefault((tuple(first.shape[:-1]), first.device), []).append((index, reader))
    found: list[Lazily] = []
    for members in groups.values():
        readers = [reader for _, reader in members]
        names = dict.fromkeys(
            name for one in readers for name, x in one.distributions.values() if isinstance(x, Logits)
        )
        reason = f"a block of rows of {' and '.join(names)} at a time{_instead([one.term for one in readers])}"
        found.append(Lazily([index for index, _ in members], reason, LazyGroup([one.term for one in readers])))
    return found, reasons


def _instead(terms: Sequence[Term]) -> str:
    return ", in place of chunk=" if any(term.chunk is not None for term in terms) else ""


def _alone(reader: Reader, weight: Weight, due: Any, targets: Targets | None) -> str | None:
    """Why a term is computed by itself; None where it need not be."""
    term = reader.term
    if term.runs != "inline" or term.asynchronous:
        return f'runs="{"async" if term.asynchronous else term.runs}"'
    if term.compile:
        return "a graph of torch.compile"
    if isinstance(term.fn, Enclosing):
        return term.fn.apart
    if facts_of(term.fn) is None:
        return "your own function"
    if not _takes_logits(term) or not term.differentiable or term.reduction == "none":
        return "no penalty on distributions that has a gradient"
    arrays = [x for _, x in (*reader.distributions.values(), *reader.others.values())]
    parts = [part for x in arrays for part in (_parts(x).values() if isinstance(x, Logits) else [x])]
    ops = owner(parts[0])
    if ops is None or ops.LIBRARY != "PyTorch" or any(owner(part) is not ops for part in parts):
        return "blocks that form their gradient are for PyTorch tensors"
    if compiling() or ops.tracing(parts[0]):
        return "a compiler or a transform traces the call"
    if any(map(_has_tangent, parts)):
        return "a forward-mode derivative is taken"
    if term.on_error == "skip":
        return "it may be skipped, and the gradients of all terms are formed together"
    if due is not True:
        return "the step is traced"
    if not isinstance(weight, int | float):
        return "its weight is an array"
    if any(owner(option) is not None for option in term.options.values()):
        return "its mask or another of its arrays is an option"
    return _misfit(reader) or (None if targets is None else _ungradable(reader, targets))


def _has_tangent(x: Any) -> bool:
    from torch.autograd import forward_ad

    module: Any = forward_ad  # untyped in torch
    return module.unpack_dual(x).tangent is not None


def _takes_logits(term: Term) -> bool:
    inner = reader_of_logits(term)
    facts = facts_of(inner.fn)
    return facts is not None and facts.takes_logits(inner.options)


def _misfit(reader: Reader) -> str | None:
    first, *others = [x for _, x in reader.distributions.values()]
    leading = tuple(first.shape[:-1])
    rows = [x for _, x in reader.others.values()]
    if any(tuple(x.shape) != tuple(first.shape) for x in others) or not math.prod(leading):
        return "its inputs differ in shape, or have no rows"
    if any(isinstance(x, Logits) for x in rows):
        return "only its distributions may be Logits"
    if any(tuple(x.shape) != leading or x.requires_grad for x in rows):
        return "its mask has another shape, or requires a gradient"
    return None


def _ungradable(reader: Reader, targets: Targets) -> str | None:
    for name, _ in reader.others.values():
        if targets.touched_by(name):
            return f"gradients are taken at {name}, which is not a distribution"
    for name, x in reader.distributions.values():
        if any(not targets.inputs.same(name, one) and targets.inputs.lies_in(name, one) for one in targets.nests):
            return f"gradients are taken at an input that contains {name}"
        for part, array in _parts(x).items():
            taken = _leaf(targets, name, part, array) is not None
            if not taken and (array.requires_grad or (part == "" and targets.touched_by(name))):
                return f"{name}{'.' if part else ''}{part} requires a gradient that this call does not take"
    return None


def _parts(x: Any) -> dict[str, Any]:
    """The tensors that logits are made of, or the tensor itself."""
    if not isinstance(x, Logits):
        return {"": x}
    # Without a walrus, which torch.compile cannot trace in a comprehension.
    return {part: getattr(x, part) for part in _PARTS if getattr(x, part) is not None}


def _leaf(targets: Targets, name: str, part: str, array: Any) -> int | None:
    return targets.part_leaf(name, part, array) if part else targets.leaf_of(name, array)


@dataclass(frozen=True, slots=True)
class LazyGroup:
    """Penalties over rows of the same shape, of which at least one input is `Logits`."""

    terms: Sequence[Term]

    def evaluate(
        self, inputs: CallInputs, targets: Targets | None, coefficients: Sequence[float], *, accumulate: bool
    ) -> tuple[list[Evaluation], Combined | None]:
        """One pass over the rows: logits, values, gradient, and the products for hidden states and weight."""
        return _Blocks([reader_of(term, inputs) for term in self.terms]).evaluate(targets, coefficients)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Such penalties with the inputs of a call."""

    readers: Sequence[Reader]

    def evaluate(
        self, targets: Targets | None, coefficients: Sequence[float]
    ) -> tuple[list[Evaluation], Combined | None]:
        import torch

        given = {name: x for reader in self.readers for name, x in reader.distributions.values()}
        wanted = {
            name: [part for part, array in _parts(x).items() if _is_wanted(targets, name, part, array)]
            for name, x in given.items()
        }
        with torch.inference_mode(False), torch.no_grad():
            sources = {name: head_of(x, wanted[name], self._mask(name)) for name, x in given.items()}
            values = self._pass(sources, coefficients)
        leaves: list[Any] = []
        gradients: list[Any] = []
        spread: list[Any] = [None] * (0 if targets is None else len(targets.leaves))
        for name, source in sources.items():
            for part, gradient in source.gradients().items():
                array = _parts(given[name])[part]
                leaves.append(array)
                gradients.append(gradient)
                if targets is not None and (index := _leaf(targets, name, part, array)) is not None:
                    spread[index] = gradient if spread[index] is None else spread[index] + gradient
        if targets is not None:
            return [
                self._measured(*pair, wanted, targets) for pair in zip(self.readers, values, strict=True)
            ], Combined(spread, length([gradient for gradient in spread if gradient is not None]))
        if not leaves:
            return [Evaluation(value) for value in values], None
        ops = _ops(leaves[0])
        barred = [Evaluation(ops.barred(value, leaves, NO_GRADIENT)) for value in values]
        return barred, Combined(gradients, leaves=leaves)

    def _mask(self, name: str) -> Any:
        """Which rows of an input count for any term; None where all do."""
        shown: Any = None
        for reader in self.readers:
            if name in [one for one, _ in reader.distributions.values()]:
                if (weights := _counted(reader)) is None:
                    return None
                own = weights.reshape(-1) != 0
                shown = own if shown is None else shown | own
        return shown

    def _measured(self, reader: Reader, value: Any, wanted: dict[str, list[str]], targets: Targets) -> Evaluation:
        reads = any(wanted[name] for name, _ in reader.distributions.values())
        return Evaluation(value, grad_error=_UNMEASURED if reads else targets.unread)

    def _pass(self, sources: dict[str, Head | Rows], coefficients: Sequence[float]) -> list[Any]:
        jobs, others = self._jobs(coefficients)
        names = [name for name, source in sources.items() if source.wanted]
        count, size = self._rows()
        values: list[Any] = [0.0] * len(jobs)
        for start in range(0, count, size):
            rows = slice(start, min(start + size, count))
            found = _evaluated(jobs, _block(sources, others, rows), names)
            values = [before + value for before, value in zip(values, found.values, strict=True)]
            for name in names:
                # Freed one by one: the products of the next take memory as well.
                gradient = found.gradients.pop(name)
                if gradient is not None:
                    sources[name].add(rows, gradient)
                del gradient
        return [value * self._share(reader) for reader, value in zip(self.readers, values, strict=True)]

    def _rows(self) -> tuple[int, int]:
        """How many rows there are, and how many are computed at a time."""
        lazy = [x for reader in self.readers for _, x in reader.distributions.values() if isinstance(x, Logits)]
        return math.prod(lazy[0].shape[:-1]), min(block_rows(_ops(x.hidden), x) for x in lazy)

    def _share(self, reader: Reader) -> float:
        """What a sum over rows is multiplied by; a masked mean has its share in the mask."""
        return 1 / self._rows()[0] if reader.term.reduction == "mean" and _counted(reader) is None else 1.0

    def _jobs(self, coefficients: Sequence[float]) -> tuple[list[Any], dict[str, Any]]:
        """The terms as sums over the rows of a block, and what else they read, with one entry for each row."""
        from ..plan import Job

        jobs: list[Any] = []
        others: dict[str, Any] = {}
        count, _ = self._rows()
        for index, (reader, coefficient) in enumerate(zip(self.readers, coefficients, strict=True)):
            inputs = {parameter: name for parameter, (name, _) in reader.distributions.items()}
            for parameter, (name, array) in reader.others.items():
                inputs[parameter] = name
                others[name] = array.detach().reshape(count)
            if reader.term.reduction == "mean" and (weights := _counted(reader)) is not None:
                # One array for all terms that count alike, so that they still share a log_softmax.
                inputs["mask"], dtype = _shares_of(reader)
                others[inputs["mask"]] = _shared_out(weights.detach().reshape(count), dtype)
            jobs.append(Job(index, _summed(reader.term, inputs), coefficient * self._share(reader)))
        return jobs, others


class _Evaluated(NamedTuple):
    """The terms of a block."""

    values: list[Any]
    gradients: dict[str, Any]
    """Of their weighted sum, by the name of an input."""


def _block(sources: Mapping[str, Head | Rows], others: Mapping[str, Any], rows: slice) -> CallInputs:
    named = {name: source.block(rows) for name, source in sources.items()}
    return CallInputs.of(named | {name: array[rows] for name, array in others.items()})


def _evaluated(jobs: Sequence[Any], inputs: CallInputs, names: Sequence[str]) -> _Evaluated:
    """An ordinary call with the tensors of a block. Nothing of it outlives this function but what it returns."""
    from ..evaluate import evaluate
    from ..plan import plan_of

    targets = Targets.of("Logits", inputs, names) if names else None
    sums = Sums(_ops(inputs.like), len(names))
    values: list[Any] = [None] * len(jobs)
    for group in plan_of(jobs, inputs, targets, hold=False):
        found = evaluate(group, inputs, targets, coefficients=[job.weight for job in group.jobs])
        if found.combined is not None:
            sums.add(found.combined.gradients, None)
        for job, one in zip(group.jobs, found.evaluations, strict=True):
            values[job.index] = one.value.detach()
            if targets is not None and one.gradient is not None:
                sums.add(targets.leaves_of(one.gradient), job.weight)
    return _Evaluated(values, dict(zip(names, sums.leaves, strict=True)))


_summed_terms: Final = weakref.WeakKeyDictionary[Term, dict[tuple[tuple[str, str], ...], Term]]()


def _summed(term: Term, inputs: dict[str, str]) -> Term:
    """The term as a sum over rows that reads these inputs; kept, since making a term takes about a millisecond."""
    made = _summed_terms.setdefault(term, {})
    key = tuple(inputs.items())
    if key not in made:
        options = {**term.options, "reduction": "sum"}
        made[key] = term.replace(inputs=inputs, options=options, weight=1.0, every=1, chunk=None)
    return made[key]


def _counted(reader: Reader) -> Any:
    """How much each position counts in a term; None where all count alike."""
    facts = facts_of(reader.term.fn)
    assert facts is not None, "a penalty"
    read = {parameter: x for parameter, (_, x) in (reader.distributions | reader.others).items()}
    return counted(facts.weights, {**facts.options(reader.term.options), **read})


def _shares_of(reader: Reader) -> tuple[str, Any]:
    """A name for how much each row counts in the mean of a term, alike for terms that count alike; and its dtype."""
    import torch

    facts = facts_of(reader.term.fn)
    assert facts is not None, "a penalty"
    dtypes = [part.dtype for _, x in reader.distributions.values() for part in _parts(x).values()]
    dtype = torch.float64 if torch.float64 in dtypes else torch.float32
    read = ", ".join(f"{parameter} {name}" for parameter, (name, _) in reader.others.items())
    # What a penalty says about it may depend on all of its options, as on ignore_index.
    own = "" if facts.weights is None else f" for {reader.term.name}"
    return f"shares of {read} as {dtype}{own}", dtype


def _shared_out(mask: "Tensor", dtype: Any) -> "Tensor":
    """How much each row counts in a mean."""
    ops = _ops(mask)
    wide = ops.upcast("mask", mask).to(dtype)
    return weighted_mean(ops, wide, ops.sum(wide))


def _ops(array: Any) -> Backend:
    ops = owner(array)
    assert ops is not None, "checked before"
    return ops


def _is_wanted(targets: Targets | None, name: str, part: str, array: Any) -> bool:
    import torch

    if targets is not None:
        return _leaf(targets, name, part, array) is not None
    return array.requires_grad and torch.is_grad_enabled()
