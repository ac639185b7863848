"""Numbers as text."""

import math
import re
from typing import Final

__all__ = ["percent", "seconds", "shown", "steps_shown", "typeset"]

_COUNTED: Final = 1e15
"""Larger numbers of steps, tokens and seconds come from a log that somebody else wrote."""
_MINUS: Final = "\N{MINUS SIGN}"
_NEGATIVE: Final = re.compile(r"(?<![\w.=])-(?=\d)|(?<=\de)-(?=\d)")
"""The sign of negative numbers and exponents, but not hyphens in names, settings and dates."""
_SPACE: Final = "\N{NARROW NO-BREAK SPACE}"
_NO_BREAK: Final = "\N{NO-BREAK SPACE}"


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


def typeset(text: str) -> str:
    """A text that was written for a terminal, with the minus signs of the page.

    >>> typeset("x-1 ended at -1.5e-05 on 2026-11-02")
    'x-1 ended at −1.5e−05 on 2026-11-02'
    """
    return _NEGATIVE.sub(_MINUS, text)


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
