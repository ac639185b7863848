"""Target Betti numbers: so many long features, and no others."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import OptionError
from ...functional.options import POSITIVE, check_number, is_whole
from ...pipeline.evaluation import Evaluation
from ...pipeline.kinds import is_mapping
from .filtrations import Filtering, Filtration, Score, longer
from .persistence import Persistence

__all__ = ["target_betti"]

_NAME = "target_betti"


def target_betti(
    x: Any,
    *,
    betti: Mapping[int, int] | Mapping[str, int] | None = None,
    size: float = 1.0,
    power: float = 1.0,
    filtration: Filtration = "rips",
    visible: float | None = None,
    max_edge_length: float | None = None,
    batched: bool = False,
) -> Evaluation:
    """How far the longest features are from a good size, plus how much all others live.

    `Σₖ [ Σ_{i ≤ βₖ} max(0, size − lifeᵢ)ᵖ + Σ_{i > βₖ} lifeᵢᵖ ]`, where life₁ ≥ life₂ ≥ … are those of dimension k and
    βₖ is its target. Features that never die come first: they are long enough, and have gradient 0. One that is missing
    counts as one of life 0, also without a gradient: nothing says where it should be born.

    After Clough et al., "A Topological Loss Function for Deep-Learning Based Image Segmentation Using Persistent
    Homology" (2020), where the size is 1, and Gabrielsson et al., "A Topology Layer for Machine Learning" (2020).

    - `x`: points `(n, d)`, or the cells of an array of any shape.
    - `betti`: the target of each dimension that matters, `{0: 1, 1: 2}` for one piece with two loops. In a config the
      dimensions are strings.
    - `size`: how long a wanted feature should live.
    - `power`: the exponent p, at least 1.
    - `filtration`, `max_edge_length`, `batched`: as in `total_persistence`.
    - `visible`: what a feature has to outlive to count in the metric `betti_k`; half of `size` by default.

    >>> import numpy as np
    >>> from penalties.terms import topology
    >>> angles = 2 * np.pi * np.arange(12) / 12
    >>> circle = np.stack([np.cos(angles), np.sin(angles)], -1)
    >>> one_loop = topology.target_betti(circle, betti={1: 1})
    >>> two_loops = topology.target_betti(circle, betti={1: 2})
    >>> round(one_loop.value, 6), round(two_loops.value, 6), one_loop.metrics["betti_1"]
    (0.0, 1.0, 1)
    """
    targets = _targets(betti)
    filtering = Filtering(_NAME, filtration, tuple(sorted(targets)), max_edge_length, batched)
    wanted = check_number(_NAME, "size", size, "a finite number above 0", POSITIVE)
    p = check_number(_NAME, "power", power, "a finite number of at least 1", 1.0)
    _check_possible(filtering, x, targets)

    def score(found: Persistence) -> Score:
        value, slopes = 0.0, np.zeros_like(found.birth)
        for k, target in targets.items():
            rows = np.flatnonzero(found.dimension == k)
            rows = rows[np.argsort(-found.life[rows], kind="stable")]
            finite = np.isfinite(found.life[rows])
            long, others = rows[:target], rows[target:]
            others = others[finite[target:]]
            missing = target - len(long)
            long = long[finite[:target]]
            short_by = np.maximum(wanted - found.life[long], 0.0)
            life = found.life[others]
            value += float((short_by**p).sum() + (life**p).sum()) + missing * wanted**p
            slopes[long] = np.where(short_by > 0, -p * short_by ** (p - 1), 0.0)
            slopes[others] = p * life ** (p - 1)
        return Score(value, -slopes, slopes)

    return filtering.evaluation(x, score, visible=wanted / 2 if visible is None else longer(_NAME, "visible", visible))


def _check_possible(filtering: Filtering, x: Any, targets: Mapping[int, int]) -> None:
    """Raise for a feature that no input of this shape has: the value would be the same for all, without a gradient."""
    shape: tuple[int, ...] = tuple(getattr(x, "shape", ()))
    if filtering.filtration == "rips" or not shape:
        return
    axes = shape[-1] if filtering.filtration == "alpha" else len(shape) - filtering.batched
    if any(target > 0 and k >= axes > 0 for k, target in targets.items()):
        expected = f'targets of dimensions below {axes}: "{filtering.filtration}" of {shape} has no others'
        raise OptionError(_NAME, "betti", dict(targets), expected)


def _targets(betti: Any) -> dict[int, int]:
    """The target of each dimension, by numbers."""
    found: dict[int, int] = {}
    for key, target in betti.items() if is_mapping(betti) else ():
        k: Any = int(key) if isinstance(key, str) and key.isdecimal() else key
        if not (is_whole(k) and k >= 0 and is_whole(target) and target >= 0) or k in found:
            found.clear()
            break
        found[int(k)] = int(target)
    if not found:
        raise OptionError(_NAME, "betti", betti, "a dict of a target for each dimension, such as {0: 1, 1: 2}")
    return found
