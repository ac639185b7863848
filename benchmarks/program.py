"""The program's own cost at a step of 50 ms: log, warnings, live table and telemetry, beside the step alone.

The model is a stand-in that multiplies matrices for about as long. The plain side reads the same data and makes
the same call to the same client, while the table is not drawn and no sink hears anything. Twenty steps are timed at
once, so that what happens four times a second is in them, by the time of all threads of the process: what others on the
machine do to a clock on the wall is more than what is measured here.
"""

import contextlib
import io
import json
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch

from penalties import telemetry
from penalties.app.config import Config, load
from penalties.app.runs import Run
from penalties.app.runs.references import References
from penalties.app.train import Training
from penalties.app.train.live import Live
from penalties.app.train.progress import Progress, Silent
from penalties.app.train.sinks import attached
from penalties.execution.executor import Executor
from penalties.pipeline.schedules import weights
from penalties.training import (
    AdamParams,
    ForwardBackwardOutput,
    OptimStepResponse,
    TensorData,
    forward_backward_custom,
)
from penalties.training.local.tiny import ByteTokenizer

from .harness import Row

_STEP = 0.05
_EACH = 20
_SIZE = 256
_STEPS = 1_000_000

_CONFIG = """
[data]
path = "data.jsonl"
[train]
steps = {steps}
batch_size = 8
gradients_every = 10
[references]
initial = {{ kind = "initial" }}
[sinks]
tensorboard = {sink}
[[term]]
fn = "kl_estimate"
name = "kl"
inputs = ["logprobs", "initial"]
schedule = {{ kind = "warmup", steps = 20 }}
[[term]]
fn = "entropy_estimate"
weight = 0.01
inputs = "logprobs"
wrap = [{{ kind = "ema" }}]
[[term]]
fn = "l2"
weight = 1e-3
inputs = "logprobs"
[[term]]
fn = "smooth_l1"
weight = 1e-3
inputs = "logprobs"
"""


class Terminal(io.StringIO):
    """A terminal that nobody looks at."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return len(text)


class Pausing(Live):
    """A table that is not drawn while the plain side runs."""

    paused = False

    def picture(self) -> Any:
        return "" if self.paused else super().picture()


class Busy:
    """A client whose step takes about 50 ms of one core, outside of Python's lock, as a model's does."""

    def __init__(self) -> None:
        self.matrix = torch.eye(_SIZE)
        self.times = 1
        self._work(50)
        # By the time of this thread: the machine may have others to serve.
        began = time.thread_time()
        self._work(200)
        self.times = max(1, round(_STEP / 2 / ((time.thread_time() - began) / 200)))

    def _work(self, times: int) -> None:
        for _ in range(times):
            self.matrix @ self.matrix

    def _pass(self, data: Sequence[Any]) -> "Future[Any]":
        self._work(self.times)
        found: Future[Any] = Future()
        outputs = [{"logprobs": TensorData([-1.0] * datum.model_input.length)} for datum in data]
        found.set_result(ForwardBackwardOutput("Busy", outputs, {"loss:sum": 1.0}))
        return found

    def forward(self, data: Sequence[Any], loss_fn: str) -> "Future[Any]":
        return self._pass(data)

    def forward_backward(self, data: Sequence[Any], loss_fn: str) -> "Future[Any]":
        return self._pass(data)

    def forward_initial(self, data: Sequence[Any]) -> "Future[Any]":
        return self._pass(data)

    def optim_step(self, params: AdamParams) -> "Future[Any]":
        found: Future[Any] = Future()
        found.set_result(OptimStepResponse({"norm": 1.0}))
        return found


class Backend:
    """The client as the program has it."""

    server = "tinker"
    device = "cpu"
    limit = None
    gradients = True
    tokenizer = ByteTokenizer()

    def __init__(self) -> None:
        self.client = Busy()

    def batch(self, data: Sequence[Any]) -> list[Any]:
        return list(data)

    def adam(self, options: dict[str, float]) -> AdamParams:
        return AdamParams(**options)


@contextlib.contextmanager
def training(config: Config, progress: Progress) -> Iterator[Training]:
    """A run that is ready to step."""
    from penalties.app.data import Stream

    backend: Any = Backend()
    with (
        tempfile.TemporaryDirectory() as folder,
        Run.create(Path(folder) / "run", config) as run,
        Executor() as executor,
        attached(config.sinks, run.folder, {}) as sinks,
    ):
        run.begin_log()
        progress.begin(run.folder, config.train.steps, 0)
        references = References(config.providers(_none), run.references)
        stream = Stream(config, backend.tokenizer)
        try:
            yield Training(config, run, backend, stream, executor, references, sinks, progress)
        finally:
            progress.end()


def _none(table: Any) -> Any:
    raise AssertionError("there is no other model")


def alone(made: Training, first: int) -> None:
    """The steps alone, of the same data and the same objective."""
    progress: Any = made.progress
    progress.paused = True
    with made.sinks.muted():
        for step in range(first, first + _EACH):
            _alone(made, step)
    progress.paused = False


def _alone(made: Training, step: int) -> None:
    passed = forward_backward_custom(
        made.backend.client,
        made.backend.batch(made.stream.batch(step)),
        made.base,
        regularizers=made.pipeline,
        references=made.references.providers,
        track_grad_norms=step % 10 == 0,
        cosines=step % 10 == 0,
        weights=weights(made.schedules, step),
        executor=made.executor,
        step=step,
        state=made.state,
    )
    stepped = made.backend.client.optim_step(AdamParams(learning_rate=1e-4))
    passed.result()
    stepped.result()


def whole(made: Training, heard: bool) -> None:
    """The same steps by the program."""
    handler_id = telemetry.attach(hear) if heard else ""
    for _ in range(_EACH):
        made.step()
    telemetry.detach(handler_id)


def _compared(case: str, made: Training, heard: bool, rounds: int, most_ratio: float) -> Row:
    sides = (lambda: alone(made, made.done), lambda: whole(made, heard), lambda: alone(made, made.done))
    samples: list[list[float]] = [[], [], []]
    for _ in range(rounds):
        # There and back, so that no side always follows the same other.
        for place in (0, 1, 2, 2, 1, 0):
            began = time.process_time()
            sides[place]()
            samples[place].append((time.process_time() - began) / _EACH * 1e3)
    return Row(case, "ms", *samples, most_ratio=most_ratio)


def hear(event: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """A handler of all events that does nothing with them."""


def run(scale: float) -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        lines = [json.dumps({"prompt": f"question {n}: ", "completion": f"answer {n} " * 6}) for n in range(8)]
        (Path(folder) / "data.jsonl").write_text("\n".join(lines))
        path = Path(folder) / "program.toml"
        # What TensorBoard's own writer takes is its own.
        for case, sink, live, most_ratio in (
            ("log", "false", False, 1.03),
            ("log, live table, events", "false", True, 1.03),
            ("log, live table, TensorBoard", "true", True, math.inf),
        ):
            path.write_text(_CONFIG.format(steps=_STEPS, sink=sink))
            with training(load(path), Pausing(Terminal()) if live else Silent()) as made:
                made.step()
                rows.append(_compared(case, made, live, max(2, round(4 * scale)), most_ratio))
    return rows
