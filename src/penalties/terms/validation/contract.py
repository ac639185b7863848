"""What is sent to a service and what it has to answer: `{"items": […]}`, and `{"results": [{"penalty": …}, …]}`."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from ...arrays import is_array
from ...errors import OptionError, ServiceError
from ...pipeline.kinds import described, is_mapping, is_number, is_row

__all__ = ["Result", "plain", "read_results", "request_body"]


@dataclass(frozen=True, slots=True)
class Result:
    """What a service says about one item."""

    penalty: float
    slope: "np.ndarray[Any, Any] | None" = None
    """The derivative of the penalty with respect to the item."""


def plain(samples: Any) -> list[Any]:
    """Items as JSON has them: the rows of an array, or the elements of a list, which may be arrays."""
    if is_array(samples) and len(samples.shape):
        return list(samples.tolist())
    if not is_row(samples):
        expected = "a list of items, or an array with a row for each"
        raise OptionError("Validation", "samples", described(samples), expected)
    return [item.tolist() if is_array(item) else item for item in samples]


def request_body(items: Sequence[Any], *, slopes: bool) -> bytes:
    """A request about these items."""
    try:
        return json.dumps({"items": list(items), "slopes": slopes}, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        expected = f"strings, finite numbers, and lists and dicts of these: {error}"
        raise OptionError("Validation", "samples", described(items[0]), expected) from None


def read_results(body: bytes, items: Sequence[Any], *, slopes: bool) -> list[Result]:
    """The results in an answer; raises unless it has exactly what was agreed.

    No message repeats what the service sent, which may be anything.
    """
    try:
        answer: Any = json.loads(body, parse_constant=_reject)
    except (ValueError, RecursionError):
        raise ServiceError("the answer is not JSON") from None
    results: Any = answer.get("results") if is_mapping(answer) else None
    if not is_row(results):
        raise ServiceError('the answer has no list "results"')
    if len(results) != len(items):
        raise ServiceError(f"the answer has {len(results)} results for {len(items)} items")
    return [_result(f"results[{n}]", *pair, slopes=slopes) for n, pair in enumerate(zip(results, items, strict=True))]


def _reject(constant: str) -> NoReturn:
    raise ValueError(constant)


def _result(where: str, result: Any, item: Any, *, slopes: bool) -> Result:
    if not is_mapping(result):
        raise ServiceError(f"{where} is {described(result)}; expected an object")
    penalty = _finite(result.get("penalty"))
    if penalty is None:
        raise ServiceError(f'{where} has no "penalty" that is a finite number')
    if not slopes:
        return Result(penalty)
    slope = _array(result.get("slope"))
    shape = np.shape(item)
    if slope is None or slope.shape != shape:
        raise ServiceError(f'{where} has no "slope" of finite numbers, in the shape of its item, {shape}')
    return Result(penalty, slope)


def _finite(value: Any) -> float | None:
    if not is_number(value):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _array(value: Any) -> "np.ndarray[Any, Any] | None":
    """Nested lists of numbers as an array; None for anything else."""
    try:
        found = np.array(value)
        # Strings and bools would become numbers too.
        if found.dtype.kind not in "iuf":
            return None
        found = found.astype(np.float64)
    except (ValueError, TypeError, OverflowError):
        return None
    return found if np.isfinite(found).all() else None
