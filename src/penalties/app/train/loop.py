"""The training loop of a run: steps, evaluations, checkpoints and the log.

A step is a forward, the terms, a backward and an optimizer step; then its line in the log. However the process ends, it
can be resumed from its last checkpoint: what was logged after it is cut off and done again, with the same numbers,
since the data of a step depend only on the seed and its number.
"""

import contextlib
import importlib
import random
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...errors import NonFiniteError, PenaltiesError, TermError, said
from ...execution.executor import Executor
from ...pipeline import Pipeline
from ...pipeline.output import LossOutput
from ...pipeline.schedules import Schedule
from ...pipeline.term import Term
from ...training.custom_loss import forward_backward_custom
from ..data import PAIRWISE
from ..problems import counted
from ..runs import checkpoints
from ..runs.checkpoints import Checkpoint
from ..runs.disk import RunError
from ..runs.log import now
from ..runs.references import References
from ..runs.run import Run
from .best import Best
from .clients import Backend
from .evaluation import evaluate, every_term, measured
from .examples import Examples
from .findings import Findings
from .memory import peak_memory
from .progress import Progress, short
from .samples import Sampler
from .signals import Interruption
from .sinks import Sinks

if TYPE_CHECKING:
    from ..config import Config
    from ..data import Prompt

__all__ = ["Interrupted", "TermFailed", "Training"]

_ADAM: Final = ("beta1", "beta2", "eps", "weight_decay", "grad_clip_norm")


class Interrupted(RunError):
    """The user stopped the run, which can be resumed."""


