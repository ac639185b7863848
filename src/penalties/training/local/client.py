"""A training client in this process: the Tinker protocol on a Hugging Face model, with a LoRA adapter or whole."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from ...errors import OptionError
from ...functional.options import check_flag
from ..futures import TrainingFuture
from ..types import OptimStepResponse, SampleResponse, SamplingParams, SaveWeightsResponse
from .checkpoint import read, write
from .loading import load
from .optimizer import NORM, Adam, check_adam, check_optimizer
from .options import ModelOptions
from .packing import packing_of
from .parts import Limits
from .passing import PassingClient
from .sampling import checked_draw, draw
from .worker import Worker

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LocalTrainingClient"]


class LocalTrainingClient(PassingClient):
    """Trains a causal language model in this process, with the methods of the Tinker SDK's training client.

    `model` is `"tiny"` (a small random model over bytes; nothing is downloaded), a folder, or a name on the Hugging
    Face hub. A LoRA adapter of `rank` is trained on `target_modules`, by default every linear layer of attention and
    MLP, and copies of `modules_to_save` beside it; the weights of the model itself are frozen. With `adapter="none"`
    they are trained themselves, and `keep_initial` keeps a copy of them for `forward_initial`. Equal seeds make equal
    clients and equal runs: bit for bit on a CPU, and on a GPU under `torch.use_deterministic_algorithms`; otherwise
    attention adds up in any order there.

    Dropout, the model's own and `lora_dropout`, is on in passes for a gradient and off in all others.

    Methods return futures at once (`.result(timeout)`, or `await`). One thread does the work, in order. Gradients
    accumulate until `optim_step`. Invalid data raise at once, with the index of the datum. Losses are sums, and padding
    never affects a result.

    `device` defaults to a GPU if there is one, `dtype` to that of the model's files, or to float32 if the weights
    themselves are trained. `quantize` rounds frozen weights to "4bit" or "8bit", and `optimizer="adamw8bit"` AdamW's
    moments, both by bitsandbytes. `checkpointing` keeps the inputs of layers only, and computes the rest again in the
    backward. `attention` is the `attn_implementation` of transformers; `compile` is for `torch.compile`.

    `batch_size` limits how many data go through the model at once, and `micro_batch_tokens` how many tokens, padding
    included: smaller ones take less memory, and change nothing else. Your own loss over the whole of data in several
    parts costs a second forward; a sum or mean over tokens or sequences does not. With "auto" parts are halved whenever
    the GPU's memory runs out; checkpoints remember how far. They go into the folder `checkpoints`. With `packing`
    several sequences share a row, so that little is padding, and do not see one another; a model in which they would is
    an error.

    >>> from penalties.training.types import AdamParams, Datum, ModelInput
    >>> with LocalTrainingClient("tiny", seed=1) as client:
    ...     tokens = client.tokenizer.encode("hello")
    ...     datum = Datum(ModelInput.from_ints(tokens[:-1]), {"target_tokens": tokens[1:]})
    ...     before = client.forward_backward([datum], "cross_entropy")
    ...     step = client.optim_step(AdamParams(learning_rate=1e-2))
    ...     after = client.forward([datum], "cross_entropy")
    ...     after.result().metrics["loss:sum"] < before.result().metrics["loss:sum"]
    True
    """

    def __init__(
        self,
        model: str | Path = "tiny",
        *,
        adapter: Literal["lora", "none"] = "lora",
        rank: int = 8,
        alpha: int = 32,
        target_modules: str | Sequence[str] = "all-linear",
        lora_dropout: float = 0.0,
        rslora: bool = False,
        modules_to_save: Sequence[str] = (),
        keep_initial: bool = False,
        quantize: Literal["4bit", "8bit"] | None = None,
        attention: str | None = None,
        compile: bool | str = False,
        checkpointing: bool = False,
        optimizer: Literal["adamw", "adamw8bit"] = "adamw",
        seed: int = 0,
        device: Any = None,
        dtype: Any = None,
        batch_size: int | None = None,
        micro_batch_tokens: int | Literal["auto"] | None = None,
        packing: bool = False,
        checkpoints: str | Path = "checkpoints",
    ) -> None:
        """Load the model and initialise the adapter, which starts as the identity."""
        owner = type(self).__name__
        self._limits = Limits(owner, batch_size, micro_batch_tokens)
        check_flag(owner, "packing", packing)
        check_optimizer(optimizer)
        options = ModelOptions(
            adapter=adapter,
            rank=rank,
            alpha=alpha,
            target_modules=target_modules,
            lora_dropout=lora_dropout,
            rslora=rslora,
            modules_to_save=modules_to_save,
            keep_initial=keep_initial,
            quantize=quantize,
            attention=attention,
            compile=compile,
            checkpointing=checkpointing,
            seed=seed,
            device=device,
            dtype=dtype,
        )
        self._model = load(model, options, self._prepare)
        self._check_norms(batch_size, micro_batch_tokens)
        if packing:
            self._limits.packing = packing_of(self._model)
        import torch

        self._adam = Adam(self._model.parameters, optimizer)
        self._generator = torch.Generator().manual_seed(seed)
        if not isinstance(cast("object", checkpoints), str | Path):
            raise OptionError(owner, "checkpoints", checkpoints, "a folder")
        self._checkpoints = Path(checkpoints)
        self._changes = 0
        self._worker = Worker(owner)

    def _check_norms(self, rows: Any, tokens: Any) -> None:
        """Raise if a batch in parts would be another step than a whole one."""
        limit = ("micro_batch_tokens", tokens) if rows is None else ("batch_size", rows)
        if limit[1] is not None and (norms := self._model.trained_norms):
            why = f"the model has batch normalisation, {norms[0]}, which computes something else for a batch in parts"
            raise OptionError(type(self).__name__, *limit, f"None: {why}")

    # The model.

    def _prepare(self, model: Any, device: Any) -> None:
        """Change the model before it goes to its device."""

    @property
    def model(self) -> Any:
        """The peft model, or that of transformers without an adapter; change it only while no operation is running."""
        return self._model.model

    @property
    def model_id(self) -> str:
        """The name or folder of the model."""
        return self._model.name

    @property
    def device(self) -> Any:
        """The device of the model."""
        return self._model.device

    @property
    def context(self) -> float:
        """The longest sequence of tokens that the model reads; infinite if it does not say."""
        return self._model.context

    @property
    def outputs(self) -> int:
        """The number of logits at a position; the tokenizer may have fewer tokens, since output layers are padded."""
        return self._model.outputs

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end a sample, unless `SamplingParams.stop` names others."""
        return self._model.ends

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self._model.tokenizer

    def get_tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.tokenizer

    def parameters(self) -> "dict[str, Tensor]":
        """The trainable parameters by name."""
        return dict(self._model.parameters)

    # Steps.

    def optim_step(self, adam_params: Any) -> TrainingFuture[OptimStepResponse]:
        """One AdamW step with the accumulated gradients, which are then cleared.

        The metrics contain the norm of the gradient before clipping.
        """
        options = check_adam(adam_params)

        def step() -> OptimStepResponse:
            norm = self._adam.step(options)
            self._changes += 1
            return OptimStepResponse({NORM: norm})

        return self._worker.submit(step)

    async def optim_step_async(self, adam_params: Any) -> TrainingFuture[OptimStepResponse]:
        """`optim_step`, for code that awaits."""
        return self.optim_step(adam_params)

    # Checkpoints.

    def save_state(self, name: str | Path, *, overwrite: bool = False) -> TrainingFuture[SaveWeightsResponse]:
        """Save what is trained, the optimizer's state and any accumulated gradients in a folder of this name.

        An adapter is in peft's format. The folder is written atomically.
        """
        check_flag("save_state", "overwrite", overwrite)
        folder = self._folder(name)

        def save() -> SaveWeightsResponse:
            import torch

            training = self._adam.state() | {"generator": self._generator.get_state()}
            if self._limits.auto and self._limits.tokens is not None:
                training["micro_batch_tokens"] = torch.tensor(self._limits.tokens)
            write(self._model, folder, training, overwrite)
            return SaveWeightsResponse(str(folder))

        return self._worker.submit(save)

    async def save_state_async(
        self, name: str | Path, *, overwrite: bool = False
    ) -> TrainingFuture[SaveWeightsResponse]:
        """`save_state`, for code that awaits."""
        return self.save_state(name, overwrite=overwrite)

    def load_state(self, path: str | Path) -> TrainingFuture[None]:
        """Load the trained weights of a checkpoint; the optimizer starts afresh, without gradients."""
        return self._submit_load("load_state", path, optimizer=False)

    async def load_state_async(self, path: str | Path) -> TrainingFuture[None]:
        """`load_state`, for code that awaits."""
        return self.load_state(path)

    def load_state_with_optimizer(self, path: str | Path) -> TrainingFuture[None]:
        """Load a whole checkpoint: training continues exactly as it would have after the save."""
        return self._submit_load("load_state_with_optimizer", path, optimizer=True)

    async def load_state_with_optimizer_async(self, path: str | Path) -> TrainingFuture[None]:
        """`load_state_with_optimizer`, for code that awaits."""
        return self.load_state_with_optimizer(path)

    def _submit_load(self, function: str, path: str | Path, *, optimizer: bool) -> TrainingFuture[None]:
        folder = self._folder(path)

        def restore() -> None:
            import torch

            found, training = read(function, self._model, folder)
            self._adam.restore(training if optimizer else {})
            with torch.no_grad():
                for name, one in self._model.saved.items():
                    one.copy_(found[name])
            self._changes += 1
            if optimizer:
                self._generator.set_state(training["generator"])
                if self._limits.auto:
                    tokens = training.get("micro_batch_tokens")
                    self._limits.tokens = None if tokens is None else int(tokens)

        return self._worker.submit(restore)

    def _folder(self, name: str | Path) -> Path:
        if not isinstance(cast("object", name), str | Path) or not str(name):
            raise OptionError("LocalTrainingClient", "name", name, "the name of a checkpoint, or its folder")
        return (self._checkpoints / name).absolute()

    # Samples.

    def sample(self, prompt: Any, num_samples: int = 1, sampling_params: Any = None) -> TrainingFuture[SampleResponse]:
        """Sample continuations of a prompt, each token with its log-probability under the model.

        With a seed the result is the same each time; without one it draws from the client's own generator, which
        checkpoints include.
        """
        wanted = checked_draw(self._model, prompt, num_samples, sampling_params or SamplingParams())

        def drawn() -> SampleResponse:
            with self._model.passing(), self._model.eager():
                return SampleResponse(draw(self._model, wanted, self._generator))

        return self._worker.submit(drawn)

    async def sample_async(self, prompt: Any, num_samples: int = 1, sampling_params: Any = None) -> SampleResponse:
        """Await the result of `sample`, as the SDK's method does."""
        return await self.sample(prompt, num_samples, sampling_params)

    # Closing.

    def close(self) -> None:
        """Finish all submitted work, and end the thread."""
        self._worker.close()

    def __enter__(self) -> "LocalTrainingClient":
        """Itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close."""
        self.close()
