"""The training loop of a run: steps, evaluations, checkpoints and the log.

A step is a forward, the terms, a backward and an optimizer step; then its line in the log. However the process ends, it
can be resumed from its last checkpoint: what was logged after it is cut off and done again, with the same numbers,
since the data of a step depend only on the seed and its number.
"""

import contextlib
import importlib
import math
import random
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...errors import PenaltiesError, TermError, said
from ...execution.executor import Executor
from ...pipeline import Pipeline
from ...pipeline.output import LossOutput
from ...pipeline.schedules import Schedule
from ...pipeline.term import Term
from ...training.custom_loss import forward_backward_custom
from ..runs import checkpoints
from ..runs.checkpoints import Checkpoint
from ..runs.disk import RunError
from ..runs.log import now
from ..runs.references import References
from ..runs.run import Run
from .clients import Backend
from .evaluation import evaluate, every_term
from .findings import Findings
from .progress import Progress
from .signals import Interruption
from .sinks import Sinks

if TYPE_CHECKING:
    from ..config import Config

__all__ = ["Interrupted", "TermFailed", "Training", "steps_done"]

_ADAM: Final = ("beta1", "beta2", "eps", "weight_decay", "grad_clip_norm")


class Interrupted(RunError):
    """The user stopped the run, which can be resumed."""


class TermFailed(PenaltiesError):
    """A term, or the base loss, failed and ended the run; the cause is chained."""

    def __init__(self, error: TermError, step: int, *, evaluating: bool) -> None:
        """Keep the name of the term; say after how many finished steps it failed."""
        self.term: str = error.term
        if not evaluating:
            where = f"at step {step + 1}"
        else:
            where = f"in the evaluation after step {step}" if step else "in the evaluation before step 1"
        first, *others = str(error).splitlines()
        super().__init__(f"{where}: {first}{' …' if others else ''}")


