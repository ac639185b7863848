"""The gradient of a term against central differences of its value."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..backends import double_precision
from ..errors import GradientError, PenaltiesError
from ..pipeline import Evaluation
from .sample import Numbers, Sample, number, numbers
from .verdict import Check

__all__ = ["check_gradient"]

_ELEMENTS: Final = 30
"""How many elements of each input are tried; the random direction moves all of them."""

# A difference loses half its digits to rounding, so each precision has its own step and tolerance.
_STEP: Final = {"float64": 1e-5, "float32": 1e-2}
_TOLERANCE: Final = {"float64": 1e-5, "float32": 1e-2}


@dataclass(frozen=True)
class _Slope:
    """The slope of the value in one direction."""

    label: str
    gradient: float
    left: float
    right: float
    size: float
    """The scale of errors: the largest gradient nearby."""
    allowed: float
    """The allowed distance between gradient and difference."""
    connected: bool = True
    """Whether there is a path from this input to the value at all."""

    @property
    def central(self) -> float:
        return (self.left + self.right) / 2

    @property
    def error(self) -> float:
        """The error in units of what is allowed; infinite if it is NaN."""
        error = abs(self.gradient - self.central) / self.allowed if self.allowed else 0.0
        return error if np.isfinite(error) else np.inf

    @property
    def kink(self) -> bool:
        """Whether the slopes on the two sides differ by more than curvature and rounding explain."""
        return abs(self.right - self.left) > 1e-2 * self.size + 2 * self.allowed

    @property
    def between(self) -> bool:
        low, high = sorted((self.left, self.right))
        return low - self.allowed <= self.gradient <= high + self.allowed

    def __str__(self) -> str:
        shown = f"gradient {self.gradient:.6g}" if self.connected else "no gradient"
        text = f"{self.label}: {shown}, finite difference {self.central:.6g}"
        if self.kink:
            return f"{text} (a kink: slope {self.left:.4g} on the left and {self.right:.4g} on the right)"
        if not self.connected:
            name = self.label.partition("[")[0]
            return f'{text} (it is detached from the value: if that is intended, leave "{name}" out of wrt)'
        return text


def check_gradient(
    sample: Sample, step: float | None, tolerance: float | None, kinks: bool, *, calls: int = 0
) -> Check:
    """Compare gradient and differences after this many calls, in float64 if the term can be computed in it."""
    if not sample.term.differentiable:
        return Check("gradient", "skipped", "differentiable=False: it is treated as a constant")
    if not sample.floats:
        return Check("gradient", "failed", "no input holds floats; set differentiable=False to treat it as a constant")
    if not sample.wrt:
        return Check("gradient", "skipped", "wrt is empty")
    with double_precision(True) if sample.library == "JAX" else contextlib.nullcontext():
        try:
            wide = sample.cast("float64").after(calls)
            return _compared(wide, wide.evaluate(gradient=True), step, tolerance, kinks)
        except GradientError:
            return Check("gradient", "skipped", "NumPy has no autograd, and the term returns no gradient")
        except PenaltiesError as error:
            in_double = error
    try:
        narrow = sample.cast("float32").after(calls)
        check = _compared(narrow, narrow.evaluate(gradient=True), step, tolerance, kinks)
    except PenaltiesError:
        return Check("gradient", "failed", str(in_double))
    return Check(check.name, check.status, f"{check.detail}; in float64 it fails: {in_double}")


def _compared(
    sample: Sample, evaluation: Evaluation, step: float | None, tolerance: float | None, kinks: bool
) -> Check:
    if evaluation.gradient is None:
        return Check("gradient", "failed", f"there is none: {evaluation.grad_error}")
    # A term may compute in float32 whatever it is given.
    precision = str(evaluation.value.dtype).removeprefix("torch.")
    step = _STEP[precision] if step is None else step
    tolerance = _TOLERANCE[precision] if tolerance is None else tolerance
    slopes = list(_slopes(sample, evaluation, step, tolerance, float(np.finfo(precision).eps)))
    accepted = [slope for slope in slopes if kinks and slope.kink and slope.between]
    wrong = [slope for slope in slopes if slope.error > 1 and slope not in accepted]
    elements = f"{len(slopes) - 1} element{'' if len(slopes) == 2 else 's'} of {', '.join(sample.wrt)}"
    where = f"{elements} and a random direction, {precision}"
    if not wrong:
        at_kinks = f"; {len(accepted)} at kinks, between the slopes of the two sides" if accepted else ""
        return Check("gradient", "passed", where + at_kinks)
    worst = max(wrong, key=lambda slope: slope.error)
    return Check("gradient", "failed", f"{worst}; wrong in {len(wrong)} of {len(slopes)} directions: {where}")


def _slopes(sample: Sample, evaluation: Evaluation, step: float, tolerance: float, epsilon: float) -> Iterator[_Slope]:
    random = np.random.default_rng(0)
    given, names = sample.gradients(evaluation), sample.names
    values = {i: numbers(sample.ops, sample.leaves[i]) for i in given}
    gradients = {
        i: np.zeros(values[i].shape) if gradient is None else numbers(sample.ops, gradient)
        for i, gradient in given.items()
    }
    # Steps scale with the element, so that none is rounded away; infinite elements are left alone.
    scales = {i: np.where(np.isfinite(x), np.maximum(1.0, np.abs(x)), 0.0) for i, x in values.items()}
    center = number(evaluation)

    def along(directions: Mapping[int, Numbers]) -> tuple[float, float, float, float]:
        """The gradient along a direction, the slopes of the two sides, and the rounding error of these."""
        low, high = (
            _moved(sample, {i: values[i] + sign * step * d for i, d in directions.items()}).value() for sign in (-1, 1)
        )
        gradient = sum(float(np.sum(gradients[i] * d)) for i, d in directions.items())
        noise = 64 * epsilon * max(abs(low), abs(high), abs(center)) / step
        return gradient, (center - low) / step, (high - center) / step, noise

    for name in sample.wrt:
        for i, index in _elements(random, {i: scale for i, scale in scales.items() if names[i] == name}):
            scale = scales[i][index]
            direction = np.zeros(values[i].shape)
            direction[index] = scale
            gradient, left, right, noise = (part / scale for part in along({i: direction}))
            size = max(float(np.max(np.abs(gradients[i]))), abs(left + right) / 2)
            label = sample.label(i) + (f"[{', '.join(map(str, index))}]" if index else "")
            yield _Slope(label, gradient, left, right, size, tolerance * size + noise, given[i] is not None)
    signs = {i: s * random.choice([-1.0, 1.0], s.shape) for i, s in scales.items()}
    gradient, left, right, noise = along(signs)
    length = float(np.sqrt(sum(np.sum(np.square(gradients[i] * d)) for i, d in signs.items())))
    size = max(length, abs(gradient), abs(left + right) / 2)
    yield _Slope("a random direction", gradient, left, right, size, tolerance * size + noise)


def _elements(random: np.random.Generator, scales: Mapping[int, Numbers]) -> list[tuple[int, tuple[int, ...]]]:
    """Some finite elements of an input, each by its array and its index there."""
    every = [(i, int(flat)) for i, scale in scales.items() for flat in np.flatnonzero(scale)]
    count = min(len(every), _ELEMENTS)
    some = [every[int(i)] for i in sorted(random.choice(len(every), count, replace=False))] if count else []
    return [(i, tuple(int(k) for k in np.unravel_index(flat, scales[i].shape))) for i, flat in some]


def _moved(sample: Sample, values: Mapping[int, Any]) -> Sample:
    assert sample.ops is not None, "there are arrays of floats"
    leaves = list(sample.leaves)
    for i, new in values.items():
        leaves[i] = sample.ops.constant(np.asarray(new), leaves[i])
    return sample.filled(leaves)
