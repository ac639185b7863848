"""The values that a search may try for a key."""

import math
import re
from dataclasses import dataclass
from typing import Any, Final

from ..problems import toml_value
from ..runs.disk import RunError

__all__ = ["Range", "range_of"]

_RANGE: Final = re.compile(r"(log|uniform|int)\(([^,()]+),([^,()]+)\)")


@dataclass(frozen=True)
class Range:
    """A range of numbers, or some values, for a key."""

    key: str
    kind: str
    """`log`, `uniform`, `int` or `choice`."""
    values: tuple[Any, ...]
    """The two ends, which belong to it; or the choices."""

    def setting(self, value: Any) -> str:
        """A value as an argument of `--set`."""
        return f"{self.key}={value if isinstance(value, str) else toml_value(value)}"

    @property
    def ends(self) -> list[str]:
        """Settings that are all valid if the values between them are."""
        return [self.setting(value) for value in self.values]

    def __str__(self) -> str:
        """As it is given on the command line."""
        inner = ",".join(map(str, self.values))
        return f"{self.key}={inner if self.kind == 'choice' else f'{self.kind}({inner})'}"


def range_of(text: str) -> Range:
    """The range that `--over` describes.

    >>> range_of("kl.weight=log(1e-3,1)")
    Range(key='kl.weight', kind='log', values=(0.001, 1.0))
    >>> range_of("model.rank=4,8,16").values, range_of("train.batch_size=int(4,64)").values
    ((4, 8, 16), (4, 64))
    """
    from ..config.overrides import value_of

    key, equals, rest = (part.strip() for part in text.partition("="))
    found = _RANGE.fullmatch(rest)
    if not (key and equals and rest) or (found is None and "(" in rest):
        raise _malformed(text)
    if found is None:
        choices = tuple(value_of(part.strip()) for part in rest.split(","))
        if "" in choices or len(set(map(repr, choices))) < max(2, len(choices)):
            raise RunError(f"--over {text}: expected at least two different values, such as model.rank=4,8,16", 2)
        return Range(key, "choice", choices)
    kind = found[1]
    try:
        low, high = (int(one) if kind == "int" else float(one) for one in (found[2], found[3]))
    except ValueError:
        raise _malformed(text) from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high) or (kind == "log" and low <= 0):
        wanted = "0 < low < high" if kind == "log" else "low < high"
        raise RunError(f"--over {text}: expected {kind}(low,high) with {wanted}", 2)
    return Range(key, kind, (low, high))


def _malformed(text: str) -> RunError:
    kinds = "log(1e-3,1), uniform(0,1), int(4,64), or values such as 4,8,16"
    return RunError(f"--over {text}: expected a key and a range, such as kl.weight={kinds}", 2)
