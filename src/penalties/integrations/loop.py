"""Plain PyTorch loops: a pipeline as a loss function, and one training step."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from ..errors import InputError, OptionError
from ..functional.options import POSITIVE, check_number
from ..pipeline import LossOutput, Pipeline, Term
from ..pipeline.schedules import Schedule
from ..pipeline.schedules import weights as weights_at

if TYPE_CHECKING:
    import torch

__all__ = ["TrainStep", "WrappedLoss", "train_step", "wrap_loss"]

_OFFERED: Final = ("input", "prediction", "target", "params")
"""The inputs that a training step passes to the terms itself."""

_ADDED: Final = ("loss", "penalty_total")
"""The metrics that a training step adds to the pipeline's."""


class WrappedLoss:
    """A loss function with the terms of a pipeline added: what `wrap_loss` returns."""

    pipeline: Final[Pipeline]
    """The terms together with the base. Call it directly to keep no state, as in validation."""
    state: Mapping[str, Any]
    """The state of the stateful terms. Assign saved state to resume, or `{}` to start over."""
    output: LossOutput | None
    """The structured result of the last call."""

    def __init__(self, base: Callable[[Any, Any], Any] | Term, pipeline: Pipeline) -> None:
        """Start without state; the pipeline must not have a base of its own."""
        if not isinstance(cast("object", pipeline), Pipeline):
            raise OptionError("wrap_loss", "pipeline", pipeline, "a Pipeline")
        if pipeline.base is not None:
            raise OptionError(
                "wrap_loss", "pipeline", pipeline.name, "one without a base: remove it, or call the pipeline itself"
            )
        if not isinstance(base, Term) and not callable(cast("object", base)):
            raise OptionError("wrap_loss", "base", base, "a function of prediction and target, or a Term")
        self.pipeline = pipeline.with_base(base if isinstance(base, Term) else _ByPosition(base))
        self.state = {}
        self.output = None

    def __call__(
        self,
        prediction: Any,
        target: Any,
        *,
        weights: Mapping[str, Any] | None = None,
        step: Any = None,
        **inputs: Any,
    ) -> "torch.Tensor":
        """`base(prediction, target) + Σ weight·term`, where each term finds its inputs by name."""
        output = self.pipeline(
            weights=weights, step=step, state=self.state, prediction=prediction, target=target, **inputs
        )
        # A term that did not run in this call keeps its state.
        self.state = {**self.state, **output.state}
        self.output = output
        return output.total


@dataclasses.dataclass(frozen=True)
class _ByPosition:
    """A loss function with our names for its two inputs; every library names them differently."""

    base: Callable[[Any, Any], Any]

    def __call__(self, prediction: Any, target: Any) -> Any:
        return self.base(prediction, target)


def wrap_loss(base: Callable[[Any, Any], Any] | Term, pipeline: Pipeline) -> WrappedLoss:
    """A drop-in replacement for a loss function: `base(prediction, target)` plus the total of a pipeline.

    `base` is a function or a loss module, called with positional arguments, or a `Term` that names its inputs. Terms
    find their inputs by name among `prediction`, `target` and any other keyword arguments. `weights` and `step` go to
    the pipeline at each call, so that schedules work. `loss.output` is the last `LossOutput`, base loss included.
    Stateful terms get the state that they returned in the previous call; it is kept in `loss.state`.

    >>> import torch
    >>> import penalties as pn
    >>> pipeline = pn.Pipeline([pn.Term(pn.l2, weight=0.01, inputs="prediction")])
    >>> loss = pn.wrap_loss(torch.nn.functional.mse_loss, pipeline)
    >>> prediction, target = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.1], [1.9]])
    >>> round(loss(prediction, target).item(), 6)
    0.06
    >>> round(loss(prediction, target, weights={"l2": 0.1}).item(), 6)
    0.51
    >>> loss.output
    LossOutput, total 0.51
      term       value  weight  contribution  share
      base_loss  0.01   1       0.01          2 %
      l2         5      0.1     0.5           98 %
    """
    return WrappedLoss(base, pipeline)


