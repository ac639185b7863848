"""The callback that moves the weights of regularizers from step to step, and logs their values."""

import functools
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import InputError, OptionError
from ...pipeline import LossOutput, Pipeline, Term, TermOutput
from ...pipeline.announcing import Announcer, are_heard
from ...pipeline.output.reading import as_numbers
from ...pipeline.term import weight_at
from ..layers import named_layers
from .libraries import keras_for
from .regularizers import ActivityPenalty, Penalty

__all__ = ["PenaltiesCallback", "callback_class"]


class PenaltiesCallback:
    """Moves the weights of every `Penalty` and `ActivityPenalty` of a model along their schedules, and logs the terms.

        model.fit(x, y, callbacks=[PenaltiesCallback()])

    The step of a schedule is the optimizer's number of steps, which Keras saves with the model: a run that is resumed
    continues exactly. Weights are variables, so that the compiled step is not compiled again. Each epoch adds
    `loss/TERM`, `loss/TERM/weighted` and `weight/TERM`, averaged over its steps, to the logs, and so to the history;
    callbacks that come later in the list see them. Where a telemetry handler is attached, each step emits its events;
    the total in them is that of the penalties.

    As a callback of `evaluate` it sets the weights to those of the step that the model has reached.
    """

    async_safe = True
    """What Keras reads: `on_train_batch_end` may run in a thread, so that no step waits for the one before."""
    pipeline: Pipeline
    """The terms of the model."""

    def __init__(self) -> None:
        """Without a model: `fit` brings it."""
        keras_for("PenaltiesCallback")
        parent: Any = super()
        parent.__init__()
        self.pipeline = Pipeline()
        self._regularizers: Mapping[str, list[Any]] = {}
        self._weights: dict[str, float] = {}
        """Those in force."""
        self._means = _Means()
        self._batch = 0
        """The batch of this epoch that runs, or the first of several that run as one."""
        self._seen = 0
        """The number of batches that the optimizer had seen when the epoch began."""
        self._accumulated = 1
        """The number of batches in an optimizer step."""
        self._read = 0
        """The number of batches of this epoch whose values were read."""
        self._began = 0.0
        self._ended: dict[int, float] = {}
        """When each batch of this epoch ended, or the last of several that ran as one."""
        self._training = False
        self._inside = False
        """Whether another callback moves the weights, as in an evaluation inside `fit`."""

    # What Keras calls.

    def set_model(self, model: Any) -> None:
        """Find the regularizers of the model."""
        parent: Any = super()
        parent.set_model(model)
        terms, self._regularizers = _found(model)
        self.pipeline = Pipeline(terms, name=model.name)
        self._weights = {}
        self._training = False
        self._inside = any(one.moved for one in self._all())
        if isinstance(model.train_function, _Unmoved):
            model.train_function = model.train_function.function
        variable = next(iter(model.trainable_variables), None)
        if variable is not None and not all(one.watched and one.watched() is variable for one in self._all()):
            for one in self._all():
                one.watched = weakref.ref(variable)
            # A step that was compiled before does not add up values.
            model.make_train_function(force=True)

    def on_train_begin(self, logs: Any = None) -> None:
        """Tell the validation inside `fit` from an evaluation."""
        self._training = True

    def on_train_end(self, logs: Any = None) -> None:
        """Training is over: nothing moves the weights any more."""
        self._training = False
        self._release()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Read how far the optimizer is, and reset the means."""
        self._seen, self._accumulated = _progress(self._current().optimizer)
        self._batch, self._read, self._ended = 0, 0, {}
        # Where a batch began and did not run, Keras on JAX has put the variables back as they were before it.
        self._weights = {}
        self._means = _Means()
        self._zero()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Count the batches before this one, and move the weights."""
        now = time.perf_counter()
        self._count(batch, now)
        self._began = now
        self._move((self._seen + batch) // self._accumulated)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Note that the batch ran: where data end unexpectedly, one that began did not."""
        self._ended[batch] = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Count the last batches, and log the means over those of the epoch."""
        last = max(self._ended, default=-1)
        if last >= self._batch:
            # An optimizer that skips a step, as that of mixed precision does, has not seen the batch.
            ran = max(_progress(self._current().optimizer)[0] - self._seen, self._batch + 1)
            self._count(ran, self._ended[last])
        if self._read < self._batch:
            self._take()
        if logs is not None:
            logs.update(self._means.read())

    def on_test_begin(self, logs: Any = None) -> None:
        """Outside of `fit`, set the weights."""
        if not self._training:
            seen, accumulated = _progress(self._current().optimizer)
            self._move(seen // accumulated)

    def on_test_end(self, logs: Any = None) -> None:
        """Outside of `fit`, nothing moves the weights any more."""
        if not (self._training or self._inside):
            self._release()

    # What it does there.

    def _all(self) -> Iterator[Any]:
        return (one for group in self._regularizers.values() for one in group)

    def _current(self) -> Any:
        """The model, with its variables up to date; on JAX, Keras has them elsewhere while an epoch runs."""
        this: Any = self
        return this.model

    def _move(self, step: int) -> None:
        """Set the weights of this step. Where none of them changes, the variables are left alone."""
        weights = {term.name: float(weight_at(term, step)) for term in self.pipeline}
        if weights != self._weights:
            self._current()
            for one in self._all():
                one.move(weights[one.term.name])
            self._weights = weights

    def _release(self) -> None:
        """Have the next step warn that its weights do not move, unless a callback is set by then."""
        for one in self._all():
            one.moved = False
        model = self._current()
        if model.train_function is not None:
            model.train_function = _Unmoved(model.train_function, list(self._all()))

    def _count(self, batch: int, now: float) -> None:
        """Count the batches before this one, which had the weights in force and ended by now; emit their event."""
        batches = batch - self._batch
        if batches:
            self._means.count(self._weights, batches)
            if are_heard():
                taken, self._read = self._take(), batch
                terms = [TermOutput(name, sums[0] / batches, self._weights[name]) for name, sums in taken.items()]
                step, seconds = (self._seen + self._batch) // self._accumulated, now - self._began
                Announcer(traced=False).whole(self.pipeline, step, LossOutput.of(terms), seconds)
        self._batch = batch

    def _take(self) -> dict[str, Any]:
        """What the regularizers of each term have added up, values and weighted ones; resets them."""
        self._current()
        taken = {name: sum(one.summed.value for one in group) for name, group in self._regularizers.items()}
        self._means.add(taken)
        self._zero()
        return taken

    def _zero(self) -> None:
        self._current()
        for one in self._all():
            one.summed.assign([0.0, 0.0])


class _Unmoved:
    """A training step that warns where weights do not move. One that is compiled calls no regularizer, which would."""

    def __init__(self, function: Any, regularizers: list[Any]) -> None:
        """Wrap the function that Keras has made for the step."""
        self.function = function
        self._regularizers = regularizers

    def __call__(self, *arguments: Any) -> Any:
        """Run the step."""
        for one in self._regularizers:
            one.warn_unmoved()
        return self.function(*arguments)


class _Means:
    """The means of terms over the batches of an epoch."""

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}
        """Of values and weighted values, as arrays of two."""
        self._weights: dict[str, float] = {}
        self._batches = 0

    def count(self, weights: Mapping[str, float], batches: int) -> None:
        """So many more batches, which had these weights."""
        self._weights = {name: self._weights.get(name, 0.0) + weight * batches for name, weight in weights.items()}
        self._batches += batches

    def add(self, sums: Mapping[str, Any]) -> None:
        """The values of more batches."""
        self._sums = {name: self._sums.get(name, 0.0) + both for name, both in sums.items()}

    def read(self) -> dict[str, float]:
        """The means by the names that they have in logs; none without batches."""
        numbers: dict[str, float] = {}
        for name, weight in self._weights.items():
            value, weighted = as_numbers([*self._sums[name]])
            found = {f"loss/{name}": value, f"loss/{name}/weighted": weighted, f"weight/{name}": weight}
            numbers |= {key: float(number) / self._batches for key, number in found.items()}
        return numbers


def _found(model: Any) -> tuple[list[Term], dict[str, list[Any]]]:
    """The terms of a model, and the regularizers of each by its name."""
    kinds: dict[str, tuple[bool, Term]] = {}
    found: dict[str, list[Any]] = {}
    state = {id(variable) for variable in model.non_trainable_variables}
    for one, of_activity in _regularizers(model):
        name = one.term.name
        expected = ""
        if of_activity and not isinstance(one, ActivityPenalty):
            expected = "an ActivityPenalty as activity_regularizer: of a Penalty Keras would divide a mean, too"
        elif not of_activity and isinstance(one, ActivityPenalty):
            expected = "a Penalty for weights: an ActivityPenalty takes their first axis for the batch"
        elif kinds.setdefault(name, (of_activity, one.term)) != (of_activity, one.term):
            expected = "one kind, function and weight for all regularizers of a name: give one of them another name="
        elif id(one.summed) not in state:
            expected = "a regularizer that the layer was made with; this one was set when it was built already"
        if expected:
            raise OptionError("PenaltiesCallback", "model", name, expected)
        found.setdefault(name, []).append(one)
    if not found:
        raise InputError("PenaltiesCallback: no layer of the model has a Penalty or an ActivityPenalty")
    return [term for _, term in kinds.values()], found


def _regularizers(model: Any) -> Iterator[tuple[Any, bool]]:
    """Every regularizer of ours in a model, and whether it is one of activities; each of the two once."""
    pairs = [(layer.activity_regularizer, True) for _, layer in named_layers(model)]
    pairs += [(variable.regularizer, False) for variable in model.variables]
    unique = {(id(one), of_activity): (one, of_activity) for one, of_activity in pairs if isinstance(one, Penalty)}
    yield from unique.values()


def _progress(optimizer: Any) -> tuple[int, int]:
    """The number of batches that an optimizer has seen, and how many of them make a step."""
    if optimizer is None:
        expected = "a model compiled with an optimizer, whose step count the schedules follow"
        raise OptionError("PenaltiesCallback", "optimizer", None, expected)
    # That of mixed precision has the one that counts inside.
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    accumulated = optimizer.gradient_accumulation_steps
    if not accumulated:
        return int(optimizer.iterations), 1
    # `iterations` has the steps; this one the batches.
    return next(int(variable) for variable in optimizer.variables if variable.name == "iteration"), accumulated


@functools.cache
def callback_class() -> Any:
    """The class as Keras needs it; made here, since it derives from its own."""
    callbacks = keras_for("PenaltiesCallback").callbacks
    members = {"__module__": __package__, "__doc__": PenaltiesCallback.__doc__}
    return type("PenaltiesCallback", (PenaltiesCallback, callbacks.Callback), members)
