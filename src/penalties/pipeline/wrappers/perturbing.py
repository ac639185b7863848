"""Gradients of a term that has none, from its values beside its inputs."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ... import trees
from ...backends import Backend, owner
from ...errors import OptionError
from ...functional.options import check_count
from ..evaluate import compute, folded
from ..evaluation import Evaluation
from ..inputs import CallInputs
from ..term import Term
from .draws import Draws
from .wrapper import Wrapper, check_term, detached, is_estimated

__all__ = ["Pair", "Perturbing", "check_estimable"]


class Pair(NamedTuple):
    """The values of a term on both sides of its inputs."""

    plus: Any
    minus: Any
    directions: Sequence[Any]
    """What was added on one side and subtracted on the other, divided by the size, for each leaf."""


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
        self.pairs: int = pairs
        self.size: float = size
        self.wrt = wrt
        self.seed: int = int(seed)
        super().__init__(term, **own, wrt=wrt, seed=self.seed)

    @abstractmethod
    def direction(self, draws: Draws, ops: Backend, like: Any) -> Any:
        """A random array like this one."""
        ...

    def slopes(self, ops: Backend, pairs: Iterator[Pair]) -> Iterator[tuple[Any, Pair]]:
        """The number that the direction of each pair is multiplied by."""
        for pair in pairs:
            yield (pair.plus - pair.minus) / (2.0 * self.size), pair

    def evaluated(self, given: dict[str, Any], step: Any, state: Any) -> Evaluation:
        """The value at the inputs, with the estimate, and with its variance in the metrics."""
        plain = detached({name: given[name] for name in self.term.inputs.values()})
        found = compute(self.term, CallInputs.of(plain), step, state)
        leaves = [leaf for name in self.wrt or plain for leaf in self._leaves(name, given[name], plain[name])]
        if not leaves:
            return Evaluation(found.value, None, found.metrics, found.state)
        ops = owner(found.value)
        assert ops is not None, "a value is an array"
        draws = Draws(folded(self.seed, step))
        total: list[Any] = [None] * len(leaves)
        squares: Any = 0.0
        for slope, pair in self.slopes(ops, self._tried(plain, leaves, draws, step, state)):
            for index, direction in enumerate(pair.directions):
                part = _beside(leaves[index], slope) * direction
                total[index] = part if total[index] is None else total[index] + part
                squares = squares + _beside_value(ops, found.value, leaves[index].ops.sum(part * part))
        means = [part / self.pairs for part in total]
        metrics = dict(found.metrics)
        if self.pairs > 1:
            length = sum(
                _beside_value(ops, found.value, leaf.ops.sum(mean * mean))
                for leaf, mean in zip(leaves, means, strict=True)
            )
            spread = ops.clip(squares - self.pairs * length, 0.0, None)
            metrics["gradient_variance"] = spread / (self.pairs * (self.pairs - 1))
        return Evaluation(found.value, _structured(plain, leaves, means), metrics, found.state)

    def _leaves(self, name: str, given: Any, plain: Any) -> Iterator[_Leaf]:
        for index, (original, array) in enumerate(zip(trees.arrays(given), trees.arrays(plain), strict=True)):
            ops = owner(array)
            if ops is not None and is_estimated(original):
                # In 32 bits at least: in fewer, a small step would be rounded away.
                yield _Leaf(name, index, ops, ops.upcast(self.term.name, array))

    def _tried(
        self, plain: Mapping[str, Any], leaves: Sequence[_Leaf], draws: Draws, step: Any, state: Any
    ) -> Iterator[Pair]:
        """The values on both sides, pair after pair."""

        def value_at(moved: Sequence[Any]) -> Any:
            changed = {**plain, **_structured(plain, leaves, moved, whole=True)}
            return compute(self.term, CallInputs.of(changed), step, state).value

        for _ in range(self.pairs):
            directions = [self.direction(draws, leaf.ops, leaf.array) for leaf in leaves]
            steps = [self.size * direction for direction in directions]
            plus = value_at([leaf.array + by for leaf, by in zip(leaves, steps, strict=True)])
            minus = value_at([leaf.array - by for leaf, by in zip(leaves, steps, strict=True)])
            yield Pair(plus, minus, directions)


def check_estimable(title: str, term: Term) -> None:
    """Raise for a term that is said to have no gradient: it would be estimated in vain."""
    check_term(title, term)
    if not term.differentiable:
        raise OptionError(title, "term", term, "a term with differentiable=True: it has the gradient that is estimated")


def _beside(leaf: _Leaf, slope: Any) -> Any:
    """A number that the term returned, in the library and on the device of a leaf."""
    return slope if owner(slope) is leaf.ops else leaf.ops.as_array(slope, leaf.array)


def _beside_value(ops: Backend, value: Any, number: Any) -> Any:
    return number if owner(number) is ops else ops.as_array(number, value)


def _structured(
    plain: Mapping[str, Any], leaves: Sequence[_Leaf], arrays: Sequence[Any], *, whole: bool = False
) -> dict[str, Any]:
    """`{input: nest}` with these arrays in place of its leaves; other arrays stay if `whole`, or else are None."""
    placed: dict[str, dict[int, Any]] = {}
    for leaf, array in zip(leaves, arrays, strict=True):
        placed.setdefault(leaf.name, {})[leaf.position] = array
    made: dict[str, Any] = {}
    for name, parts in placed.items():
        flat = trees.flatten(plain[name])
        made[name] = flat.rebuild(parts.get(i, old if whole else None) for i, old in enumerate(flat.leaves))
    return made
