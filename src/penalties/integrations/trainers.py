"""What the adapters for trainers share: the options that they check, and what they log."""

from typing import Any, Final, cast

from ..errors import OptionError
from ..functional.options import check_flag
from ..pipeline import LossOutput, Pipeline

__all__ = ["check_options", "logged"]

_UNLOGGED: Final = "time/"
"""Durations: those of terms on a device are the time to launch."""


def check_options(adapter: str, pipeline: Pipeline, norms_at: str | None, cosines: bool, *, base: str) -> None:
    """Raise unless the pipeline leaves the base to the trainer, whose `base` it is, and a term reads `norms_at`."""
    if not isinstance(cast("object", pipeline), Pipeline):
        raise OptionError(adapter, "pipeline", pipeline, "a Pipeline")
    if pipeline.base is not None:
        raise OptionError(adapter, "pipeline", pipeline.name, f"one without a base: {base} is the base")
    if norms_at is not None and norms_at not in pipeline.reads:
        expected = f"None, or an input that a term reads: {', '.join(sorted(pipeline.reads))}"
        raise OptionError(adapter, "norms_at", norms_at, expected)
    check_flag(adapter, "cosines", cosines)


def logged(output: LossOutput) -> dict[str, Any]:
    """The numbers of an optimizer step that a trainer logs, on their device."""
    numbers = output.metrics(style="slash", device=True)
    return {name: number for name, number in numbers.items() if not name.startswith(_UNLOGGED)}