@dataclass
class Training:
    """A run in progress: the model, the data, the objective, and the current step."""

    config: "Config"
    run: Run
    backend: Backend
    stream: Any
    executor: Executor
    references: References
    sinks: Sinks
    progress: Progress
    warnings: Sequence[str] = ()
    """Logged when it begins."""
    findings: Findings = field(default_factory=Findings)
    done: int = 0
    """Finished steps."""
    saved: int = 0
    """Finished steps at the last checkpoint."""
    state: dict[str, Any] = field(default_factory=dict[str, Any])
    evaluating: bool = False

    def __post_init__(self) -> None:
        """Build the objective once: a new one each time would count as another objective."""
        self.base: Term | dict[str, Any] = self.config.base
        self.pipeline: Pipeline = self.config.pipeline()
        self.watched: Pipeline = every_term(self.pipeline)
        self.learning_rate: Schedule = self.config.learning_rate()

    def begin(self, checkpoint: Checkpoint | None, *, resumed: bool) -> None:
        """Start at a checkpoint, whose model is loaded already.

        Nothing in the folder changes until everything is known to be available: if it is not, the run can be resumed
        later.
        """
        if checkpoint is not None:
            if checkpoint.notes["data"] != self.stream.fingerprint:
                raise RunError("the data changed since the run began; restore them, then resume", 2)
            self.done = self.saved = checkpoint.step
            self.state = checkpoint.state(self.backend.device)
            self.findings = Findings(checkpoint.notes["findings"])
        self.references.prepare(self.backend.client, self._all_data, self.progress.say, trained=self.done > 0)
        size = 0 if checkpoint is None else checkpoint.log_size
        missing = size - self.run.log.size
        self.run.log.cut(min(size, self.run.log.size))
        if self.run.config() != self.config.to_dict():
            self.run.write_config(self.config)
        if resumed:
            where = "the beginning" if checkpoint is None else f"the checkpoint after {steps_done(self.done)}"
            self.tell("resumed", f"from {where}")
        for damaged in () if checkpoint is None else checkpoint.damaged:
            self.tell("warning", f"a later checkpoint is damaged and was ignored: {damaged}")
        for warning in self.warnings:
            self.tell("warning", warning)
        if missing > 0:
            self.tell("warning", f"the log lacks {missing} bytes that were written before that checkpoint")
        problems = self.stream.problems
        if problems and self.done == 0:
            self.tell("warning", f"{len(problems)} lines of data were left out; {problems[0]}")

    def run_all(self) -> None:
        """Every remaining step, with evaluations and checkpoints between them."""
        train = self.config.train
        if self.done == 0:
            self.evaluate()
        with Interruption(self.progress.stopping) as stop:
            while self.done < train.steps:
                self.step()
                last = self.done == train.steps
                if last or self.done % train.eval_every == 0:
                    self.evaluate()
                if last or stop or (train.checkpoint_every and self.done % train.checkpoint_every == 0):
                    self.checkpoint()
                if stop and not last:
                    self.tell("interrupted", f"after {steps_done(self.done)}")
                    raise Interrupted(f"interrupted after {steps_done(self.done)}")
        self.tell("finished", steps_done(self.done))

    def step(self) -> None:
        """One step, and its line in the log."""
        began = time.perf_counter()
        step = self.done
        _seed(self.config.train.seed, step)
        data = self.backend.batch(self.stream.batch(step))
        rate = float(self.learning_rate(step))
        options = {name: float(getattr(self.config.train, name)) for name in _ADAM}
        every = self.config.train.gradients_every
        measured = every > 0 and step % every == 0
        passed = forward_backward_custom(
            self.backend.client,
            data,
            self.base,
            regularizers=self.pipeline,
            references=self.references.providers,
            track_grad_norms=self.backend.gradients if measured else False,
            executor=self.executor,
            step=step,
            state=self.state,
            cosines=measured,
            server=self.backend.server,
        )
        # Sent at once: a server can start before the result of the backward has arrived.
        stepped = self.backend.client.optim_step(self.backend.adam({"learning_rate": rate, **options}))
        output, optimizer = passed.result(), stepped.result()
        loss: LossOutput = output.custom_loss
        # A term that did not run keeps its state.
        self.state |= loss.state
        plain = loss.read()
        self.done += 1
        self._write(
            {
                "kind": "step",
                "step": step,
                "time": now(),
                "seconds": time.perf_counter() - began,
                "tokens": _tokens(data),
                "learning_rate": rate,
                **_described(plain),
                "metrics": _flat(plain, output.metrics, getattr(optimizer, "metrics", None)),
            }
        )
        for finding in self.findings.look(plain, step, measured=measured or not every):
            self.tell("warning", finding.message, step)

    def evaluate(self) -> None:
        """Evaluate the objective on held-out data, and log it."""
        self.progress.say("evaluating")
        self.evaluating = True
        _seed(self.config.train.seed, self.done)
        tokens = 0

        def batches() -> Iterator[list[Any]]:
            nonlocal tokens
            for data in self.stream.eval_batches():
                tokens += _tokens(data)
                yield self.backend.batch(data)

        with self.sinks.muted():
            output = evaluate(
                self.backend.client,
                batches(),
                self.base,
                self.watched,
                self.references,
                executor=self.executor,
                step=self.done,
                state=self.state,
                server=self.backend.server,
            )
        if output is not None:
            self._write({"kind": "eval", "step": self.done, "time": now(), "tokens": tokens, **_described(output)})
            self.sinks.evaluated(output, self.done)
        self.evaluating = False

    def checkpoint(self) -> None:
        """Save everything that resuming needs."""
        self.progress.say("saving a checkpoint")
        self.references.save()
        checkpoints.commit(
            self.run,
            self.done,
            self.backend.save,
            self.state,
            {"findings": self.findings.notes(), "data": self.stream.fingerprint},
            lambda: self.tell("checkpoint", f"after {steps_done(self.done)}"),
        )
        self.saved = self.done
        self.sinks.flush()

    def _all_data(self) -> Iterator[list[Any]]:
        train = self.config.train
        # Later passes through the file have the same data.
        for step in range(min(train.steps, math.ceil(len(self.stream) / train.batch_size))):
            yield self.backend.batch(self.stream.batch(step))
        for data in self.stream.eval_batches():
            yield self.backend.batch(data)

    def tell(self, event: str, message: str, step: int | None = None) -> None:
        """Log an event, and show it."""
        self.progress.record(*self.run.event(self.done if step is None else step, event, message))

    def _write(self, record: dict[str, Any]) -> None:
        self.progress.record(record, self.run.log.write(record))


def _seed(seed: int, step: int) -> None:
    """Seed the generators that terms may use: a step draws the same numbers when it is repeated."""
    torch: Any = importlib.import_module("torch")
    drawn = zlib.crc32(f"{seed} {step}".encode())
    random.seed(drawn)
    np.random.seed(drawn)  # noqa: NPY002 (the generator that terms share)
    # torch.manual_seed seeds every kind of device, which takes 60 µs.
    torch.default_generator.manual_seed(drawn)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(drawn)


def _described(plain: LossOutput) -> dict[str, Any]:
    """The output, as part of a record."""
    return {
        "loss": plain.to_dict(),
        "durations": {term.name: term.duration for term in plain.all if term.duration is not None},
        # Without the name of the term.
        "errors": {
            term.name: term.error.message if isinstance(term.error, TermError) else said(term.error)
            for term in plain.all
            if term.error is not None
        },
    }


def _flat(plain: LossOutput, *metrics: Mapping[str, Any] | None) -> dict[str, float]:
    """The metrics of the client and the optimizer, without those of the loss."""
    assert plain.base is not None, "a config has a base loss"
    own = {**plain.metrics(), **plain.base.metrics}
    found: dict[str, float] = {}
    for given in metrics:
        for name, value in (given or {}).items():
            if name not in own:
                with contextlib.suppress(TypeError, ValueError):
                    found[str(name)] = float(value)
    return found


def _tokens(data: list[Any]) -> int:
    return sum(int(datum.model_input.length) for datum in data)


def steps_done(count: int) -> str:
    """A count of steps in words."""
    return "1 step" if count == 1 else f"{count} steps"
