"""The tables of a config: the keys of each, their types, bounds and defaults.

What is in a docstring here is what an editor shows beside the key. What fits together is checked in `config_checks.py`.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from .schedules import ScheduleTable
from .table import Table

__all__ = [
    "BackendTable",
    "ClientTable",
    "DataTable",
    "InitialTable",
    "MLflowTable",
    "ModelTable",
    "OpenTelemetryTable",
    "PerturbedTable",
    "ReferenceTable",
    "SinksTable",
    "TensorBoardTable",
    "TermTable",
    "TrainTable",
    "WandbTable",
    "WrapTable",
]

_Text: TypeAlias = Annotated[str, Field(min_length=1)]
_Count: TypeAlias = Annotated[int, Field(ge=1)]
_Whole: TypeAlias = Annotated[int, Field(ge=0)]


class ModelTable(Table):
    """The model that is trained, by an adapter (LoRA)."""

    name: _Text = "tiny"
    """`"tiny"`, a small random model that reads bytes; or a name on the Hugging Face hub, or a folder (`./…`, `/…`)."""
    rank: _Count = 8
    """The rank of the adapter's matrices: more has more weights to train."""
    alpha: _Count = 32
    """The scale of the adapter, which is divided by the rank. Local backend."""
    target_modules: _Text | list[_Text] = "all-linear"
    """The layers that the adapter is on, by name; by default every linear layer. Local backend."""
    device: _Text | None = None
    """Where the model is, as `"cpu"` or `"cuda:0"`; a GPU where there is one, by default. Local backend."""
    dtype: _Text | None = None
    """The precision of the model, as `"bfloat16"`; that of its files, by default. Local backend."""


class BackendTable(Table):
    """Where the model is trained."""

    kind: Literal["local", "tinker"] = "local"
    """In this process, or by a server of the Tinker API. Its key is read from TINKER_API_KEY, and from nowhere else."""
    base_url: _Text | None = None
    """The server's address; that of the hosted service, or TINKER_BASE_URL, by default. Backend tinker."""
    server: Literal["tinker", "skyrl"] = "tinker"
    """How the server reduces: it sums over tokens ("tinker"), or averages ("skyrl"). Backend tinker."""


class DataTable(Table):
    """What it is trained on: a file of JSON lines."""

    path: _Text
    """Lines of `prompt` and `completion`; with `loss = "dpo"` of `prompt`, `chosen` and `rejected`."""
    eval_path: _Text | None = None
    """The file of held-out data, with the same keys; without it nothing is evaluated."""
    on_bad_line: Literal["error", "skip"] = "error"
    """What to do about a line that cannot be used: do not begin, or go on without it."""
    shuffle: bool = True
    """Whether each pass through the file is in another order, by `train.seed`; otherwise it is that of the file."""
    max_length: Annotated[int, Field(ge=2)] | None = None
    """The most tokens of an example; what is longer is cut at its end."""
    mask_prompt: bool = True
    """Whether the prompt is read only, and not learned."""
    end_token: bool = True
    """Whether the token that ends a text follows every completion, and is learned too."""


class TrainTable(Table):
    """How it is trained."""

    steps: _Count = 100
    """Steps of the optimizer."""
    batch_size: _Count = 8
    """Lines of data in a step."""
    loss: _Text = "cross_entropy"
    """The base loss: `"cross_entropy"`, `"dpo"`, or `"package.module:function"`, a function of (data, logprobs)."""
    loss_options: dict[str, Any] = Field(default={})
    """Options of the base loss, as `{ beta = 0.1 }`."""
    reduction: Literal["mean", "sum"] = "mean"
    """Whether cross_entropy is the mean over the tokens of a batch that count, or their sum."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    """The learning rate of AdamW: about how far a step moves each weight."""
    schedule: ScheduleTable | None = None
    """The learning rate as a function of the step; constant where it is left out."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """AdamW's decay of the running mean of gradients: nearer to 1 is smoother and slower."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """AdamW's decay of the running mean of squared gradients, by whose root a step is divided."""
    eps: Annotated[float, Field(gt=0)] = 1e-12
    """What AdamW adds to that root, so that nothing is divided by 0."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW's weight decay: the part of each weight, times the learning rate, that a step takes off."""
    grad_clip_norm: Annotated[float, Field(ge=0)] = 0.0
    """The largest norm of the whole gradient; a longer one is scaled down to it. 0 is no limit."""
    seed: _Whole = 0
    """The seed of the adapter's first weights and of the order of the data."""
    checkpoint_every: _Whole = 20
    """Steps between checkpoints; 0 is one at the end alone. There is always one at the end."""
    eval_every: _Count = 20
    """Steps between evaluations on `data.eval_path`."""
    gradients_every: _Whole = 10
    """Steps between measurements of each term's gradient, its norm and the cosines to the others'; 0 is never."""


class InitialTable(Table):
    """Log-probabilities of the model before training."""

    kind: Literal["initial"]


