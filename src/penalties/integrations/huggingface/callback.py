"""Where an optimizer step begins and ends, what it logs, and the state of terms in the trainer's checkpoints."""

import base64
import functools
from collections.abc import Mapping
from typing import Any, Final

from ...pipeline import LossOutput
from ...pipeline.output.reading import as_numbers
from ...pipeline.saving import pack_state, unpack_state
from ...training.libraries import library
from ..accumulation import Accumulation
from ..distributed import average, averaged, check_wrappers
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
        check_wrappers("PenaltiesMixin", kwargs["model"])
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
        before = self.accumulation.state
        output = self.accumulation.finish(base=sum(self.bases), average=averaged if args.world_size > 1 else None)
        self.output = average(output)
        if getattr(kwargs.get("optimizer"), "step_was_skipped", False):
            # As a loss scaler does where gradients are not finite.
            self.accumulation.state = before
        self.bases.clear()
        self.accumulation.announce(self.output)
        self._steps += 1
        for key, number in logged(self.output).items():
            total, count = self._sums.get(key, (0.0, 0))
            self._sums[key] = total + number, count + 1
        self._read(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log what an epoch's end logs."""
        self._read(control)

    def _read(self, control: Any) -> None:
        """The mean over the steps since the last log.

        A term that does not run at every step adds nothing to the loss of the others.
        """
        if not control.should_log or not self._steps:
            return
        totals = as_numbers([total for total, _ in self._sums.values()])
        numbers: dict[str, float] = {}
        for (key, (_, count)), total in zip(self._sums.items(), totals, strict=True):
            numbers[key] = float(total) / (self._steps if key.endswith(_PARTS_OF_LOSS) else count)
        self._forget()
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