class TermFailed(PenaltiesError):
    """A term, or the base loss, failed or was not finite, and ended the run; the cause is chained."""

    def __init__(self, error: TermError | NonFiniteError, step: int, *, evaluating: bool) -> None:
        """Keep the name of the term; say after how many finished steps it failed."""
        self.term: str | None = error.term
        self.finite: bool = not isinstance(error, NonFiniteError)
        """Whether it failed in another way than by a number that is NaN or infinite."""
        self.of_gradient: bool = not self.finite and error.phase == "gradient"
        """Whether that number is in the gradient of the loss, rather than in what the model or a term returned."""
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
        self.base: Term | dict[str, Any] | None = self.config.base
        self.pipeline: Pipeline = self.config.pipeline()
        self.watched: Pipeline = every_term(self.pipeline)
        self.learning_rate: Schedule = self.config.learning_rate()
        self.best: Best = Best(self.config.train)
        samples = self.config.samples
        lines: list[tuple[Prompt, str]] = self.stream.held_out(samples.lines) if samples.metrics else []
        self.sampler: Sampler = Sampler(samples, lines, chat=self.stream.chat)

    def begin(self, checkpoint: Checkpoint | None, *, resumed: bool) -> None:
        """Start at a checkpoint, whose model is loaded already.

        Nothing in the folder changes until everything is known to be available: if it is not, the run can be resumed
        later.
        """
        if checkpoint is not None:
            from .notes import Notes

            notes = Notes.of(checkpoint)
            if notes.data != self.stream.fingerprint:
                raise RunError("the data changed since the run began; restore them, then resume", 2)
            self.done = self.saved = checkpoint.step
            self.state = checkpoint.state(self.backend.device)
            self.findings = Findings(notes.findings)
            self.best = Best(self.config.train, notes.known_best)
        self.references.prepare(self.backend.client, self._all_data, self.progress.say, trained=self.done > 0)
        size = 0 if checkpoint is None else checkpoint.log_size
        self.run.log.cut_to_line(size)
        last = self.run.last() or {}
        changed = checkpoint is not None and (last.get("event"), last.get("step")) != ("checkpoint", self.done)
        if self.run.config() != self.config.to_dict():
            self.run.write_config(self.config)
        if resumed:
            where = "the beginning" if checkpoint is None else f"the checkpoint after {counted(self.done, 'step')}"
            self.tell("resumed", f"from {where}")
        for damaged in () if checkpoint is None else checkpoint.damaged:
            self.tell("warning", f"a later checkpoint is damaged and was ignored: {damaged}")
        for warning in self.warnings:
            self.tell("warning", warning)
        if changed:
            self.tell("warning", "the log is not as it was at that checkpoint; its report may lack steps")
        problems = self.stream.problems
        if problems and self.done == 0:
            self.tell("warning", f"{counted(self.stream.bad, 'line')} of data left out; {problems[0]}")

    def run_all(self) -> None:
        """Every remaining step, with evaluations and checkpoints between them."""
        train = self.config.train
        if self.done == 0 and (measured := self.evaluate()):
            self.best.check(measured)
        with Interruption(self.progress.stopping) as stop:
            while self.done < train.steps and not self.best.exhausted:
                self.step()
                last = self.done == train.steps
                improved = False
                if (last or self.done % train.eval_every == 0) and (measured := self.evaluate()):
                    improved = self.best.look(measured, self.done)
                    last = last or self.best.exhausted
                due = train.checkpoint_every > 0 and self.done % train.checkpoint_every == 0
                if last or stop or improved or due:
                    self.checkpoint()
                if stop and not last:
                    self.tell("interrupted", f"after {counted(self.done, 'step')}")
                    raise Interrupted(f"interrupted after {counted(self.done, 'step')}")
        if self.done == train.steps:
            self.tell("finished", counted(self.done, "step"))
        else:
            waited = f"{train.best_by} did not improve in {counted(train.patience or 0, 'evaluation')}"
            self.tell("finished", f"early, after {counted(self.done, 'step')}: {waited}", early=True)

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
        memory = peak_memory(self.backend.device)
        self._write(
            {
                "kind": "step",
                "step": self.done,
                "time": now(),
                "seconds": time.perf_counter() - began,
                "tokens": _tokens(data),
                "learning_rate": rate,
                **({} if memory is None else {"memory": memory}),
                **_described(plain),
                "metrics": _flat(plain, output.metrics, getattr(optimizer, "metrics", None)),
            }
        )
        for finding in self.findings.look(plain, step, measured=measured or not every):
            self.tell("warning", finding.message)

    def evaluate(self) -> dict[str, Any]:
        """Evaluate the objective on held-out data, and sample; log both, and return all metrics by name."""
        self.progress.say("evaluating")
        self.evaluating = True
        _seed(self.config.train.seed, self.done)
        tokens = 0
        examples = Examples(0 if self.config.train.loss == PAIRWISE else self.config.train.eval_examples)

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
                examples=examples,
            )
        if output is not None:
            found = examples.described(self.backend.tokenizer) if examples else []
            self._write(
                {
                    "kind": "eval",
                    "step": self.done,
                    "time": now(),
                    "tokens": tokens,
                    **_described(output),
                    **({"examples": found} if found else {}),
                }
            )
            self.sinks.evaluated(output, self.done)
        self.evaluating = False
        return ({} if output is None else measured(output)) | self.sample()

    def sample(self) -> dict[str, float]:
        """Let the model speak, if the config asks for it, and log that; returns the metrics over samples."""
        if not self.sampler:
            return {}
        self.progress.say("sampling")
        drawn = self.sampler.draw(self.backend)
        self._write({"kind": "samples", "step": self.done, "time": now(), **drawn})
        self.sinks.measured(drawn["metrics"], self.done)
        return drawn["metrics"]

    def checkpoint(self) -> None:
        """Save everything that resuming needs."""
        self.progress.say("saving a checkpoint")
        self.references.save()
        by = self.config.train.best_by
        best = f", the best so far: {by} {short(self.best.value)}" if self.best.step == self.done else ""
        details = {} if self.best.step is None else {"best": self.best.step}
        checkpoints.commit(
            self.run,
            self.done,
            self.backend.save,
            self.state,
            {
                "config": self.config.to_dict(),
                "data": self.stream.fingerprint,
                "findings": self.findings.notes(),
                "references": self.references.checksums(),
                "best": self.best.notes(),
                "chat": self.stream.chat,
            },
            lambda: self.tell("checkpoint", f"after {counted(self.done, 'step')}{best}", **details),
            keep=self.config.train.keep,
            best=self.best.step,
        )
        self.saved = self.done
        self.sinks.flush()

    def _all_data(self) -> Iterator[list[Any]]:
        for data in self.stream.once(self.config.train.steps):
            yield self.backend.batch(data)
        for data in self.stream.eval_batches():
            yield self.backend.batch(data)

    def tell(self, event: str, message: str, **details: Any) -> None:
        """Log an event, and show it."""
        self.progress.record(*self.run.event(self.done, event, message, **details))

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
            term.name: term.error.message if isinstance(term.error, TermError | NonFiniteError) else said(term.error)
            for term in plain.all
            if term.error is not None
        },
    }


def _flat(plain: LossOutput, *metrics: Mapping[str, Any] | None) -> dict[str, float]:
    """The metrics of the client and the optimizer, without those of the loss."""
    own = {**plain.metrics(), **(plain.base.metrics if plain.base is not None else {})}
    found: dict[str, float] = {}
    for given in metrics:
        for name, value in (given or {}).items():
            if name not in own:
                with contextlib.suppress(TypeError, ValueError):
                    found[str(name)] = float(value)
    return found


def _tokens(data: list[Any]) -> int:
    return sum(int(datum.model_input.length) for datum in data)
