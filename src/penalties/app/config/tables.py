"""The tables of a config: the keys of each, their types, bounds and defaults.

Editors show these docstrings beside the keys. Whether tables fit together is checked in `checks.py`.
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
    """The model, which is trained through an adapter (LoRA)."""

    name: _Text = "tiny"
    """`"tiny"`, a small random model that reads bytes; or a name on the Hugging Face hub, or a folder (`./…`, `/…`)."""
    rank: _Count = 8
    """The rank of the adapter's matrices: a higher rank has more weights to train."""
    alpha: _Count = 32
    """The scale of the adapter, which is divided by the rank. Local backend."""
    target_modules: _Text | list[_Text] = "all-linear"
    """The layers that get an adapter, by name; by default every linear layer. Local backend."""
    device: _Text | None = None
    """The device of the model, such as `"cpu"` or `"cuda:0"`; by default a GPU if there is one. Local backend."""
    dtype: _Text | None = None
    """The precision of the model, such as `"bfloat16"`; by default that of its files. Local backend."""


class BackendTable(Table):
    """Where the model is trained."""

    kind: Literal["local", "tinker"] = "local"
    """In this process, or on a server of the Tinker API. Its key is read from TINKER_API_KEY only."""
    base_url: _Text | None = None
    """The server's address; by default TINKER_BASE_URL, or the hosted service. Backend tinker."""
    server: Literal["tinker", "skyrl"] = "tinker"
    """How the server reduces a loss: it sums over tokens ("tinker") or averages ("skyrl"). Backend tinker."""


class DataTable(Table):
    """The training data: a file of JSON lines."""

    path: _Text
    """Lines of `prompt` and `completion`; with `loss = "dpo"` of `prompt`, `chosen` and `rejected`."""
    eval_path: _Text | None = None
    """The file of held-out data, with the same keys; without it, nothing is evaluated."""
    on_bad_line: Literal["error", "skip"] = "error"
    """What to do about a line that cannot be used: stop before training, or leave it out."""
    shuffle: bool = True
    """Whether each pass through the file has a new order, drawn with `train.seed`; otherwise the order of the file."""
    max_length: Annotated[int, Field(ge=2)] | None = None
    """The maximum number of tokens of an example; longer ones are cut at the end."""
    mask_prompt: bool = True
    """Whether the model only reads the prompt, and does not learn it."""
    end_token: bool = True
    """Whether the end-of-text token is added to every completion, and learned too."""


class TrainTable(Table):
    """How the model is trained."""

    steps: _Count = 100
    """The number of optimizer steps."""
    batch_size: _Count = 8
    """The number of lines per step."""
    loss: _Text = "cross_entropy"
    """The base loss: `"cross_entropy"`, `"dpo"`, or `"package.module:function"`, a function of (data, logprobs)."""
    loss_options: dict[str, Any] = Field(default={})
    """Options of the base loss, such as `{ beta = 0.1 }`."""
    reduction: Literal["mean", "sum"] = "mean"
    """Whether cross_entropy is the mean or the sum over the learned tokens of a batch."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    """The learning rate of AdamW: about how far a step moves each weight."""
    schedule: ScheduleTable | None = None
    """The learning rate as a function of the step; constant by default."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """AdamW's decay of the running mean of gradients: closer to 1 is smoother and slower."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """AdamW's decay of the running mean of squared gradients; its root divides a step."""
    eps: Annotated[float, Field(gt=0)] = 1e-12
    """What AdamW adds to that root, to avoid a division by 0."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW's weight decay: each step takes this fraction, times the learning rate, off every weight."""
    grad_clip_norm: Annotated[float, Field(ge=0)] = 0.0
    """The largest norm of the whole gradient; a longer gradient is scaled down to it. 0: no limit."""
    seed: _Whole = 0
    """The seed of the adapter's initial weights and of the order of the data."""
    checkpoint_every: _Whole = 20
    """Steps between checkpoints; 0: only at the end. There is always one at the end."""
    eval_every: _Count = 20
    """Steps between evaluations on `data.eval_path`."""
    gradients_every: _Whole = 10
    """Steps between measurements of each term's gradient: its norm, and the cosines with the others. 0: never."""


class InitialTable(Table):
    """Log-probabilities of the model before training."""

    kind: Literal["initial"]


class ClientTable(Table):
    """Log-probabilities of another model."""

    kind: Literal["client"]
    model: _Text
    """The model, as in `model.name`, on the same backend."""
    seed: _Whole = 0
    """The seed of the model's weights if they are random, like those of `"tiny"`."""
    cache: bool = True
    """Whether each example is evaluated once, rather than at every step."""


