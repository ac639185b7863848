"""A mixin that adds a pipeline to the loss of a trainer."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from ...errors import OptionError
from ...functional.options import check_flag
from ...pipeline import LossOutput, Pipeline
from ...pipeline.announcing import unannounced
from ..accumulation import Accumulation
from ..distributed import measuring
from ..scope import MicroBatch
from ..trainers import check_options
from .callback import callback_class
from .forward import check_offered, counted, inputs_of, shifts_labels, watched

if TYPE_CHECKING:
    import torch

__all__ = ["PenaltiesMixin"]


class PenaltiesMixin:
    """Adds the terms of a pipeline to the loss of Hugging Face's `Trainer`, or of one that derives from it.

        class MyTrainer(PenaltiesMixin, Trainer):
            pass

        trainer = MyTrainer(model, args, train_dataset=data, pipeline=pipeline)

    Each term counts as its scope says, whatever the number of micro-batches, processes and tokens. Terms read `params`
    (those that are trained, by name), `logits`, `hidden_states`, `outputs` and paths into it, `mask` (the positions of
    the logits whose label counts), and the fields of the batch, such as `labels`; override `term_inputs` to offer more.
    The logs get `loss/TERM`, `loss/TERM/weighted` and `weight/TERM`, averaged as the trainer averages `loss`. With
    `norms_at="logits"`, or another input, they get `grad_norm/TERM` there of the step that is logged, the trainer's own
    loss included, and `grad_cos/A__B`; `cosines=False` leaves these out, and frees each gradient before the next. The
    state of terms is in the trainer's checkpoints. The step for schedules is the trainer's `global_step`.

    Evaluation leaves the terms out, unless `penalize_evaluation=True` adds each, also one with `every=`, to the loss
    of each batch.
    """

    def __init__(
        self,
        *args: Any,
        pipeline: Pipeline,
        penalize_evaluation: bool = False,
        norms_at: str | None = None,
        cosines: bool = True,
        **kwargs: Any,
    ) -> None:
        """Make the trainer, with arguments of its own, and watch its steps."""
        check_options("PenaltiesMixin", pipeline, norms_at, cosines, base="the trainer's own loss")
        check_flag("PenaltiesMixin", "penalize_evaluation", penalize_evaluation)
        # Each evaluation has all terms, whatever the step at which it happens.
        evaluated = Pipeline([term.replace(every=1) for term in pipeline]) if penalize_evaluation else None
        self._penalties = _Settings(Accumulation(pipeline), evaluated, norms_at, cosines)
        _above(super()).__init__(*args, **kwargs)
        strategy = cast("Any", self).args.logging_strategy
        if norms_at is not None and strategy != "steps":
            expected = (
                f'None with logging_strategy="{strategy.value}": norms are measured in the steps that are logged, and '
                'these are known in advance with logging_strategy="steps" alone'
            )
            raise OptionError("PenaltiesMixin", "norms_at", norms_at, expected)
        _steps(self, self._penalties.accumulation)

    @property
    def loss_output(self) -> LossOutput | None:
        """The structured result of the last optimizer step, with the trainer's own loss as its base."""
        return _steps(self, self._penalties.accumulation).output

    def term_inputs(self, model: Any, batch: Mapping[str, Any], outputs: Any) -> dict[str, Any]:
        """The inputs of the terms in one micro-batch; override it to add yours to these."""
        # Not the argument, which may be wrapped for distributed training.
        bare = cast("Any", self).model
        reads = self._penalties.accumulation.pipeline.reads
        return inputs_of(reads, bare, batch, outputs, shifts=shifts_labels(bare))

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The trainer's loss, and in training each term, scaled by its share of the optimizer step."""
        above, settings = _above(super()), self._penalties
        if not model.training and settings.evaluated is None:
            return above.compute_loss(model, inputs, return_outputs, num_items_in_batch)
        # The trainer takes labels out of the batch that it is given.
        batch = dict(inputs)
        with watched(model, hidden_states="hidden_states" in settings.accumulation.pipeline.reads) as forward:
            found = above.compute_loss(model, inputs, return_outputs, num_items_in_batch)
        loss = found[0] if return_outputs else found
        given = self.term_inputs(model, batch, forward.outputs)
        check_offered(settings.accumulation.pipeline, given, batch)
        if settings.evaluated is None or model.training:
            micro = _micro_batch(self, batch, num_items_in_batch)
            penalized = loss + _training_terms(self, settings, given, micro, loss)
        else:
            state: Any = cast("Any", self).state
            with unannounced():
                terms = settings.evaluated(step=state.global_step, state=settings.accumulation.state, **given)
            penalized = loss + terms.total
        return (penalized, found[1]) if return_outputs else penalized

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the terms beside the training loss."""
        if "loss" in logs:
            steps = _steps(self, self._penalties.accumulation)
            logs, steps.numbers = {**logs, **steps.numbers}, {}
        _above(super()).log(logs, start_time)


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What the mixin keeps in a trainer, under one name."""

    accumulation: Accumulation
    evaluated: Pipeline | None
    """The terms that are added in evaluation."""
    norms_at: str | None
    cosines: bool


