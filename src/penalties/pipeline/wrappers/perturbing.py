"""Gradients of a term that has none, from its values beside its inputs."""

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ... import trees
from ...backends import Backend, owner
from ...errors import OptionError
from ...functional.options import check_count
from ..evaluate import compute, folded
from ..evaluation import Evaluation
from ..inputs import CallInputs
from ..term import Term
from .draws import Draws, draws_of, prepare
from .wrapper import Wrapper, check_term, detached, is_estimated

__all__ = ["Perturbing", "Tried", "check_estimable"]

_AT_ONCE: Final = 2**16
"""Elements of directions that are drawn at a time: of small inputs all pairs, of large ones pair after pair."""


class Tried(NamedTuple):
    """Some pairs of values of a term on both sides of its inputs."""

    plus: Any
    """One value per pair."""
    minus: Any
    directions: Sequence[Any]
    """For each leaf, one array per pair: what was added on one side and subtracted on the other, over the size."""


class _Leaf(NamedTuple):
    """An array that a gradient is estimated at."""

    name: str
    position: int
    """Among the arrays of its input."""
    ops: Backend
    array: Any


class Perturbing(Wrapper):
    """The term's own value, with a gradient that is estimated from pairs of values, `f(x ± size·direction)`.

    The estimate is the mean of one vector per pair, each a number times the direction. A call evaluates the term once,
    and twice more for every pair if a gradient is wanted at all.
    """

    needs_step = True

    def __init__(self, term: Term, pairs: int, size: float, wrt: tuple[str, ...] | None, seed: int, **own: Any) -> None:
        """Check what both estimators have."""
        check_count(self.title, "seed", seed, 0)
        prepare()
        self.pairs: int = pairs
        self.size: float = size
        self.wrt = wrt
        self.seed: int = int(seed)
        super().__init__(term, **own, wrt=wrt, seed=self.seed)

    @abstractmethod
    def directions(self, draws: Draws, ops: Backend, like: Any, count: int) -> Any:
        """So many random arrays like this one."""
        ...

    def slopes(self, ops: Backend, tried: Iterable[Tried]) -> Iterator[tuple[Any, Tried]]:
        """The numbers that the directions of each pair are multiplied by."""
        for some in tried:
            yield (some.plus - some.minus) / (2.0 * self.size), some

    def evaluated(self, given: dict[str, Any], step: Any, state: Any) -> Evaluation:
        """The value at the inputs, with the estimate, and with its variance in the metrics."""
        plain = CallInputs.of(detached({name: given[name] for name in self.term.inputs.values()}))
        flats = {name: trees.flatten(plain.named[name]) for name in self.wrt or plain.named}
        leaves = [leaf for name, flat in flats.items() for leaf in self._leaves(name, given[name], flat)]
        found = self._computed(plain, leaves, step, state)
        if not leaves:
            return Evaluation(found.value, None, found.metrics, found.state)
        ops = owner(found.value)
        assert ops is not None, "a value is an array"
        means: list[Any] = [None] * len(leaves)
        squares: list[Any] = []
        for slopes, some in self.slopes(ops, self._tried(plain, flats, leaves, step, state)):
            shares = slopes / self.pairs
            for index, (leaf, directions) in enumerate(zip(leaves, some.directions, strict=True)):
                factors = _in(leaf.ops, shares, leaf.array).reshape((-1, *[1] * len(leaf.array.shape)))
                parts = factors * directions
                mean = leaf.ops.sum(parts, 0)
                means[index] = mean if means[index] is None else means[index] + mean
                if self.pairs > 1:
                    squares.append(_in(ops, leaf.ops.sum(parts * parts), found.value))
        metrics = dict(found.metrics)
        if self.pairs > 1:
            lengths = [
                _in(ops, leaf.ops.sum(mean * mean), found.value) for leaf, mean in zip(leaves, means, strict=True)
            ]
            spread = self.pairs * ops.add(squares) - ops.add(lengths)
            metrics["gradient_variance"] = ops.clip(spread, 0.0, None) / (self.pairs - 1)
        return Evaluation(found.value, _structured(flats, leaves, means, whole=False), metrics, found.state)

    def _computed(self, inputs: CallInputs, leaves: Sequence[_Leaf], step: Any, state: Any) -> Evaluation:
        """The term at some inputs, with its value in their library, whichever it computed with."""
        found = compute(self.term, inputs, step, state)
        if inputs.ops is not None and owner(found.value) is not inputs.ops:
            like = leaves[0].array if leaves else inputs.ops.zero(inputs.like)
            found.value = inputs.ops.as_array(found.value, like)
        return found

    def _leaves(self, name: str, given: Any, flat: trees.Flat) -> Iterator[_Leaf]:
        for index, (original, array) in enumerate(zip(trees.arrays(given), flat.leaves, strict=True)):
            ops = owner(array)
            if ops is not None and is_estimated(original):
                # In 32 bits at least: in fewer, a small step would be rounded away.
                yield _Leaf(name, index, ops, ops.upcast(self.term.name, array))

    def _tried(
        self, plain: CallInputs, flats: Mapping[str, trees.Flat], leaves: Sequence[_Leaf], step: Any, state: Any
    ) -> Iterator[Tried]:
        """The values on both sides of the inputs, some pairs at a time."""
        draws = draws_of(folded(self.seed, step))

        def values_at(points: Sequence[Any]) -> Any:
            found = [
                self._computed(plain.replaced(_structured(flats, leaves, moved, whole=True)), leaves, step, state).value
                for moved in zip(*points, strict=True)
            ]
            ops = owner(found[0])
            assert ops is not None, "a value is an array"
            return ops.concatenate(found)

        most = max(1, _AT_ONCE // max(1, sum(math.prod(leaf.array.shape) for leaf in leaves)))
        for first in range(0, self.pairs, most):
            count = min(most, self.pairs - first)
            directions = [self.directions(draws, leaf.ops, leaf.array, count) for leaf in leaves]
            steps = [self.size * some for some in directions]
            plus = values_at([leaf.array + by for leaf, by in zip(leaves, steps, strict=True)])
            minus = values_at([leaf.array - by for leaf, by in zip(leaves, steps, strict=True)])
            yield Tried(plus, minus, directions)


def check_estimable(title: str, term: Term) -> None:
    """Raise for a term whose gradient would be estimated in vain."""
    check_term(title, term)
    if not term.differentiable:
        raise OptionError(title, "term", term, "a term with differentiable=True: it has the gradient that is estimated")
    fn = term.fn
    while isinstance(fn, Wrapper):
        if not fn.estimable:
            expected = f"a term whose values say what its gradient is; put {fn.title} around {title}"
            raise OptionError(title, "term", term, expected)
        fn = fn.term.fn


def _in(ops: Backend, array: Any, like: Any) -> Any:
    """An array in this library, on the device of `like`."""
    return array if owner(array) is ops and ops.device(array) == ops.device(like) else ops.as_array(array, like)


def _structured(
    flats: Mapping[str, trees.Flat], leaves: Sequence[_Leaf], arrays: Sequence[Any], *, whole: bool
) -> dict[str, Any]:
    """`{input: nest}` with these arrays in place of its leaves; other arrays stay if `whole`, or else are None."""
    made: dict[str, Any] = {}
    parts: dict[str, list[Any]] = {}
    for leaf, array in zip(leaves, arrays, strict=True):
        flat = flats[leaf.name]
        if flat.structure is None:
            made[leaf.name] = array
        else:
            blank = flat.leaves if whole else [None] * len(flat.leaves)
            parts.setdefault(leaf.name, list(blank))[leaf.position] = array
    return made | {name: flats[name].rebuild(some) for name, some in parts.items()}
