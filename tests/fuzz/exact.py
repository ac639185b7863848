"""Numbers of 50 digits that know how far off a float may be that was computed in the same way.

Each operation adds its rounding to what its operands bring along: a running error analysis of first order, in units of
the dtype's precision. So a tolerance is never a guess, and a sum that cancels is allowed the digits that it loses.
"""

import math
from typing import Any, ClassVar

import mpmath
import numpy as np

mpmath.mp.dps = 50


class Exact:
    """A number, and the error of a float in its place, in units of `precision`."""

    __slots__ = ("error", "peak", "value")

    precision: ClassVar[float] = 2.0**-52
    tiny: ClassVar[float] = 2.0**-1022
    """What may be taken for 0: an error that every operation may make, however small its result."""

    def __init__(self, value: Any, error: float = 0.0, *operands: "Exact") -> None:
        self.value = mpmath.mpf(value)
        self.error = math.inf if error != error else error
        self.peak = max(abs(float(self.value)), *[operand.peak for operand in operands]) if operands else self.size
        """The largest number on the way here."""

    @property
    def size(self) -> float:
        return abs(float(self.value))

    @property
    def tolerance(self) -> float:
        return self.precision * self.error

    def _rounded(self, value: Any, error: float, other: "Exact | None" = None, steps: float = 1.0) -> "Exact":
        size = abs(float(value))
        error += (steps * size if size < math.inf else 0.0) + self.tiny / self.precision
        return Exact(value, error, self, self if other is None else other)

    def __add__(self, other: Any) -> "Exact":
        if isinstance(other, np.ndarray):
            return NotImplemented
        other = exact(other)
        return self._rounded(self.value + other.value, self.error + other.error, other)

    def __sub__(self, other: Any) -> "Exact":
        if isinstance(other, np.ndarray):
            return NotImplemented
        return self + -exact(other)

    def __rsub__(self, other: Any) -> "Exact":
        if isinstance(other, np.ndarray):
            return NotImplemented
        return exact(other) + -self

    def __mul__(self, other: Any) -> "Exact":
        if isinstance(other, np.ndarray):
            return NotImplemented
        other = exact(other)
        error = _times(self.size, other.error) + _times(other.size, self.error)
        error += _times(self.error, other.error) * self.precision
        return self._rounded(self.value * other.value, error, other)

    __radd__, __rmul__ = __add__, __mul__

    def __truediv__(self, other: Any) -> "Exact":
        if isinstance(other, np.ndarray):
            return NotImplemented
        other = exact(other)
        if other.value == 0:
            return Exact(mpmath.nan, math.inf)
        value = self.value / other.value
        if 2 * other.tolerance >= other.size:
            return Exact(value, math.inf, self)
        error = 2 * (self.error + _times(abs(float(value)), other.error)) / other.size
        return self._rounded(value, error, other)

    def __rtruediv__(self, other: Any) -> "Exact":
        if isinstance(other, np.ndarray):
            return NotImplemented
        return exact(other) / self

    def __neg__(self) -> "Exact":
        return Exact(-self.value, self.error, self)

    def __abs__(self) -> "Exact":
        return Exact(abs(self.value), self.error, self)

    def __lt__(self, other: Any) -> bool:
        return self.value < exact(other).value

    def __le__(self, other: Any) -> bool:
        return self.value <= exact(other).value

    def __gt__(self, other: Any) -> bool:
        return self.value > exact(other).value

    def __ge__(self, other: Any) -> bool:
        return self.value >= exact(other).value

    def __repr__(self) -> str:
        return f"{mpmath.nstr(self.value, 20)} ± {self.tolerance:.2g}"

    def exp(self) -> "Exact":
        value = mpmath.exp(self.value)
        moved = math.expm1(min(self.tolerance, 700.0)) / self.precision if self.error else 0.0
        return self._rounded(value, _times(abs(float(value)), moved), steps=2.0)

    def expm1(self) -> "Exact":
        value = mpmath.expm1(self.value)
        moved = math.expm1(min(self.tolerance, 700.0)) / self.precision if self.error else 0.0
        return self._rounded(value, _times(abs(float(value)) + 1.0, moved), steps=2.0)

    def log(self) -> "Exact":
        if self.value == 0:
            return Exact(-mpmath.inf, self.error)
        if self.value < 0:
            return Exact(mpmath.nan)
        value = mpmath.log(self.value)
        if 2 * self.tolerance >= self.size:
            return Exact(value, math.inf, self)
        return self._rounded(value, 2 * self.error / self.size, steps=2.0)

    def sqrt(self) -> "Exact":
        lost = math.sqrt(self.error / self.precision)
        if self.value <= 0:
            return Exact(0, lost, self)
        value = mpmath.sqrt(self.value)
        return self._rounded(value, min(self.error / (float(value) or math.inf), lost) if lost < math.inf else lost)


def exact(x: Any) -> Exact:
    """A number of a formula, which the dtype may have to round."""
    return x if isinstance(x, Exact) else Exact(x, 0.0 if float(x).is_integer() else abs(float(x)))


def _times(a: float, b: float) -> float:
    """A product in which 0 wins over infinity: nothing times any error is no error."""
    return 0.0 if a == 0.0 or b == 0.0 else a * b


given: Any = np.frompyfunc(Exact, 1, 1)
"""An array of inputs, which are exact."""
exp: Any = np.frompyfunc(Exact.exp, 1, 1)
expm1: Any = np.frompyfunc(Exact.expm1, 1, 1)
log: Any = np.frompyfunc(Exact.log, 1, 1)
sqrt: Any = np.frompyfunc(Exact.sqrt, 1, 1)
sign: Any = np.frompyfunc(lambda x: Exact(mpmath.sign(x.value)), 1, 1)


def choose(condition: Any, yes: Any, no: Any) -> Any:
    """As `np.where`, for arrays of objects of any shape."""
    shape = np.broadcast_shapes(np.shape(condition), np.shape(yes), np.shape(no))
    found = np.empty(shape, object)
    parts = [np.broadcast_to(np.asarray(part, object), shape) for part in (yes, no)]
    chosen = np.broadcast_to(np.asarray(condition, bool), shape)
    for index in np.ndindex(shape):
        found[index] = exact(parts[0 if chosen[index] else 1][index])
    return found


def total(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Any:
    """The sum; 0 of nothing."""
    return np.sum(np.asarray(x, object), axis=axis, keepdims=keepdims, initial=Exact(0))
