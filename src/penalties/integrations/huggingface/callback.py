"""Where an optimizer step begins and ends, what it logs, and the state of terms in the trainer's checkpoints."""

import base64
import functools
import importlib
from collections.abc import Mapping
from typing import Any, Final

from ...pipeline import LossOutput
from ...pipeline.output.reading import as_numbers
from ...pipeline.saving import pack_state, unpack_state
from ...training.libraries import library
from ..accumulation import Accumulation
from ..trainers import logged

__all__ = ["Steps", "callback_class"]

_PARTS_OF_LOSS: Final = ("/weighted", "/share")
"""What a term contributes to the loss of a step: 0 where it does not run."""


class Steps:
    """The events of a trainer: what `PenaltiesCallback` does."""

    def __init__(self) -> None:
        """Without a pipeline: the trainer brings it."""
        self.accumulation: Accumulation | None = None
        self.output: LossOutput | None = None
        """The last optimizer step."""
        self.saved: str | None = None
        """The state of terms that is to be restored."""
        self.numbers: dict[str, float] = {}
        """What the next log adds."""
        self.bases: list[Any] = []
        """The trainer's own loss in each micro-batch, as it counts in the step."""
        self._sums: dict[str, tuple[Any, int]] = {}
        """Of each metric since the last log: the sum, and the number of steps that had it."""
        self._steps = 0

    def state(self) -> dict[str, Any]:
        """What the trainer's checkpoint keeps."""
        terms: Mapping[str, Any] = {} if self.accumulation is None else self.accumulation.state
        saved = base64.b64encode(pack_state(terms)).decode("ascii") if terms else self.saved
        return {"args": {}, "attributes": {"saved": saved}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the state of terms from the checkpoint that training resumes from; without one, start afresh."""
        name = type(self).__name__
        # A checkpoint without this callback has no entry, and the next one could not be saved.
        stored = state.stateful_callbacks.setdefault(name, self.state())
        self.saved = stored["attributes"]["saved"] if state.global_step else None
        self.bases.clear()
        self._forget()
        if self.accumulation is not None:
            self.restore(args.device)

    def restore(self, device: Any) -> None:
        """Give the saved state to the terms."""
        if self.accumulation is not None:
            data = None if self.saved is None else base64.b64decode(self.saved)
            restored = {} if data is None else unpack_state(data, "the checkpoint", "torch", device)
            self.accumulation.state = restored
            self.accumulation.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Add up the micro-batches of the step."""
        if self.accumulation is None or not self.bases:
            return
        average = _average if args.world_size > 1 else None
        self.output = self.accumulation.finish(base=sum(self.bases), average=average)
        self.bases.clear()
        self.accumulation.announce(self.output)
        self._steps += 1
        for key, number in logged(self.output).items():
            total, count = self._sums.get(key, (0.0, 0))
            self._sums[key] = total + number, count + 1
        self._read(args, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log what an epoch's end logs."""
        self._read(args, control)

    def _read(self, args: Any, control: Any) -> None:
        """The mean over the steps since the last log, and over ranks; every rank takes part.

        A term that does not run at every step adds nothing to the loss of the others.
        """
        if not control.should_log or not self._steps:
            return
        totals = as_numbers([total for total, _ in self._sums.values()])
        numbers: dict[str, float] = {}
        for (key, (_, count)), total in zip(self._sums.items(), totals, strict=True):
            numbers[key] = float(total) / (self._steps if key.endswith(_PARTS_OF_LOSS) else count)
        self._forget()
        if args.world_size > 1:
            # A term's own metrics may depend on the data, and ranks differ in which there are.
            shared = [key for key in numbers if not key.startswith("metrics/")]
            means = _average([numbers[key] for key in shared], args.device)
            numbers |= dict(zip(shared, means, strict=True))
        self.numbers = numbers

    def _forget(self) -> None:
        self._sums.clear()
        self._steps = 0


@functools.cache
def callback_class() -> Any:
    """The class of callbacks for `Trainer`; made here, since its bases need transformers."""
    callbacks = library("PenaltiesMixin", "transformers.trainer_callback", extra="huggingface")
    bases = (Steps, callbacks.TrainerCallback, callbacks.ExportableState)
    return type("PenaltiesCallback", bases, {"__module__": __name__})


def _average(x: Any, device: Any = None) -> Any:
    """The mean over ranks of a tensor, a number or a list of numbers."""
    import torch

    reduce: Any = importlib.import_module("accelerate.utils").reduce
    if isinstance(x, torch.Tensor):
        return reduce(x, reduction="mean")
    return reduce(torch.tensor(x, dtype=torch.float64, device=device), reduction="mean").tolist()