class ClientTable(Table):
    """Log-probabilities of another model."""

    kind: Literal["client"]
    model: _Text
    """The model, as in `model.name`, on the same backend."""
    seed: _Whole = 0
    """The seed of the model's weights where they are random, as those of `"tiny"` are."""
    cache: bool = True
    """Whether it is asked once for each example, and not at every step."""


class PerturbedTable(Table):
    """Log-probabilities of the same model after a perturbed input."""

    kind: Literal["perturbed"]
    token_dropout: Annotated[float, Field(ge=0, le=1)] = 0.1
    """The probability that a token is replaced."""
    seed: _Whole = 0
    """The seed of the draw of tokens, which is another at each step."""
    replacement: _Whole = 0
    """The token, by its number, that it is replaced by."""


ReferenceTable: TypeAlias = Annotated[InitialTable | ClientTable | PerturbedTable, Field(discriminator="kind")]
"""A reference, by its kind."""


class EmaTable(Table):
    """The running mean of a term."""

    kind: Literal["ema"]
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """The part of the mean that a step keeps: nearer to 1 is smoother and slower."""


class NormalizedTable(Table):
    """A term divided by its running scale."""

    kind: Literal["normalized"]
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """The part of the scale that a step keeps: nearer to 1 is smoother and slower."""


WrapTable: TypeAlias = Annotated[EmaTable | NormalizedTable, Field(discriminator="kind")]
"""What goes around a term, by its kind."""


class TermTable(Table):
    """A term of the objective: a function with a name, a weight, the inputs it reads, and where it runs."""

    fn: _Text
    """The name of a penalty (`penalties list`), or `"package.module:function"`."""
    weight: Annotated[float, Field(ge=0)] = 1.0
    """What its value is multiplied by in the loss."""
    name: _Text | None = None
    """What it is called in logs and reports, the function's name by default: no dots, and not digits alone."""
    inputs: _Text | list[_Text] | dict[str, _Text] | None = None
    """What it reads: a name, names in order, or `{ parameter = "input" }`; by default what its parameters are named."""
    options: dict[str, Any] = Field(default={})
    """Options of the function."""
    enabled: bool = True
    """Whether it is part of the objective; `false` leaves it out."""
    differentiable: bool = True
    """Whether it has a gradient; if not it counts as a constant."""
    runs: Literal["inline", "thread", "process", "async", "ray"] = "inline"
    """Where it runs: in the loop itself (`"inline"`), or in a thread, a process, an event loop or a Ray cluster."""
    timeout: Annotated[float, Field(gt=0, le=300)] | None = None
    """Seconds before it is given up; 30 where it is left out."""
    on_error: Literal["raise", "skip"] = "raise"
    """What to do where it fails: end the run, or leave it out of that step."""
    every: _Count = 1
    """It runs at the first step and every so many steps after it; 1 is every step."""
    idempotent: bool = False
    """Whether it may run again where its worker was lost."""
    chunk: _Count | None = None
    """Rows that are computed at a time, which takes less memory; all of them by default."""
    schedule: ScheduleTable | None = None
    """The weight as a function of the step; constant where it is left out."""
    wrap: list[WrapTable] = Field(default=[])
    """What goes around it, from the inside out: `{ kind = "ema" }`, `{ kind = "normalized" }`."""


def _switched(value: Any) -> Any:
    return {} if value is True else None if value is False else value


class _Switch:
    """Lets `true` stand for a table of defaults, and `false` for none."""

    def __get_pydantic_json_schema__(
        self, core_schema: Any, handler: Callable[[Any], dict[str, Any]]
    ) -> dict[str, Any]:
        made = handler(core_schema)
        return {"anyOf": [{"type": "boolean"}, *made["anyOf"]]}


class TensorBoardTable(Table):
    """Scalars for TensorBoard."""

    folder: _Text | None = None
    """Where they are written, each run in a folder of its name; `tensorboard` in the run's folder by default."""


class MLflowTable(Table):
    """A run of MLflow."""

    experiment: _Text = "penalties"
    """The experiment that the run belongs to."""
    tracking_uri: _Text | None = None
    """The store; by default what MLFLOW_TRACKING_URI says, or `mlflow.db` in the run's folder."""


class WandbTable(Table):
    """A run of Weights & Biases, written to the run's folder; `wandb sync` sends it."""

    project: _Text = "penalties"
    """The project that the run belongs to."""


class OpenTelemetryTable(Table):
    """A span for each step and each evaluation, by the tracer that the process has."""


class SinksTable(Table):
    """Where metrics go beside the run's own log: `true`, or a table with options."""

    tensorboard: Annotated[TensorBoardTable | None, BeforeValidator(_switched), _Switch()] = None
    """Scalars for TensorBoard."""
    mlflow: Annotated[MLflowTable | None, BeforeValidator(_switched), _Switch()] = None
    """A run of MLflow."""
    wandb: Annotated[WandbTable | None, BeforeValidator(_switched), _Switch()] = None
    """A run of Weights & Biases."""
    opentelemetry: Annotated[OpenTelemetryTable | None, BeforeValidator(_switched), _Switch()] = None
    """A span for each step."""
