"""What a trainer's forward pass leaves for terms to read."""

import contextlib
import importlib
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from ...errors import InputError, did_you_mean
from ...pipeline import Pipeline
from ..trainers import trained

if TYPE_CHECKING:
    import torch

__all__ = ["Forward", "check_offered", "counted", "inputs_of", "shifts_labels", "watched"]

IGNORED: Final = -100
"""The label of positions that do not count, in all of transformers."""
_OFFERED: Final = ("params", "logits", "hidden_states", "outputs", "mask", "batch")
"""What terms can read besides the fields of the batch."""


class Forward:
    """The outputs of the model in one call of `compute_loss`."""

    def __init__(self) -> None:
        """None yet."""
        self.outputs: Any = None


@contextlib.contextmanager
def watched(model: "torch.nn.Module", *, hidden_states: bool) -> Generator[Forward]:
    """Keep the outputs of the first forward pass that is differentiated, if any is; TRL runs others beside it."""
    import torch

    forward = Forward()
    differentiated = torch.is_grad_enabled()

    def request(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**kwargs, "output_hidden_states": True}

    def keep(module: Any, args: Any, outputs: Any) -> None:
        if forward.outputs is None and torch.is_grad_enabled() == differentiated:
            forward.outputs = outputs

    hooks = [model.register_forward_hook(keep)]
    if hidden_states:
        hooks.append(model.register_forward_pre_hook(request, with_kwargs=True))
    try:
        yield forward
    finally:
        for hook in hooks:
            hook.remove()


def shifts_labels(model: Any) -> bool:
    """Whether the model's loss compares each position with the next label, as those of causal models do."""
    losses: Any = importlib.import_module("transformers.loss.loss_utils")
    causal = losses.LOSS_MAPPING.get(getattr(model, "loss_type", None)) is losses.ForCausalLMLoss
    return causal and not getattr(getattr(model, "config", None), "is_encoder_decoder", False)


def counted(batch: Mapping[str, Any], *, shifts: bool) -> Any:
    """Which labels of a batch the trainer counts: True where one does."""
    if batch.get("shift_labels") is not None:
        return batch["shift_labels"] != IGNORED
    labels = batch["labels"]
    return (labels[..., 1:] if shifts else labels) != IGNORED


def inputs_of(
    reads: frozenset[str], model: Any, batch: Mapping[str, Any], outputs: Any, *, shifts: bool
) -> dict[str, Any]:
    """The inputs that terms read: of the model, of its outputs, and of the batch."""
    found = {name: part for name, part in batch.items() if name in reads}
    if "batch" in reads:
        found["batch"] = batch
    if "outputs" in reads:
        found["outputs"] = outputs
    for name in ("logits", "hidden_states"):
        if name in reads:
            fields: Mapping[str, Any] = cast("Any", outputs) if isinstance(outputs, Mapping) else {}
            part = fields.get(name)
            if part is None:
                has = ", ".join(fields) or f"a {type(cast('object', outputs)).__name__}"
                raise InputError(
                    f'a term reads "{name}", which the model did not return; it returned {has}, of which terms can '
                    'read "outputs.NAME" (the trainers of TRL compute their losses without logits)'
                )
            found[name] = part
    if "mask" in reads and "mask" not in batch:
        found["mask"] = _mask(batch, shifts=shifts)
    if "params" in reads:
        found["params"] = trained(model)
    return found


def check_offered(pipeline: Pipeline, given: Mapping[str, Any], batch: Mapping[str, Any]) -> None:
    """Raise where a term reads a name that is neither offered here nor by the user."""
    for term in pipeline:
        for name in term.inputs.values() if term.enabled else ():
            parts = name.split(".")
            if not any(".".join(parts[:depth]) in given for depth in range(1, len(parts) + 1)):
                known = list(dict.fromkeys([*_OFFERED, *batch, *given]))
                raise InputError(
                    f'{term.name}: reads "{name}", which is not available; terms can read {", ".join(known)}, and what '
                    f"you add by overriding term_inputs{did_you_mean(name, known)}"
                )


def _mask(batch: Mapping[str, Any], *, shifts: bool) -> Any:
    """Which positions of the logits count: those whose label does, which for causal models is the next one."""
    import torch

    if "labels" not in batch:
        raise InputError('a term reads "mask", which comes from "labels", and the batch has none')
    counts = counted(batch, shifts=shifts)
    if counts.shape == batch["labels"].shape:
        return counts
    return torch.cat([counts, torch.zeros_like(counts[..., :1])], dim=-1)