class PerturbedTable(Table):
    """Log-probabilities of the same model on perturbed inputs."""

    kind: Literal["perturbed"]
    token_dropout: Annotated[float, Field(ge=0, le=1)] = 0.1
    """The probability that a token is replaced."""
    seed: _Whole = 0
    """The seed of the draw of tokens, which differs at each step."""
    replacement: _Whole = 0
    """The id of the token that replaces it."""


ReferenceTable: TypeAlias = Annotated[InitialTable | ClientTable | PerturbedTable, Field(discriminator="kind")]
"""A reference, by its kind."""


class EmaTable(Table):
    """The running mean of a term."""

    kind: Literal["ema"]
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """The fraction of the mean that a step keeps: closer to 1 is smoother and slower."""


class NormalizedTable(Table):
    """A term divided by its running scale."""

    kind: Literal["normalized"]
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """The fraction of the scale that a step keeps: closer to 1 is smoother and slower."""


WrapTable: TypeAlias = Annotated[EmaTable | NormalizedTable, Field(discriminator="kind")]
"""A wrapper of a term, by its kind."""


class TermTable(Table):
    """A term of the objective: a function with a name, a weight, the inputs it reads, and where it runs."""

    fn: _Text
    """The name of a penalty (`penalties list`), or `"package.module:function"`."""
    weight: Annotated[float, Field(ge=0)] = 1.0
    """The factor of its value in the loss."""
    name: _Text | None = None
    """Its name in logs and reports, by default that of the function: no dots, and not digits alone."""
    inputs: _Text | list[_Text] | dict[str, _Text] | None = None
    """Its inputs: a name, names in order, or `{ parameter = "input" }`; by default the names of its parameters."""
    options: dict[str, Any] = Field(default={})
    """Options of the function."""
    enabled: bool = True
    """Whether it is part of the objective."""
    differentiable: bool = True
    """Whether it has a gradient; otherwise it counts as a constant."""
    runs: Literal["inline", "thread", "process", "async", "ray"] = "inline"
    """Where it runs: in the loop itself (`"inline"`), or in a thread, a process, an event loop or a Ray cluster."""
    timeout: Annotated[float, Field(gt=0, le=300)] | None = None
    """Seconds until it times out; 30 by default."""
    on_error: Literal["raise", "skip"] = "raise"
    """What to do if it fails: end the run, or leave it out of that step."""
    every: _Count = 1
    """The interval in steps at which it runs, starting with the first; 1: at every step."""
    idempotent: bool = False
    """Whether it may run again after its worker was lost."""
    chunk: _Count | None = None
    """Rows computed at a time, to save memory; all of them by default."""
    schedule: ScheduleTable | None = None
    """The weight as a function of the step; constant by default."""
    wrap: list[WrapTable] = Field(default=[])
    """Wrappers around it, from the inside out: `{ kind = "ema" }`, `{ kind = "normalized" }`."""


def _switched(value: Any) -> Any:
    return {} if value is True else None if value is False else value


class _Switch:
    """Lets `true` stand for a table of defaults, and `false` for no table."""

    def __get_pydantic_json_schema__(
        self, core_schema: Any, handler: Callable[[Any], dict[str, Any]]
    ) -> dict[str, Any]:
        made = handler(core_schema)
        return {"anyOf": [{"type": "boolean"}, *made["anyOf"]]}


class TensorBoardTable(Table):
    """Scalars for TensorBoard."""

    folder: _Text | None = None
    """The folder to write to, with a subfolder per run; by default `tensorboard` in the run's folder."""


class MLflowTable(Table):
    """A run of MLflow."""

    experiment: _Text = "penalties"
    """The experiment that the run belongs to."""
    tracking_uri: _Text | None = None
    """The store; by default MLFLOW_TRACKING_URI, or `mlflow.db` in the run's folder."""


class WandbTable(Table):
    """A run of Weights & Biases, written to the run's folder; `wandb sync` uploads it."""

    project: _Text = "penalties"
    """The project that the run belongs to."""


class OpenTelemetryTable(Table):
    """A span for each step and each evaluation, from the process's tracer."""


class SinksTable(Table):
    """Where metrics go besides the run's own log: `true`, or a table with options."""

    tensorboard: Annotated[TensorBoardTable | None, BeforeValidator(_switched), _Switch()] = None
    """Scalars for TensorBoard."""
    mlflow: Annotated[MLflowTable | None, BeforeValidator(_switched), _Switch()] = None
    """A run of MLflow."""
    wandb: Annotated[WandbTable | None, BeforeValidator(_switched), _Switch()] = None
    """A run of Weights & Biases."""
    opentelemetry: Annotated[OpenTelemetryTable | None, BeforeValidator(_switched), _Switch()] = None
    """A span for each step."""
