"""A step of `penalties train` with its log and display, against a plain loop of transformers and peft.

Both compute the same loss of the same data: cross-entropy and two terms. The program runs in a thread of its own, and
waits after each step until the next one is timed.
"""

import contextlib
import io
import json
import random
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from torch import Tensor

from penalties.app.config import Config, load
from penalties.app.data import Stream
from penalties.app.train import Interrupted, train
from penalties.app.train.live import Live
from penalties.app.train.progress import Progress

from .harness import FIXED_ALLOCATOR, Row, compare, in_process
from .loop import VOCABULARY, Loop, save_model

LINES = 8
CONFIG = """
[model]
name = {model}
device = "cpu"
[data]
path = "data.jsonl"
sampled = true
[train]
steps = 1_000_000
batch_size = {lines}
learning_rate = 1e-4
checkpoint_every = 0
eval_every = 1_000_000
gradients_every = 0
[[term]]
fn = "entropy_estimate"
weight = 0.01
inputs = "logprobs"
[[term]]
fn = "l2"
weight = 1e-3
inputs = "logprobs"
"""


class Terminal(io.StringIO):
    """A terminal that nobody looks at."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return len(text)


class Stepwise(Progress):
    """A display that shows every record on another one, and lets the run go on one step at a time."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self._go = threading.Semaphore(0)
        self._stopped = False
        self.told: SimpleQueue[Any] = SimpleQueue()

    def begin(self, folder: Path, steps: int, done: int) -> None:
        self._shown.begin(folder, steps, done)
        self._wait()

    def say(self, what: str) -> None:
        self._shown.say(what)

    def end(self) -> None:
        self._shown.end()

    def record(self, record: Mapping[str, Any], line: str) -> None:
        self._shown.record(record, line)
        if record["kind"] == "step":
            self.told.put(record)
            self._wait()

    def _wait(self) -> None:
        self._go.acquire()
        if self._stopped:
            raise KeyboardInterrupt

    def step(self) -> float:
        """One more step; returns its loss."""
        self._go.release()
        told = self.told.get()
        if isinstance(told, BaseException):
            raise told
        return told["loss"]["loss_total"]

    def stop(self) -> None:
        self._stopped = True
        self._go.release()


def run(scale: float) -> list[Row]:
    return in_process("benchmarks.train:rows", scale, FIXED_ALLOCATOR)


def rows(scale: float) -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder / "model")
        tokenizer = _save_tokenizer(folder / "model")
        noise = random.Random(0)
        texts = [" ".join(f"w{noise.randrange(VOCABULARY)}" for _ in range(8 * n)) for n in range(1, LINES + 1)]
        lines = [json.dumps({"prompt": "w1 w2 w3", "completion": f" {text}"}) for text in texts]
        (folder / "data.jsonl").write_text("\n".join(lines))
        path = folder / "train.toml"
        path.write_text(CONFIG.format(model=json.dumps(str(folder / "model")), lines=LINES))
        config = load(path)
        displays: dict[str, Callable[[], Progress]] = {"log": Progress, "log and live table": lambda: Live(Terminal())}
        found: list[Row] = []
        for case, display in displays.items():
            # The whole file in every step, in another order: a sum over the data is the same.
            loop = Loop(folder / "model", Stream(config, tokenizer).batch(0))
            with running(config, folder / case, display()) as step:
                for _ in range(3):
                    np.testing.assert_allclose(step(), loop.step(loss(loop)), rtol=1e-4)
                found.append(
                    compare(
                        f"a step of the program, {case}",
                        lambda loop=loop: loop.step(loss(loop)),
                        step,
                        seconds=30.0 * scale,
                        unit="ms",
                        most_ratio=1.03,
                    )
                )
        return found


@contextlib.contextmanager
def running(config: Config, folder: Path, shown: Progress) -> Iterator[Callable[[], float]]:
    """A run in a thread; yields what lets it take one more step."""
    progress = Stepwise(shown)

    def work() -> None:
        try:
            train(config, folder, progress=progress)
        except (Interrupted, KeyboardInterrupt):
            pass
        except BaseException as error:
            progress.told.put(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield progress.step
    finally:
        progress.stop()
        thread.join()


def loss(loop: Loop) -> Tensor:
    nll = loop.nll()
    counted, everything = nll[loop.weights != 0], nll[loop.mask.bool()]
    return (nll * loop.weights).sum() + 0.01 * counted.mean() + 1e-3 * everything.square().sum()


def _save_tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w0")
    tokenizer.save_pretrained(folder)
    return tokenizer