class TrainStep:
    """A training step that counts itself: what `train_step` returns."""

    model: Final["torch.nn.Module"]
    loss: Final[WrappedLoss]
    count: int
    """The number of steps taken, which is the number of the next one. Assign to it to resume from a checkpoint."""

    def __init__(
        self,
        model: "torch.nn.Module",
        base: Callable[[Any, Any], Any] | Term,
        pipeline: Pipeline,
        optimizer: "torch.optim.Optimizer",
        *,
        schedules: Mapping[str, Schedule] | None = None,
        max_norm: float | None = None,
    ) -> None:
        """Check whatever can be checked before the first batch."""
        self.model = model
        self.loss = WrappedLoss(base, pipeline)
        for name in _ADDED:
            if name in pipeline:
                raise OptionError("train_step", "pipeline", name, f"terms of other names than {' and '.join(_ADDED)}")
        for name, schedule in (schedules or {}).items():
            if name not in pipeline:
                there = ", ".join(f'"{known}"' for known in pipeline.names) or "none"
                raise InputError(f'train_step: schedules names "{name}", but no term has that name; there is {there}')
            if not callable(schedule):
                raise OptionError("train_step", f"the schedule of {name}", schedule, "a function of the step")
        if max_norm is not None:
            max_norm = check_number("train_step", "max_norm", max_norm, "None or a number above 0", low=POSITIVE)
        self._optimizer = optimizer
        self._schedules = dict(schedules or {})
        self._max_norm = max_norm
        self.count = 0

    @property
    def output(self) -> LossOutput | None:
        """The structured result of the last step."""
        return self.loss.output

    def __call__(self, x: Any, y: Any, /, **inputs: Any) -> dict[str, float]:
        """Train on one batch and return the metrics as numbers, with one wait for the device."""
        for name in _OFFERED:
            if name in inputs:
                raise InputError(f'train_step: the step passes "{name}" to the terms itself; rename yours')
        parameters = tuple(self.model.parameters())
        reads = self.loss.pipeline.reads
        offered = {name: given for name, given in (("input", x), ("params", parameters)) if name in reads}
        self._optimizer.zero_grad()
        self.loss(
            self.model(x),
            y,
            weights=weights_at(self._schedules, self.count),
            step=self.count,
            **offered,
            **inputs,
        )
        output = cast("LossOutput", self.loss.output)
        output.total.backward()
        if self._max_norm is not None:
            from torch.nn.utils import clip_grad_norm_

            norm = clip_grad_norm_(parameters, self._max_norm)
            output = self.loss.output = dataclasses.replace(output, total_grad_norm=norm)
        self._optimizer.step()
        self.count += 1
        plain = output.read()
        return {**plain.metrics(), "penalty_total": float(plain.regularizer_total), "loss": float(plain.total)}


def train_step(
    model: "torch.nn.Module",
    base: Callable[[Any, Any], Any] | Term,
    pipeline: Pipeline,
    optimizer: "torch.optim.Optimizer",
    *,
    schedules: Mapping[str, Schedule] | None = None,
    max_norm: float | None = None,
) -> TrainStep:
    """A function `step(x, y, **inputs)` that trains on one batch and returns the metrics of that step.

    A step runs the model once, in its current mode; adds the terms of the pipeline to `base(prediction, y)` as
    `wrap_loss` does; runs the backward pass; and calls the optimizer. Terms find `input` (`x`), `prediction`, `target`
    (`y`), `params` (all parameters of the model) and the keyword arguments of the call by name. `schedules` maps terms
    to functions of the step, counted from 0. `max_norm` clips the gradient norm, and reports the norm before clipping
    as `total_grad_norm`.

    The metrics are the pipeline's, plus `base_loss`, `penalty_total` and `loss`. `step.output` is the `LossOutput` of
    the last step, `step.count` the number of steps, `step.loss.state` the state of stateful terms. Values are not
    checked: `step.output.check()` raises if one is NaN or infinite. Call a learning-rate scheduler after the step. For
    mixed precision and gradient accumulation write your own loop with `wrap_loss`.

    >>> import torch
    >>> import penalties as pn
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Linear(2, 1)
    >>> pipeline = pn.Pipeline([pn.Term(pn.l1, weight=0.01, inputs="params")])
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> step = pn.train_step(model, torch.nn.functional.mse_loss, pipeline, optimizer)
    >>> x, y = torch.ones(4, 2), torch.ones(4, 1)
    >>> metrics = [step(x, y) for _ in range(20)]
    >>> list(metrics[0])
    ['l1', 'l1_weighted', 'base_loss', 'total', 'penalty_total', 'loss']
    >>> metrics[0]["loss"] > metrics[-1]["loss"], step.count
    (True, 20)
    """
    return TrainStep(model, base, pipeline, optimizer, schedules=schedules, max_norm=max_norm)
