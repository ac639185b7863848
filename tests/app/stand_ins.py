"""A backend that needs no library but PyTorch and takes a millisecond a step, and configs for it."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from penalties.app.config import Config, load
from penalties.app.runs import Run
from penalties.app.train import start as start_module
from penalties.app.train import train
from penalties.app.train.progress import SILENT
from penalties.errors import InputError
from penalties.training import AdamParams, ForwardBackwardOutput, OptimStepResponse, SaveWeightsResponse, TensorData
from penalties.training.local.tiny import ByteTokenizer
from penalties.training.reading import numpy_of

TERMS = """
[[term]]
fn = "kl_estimate"
name = "kl"
weight = 0.5
inputs = ["logprobs", "initial"]
schedule = { kind = "warmup", steps = 4 }

[[term]]
fn = "entropy_estimate"
name = "entropy"
weight = 0.3
inputs = "logprobs"
wrap = [{ kind = "ema", decay = 0.5 }]

[[term]]
fn = "tests.app.terms:counting"
weight = 0.1
every = 2
"""


def done(value: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(value)
    return future


class Client:
    """A model whose every token is predicted from the one before, with the client's methods."""

    model_id = "toy"

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.nn.Parameter(0.1 * torch.randn(257, 257, generator=generator))
        self.optimizer = torch.optim.Adam([self.table])
        self.calls: list[str] = []

    def _logprobs(self, datum: Any) -> torch.Tensor:
        tokens = torch.tensor(datum.model_input.to_ints())
        targets = torch.as_tensor(numpy_of(datum.loss_fn_inputs["target_tokens"]))
        return self.table[tokens].log_softmax(-1).gather(-1, targets[:, None])[:, 0]

    def forward(self, data: Sequence[Any], loss_fn: str) -> "Future[Any]":
        self.calls.append("forward")
        outputs = [{"logprobs": TensorData.from_torch(self._logprobs(one).detach())} for one in data]
        return done(ForwardBackwardOutput("Toy", outputs, {"loss:sum": 0.0}))

    def forward_backward(self, data: Sequence[Any], loss_fn: str) -> "Future[Any]":
        self.calls.append("forward_backward")
        found = [self._logprobs(one) for one in data]
        weights = [torch.as_tensor(numpy_of(one.loss_fn_inputs["weights"])) for one in data]
        loss = -sum((one * weight).sum() for one, weight in zip(found, weights, strict=True))
        loss.backward()
        outputs = [{"logprobs": TensorData.from_torch(one.detach())} for one in found]
        return done(ForwardBackwardOutput("Toy", outputs, {"loss:sum": loss.item(), "odd": "not a number"}))

    def optim_step(self, params: AdamParams) -> "Future[Any]":
        self.calls.append("optim_step")
        self.optimizer.param_groups[0]["lr"] = params.learning_rate
        norm = float(self.table.grad.norm())
        self.optimizer.step()
        self.optimizer.zero_grad()
        return done(OptimStepResponse({"norm": norm}))

    def save_state(self, path: Path) -> "Future[Any]":
        path.mkdir()
        state = self.optimizer.state[self.table]
        save_file({"table": self.table.data, **state}, path / "toy.safetensors")
        return done(SaveWeightsResponse(str(path)))

    def load_state_with_optimizer(self, path: str | Path) -> "Future[Any]":
        try:
            state = load_file(Path(path) / "toy.safetensors")
            table = state.pop("table")
        except (OSError, SafetensorError, KeyError) as error:
            raise InputError(f"{path} cannot be read: {error}") from error
        self.table.data = table
        self.optimizer.state[self.table] = state
        return done(None)


