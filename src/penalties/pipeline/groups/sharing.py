"""Penalties over the same logits, which share one log_softmax: each is evaluated at the log-probabilities."""

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...backends import Backend, owner
from ...errors import TermError, said
from ...functional.divergences import tempered_log_softmax
from ...functional.penalty import DISTRIBUTIONS
from ...functional.reduction import hide
from ..evaluation import Evaluation
from ..inputs import INPUT, CallInputs
from ..sums import Sums
from ..targets import Targets
from ..term import Term
from .fused import Combined

__all__ = ["Reader", "Shared", "SharedSoftmax", "Softmax", "reader_of", "shared"]


class Softmax(NamedTuple):
    """What a log_softmax is taken of. The mask counts, too: it hides what is in padding."""

    name: str
    mask: str | None
    temperature: float


class Reader(NamedTuple):
    """A penalty on distributions, and what it reads in one call."""

    term: Term
    distributions: dict[str, tuple[str, Any]]
    """By parameter: the name of an input, and the input."""
    others: dict[str, tuple[str, Any]]
    """The same for its mask, and whatever else it reads."""

    @property
    def mask(self) -> Any:
        """How much each position counts, if it reads that."""
        return self.others["mask"][1] if "mask" in self.others else None

    @property
    def softmaxes(self) -> dict[str, Softmax]:
        """What it takes a log_softmax of, by parameter."""
        assert self.term.softmax is not None, "a penalty that takes a log_softmax"
        mask = self.others["mask"][0] if "mask" in self.others else None
        return {
            parameter: Softmax(name, mask, self.term.softmax) for parameter, (name, _) in self.distributions.items()
        }

    def value(self, logprobs: dict[str, Any], others: dict[str, Any]) -> Any:
        """Its value at log-probabilities, and at these others, by parameter."""
        # Whether the options of the term say so, or a partial that fixes them.
        keywords = {**self.term.keywords, "logits": False, "temperature": 1.0}
        with _naming(self.term):
            return self.term.call(**logprobs, **others, **keywords)


@contextlib.contextmanager
def _naming(term: Term) -> Generator[None]:
    """Say in an error which term it is of."""
    try:
        yield
    except Exception as error:
        raise TermError(term.name, f"raised {said(error)}") from error


def reader_of(term: Term, inputs: CallInputs) -> Reader:
    """What a penalty on distributions reads in this call."""
    read = {
        parameter: (INPUT if inputs.alone else name, inputs.find(term.name, name))
        for parameter, name in term.inputs.items()
    }
    distributions = {parameter: read.pop(parameter) for parameter in DISTRIBUTIONS if parameter in read}
    return Reader(term, distributions, read)


class Shared(NamedTuple):
    """Penalties that share a log_softmax."""

    indices: list[int]
    reason: str
    fused: "SharedSoftmax"


def shared(
    terms: Sequence[tuple[int, Term, Any]], inputs: CallInputs, targets: Targets | None, *, hold: bool
) -> Iterator[Shared]:
    """The groups among these terms, each with its index and whether it is due, of which none has a kernel.

    `hold` says that the gradient of each term is needed by itself.
    """
    offered = [(index, term) for index, term, due in terms if due is True and _may_share(term)]
    if len(offered) < 2 or inputs.traced or (targets is not None and targets.ops.LIBRARY == "NumPy"):
        return
    groups: list[tuple[set[Softmax], list[tuple[int, Reader]]]] = []
    for index, term in offered:
        reader = reader_of(term, inputs)
        if not _computable(reader, targets):
            continue
        keys, members = set(reader.softmaxes.values()), [(index, reader)]
        for group in [group for group in groups if group[0] & keys]:
            groups.remove(group)
            keys, members = keys | group[0], [*group[1], *members]
        groups.append((keys, members))
    for keys, members in groups:
        if len(members) > 1:
            names = " and ".join(sorted({key.name for key in keys}))
            fused = SharedSoftmax([reader.term for _, reader in members], hold)
            yield Shared([index for index, _ in members], f"one log_softmax of {names} for all of them", fused)


def _may_share(term: Term) -> bool:
    if term.softmax is None or term.compile or not term.differentiable or term.runs != "inline" or term.asynchronous:
        return False
    fixed = any(term.options.get(parameter) is not None for parameter in (*DISTRIBUTIONS, "mask"))
    return term.on_error == "raise" and term.chunk is None and not fixed


