"""One training step of a plain PyTorch loop."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from ...backends import owner
from ...backends.torch.sharded import whole
from ...errors import InputError, OptionError
from ...functional.options import POSITIVE, check_count, check_flag, check_number
from ...pipeline import LossOutput, Pipeline, Term
from ...pipeline.announcing import unannounced
from ...pipeline.schedules import Schedule
from ...pipeline.schedules import weights as weights_at
from ..accumulation import Accumulation
from ..activations.captured import Captured
from ..auxiliary import Collected
from ..distributed import average, averaged, measuring, replicas, synchronized
from ..scope import MicroBatch
from ..trainers import check_norms, trained
from .loss import WrappedLoss

if TYPE_CHECKING:
    import torch

__all__ = ["TrainStep", "train_step"]

_OFFERED: Final = ("input", "prediction", "target", "params")
"""The inputs that a training step passes to the terms itself."""

_ADDED: Final = ("loss", "penalty_total")
"""The metrics that a training step adds to the pipeline's."""


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
        items: Callable[[Any], Any] | None = None,
        scaler: "torch.amp.GradScaler | None" = None,
        closure: bool = False,
        norms_at: str | None = None,
        norms_every: int = 1,
        cosines: bool = True,
    ) -> None:
        """Check whatever can be checked before the first batch."""
        self.model = model
        self.loss = WrappedLoss(base, pipeline, items=items)
        for name in _ADDED:
            if name in pipeline:
                raise OptionError("train_step", "pipeline", name, f"terms of other names than {' and '.join(_ADDED)}")
        if schedules is not None and not isinstance(cast("object", schedules), Mapping):
            raise OptionError("train_step", "schedules", schedules, "None, or a mapping from terms to schedules")
        for name, schedule in (schedules or {}).items():
            if name not in pipeline:
                there = ", ".join(f'"{known}"' for known in pipeline.names) or "none"
                raise InputError(f'train_step: schedules names "{name}", but no term has that name; there is {there}')
            if not callable(schedule):
                raise OptionError("train_step", f"the schedule of {name}", schedule, "a function of the step")
        if max_norm is not None:
            max_norm = check_number("train_step", "max_norm", max_norm, "None or a number above 0", low=POSITIVE)
        methods = ("scale", "unscale_", "step", "update", "get_scale")
        if scaler is not None and not all(callable(getattr(scaler, method, None)) for method in methods):
            raise OptionError("train_step", "scaler", scaler, "None or a torch.amp.GradScaler")
        check_flag("train_step", "closure", closure)
        if closure and scaler is not None:
            raise OptionError("train_step", "closure", closure, "False with a scaler, which cannot take closures")
        check_norms("train_step", self.loss.pipeline, norms_at, cosines)
        check_count("train_step", "norms_every", norms_every, 1)
        self._optimizer = optimizer
        self._scaler = scaler
        self._closure = closure
        self._items = items
        self._accumulation = Accumulation(self.loss.pipeline)
        self._schedules = dict(schedules or {})
        self._max_norm = max_norm
        self._norms_at = norms_at
        self._norms_every = norms_every
        self._cosines = cosines
        self.count = 0

    @property
    def output(self) -> LossOutput | None:
        """The structured result of the last step."""
        return self.loss.output

    def __call__(self, x: Any, y: Any, /, **inputs: Any) -> dict[str, float]:
        """Train on one batch and return the metrics as numbers, with one wait for the device."""
        return self.accumulate([(x, y, inputs)])

    def accumulate(self, batches: Sequence[Any]) -> dict[str, float]:
        """One step on several micro-batches, each `(x, y)` or `(x, y, inputs)`; gradients are accumulated over them.

        Each term counts as its scope says: averaged over the micro-batches, added, or once. What a micro-batch leaves
        in a capture or a collection among its inputs is forgotten before the next one runs.

        A step that the scaler skips, since a gradient is not finite, leaves the count and the state of terms as they
        were.
        """
        parts = _parts(batches)
        for name in [name for part in parts for name in part.inputs]:
            if name in _OFFERED:
                raise InputError(f'train_step: the step passes "{name}" to the terms itself; rename yours')
        self._accumulation.state = self.loss.state
        taken = True
        records = _Records(parts)
        if self._closure:
            self._step_by_closure(parts, records)
        else:
            self._evaluate(parts, records, measured=self._is_measured())
            taken = self._step()
        if taken:
            self.loss.state = self._accumulation.state
            self.count += 1
        plain = cast("LossOutput", self.loss.output).read()
        return {**plain.metrics(), "penalty_total": float(plain.regularizer_total), "loss": float(plain.total)}

    def _is_measured(self) -> bool:
        return self._norms_at is not None and self.count % self._norms_every == 0

    def _evaluate(self, parts: "Sequence[_Part]", records: "_Records", *, measured: bool) -> None:
        """Gradients of all micro-batches in `.grad`, clipped, and the output of the step."""
        self._optimizer.zero_grad()
        self._accumulation.start()
        params = tuple(trained(self.model).values())
        reads = self.loss.pipeline.reads
        weights = weights_at(self._schedules, self.count)
        ranks, group = replicas(self.model)
        batches = self._micro_batches(parts, ranks, group)
        for index, (part, batch) in enumerate(zip(parts, batches, strict=True)):
            records.rewind()
            offered = {name: given for name, given in (("input", part.x), ("params", params)) if name in reads}
            with synchronized(self.model, last=index == len(parts) - 1):
                inputs = {"prediction": self.model(part.x), "target": part.y, **offered, **part.inputs}
                measure = None
                if measured and index == 0:
                    at = cast("str", self._norms_at)
                    measure = measuring(at, inputs, batch, cosines=self._cosines, group=group)
                total = self._accumulation.add(inputs, batch, weights=weights, step=self.count, measure=measure)
                if self._scaler is not None:
                    total = cast("Any", self._scaler).scale(total)
                total.backward()
        output = self._accumulation.finish(average=lambda state: averaged(state, group) if ranks > 1 else state)
        output = average(output, group=group) if ranks > 1 else output
        if self._max_norm is not None:
            from torch.nn.utils import clip_grad_norm_

            if self._scaler is not None:
                self._scaler.unscale_(self._optimizer)
            # Not those of the model: what another optimizer trains, or none, has gradients of earlier steps.
            stepped = [parameter for options in self._optimizer.param_groups for parameter in options["params"]]
            length = whole(clip_grad_norm_(stepped, self._max_norm))
            output = dataclasses.replace(output, total_grad_norm=length)
        self._accumulation.announce(output)
        self.loss.output = output

    def _micro_batches(self, parts: "Sequence[_Part]", ranks: int, group: Any) -> list[MicroBatch]:
        applied = 1 / ranks
        if self._items is None or len(parts) * ranks == 1:
            return [MicroBatch(len(parts), ranks=ranks, applied=applied)] * len(parts)
        counts = [self._items(part.y) for part in parts]
        whole = averaged(sum(counts), group) * ranks if ranks > 1 else sum(counts)
        return [MicroBatch(len(parts), ranks=ranks, part=count / whole, applied=applied) for count in counts]

    def _step(self) -> bool:
        """Step the optimizer; whether the scaler let it."""
        if self._scaler is None:
            self._optimizer.step()
            return True
        self._scaler.step(self._optimizer)
        scale = self._scaler.get_scale()
        self._scaler.update()
        # It shrinks after a step that was skipped, and then alone.
        return self._scaler.get_scale() >= scale

    def _step_by_closure(self, parts: "Sequence[_Part]", records: "_Records") -> None:
        """Let the optimizer evaluate the step, perhaps several times; the first is at the parameters as they were."""
        state = self._accumulation.state
        first: list[tuple[LossOutput, Mapping[str, Any]]] = []

        def evaluate() -> Any:
            import torch

            # The first evaluation is the step; what follows is the optimizer's search.
            with torch.enable_grad(), unannounced() if first else contextlib.nullcontext():
                self._accumulation.state = state
                self._evaluate(parts, records, measured=not first and self._is_measured())
            output = cast("LossOutput", self.loss.output)
            if not first:
                first.append((output, self._accumulation.state))
            return output.total

        self._optimizer.step(evaluate)
        if first:
            self.loss.output, self._accumulation.state = first[0]


