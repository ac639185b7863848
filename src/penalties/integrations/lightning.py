"""Pipelines in Lightning: a callback that knows the trainer's windows, and a mixin that brings it along."""

import base64
import functools
import math
import sys
import warnings
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from ..errors import InputError, OptionError
from ..pipeline import LossOutput, Pipeline
from ..pipeline.saving import pack_state, unpack_state
from ..pipeline.scope import PARAMS
from ..training.libraries import library
from .accumulation import Accumulation
from .distributed import average, averaged, check_wrappers, measuring
from .scope import MicroBatch
from .trainers import check_options, logged, trained

if TYPE_CHECKING:
    import torch

__all__ = ["PenaltiesMixin", "Steps"]


class Steps:
    """The events of a trainer: what `PenaltiesCallback` does."""

    accumulation: Accumulation
    output: LossOutput | None
    """The structured result of the last optimizer step, with the module's own loss as its base."""

    def __init__(self, pipeline: Pipeline, *, norms_at: str | None = None, cosines: bool = True) -> None:
        """Check the pipeline, which must not have its own base."""
        check_options("PenaltiesCallback", pipeline, norms_at, cosines, base="the loss of training_step")
        self.accumulation = Accumulation(pipeline)
        self.output = None
        self._norms_at = norms_at
        self._cosines = cosines
        self._saved: str | None = None
        self._micro: MicroBatch | None = None
        """The micro-batch of the training step that is running."""
        self._index = 0
        """Its number in its window."""
        self._added = False
        self._bases: list[Any] = []
        self._scale = math.inf
        """That of the loss scaler, before the step."""
        self._trainer: Any = None
        """A weak reference to the trainer that runs this callback."""
        self._joined: Any = None
        """The callbacks of a search, which include this one until it ends."""
        self._warned = False

    def penalize(self, module: Any, loss: "torch.Tensor", inputs: Mapping[str, Any]) -> "torch.Tensor":
        """The loss of a training step with the terms added; outside training, the loss as it is."""
        if self._micro is None and module.trainer.training and self._is_replaced(module.trainer):
            self._join(module.trainer, module)
        micro = self._micro
        if micro is None:
            if module.trainer.training:
                raise InputError(
                    "penalize: the trainer does not know of the callback; pass it as Trainer(callbacks=[…]), and where "
                    "you override configure_callbacks, add to super().configure_callbacks()"
                )
            return loss
        if self._added:
            raise InputError(
                "penalize: called twice in one training step; pass all inputs in one call. An optimizer that "
                "evaluates a step several times, as LBFGS does, needs pn.train_step(..., closure=True)"
            )
        given = dict(inputs)
        if PARAMS in self.accumulation.pipeline.reads and PARAMS not in given:
            given[PARAMS] = trained(module)
        step = module.trainer.global_step
        measure = None
        every = module.trainer.log_every_n_steps
        if self._norms_at is not None and not self._bases and every > 0 and (step + 1) % every == 0:
            measure = measuring(self._norms_at, given, micro, loss, cosines=self._cosines)
        terms = self.accumulation.add(given, micro, step=step, measure=measure)
        self._bases.append(loss.detach() * (micro.applied * micro.ranks))
        self._added = True
        return loss + terms

    def _is_replaced(self, trainer: Any) -> bool:
        """Whether a trainer that knows of the callback has others, as during the search for a learning rate."""
        return self._trainer is not None and self._trainer() is trainer and self not in trainer.callbacks

    def _join(self, trainer: Any, module: Any) -> None:
        """Run for as long as the trainer has the callbacks that it has now; the batch has begun already."""
        self._joined = trainer.callbacks
        trainer.callbacks.append(self)
        self.on_train_batch_start(trainer, module, None, trainer.fit_loop.batch_idx)

    # What Lightning calls.

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Remember the trainer."""
        self._trainer = weakref.ref(trainer)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Take the state of terms from the checkpoint that training resumes from."""
        if not pl_module.automatic_optimization:
            expected = "True: where you step the optimizer yourself, use pn.train_step, or scale the terms yourself"
            raise OptionError("PenaltiesCallback", "automatic_optimization", False, expected)
        check_wrappers("PenaltiesCallback", trainer.strategy.model)
        sampling: Mapping[str, Any] = trainer.distributed_sampler_kwargs or {}
        apart = sampling.get("num_replicas", trainer.world_size)
        if apart != trainer.world_size:
            given = f"{trainer.world_size} with {apart} parts of the data"
            expected = "as many parts as processes: under tensor parallelism several share one"
            raise OptionError("PenaltiesCallback", "the number of processes", given, expected)
        if self._saved is not None:
            data = base64.b64decode(self._saved)
            self.accumulation.state = unpack_state(data, "the checkpoint", "torch", pl_module.device)
            self._saved = None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Find this batch's place in its window."""
        nominal, batches = trainer.accumulate_grad_batches, trainer.num_training_batches
        self._index = batch_idx % nominal
        count = nominal
        if not math.isinf(batches):
            count = min(nominal, int(batches) - (batch_idx - self._index))
        elif nominal > 1 and not self._warned:
            self._warned = True
            warnings.warn(
                "the data has no length, so whether the last window of an epoch is shorter cannot be known: terms of "
                f'scope "mean" are divided by {nominal} there, too',
                stacklevel=2,
            )
        if self._index == 0:
            self.accumulation.start()
            self._bases.clear()
        # Lightning divides the loss by the nominal number; gradients are averaged over ranks.
        ranks = trainer.world_size
        self._micro = MicroBatch(count, ranks, applied=1 / (ranks * nominal))
        self._added = False
        self._scale = _scale(trainer)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Add up the window where it ends, and log it."""
        micro, self._micro = self._micro, None
        if micro is None:
            return
        # A step that returns None skips its batch, and Lightning's outputs are empty.
        if outputs and not self._added:
            raise InputError("PenaltiesCallback: training_step did not call penalize, so no term was added to its loss")
        if self._added and not outputs:
            self.accumulation.discard()
            self._bases.pop()
        if not self._bases or (self._index < micro.count - 1 and not trainer.is_last_batch):
            return
        before = self.accumulation.state
        output = self.accumulation.finish(base=sum(self._bases), average=averaged if micro.ranks > 1 else None)
        self.output = average(output)
        if _scale(trainer) < self._scale:
            # A loss scaler skipped the step, since gradients were not finite.
            self.accumulation.state = before
        self._bases.clear()
        if trainer.callbacks is not self._joined:
            self.accumulation.announce(self.output)
        if not _is_logged(trainer):
            return
        pl_module.log_dict(logged(self.output), on_step=True, on_epoch=False, batch_size=1)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leave nothing of an interrupted step behind."""
        self._micro = None

    def state_dict(self) -> dict[str, Any]:
        """The state of terms, for the trainer's checkpoints."""
        terms = self.accumulation.state
        return {"terms": base64.b64encode(pack_state(terms)).decode("ascii") if terms else self._saved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep what a checkpoint held until training starts, when the device is known."""
        self._saved = state_dict["terms"]
        if self._saved is None:
            self.accumulation.state = {}


class PenaltiesMixin:
    """Adds the terms of a pipeline to the loss of a `LightningModule`.

        class Model(PenaltiesMixin, LightningModule):
            def training_step(self, batch, batch_idx):
                x, y = batch
                logits = self.layers(x)
                return self.penalize(cross_entropy(logits, y), logits=logits)

        model = Model(pipeline=pipeline)

    Each term counts as its scope says, whatever `accumulate_grad_batches` and the number of processes. Terms read what
    `penalize` is given, and `params`, the parameters that are trained, by name. The step for schedules is the trainer's
    `global_step`. `loss/TERM`, `loss/TERM/weighted`, shares and weights are logged every `log_every_n_steps` optimizer
    steps, and at the end of an epoch. With `norms_at="logits"`, or another input, every `log_every_n_steps` steps there
    are also `grad_norm/TERM` there, the module's own loss included, and `grad_cos/A__B`; `cosines=False` leaves these
    out, and frees each gradient before the next. The state of terms is in the trainer's checkpoints. In validation and
    tests `penalize` returns the loss as it is.
    """

    def __init__(
        self, *args: Any, pipeline: Pipeline, norms_at: str | None = None, cosines: bool = True, **kwargs: Any
    ) -> None:
        """Make the module, with arguments of its own, and the callback."""
        parent: Any = super()
        parent.__init__(*args, **kwargs)
        self._penalties = callback_class()(pipeline, norms_at=norms_at, cosines=cosines)

    @property
    def loss_output(self) -> LossOutput | None:
        """The structured result of the last optimizer step, with the module's own loss as its base."""
        return self._penalties.output

    def penalize(self, loss: "torch.Tensor", **inputs: Any) -> "torch.Tensor":
        """The loss of a training step with the terms added, each scaled by its share of the optimizer step."""
        return self._penalties.penalize(self, loss, inputs)

    def configure_callbacks(self) -> Any:
        """Bring the callback to the trainer."""
        parent: Any = super()
        return [*parent.configure_callbacks(), self._penalties]


def __getattr__(name: str) -> Any:
    """The class of callbacks, which needs Lightning."""
    if name == "PenaltiesCallback":
        return callback_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.cache
def callback_class() -> Any:
    """The class of callbacks; made here, since its base needs Lightning, which people import under two names."""
    package = "lightning.pytorch"
    if "pytorch_lightning" in sys.modules and package not in sys.modules:
        package = "pytorch_lightning"
    lightning = library("PenaltiesCallback", package, extra="lightning")
    import torch

    # In a module that torch.compile made, the number of the step would have it compile again in each.
    members = {"__module__": __name__, "penalize": cast("Any", torch.compiler).disable(Steps.penalize)}
    return type("PenaltiesCallback", (Steps, lightning.Callback), members)


def _is_logged(trainer: Any) -> bool:
    """Whether anyone looks at the step that was just made: loggers, or monitors where an epoch or training ends.

    Lightning takes about as long to log the numbers of a few terms as to train a small network for a step.
    """
    every, step = trainer.log_every_n_steps, trainer.global_step
    is_last = trainer.is_last_batch or trainer.should_stop or step == trainer.max_steps
    return is_last or (every > 0 and step % every == 0)


def _scale(trainer: Any) -> float:
    """What the loss scaler of the trainer multiplies by; it shrinks after a step that was skipped, and then alone."""
    return math.inf if trainer.scaler is None else trainer.scaler.get_scale()