def _computable(reader: Reader, targets: Targets | None) -> bool:
    """Whether its arrays fit together, and gradients are taken at whole distributions or not at all."""
    arrays = [array for _, array in (*reader.distributions.values(), *reader.others.values())]
    first = arrays[0]
    ops = owner(first)
    if ops is None or any(owner(array) is not ops for array in arrays) or any(map(ops.tracing, arrays)):
        return False
    if not len(first.shape) or any(array.shape != first.shape for _, array in reader.distributions.values()):
        return False
    if reader.mask is not None and tuple(reader.mask.shape) != tuple(first.shape[:-1]):
        return False
    if targets is None:
        return True
    for name, _ in reader.others.values():
        if targets.touched_by(name):
            return False
    # A gradient that this call does not take is on the graph of the value, which a gradient at log-probabilities loses.
    placed = [
        targets.leaf_of(name, array) is not None or not (targets.touched_by(name) or _requires_gradient(array))
        for name, array in reader.distributions.values()
    ]
    return all(placed) and not any(_requires_gradient(array) for _, array in reader.others.values())


def _requires_gradient(array: Any) -> bool:
    return bool(getattr(array, "requires_grad", False))


@dataclass(frozen=True, slots=True)
class SharedSoftmax:
    """Penalties whose log_softmax is taken once."""

    terms: Sequence[Term]
    hold: bool
    """Whether each evaluation keeps its gradient."""

    def evaluate(
        self, inputs: CallInputs, targets: Targets | None, coefficients: Sequence[Any], *, accumulate: bool
    ) -> tuple[list[Evaluation], Combined | None]:
        """Each penalty at the log-probabilities; its gradient there is pulled back to the logits."""
        readers = [reader_of(term, inputs) for term in self.terms]
        found: dict[Softmax, _Found] = {}
        for reader in readers:
            for parameter, key in reader.softmaxes.items():
                if key not in found:
                    name, array = reader.distributions[parameter]
                    leaf = None if targets is None else targets.leaf_of(name, array)
                    found[key] = _log_softmax(reader, array, key.temperature, leaf)
        if targets is None:
            return [Evaluation(_at(reader, found, {})) for reader in readers], None
        sums = Sums(targets.ops, len(targets.leaves))
        evaluations: list[Evaluation] = []
        for reader, coefficient in zip(readers, coefficients, strict=True):
            evaluation, leaves = _differentiated(reader, found, targets)
            if not self.hold and evaluation.gradient is not None:
                sums.add(leaves, coefficient)
                evaluation.gradient = None
            evaluations.append(evaluation)
        return evaluations, None if self.hold else Combined(sums.leaves)


class _Found(NamedTuple):
    """Log-probabilities."""

    logprobs: Any
    leaf: int | None
    """The index of the logits among the leaves of the targets; None where no gradient is taken at them."""
    pull: Callable[[Any], Any] | None
    """Turns a gradient at the log-probabilities into one at the logits."""


def _log_softmax(reader: Reader, logits: Any, temperature: float, leaf: int | None) -> _Found:
    ops = owner(logits)
    assert ops is not None
    wide = ops.upcast(reader.term.name, logits)

    def fn(x: Any) -> Any:
        return tempered_log_softmax(reader.term.name, ops, hide(ops, x, reader.mask), temperature)

    with _naming(reader.term):
        if leaf is None:
            return _Found(fn(wide), None, None)
        logprobs, pull = ops.pullback(fn, wide)

    def narrow(gradient: Any) -> Any:
        return ops.cast(pull(gradient), logits)

    # A gradient in a dtype of small range, as float16, stays float32 until a loss scaler has had its say.
    return _Found(logprobs, leaf, pull if ops.limits(logits)[1] < 1e30 else narrow)


def _at(reader: Reader, found: dict[Softmax, _Found], changed: dict[Softmax, Any]) -> Any:
    """The value of a penalty, with some of the log-probabilities changed."""
    logprobs = {
        parameter: changed[key] if key in changed else found[key].logprobs
        for parameter, key in reader.softmaxes.items()
    }
    return reader.value(logprobs, {parameter: array for parameter, (_, array) in reader.others.items()})


def _differentiated(reader: Reader, found: dict[Softmax, _Found], targets: Targets) -> tuple[Evaluation, Sequence[Any]]:
    """The evaluation of a penalty, and its gradient at each leaf."""
    keys = [key for key in dict.fromkeys(reader.softmaxes.values()) if found[key].leaf is not None]
    if not keys:
        return Evaluation(_at(reader, found, {}), grad_error=targets.unread), []
    ops: Backend = targets.ops
    value, _, gradients = ops.value_and_gradients(
        lambda points: (_at(reader, found, dict(zip(keys, points, strict=True))), []),
        [found[key].logprobs for key in keys],
    )
    pairs: list[tuple[int, Any]] = []
    for key, gradient in zip(keys, gradients, strict=True):
        _, leaf, pull = found[key]
        if leaf is not None and pull is not None:
            pairs.append((leaf, None if gradient is None else pull(gradient)))
    leaves = targets.placed(pairs)
    return targets.measured(Evaluation(value), leaves), leaves
