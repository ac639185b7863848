"""Plain data as JSON that every parser reads, and back.

JSON has no NaN and no infinity. Python writes them anyway, and JavaScript, Go and jq then reject the whole file. Here
they are the strings `"NaN"`, `"Infinity"` and `"-Infinity"`, and become numbers again when read.
"""

import json
import math
import sys
from collections.abc import Iterable
from typing import Any, Final, cast

__all__ = ["decode", "dumps", "encode", "loads"]

_NUMBERS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_EXPECTED: Final = "expected a number, a string, a bool, None, or a dict, list or tuple of these"


def encode(value: Any) -> Any:
    """Numbers, strings, bools, None, NumPy scalars and nests of them, as data that strict JSON can hold.

    A tuple becomes a list. Anything else is a TypeError that says what it is and where.

    >>> import math
    >>> encode({"loss": math.nan, "norms": (1.0, -math.inf)})
    {'loss': 'NaN', 'norms': [1.0, '-Infinity']}
    """
    try:
        return _encode(value, "")
    except RecursionError:
        raise TypeError("encode: the value contains itself, or is nested too deeply") from None


def decode(value: Any) -> Any:
    """The reverse of `encode` for numbers: the three strings become NaN and infinities wherever they stand as values.

    >>> decode({"loss": "NaN", "norms": [1.0, "-Infinity"], "name": "l1"})
    {'loss': nan, 'norms': [1.0, -inf], 'name': 'l1'}
    """
    if isinstance(value, str):
        return _NUMBERS.get(value, value)
    if isinstance(value, dict):
        return {key: decode(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [decode(item) for item in cast("list[Any]", value)]
    return value


def dumps(value: Any) -> str:
    """One line of JSON for what `encode` takes.

    >>> dumps({"step": 3, "loss": float("inf")})
    '{"step": 3, "loss": "Infinity"}'
    """
    try:
        return _fast(value)
    except (TypeError, ValueError, RecursionError):
        # Not finite, or not encodable: the walk replaces the former and says where the latter is.
        return _fast(encode(value))


def loads(text: str | bytes) -> Any:
    """What a line of `dumps` says.

    >>> loads('{"step": 3, "loss": "Infinity"}')
    {'step': 3, 'loss': inf}
    """
    try:
        return decode(json.loads(text))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _encode(value: Any, path: str) -> Any:
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _name(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {_key(key, path): _encode(item, f"{path}.{key}" if path else str(key)) for key, item in items}
    if isinstance(value, list | tuple):
        sequence = cast("Iterable[Any]", value)
        return [_encode(item, f"{path}[{index}]") for index, item in enumerate(sequence)]
    try:
        return _encode(_python(value), path)
    except TypeError:
        raise TypeError(f"encode: {path or 'the value'} is a {type(value).__name__}; {_EXPECTED}") from None


def _name(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _key(key: object, path: str) -> str:
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, int | float):
        return json.dumps(key)  # as the fast way writes it
    raise TypeError(f"encode: {path or 'the value'} has a key that is a {type(key).__name__}; expected a string")


def _python(value: Any) -> bool | int | float:
    """The Python number of a NumPy scalar; a TypeError for anything else."""
    numpy = sys.modules.get("numpy")  # where it is not loaded there are no scalars of it
    if numpy is not None:
        for kind, python in ((numpy.floating, float), (numpy.integer, int), (numpy.bool_, bool)):
            if isinstance(value, kind):
                return python(value)
    raise TypeError


# One encoder for all calls: json.dumps with options makes a new one for each.
_fast: Final = json.JSONEncoder(allow_nan=False, default=_python).encode
