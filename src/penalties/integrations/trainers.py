"""What the adapters for trainers share: the options that they check, `params`, and what they log."""

from typing import TYPE_CHECKING, Any, Final, cast

from ..backends.torch.sharded import is_sharded
from ..errors import OptionError
from ..functional.options import check_flag
from ..pipeline import LossOutput, Pipeline

if TYPE_CHECKING:
    import torch

__all__ = ["check_norms", "check_options", "logged", "trained"]

_UNLOGGED: Final = "time/"
"""Durations: those of terms on a device are the time to launch."""


def check_options(adapter: str, pipeline: Pipeline, norms_at: str | None, cosines: bool, *, base: str) -> None:
    """Raise unless the pipeline leaves the base to the trainer, whose `base` it is, and a term reads `norms_at`."""
    if not isinstance(cast("object", pipeline), Pipeline):
        raise OptionError(adapter, "pipeline", pipeline, "a Pipeline")
    if pipeline.base is not None:
        raise OptionError(adapter, "pipeline", pipeline.name, f"one without a base: {base} is the base")
    check_norms(adapter, pipeline, norms_at, cosines)


def check_norms(adapter: str, pipeline: Pipeline, norms_at: str | None, cosines: bool) -> None:
    """Raise unless a term reads `norms_at`."""
    if norms_at is not None and norms_at not in pipeline.reads:
        expected = f"None, or an input that a term reads: {', '.join(sorted(pipeline.reads))}"
        raise OptionError(adapter, "norms_at", norms_at, expected)
    check_flag(adapter, "cosines", cosines)


def trained(model: "torch.nn.Module") -> "dict[str, torch.Tensor]":
    """The parameters that are trained, by name: what terms read as `params`.

    Under FSDP2 a shard may be empty: PyTorch then returns the gradient of a whole parameter, which does not fit it.
    Raises under DeepSpeed's ZeRO stage 3, where a term would see empty tensors.
    """
    leaves: dict[str, Any] = {name: p for name, p in model.named_parameters() if p.requires_grad}
    # How transformers and peft know them, too.
    if any(hasattr(p, "ds_numel") for p in leaves.values()):
        expected = "parameters that a term can read: use stage 1 or 2, or fully_shard(model) of torch.distributed.fsdp"
        raise OptionError("params", "the model", "DeepSpeed ZeRO stage 3", expected)
    return {name: p.redistribute(placements=p.placements) if is_sharded(p) else p for name, p in leaves.items()}


def logged(output: LossOutput) -> dict[str, Any]:
    """The numbers of an optimizer step that a trainer logs, on their device."""
    numbers = output.metrics(style="slash", device=True)
    return {name: number for name, number in numbers.items() if not name.startswith(_UNLOGGED)}