@dataclasses.dataclass(frozen=True)
class _Part:
    """One micro-batch, with what its terms read besides."""

    x: Any
    y: Any
    inputs: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])


class _Records:
    """The captures and collections among the inputs of micro-batches, as they were before the step."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        inputs = {id(one): one for part in parts for one in part.inputs.values()}.values()
        self._marks = [(one, one.mark()) for one in inputs if isinstance(one, Captured | Collected)]

    def rewind(self) -> None:
        """Forget what was recorded since: its graph is gone after the backward of its micro-batch."""
        for one, mark in self._marks:
            one.rewind(mark)


def _parts(batches: Any) -> list[_Part]:
    """The micro-batches, checked before anything runs."""
    kind = cast("object", batches)
    if not isinstance(kind, Iterable) or isinstance(kind, str | Mapping) or owner(batches) is not None:
        raise InputError(f"train_step: accumulate was given a value {_described(batches)}; expected a list of (x, y)")
    parts: list[_Part] = []
    for index, batch in enumerate(batches):
        fits = isinstance(cast("object", batch), tuple | list) and len(batch) in (2, 3)
        if not fits or (len(batch) == 3 and not isinstance(cast("object", batch[2]), Mapping)):
            raise InputError(
                f"train_step: micro-batch {index} of accumulate is {_described(batch)}; expected (x, y), or (x, y, "
                "inputs) with a dict of inputs; a single batch is step(x, y), or step.accumulate([(x, y)])"
            )
        parts.append(_Part(*batch))
    if not parts:
        raise InputError("train_step: accumulate was given no micro-batches; expected one or more (x, y)")
    return parts


def _described(given: Any) -> str:
    kind = type(given).__name__
    if not isinstance(cast("object", given), tuple | list):
        return f"of type {kind}"
    return f"a {kind} of {', '.join(type(one).__name__ for one in given) or 'nothing'}"


def train_step(
    model: "torch.nn.Module",
    base: Callable[[Any, Any], Any] | Term,
    pipeline: Pipeline,
    optimizer: "torch.optim.Optimizer",
    *,
    schedules: Mapping[str, Schedule] | None = None,
    max_norm: float | None = None,
    items: Callable[[Any], Any] | None = None,
    scaler: "torch.amp.GradScaler | None" = None,
    closure: bool = False,
    norms_at: str | None = None,
    norms_every: int = 1,
    cosines: bool = True,
) -> TrainStep:
    """A function `step(x, y, **inputs)` that trains on one batch and returns the metrics of that step.

    A step runs `model` once, in its current mode; adds the terms of `pipeline` to `base(prediction, y)` as
    `wrap_loss` does; runs the backward pass; and calls `optimizer`. Terms find `input` (`x`), `prediction`, `target`
    (`y`), `params` (the parameters that are trained) and the keyword arguments of the call by name. `schedules` maps
    terms to functions of the step, counted from 0. `max_norm` clips the norm of the gradient at the optimizer's
    parameters, and reports the norm before clipping as `total_grad_norm`.

    The metrics are the pipeline's, plus `base_loss`, `penalty_total` and `loss`. `step.output` is the `LossOutput` of
    the last step, `step.count` the number of steps, `step.loss.state` the state of stateful terms. Values are not
    checked: `step.output.check()` raises if one is NaN or infinite. Call a learning-rate scheduler after the step.

    `step.accumulate([(x, y), …])` accumulates gradients over micro-batches, where each term counts as its scope says.
    They count equally, or in proportion to `items(y)`, such as the number of tokens. `scaler` is a `GradScaler` for
    float16; a step that it skips does not count. `closure=True` is for optimizers that evaluate the loss themselves,
    such as LBFGS; the output and the state are those of their first evaluation.

    With `norms_at="prediction"`, or another input that a term reads, every `norms_every`-th step has the norms of the
    terms' gradients there, that of the base included, and their cosines unless `cosines=False`: in the output, the
    metrics and the events. They are those of the first micro-batch, of all processes together.

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
    return TrainStep(
        model,
        base,
        pipeline,
        optimizer,
        schedules=schedules,
        max_norm=max_norm,
        items=items,
        scaler=scaler,
        closure=closure,
        norms_at=norms_at,
        norms_every=norms_every,
        cosines=cosines,
    )
