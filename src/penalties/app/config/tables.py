"""The tables of a config: the keys of each, their types, bounds and defaults.

Editors show these docstrings beside the keys. Whether tables fit together is checked in `checks.py`.
"""

import warnings
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field

from ...pipeline.term import LONGEST_TIMEOUT
from .schedules import ScheduleTable
from .table import Table

__all__ = [
    "BackendTable",
    "ClientTable",
    "DataTable",
    "ExecutorTable",
    "InitialTable",
    "MLflowTable",
    "ModelTable",
    "OpenTelemetryTable",
    "PerturbedTable",
    "ReferenceTable",
    "SamplesTable",
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
    """The model, and what of it is trained: an adapter (LoRA), or its own weights."""

    name: _Text = "tiny"
    """`"tiny"`, a small random model that reads bytes; or a name on the Hugging Face hub, or a folder (`./…`, `/…`)."""
    adapter: Literal["lora", "none"] = "lora"
    """What is trained: an adapter beside frozen weights, or with `"none"` the weights themselves. Local backend."""
    rank: _Count = 8
    """The rank of the adapter's matrices: a higher rank has more weights to train."""
    alpha: _Count = 32
    """The scale of the adapter, which is divided by the rank. Local backend."""
    target_modules: _Text | list[_Text] = "all-linear"
    """The layers that get an adapter, by name; by default every linear layer. Local backend."""
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The probability that an input of the adapter is dropped in training. Local backend."""
    rslora: bool = False
    """Whether `alpha` is divided by the root of the rank instead (rsLoRA). Local backend."""
    modules_to_save: list[_Text] = Field(default=[])
    """Modules that are trained whole, beside the adapter, by name, such as `["lm_head"]`. Local backend."""
    device: _Text | None = None
    """The device of the model, such as `"cpu"` or `"cuda:0"`; by default a GPU if there is one. Local backend."""
    dtype: _Text | None = None
    """The precision, such as `"bfloat16"`; by default that of the files, or float32 without adapter. Local backend."""
    quantize: Literal["4bit", "8bit"] | None = None
    """Bits per frozen weight, to save memory (bitsandbytes; 4 is QLoRA); by default all. Local backend."""
    attention: _Text | None = None
    """How transformers computes attention: `"sdpa"`, `"eager"`, `"flash_attention_2"` or another. Local backend."""
    compile: bool | _Text = False
    """Whether torch.compile compiles the model, or by which of its backends. Local backend."""
    checkpointing: bool = False
    """Whether activations are computed again in the backward, not kept: less memory, more time. Local backend."""


def _reduction(server: str) -> str:
    """How a server reduces, for the names of servers that configs had."""
    if server == "skyrl":
        warnings.warn(
            'backend.server = "skyrl" stands for "averages", which only SkyRL\'s JAX backend does; its torch backends, '
            'fsdp and megatron, sum: write "averages" or "sums"',
            FutureWarning,
            stacklevel=2,
        )
    return {"tinker": "sums", "skyrl": "averages"}.get(server, server)


class BackendTable(Table):
    """Where the model is trained."""

    kind: Literal["local", "tinker"] = "local"
    """In this process, or on a server of the Tinker API. Its key is read from TINKER_API_KEY only."""
    base_url: _Text | None = None
    """The server's address; by default TINKER_BASE_URL, or the hosted service. Backend tinker."""
    server: Annotated[Literal["sums", "averages", "probe", "tinker", "skyrl"], AfterValidator(_reduction)] = "sums"
    """Whether the server `"sums"` a loss, as Tinker does, or `"averages"`; `"probe"` finds out. Backend tinker."""


class DataTable(Table):
    """The training data: JSON lines, text, Parquet, or a folder of the library datasets."""

    path: _Text | Annotated[list[_Text], Field(min_length=1)]
    """A file, or a list: `prompt` and `completion`, `messages`, or `text`, and what `loss` needs, such as pairs."""
    weights: list[Annotated[float, Field(gt=0)]] | None = None
    """The odds of each file of a list to be drawn from; by default each pass has every line of all files once."""
    eval_path: _Text | None = None
    """The file of held-out data, in any of these forms; without it, nothing is evaluated."""
    sampled: bool = False
    """Whether the model itself sampled the completions, as `kl_estimate` and `entropy_estimate` need it."""
    on_bad_line: Literal["error", "skip"] = "error"
    """What to do about a line that cannot be used: stop before training, or leave it out."""
    shuffle: bool = True
    """Whether each pass through the file has a new order, drawn with `train.seed`; otherwise the order of the file."""
    group_by_length: bool = False
    """Whether a batch has lines of similar lengths, so that little is padding; batches come in random order."""
    max_length: Annotated[int, Field(ge=2)] | None = None
    """The maximum number of tokens of an example; longer ones are cut at the end."""
    mask_prompt: bool = True
    """Whether the model only reads the prompt, and does not learn it."""
    end_token: bool = True
    """Whether the end-of-text token is added to every completion, and learned too."""

    @property
    def paths(self) -> list[str]:
        """The files to train on."""
        return [self.path] if isinstance(self.path, str) else list(self.path)


class TrainTable(Table):
    """How the model is trained."""

    steps: _Count = 100
    """The number of optimizer steps."""
    epochs: Annotated[float, Field(gt=0)] | None = None
    """The number of passes through the data, instead of `steps`."""
    batch_size: _Count = 8
    """The number of lines per step."""
    micro_batch_tokens: _Count | Literal["auto"] | None = None
    """The most tokens through the model at once, or `"auto"`; some terms need a second forward. Local backend."""
    packing: bool = False
    """Whether several lines share a row of the model's input, unseen by one another: less padding. Local backend."""
    shard: bool = False
    """Whether several processes share the frozen weights instead of a copy each. Local backend."""
    loss: _Text = "cross_entropy"
    """The base loss: a name (`penalties list loss`), `"none"`, or `"package.module:function"`, of (data, logprobs)."""
    loss_options: dict[str, Any] = Field(default={})
    """Options of the base loss, such as `{ beta = 0.1 }`."""
    reduction: Literal["mean", "sum"] = "mean"
    """Whether cross_entropy and importance_sampling are means or sums over the learned tokens of a batch."""
    optimizer: Literal["adamw", "adamw8bit"] = "adamw"
    """AdamW, or AdamW with moments in 8 bits, to save memory (bitsandbytes). Local backend."""
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
    keep: _Count = 2
    """How many of the last checkpoints are kept, besides the best; with 1 there is none to fall back on."""
    eval_every: _Count = 20
    """Steps between evaluations on `data.eval_path`."""
    eval_examples: Annotated[int, Field(ge=0, le=20)] = 2
    """How many of the worst, the best and the first held-out texts an evaluation logs with the loss of each token."""
    best_by: _Text | None = None
    """The held-out metric that picks the best checkpoint: `"loss"`, `"base_loss"`, a term, or `"term/own_metric"`."""
    best_is: Literal["lowest", "highest"] = "lowest"
    """Which value of `best_by` is the best."""
    min_improvement: Annotated[float, Field(ge=0)] = 0.0
    """By how much `best_by` must be better than before to count as an improvement."""
    patience: _Count | None = None
    """Evaluations in a row without an improvement of `best_by` after which the run ends early; by default never."""
    gradients_every: _Whole = 10
    """Steps between measurements of each term's gradient: its norm, and the cosines with the others. 0: never."""


class ExecutorTable(Table):
    """Where terms run if not in the loop itself, and for how long."""

    workers: _Count | None = None
    """The number of threads, and of processes, that run terms at once; by default the number of processors."""
    timeout: Annotated[float, Field(gt=0, le=LONGEST_TIMEOUT)] = 30.0
    """The timeout in seconds of a term that does not set its own."""
    sequential: bool = False
    """Whether every term runs in the loop itself, in order, whatever its `runs` is: for debugging."""
    ray_address: _Text | None = None
    """The Ray cluster of terms that run on Ray, as for `ray.init`; by default RAY_ADDRESS, or one on this machine."""


class SamplesTable(Table):
    """What the model says at each evaluation, and task metrics over it."""

    prompts: list[_Text] = Field(default=[])
    """Prompts that the model continues at each evaluation; the log, the display and the report show what it says."""
    max_tokens: _Count = 64
    """The maximum number of tokens of a sample."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    """0 always takes the likeliest token; with more, samples are drawn, at each evaluation with the same seed."""
    metrics: list[_Text] = Field(default=[])
    """Metrics over samples for held-out prompts: `"exact_match"`, or `"package.module:function"` of the samples."""
    lines: _Count = 32
    """How many of the held-out lines the metrics are computed over: the first ones."""

    @property
    def names(self) -> list[str]:
        """The names of the metrics; one that returns several numbers has `name/key` for each."""
        return [metric.rpartition(":")[2] for metric in self.metrics]


class InitialTable(Table):
    """Log-probabilities of the model before training."""

    kind: Literal["initial"]
    top_k: _Count | None = None
    """How many of its likeliest tokens at each position it has; by default the targets. Compare `logprobs.<name>`."""


class ClientTable(Table):
    """Log-probabilities of another model."""

    kind: Literal["client"]
    model: _Text
    """The model, as in `model.name`, on the same backend."""
    seed: _Whole = 0
    """The seed of the model's weights if they are random, like those of `"tiny"`."""
    cache: bool = True
    """Whether each example is evaluated once, rather than at every step."""
    top_k: _Count | None = None
    """How many of its likeliest tokens at each position it has; by default the targets. Compare `logprobs.<name>`."""
    device: _Text | None = None
    """The device of this model; by default `model.device`. Local backend."""
    dtype: _Text | None = None
    """The precision of this model; by default `model.dtype`. Local backend."""


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


class ScoreFunctionTable(Table):
    """The mean of a term that returns a value per sample, with the score-function gradient (REINFORCE)."""

    kind: Literal["score_function"]
    logprobs: _Text
    """The input with the log-probabilities of the samples, such as `"logprobs"`."""
    baseline: Literal["mean", "leave_one_out", "none"] = "mean"
    """What is subtracted from each value: the running mean of earlier steps, the mean of the other samples, or 0."""
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """The fraction of the running mean that a step keeps."""
    mask: _Text | None = None
    """The input that says which log-probabilities count, such as `"mask"`; by default all."""


class StraightThroughTable(Table):
    """A term at discrete inputs, with its gradient passed on as if they were not."""

    kind: Literal["straight_through"]
    discretize: _Text = "round"
    """`"round"`, `"sign"`, `"argmax"`, or `"package.module:function"`."""
    wrt: _Text | list[_Text] | None = None
    """The inputs that are made discrete; by default all floats."""


class SpsaTable(Table):
    """A term with a gradient estimated by simultaneous perturbation."""

    kind: Literal["spsa"]
    samples: _Count = 4
    """How many directions are tried; each takes two more evaluations of the term."""
    c: Annotated[float, Field(gt=0)] = 0.01
    """How far from the inputs the term is tried, in each element."""
    wrt: _Text | list[_Text] | None = None
    """The inputs that are perturbed; by default all floats that are trained."""
    seed: _Whole = 0
    """The seed of the directions, which differ at each step."""


class EvolutionStrategiesTable(Table):
    """A term with the gradient of itself smoothed by Gaussian noise."""

    kind: Literal["evolution_strategies"]
    population: Annotated[int, Field(ge=2, multiple_of=2)] = 16
    """How many points beside the inputs are tried: an even number."""
    sigma: Annotated[float, Field(gt=0)] = 0.1
    """The standard deviation of the noise."""
    ranks: bool = False
    """Whether values are replaced by their ranks, so that outliers and the scale of the term do not matter."""
    wrt: _Text | list[_Text] | None = None
    """The inputs that are perturbed; by default all floats that are trained."""
    seed: _Whole = 0
    """The seed of the noise, which differs at each step."""


class CachedTable(Table):
    """A term of data whose results are kept on disk."""

    kind: Literal["cached"]
    folder: _Text
    """The folder of the results, which runs may share."""
    max_bytes: _Count = 2**30
    """Their maximum total size; the least recently used go first."""
    version: str = ""
    """A part of the key: change it when the function would return something else and its module does not show it."""


class StaleTable(Table):
    """A slow term of parameters whose gradient is reused between the steps at which it runs."""

    kind: Literal["stale"]
    steps: _Count
    """How many steps a gradient is reused for."""
    wrt: _Text | list[_Text]
    """The inputs that stay between steps, such as `"params"`."""


WrapTable: TypeAlias = Annotated[
    EmaTable
    | NormalizedTable
    | ScoreFunctionTable
    | StraightThroughTable
    | SpsaTable
    | EvolutionStrategiesTable
    | CachedTable
    | StaleTable,
    Field(discriminator="kind"),
]
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
    timeout: Annotated[float, Field(gt=0, le=LONGEST_TIMEOUT)] | None = None
    """Seconds until it times out; by default `executor.timeout`."""
    on_error: Literal["raise", "skip"] = "raise"
    """What to do if it fails: end the run, or leave it out of that step."""
    every: _Count = 1
    """The interval in steps at which it runs, starting with the first; 1: at every step."""
    idempotent: bool = False
    """Whether it may run again after its worker was lost."""
    chunk: _Count | None = None
    """Rows computed at a time, to save memory; all of them by default."""
    scope: Literal["mean", "sum", "step"] | None = None
    """How trainers that split a step add it up; by default what its inputs and its reduction say."""
    separable: bool | Literal["tokens", "sequences"] | None = None
    """Whether your own function is a sum or mean over rows, so that parts of a batch go through the model once."""
    compile: bool | _Text = False
    """Whether torch.compile makes a graph of it, or by which of its backends."""
    schedule: ScheduleTable | None = None
    """The weight as a function of the step; constant by default."""
    wrap: list[WrapTable] = Field(default=[])
    """Wrappers around it, from the inside out: `{ kind = "ema" }` and others (`penalties list wrap`)."""


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
