"""One readable line per event through the standard library's logging."""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..errors import OptionError
from .events import attach
from .scalars import scalar

__all__ = ["attach_logger"]

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}

_NAMES: Final = {"pipeline": "pipeline", "gradients": "pipeline", "term": "name", "custom_loss": "model_id"}
"""Which metadata names what an event is about."""


def attach_logger(level: str = "info", handler_id: str | None = None) -> str:
    """Write a line per event to the logger `penalties`, at this level; returns the id to detach it by.

    Numbers have four decimals and durations are in milliseconds. Printing a value waits for it, so on an accelerator
    this stalls at each term. If the logger is not enabled for this level, no value is read.

    >>> import logging, sys
    >>> from penalties.telemetry import attach_logger, detach, events
    >>> output = logging.StreamHandler(sys.stdout)
    >>> logging.getLogger("penalties").addHandler(output)
    >>> handler_id = attach_logger("warning")
    >>> stop = {"duration": 0.0021, "value": 6, "contribution": 0.006, "grad_norm": 1.7320508}
    >>> events.emit("term.stop", stop, {"name": "l1", "async": True})
    term l1 stop: value=6.0000 contribution=0.0060 grad_norm=1.7321 in 2.1000 ms (async)
    >>> detach(handler_id)
    True
    >>> logging.getLogger("penalties").removeHandler(output)
    """
    if level not in tuple(_LEVELS):
        words = [f'"{word}"' for word in _LEVELS]
        raise OptionError("attach_logger", "level", level, f"{', '.join(words[:-1])} or {words[-1]}")
    logger, rank = logging.getLogger("penalties"), _LEVELS[level]

    def log(event: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        if logger.isEnabledFor(rank):
            # As an argument: a user's name may contain a percent sign.
            logger.log(rank, "%s", line(event, measurements, metadata))

    return attach(log, handler_id=handler_id)


def line(event: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> str:
    """The event in one line."""
    kind, _, moment = event.partition(".")
    name = metadata.get(_NAMES.get(kind, ""))
    parts = [kind if name is None else f"{kind} {_one_line(name)}", f"{moment}:"]
    if metadata.get("step") is not None:
        parts.append(f"step={_one_line(scalar(metadata['step']))}")
    parts += _WORDS[moment](measurements, metadata)
    if metadata.get("async"):
        parts.append("(async)")
    return " ".join(parts).removesuffix(":")


def _start(measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> list[str]:
    parts: list[str] = []
    if metadata.get("weight") is not None:
        parts.append(f"weight={number(metadata['weight'])}")
    counts = {"term_count": "terms", "data_count": "data", "regularizer_count": "regularizers"}
    parts += [f"{word}={metadata[key]}" for key, word in counts.items() if metadata.get(key) is not None]
    if metadata.get("track_grad_norms"):
        parts.append("with gradient norms")
    return parts


def _stop(measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> list[str]:
    output = metadata.get("output")
    # One transfer for all three; reading the measurements would take one each.
    values = measurements if output is None else {**measurements, **output.to_dict()}
    words = {
        "loss_total": "total",
        "regularizer_total": "regularizers",
        "value": "value",
        "contribution": "contribution",
        "grad_norm": "grad_norm",
        "total_grad_norm": "grad_norm",
    }
    parts = [f"{word}={number(values[key])}" for key, word in words.items() if values.get(key) is not None]
    return [*parts, *_took("in", measurements)]


def _exception(measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> list[str]:
    error, phase, term = (metadata.get(key) for key in ("error", "phase", "term"))
    where = [f"in term {_one_line(term)}:"] if term is not None else [f"{phase}:"] if phase is not None else []
    said = [part for part in (type(error).__name__, _one_line(error)) if part]
    return [*where, ": ".join(said), *_took("after", measurements)]


def _explain(measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> list[str]:
    return [f"reason={metadata.get('reason')}", _one_line(metadata.get("explanation"))]


_WORDS: Final[Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], list[str]]]] = {
    "start": _start,
    "stop": _stop,
    "exception": _exception,
    "explain": _explain,
}


def number(value: Any) -> str:
    """A number with four decimals, in scientific notation if it is very small or large; anything else as short text.

    >>> number(0), number(2.34567), number(1e-9), number(float("nan")), number(None), number("l1")
    ('0.0000', '2.3457', '1.0000e-09', 'nan', 'None', 'l1')
    """
    value = scalar(value)
    if isinstance(value, int | float):
        try:
            real = float(value)
        except OverflowError:  # an int may exceed the range of floats
            return "inf" if value > 0 else "-inf"
        size = abs(real)
        return f"{real:.4e}" if 0 < size < 1e-4 or 1e9 <= size < math.inf else f"{real:.4f}"
    shape = getattr(value, "shape", None)
    return _one_line(value) if shape is None else f"{type(value).__name__}{list(shape)}"


def _took(word: str, measurements: Mapping[str, Any]) -> list[str]:
    duration = scalar(measurements.get("duration"))
    return [f"{word} {number(1000 * duration)} ms"] if isinstance(duration, int | float) else []


def _one_line(value: object) -> str:
    return "; ".join(part for part in map(str.strip, str(value).splitlines()) if part)