def _above(parent: Any) -> Any:
    """The methods of whatever class comes after the mixin, which type checkers cannot know."""
    return parent


def _steps(trainer: Any, accumulation: Accumulation) -> Any:
    """The trainer's callback, which a trainer that restores callbacks replaces."""
    kind = callback_class()
    steps = next((one for one in trainer.callback_handler.callbacks if isinstance(one, kind)), None)
    if steps is None:
        steps = kind()
        trainer.add_callback(steps)
    if steps.accumulation is None:
        steps.accumulation = accumulation
        if steps.saved is not None:
            steps.restore(trainer.args.device)
    return steps


def _training_terms(
    trainer: Any, settings: _Settings, given: Mapping[str, Any], micro: MicroBatch, loss: Any
) -> "torch.Tensor":
    """The terms of one micro-batch, as the trainer is to be given them."""
    steps, step = _steps(trainer, settings.accumulation), trainer.state.global_step
    steps.bases.append(loss.detach() * (micro.applied * micro.ranks))
    measure = None
    if settings.norms_at is not None and len(steps.bases) == 1 and _is_logged(trainer, step + 1):
        measure = measuring(settings.norms_at, given, micro, loss, cosines=settings.cosines)
    return settings.accumulation.add(given, micro, step=step, measure=measure)


def _is_logged(trainer: Any, step: int) -> bool:
    """Whether the trainer logs an optimizer step, of which the first is 1."""
    return (step == 1 and trainer.args.logging_first_step) or step % trainer.state.logging_steps == 0


def _micro_batch(trainer: Any, batch: Mapping[str, Any], items: Any) -> MicroBatch:
    """What the trainer does to a loss: see `Trainer.training_step` and `Trainer.compute_loss`."""
    if trainer.args.n_gpu > 1:
        expected = (
            "1: DataParallel runs the model on parts of a batch that terms cannot tell apart. Start a process for each "
            f"GPU, torchrun --nproc-per-node {trainer.args.n_gpu} …, or show the process one, CUDA_VISIBLE_DEVICES=0"
        )
        raise OptionError("PenaltiesMixin", "the number of GPUs in this process", trainer.args.n_gpu, expected)
    sharing = trainer.get_tp_size() * trainer.get_cp_size() * trainer.get_sp_size()
    if sharing > 1:
        expected = "1: each process needs data of its own, and tensor, context and sequence parallelism share it"
        raise OptionError("PenaltiesMixin", "the number of processes to a batch", sharing, expected)
    count, ranks = trainer.current_gradient_accumulation_steps, trainer.accelerator.num_processes
    scaled = trainer.loss_is_scaled_for_ga
    if scaled is None:
        scaled = (trainer.model_accepts_loss_kwargs and items is not None) or trainer.compute_loss_func is not None
    # The gradient is averaged over ranks.
    applied = 1.0 / ranks if scaled else 1.0 / (ranks * count)
    if count * ranks == 1 or not scaled or items is None:
        return MicroBatch(count, ranks, applied=applied)
    here = counted(batch, shifts=shifts_labels(trainer.model)).sum()
    # TRL's trainers go on where no token of a step counts, and so must the terms.
    part = here / items.clamp(min=1)
    # Without average_tokens_across_devices each rank divides by its own number of tokens.
    return MicroBatch(count, ranks, part if trainer.args.average_tokens_across_devices else part / ranks, applied)
