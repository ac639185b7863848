"""Axes: positions of numbers, ticks, and numbers as text."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from ..runlog import Floats

__all__ = ["Scale", "fitted", "percent", "seconds", "shown", "steps_shown"]

_COUNTED: Final = 1e15
"""Larger numbers of steps, tokens and seconds come from a log that somebody else wrote."""
_MINUS: Final = "\N{MINUS SIGN}"
_SPACE: Final = "\N{NARROW NO-BREAK SPACE}"
_SPIKE: Final = 5.0
"""Values further from the others than this many times their range are off the scale."""
_RARE: Final = 0.02
"""At most this fraction of the values may be off the scale."""
_MARGIN: Final = 0.04
"""The margin beyond the outermost values, as a fraction of the axis; it does not cross zero."""
_STRIP: Final = 0.09
"""The fraction of a log axis that is reserved for zeros."""
_MOST: Final = 1e300
_NO_BREAK: Final = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True, slots=True)
class Scale:
    """The range of numbers that an axis shows."""

    low: float
    high: float
    log: bool = False
    zeros: float = 0.0
    """The fraction of a log axis, at its low end, that is reserved for zeros and negative numbers."""

    def position(self, value: float) -> float:
        """The position of a number, from 0 at the low end to 1 at the high end; outside that if it is off the scale."""
        return float(self.positions(np.array([value]))[0])

    def positions(self, values: Floats) -> Floats:
        """The positions of many numbers."""
        if not self.log:
            low, high = self.low, self.high
            return (values - low) / (high - low) if high > low else np.full(len(values), 0.5)
        with np.errstate(divide="ignore", invalid="ignore"):
            powers = np.log10(values)
        low, high = math.log10(self.low), math.log10(self.high)
        positions = self.zeros + (1 - self.zeros) * (powers - low) / (high - low)
        return np.where(values <= 0, self.zeros / 3, positions)

    def ticks(self, most: int = 6) -> list[float]:
        """Round numbers on the axis, at most this many."""
        return _decades(self.low, self.high, most) if self.log else _round_numbers(self.low, self.high, most)


def fitted(values: Floats, *, log: bool = False, zero: bool = False) -> Scale:
    """A scale for these values, which may be few, equal or far apart; NaN and infinity are ignored.

    A log scale has a strip for zeros where there are any; where nothing is above zero the scale is not one.

    A rare spike does not flatten everything else: it is left off the scale, and a chart marks it there.

    >>> import numpy as np
    >>> fitted(np.array([0.1, 0.5]), zero=True)
    Scale(low=0.0, high=0.52, log=False, zeros=0.0)
    """
    # Beyond this the length of an axis would overflow.
    good = np.clip(values[np.isfinite(values)], -_MOST, _MOST)
    if log and np.any(good > 0):
        return _fitted_log(good[good > 0], zeros=_STRIP if np.any(good <= 0) else 0.0)
    if not len(good):
        return Scale(0.0, 1.0)
    low, high = float(good.min()), float(good.max())
    inner_low, inner_high = (float(edge) for edge in np.quantile(good, [_RARE / 2, 1 - _RARE / 2]))
    room = _SPIKE * (inner_high - inner_low)
    if room > 0 and high > inner_high + room:
        high = inner_high + 0.15 * (inner_high - min(inner_low, 0.0 if zero else inner_low))
    if room > 0 and low < inner_low - room:
        low = inner_low - 0.15 * (max(inner_high, 0.0 if zero else inner_high) - inner_low)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high == low:
        margin = abs(high) / 10 or 1.0
        return Scale(low - margin, high + margin)
    room = _MARGIN * (high - low)
    return Scale(low - room if low < 0 else max(0.0, low - room), high + room if high > 0 else min(0.0, high + room))


def _fitted_log(good: Floats, zeros: float) -> Scale:
    powers = np.log10(np.maximum(good, 1 / _MOST))
    low, high = float(powers.min()), float(powers.max())
    # At least a decade, or noise would fill the axis.
    lacking = max(0.0, 1.0 - (high - low)) / 2
    return Scale(_tick_below(low - lacking), _tick_above(high + lacking), log=True, zeros=zeros)


def _tick_below(power: float) -> float:
    """The nearest of 1, 2 and 5 times a power of ten."""
    whole = math.floor(power + 1e-9)
    return max(factor * 10.0**whole for factor in (1, 2, 5) if math.log10(factor) <= power - whole + 1e-9)


def _tick_above(power: float) -> float:
    whole = math.floor(power + 1e-9)
    return min(factor * 10.0**whole for factor in (1, 2, 5, 10) if math.log10(factor) >= power - whole - 1e-9)


def _round_numbers(low: float, high: float, most: int) -> list[float]:
    raw = (high - low) / max(1, most - 1)
    if not raw > 0 or not math.isfinite(raw):
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    size = next(power * factor for factor in (1, 2, 5, 10, 20) if power * factor >= raw * (1 - 1e-9))
    first, last = math.ceil(low / size - 1e-9), math.floor(high / size + 1e-9)
    return [position * size for position in range(first, last + 1)]


def _decades(low: float, high: float, most: int) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    if last - first >= 2:
        return [10.0**power for power in range(first, last + 1, -(-(last - first + 1) // most))]
    found = [factor * 10.0**power for power in range(first - 1, last + 1) for factor in (1, 2, 5)]
    return [tick for tick in found if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]


def shown(value: float, digits: int = 4) -> str:
    """A number for people, with at least two digits.

    >>> shown(2.05341), shown(-0.00001234), shown(1.0), shown(float("nan"))
    ('2.053', '−1.234e−5', '1', 'NaN')
    """
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else f"{_MINUS}∞"
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        text = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    else:
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        text = f"{value:.{decimals}f}"
        if "." in text:
            text = text.rstrip("0").rstrip(".")
    return text.replace("-", _MINUS)


def steps_shown(count: float) -> str:
    """A whole number, with its thousands separated; one that nobody counts to is short.

    >>> steps_shown(100000), steps_shown(1e300)
    ('100\u202f000', '1e300')
    """
    if not abs(count) < _COUNTED:
        return shown(count, 3)
    return f"{int(count):,}".replace(",", _SPACE)


def percent(share: float) -> str:
    r"""A share.

    >>> percent(0.514), percent(0.0123), percent(0.0), percent(0.0001)
    ('51\xa0%', '1.2\xa0%', '0\xa0%', 'less than 0.1\xa0%')
    """
    part = 100 * abs(share)
    if 0 < part < 0.05:
        return f"less than 0.1{_NO_BREAK}%"
    return (f"{part:.0f}" if part >= 9.95 else f"{part:.1f}".removesuffix(".0")) + f"{_NO_BREAK}%"


def seconds(duration: float) -> str:
    r"""A time.

    >>> seconds(0.0021), seconds(3.14), seconds(75), seconds(7300)
    ('2.1\xa0ms', '3.14\xa0s', '1\xa0min 15\xa0s', '2\xa0h 1\xa0min')
    """
    if not duration < _COUNTED:
        return f"{shown(duration, 3)}{_NO_BREAK}s"
    if duration < 1e-3:
        return f"{shown(duration * 1e6, 3)}{_NO_BREAK}µs"
    if duration < 1:
        return f"{shown(duration * 1e3, 3)}{_NO_BREAK}ms"
    if duration < 60:
        return f"{shown(duration, 3)}{_NO_BREAK}s"
    minutes, rest = divmod(round(duration), 60)
    if minutes < 60:
        return f"{minutes}{_NO_BREAK}min {rest}{_NO_BREAK}s"
    return f"{minutes // 60}{_NO_BREAK}h {minutes % 60}{_NO_BREAK}min"