class Backend:
    """The client as the program has it."""

    server = "sums"
    device = "cpu"
    limit = None
    ends = frozenset[int]()
    gradients = True

    def __init__(self, config: Config, checkpoint: str | None = None) -> None:
        self.client: Any = Client(config.train.seed)
        self.tokenizer = ByteTokenizer()
        self.status: str | None = None
        if checkpoint is not None:
            self.client.load_state_with_optimizer(checkpoint)

    def batch(self, data: Sequence[Any]) -> list[Any]:
        return list(data)

    def adam(self, options: dict[str, float]) -> AdamParams:
        return AdamParams(**options)

    def save(self, folder: Path, name: str) -> str:
        return self.client.save_state(folder).result().path

    def another(self, table: Any) -> Any:
        return Client(table.seed + 100)

    def sample(self, prompts: Sequence[Sequence[int]], count: int, options: Mapping[str, Any]) -> list[Any]:
        assert (count, options["temperature"]) == (1, 0.0)
        found: list[Any] = []
        for prompt in prompts:
            tokens = [prompt[-1]]
            while len(tokens) <= options["max_tokens"]:
                # Letters alone: the table is of all bytes.
                tokens.append(97 + int(self.client.table[tokens[-1], 97:123].argmax()))
            found.append([tokens[1:]])
        return found

    def close(self, status: str) -> None:
        self.status = status


def write_config(folder: Path, terms: str = TERMS, more: str = "", data: str = "", **train: Any) -> Path:
    """A config in a folder, with its data."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["apple", "stone", "river", "cloud", "grass", "light", "horse", "table", "glass", "paper", "water", "fire"]
    for name, chosen in (("data.jsonl", words[:8]), ("held_out.jsonl", words[8:])):
        lines = [json.dumps({"prompt": f"{word} ", "completion": word[::-1]}) for word in chosen]
        (folder / name).write_text("\n".join(lines) + "\n")
    options = {"steps": 6, "batch_size": 3, "learning_rate": 0.05, "checkpoint_every": 2, "eval_every": 3, **train}
    lines = [f"{key} = {json.dumps(value)}" for key, value in options.items()]
    path = folder / "toy.toml"
    path.write_text(
        f'[data]\npath = "data.jsonl"\neval_path = "held_out.jsonl"\nsampled = true\n{data}\n[train]\n'
        + "\n".join(lines)
        + f'\n[references]\ninitial = {{ kind = "initial" }}\n{more}\n{terms}'
    )
    return path


def toy_config(folder: Path, terms: str = TERMS, more: str = "", data: str = "", **train: Any) -> Config:
    return load(write_config(folder, terms, more, data, **train))


def trained(folder: Path, *, progress: Any = SILENT, **options: Any) -> Run:
    """Train the toy in `folder / "run"`, also where there is no fixture for the backend: for runs that tests share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start_module, "connect", Backend)
        return train(toy_config(folder, **options), folder / "run", progress=progress)


def records(run: Run, kind: str) -> list[dict[str, Any]]:
    return [record for record in run.records() if record["kind"] == kind]


def events(run: Run) -> list[str]:
    return [record["event"] for record in records(run, "event")]


def comparable(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records without what differs between two runs of the same thing: times, and that one went on."""
    return [_timeless(record) for record in records if record.get("event") not in ("resumed", "interrupted", "failed")]


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        dropped = ("time", "seconds", "duration", "durations", "memory")
        return {key: _timeless(part) for key, part in value.items() if key not in dropped}
    if isinstance(value, list):
        return [_timeless(part) for part in value]
    return repr(value)


def weights_of(folder: Path, step: int) -> bytes:
    """The model of a checkpoint."""
    return (folder / "checkpoints" / f"{step:06d}" / "client" / "toy.safetensors").read_bytes()


def killing(steps: int) -> Any:
    """A progress that fails after so many steps, as if the process had ended there."""

    def record(record: Any, line: str) -> None:
        if record["kind"] == "step" and record["step"] == steps:
            raise KeyboardInterrupt

    nothing = lambda *_: None
    return SimpleNamespace(begin=nothing, say=nothing, stopping=nothing, end=nothing, record=record)


def killing_at_load() -> Any:
    """A progress that fails as soon as the run says what it is doing, which is to load the model."""

    def say(what: str) -> None:
        raise KeyboardInterrupt

    return SimpleNamespace(**vars(killing(0)) | {"say": say})
