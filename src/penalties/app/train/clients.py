"""The model that a run trains: in this process, or on a server of the Tinker API."""

import contextlib
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from ...errors import InputError, MissingLibraryError, PenaltiesError, said
from ...training.local.model import TINY
from ...training.local.tiny import ByteTokenizer
from ...training.references import check_vocabulary
from ...training.sdk import adam_for, data_for
from ...training.surrogates import probe
from ...training.types import AdamParams, ModelInput, SamplingParams
from ..privacy import API_KEY, hide
from ..processes import launched
from ..runs.disk import RunError
from .knocking import knock
from .loading import loading, quietly

if TYPE_CHECKING:
    from ..config import Config
    from ..config.tables import ClientTable

__all__ = ["Backend", "Local", "Tinker", "connect", "needs_copy"]

_GOODBYE: Final = 10.0
"""Seconds that a server may take to close the session."""


class Backend(Protocol):
    """A client, and what depends on where its model runs."""

    client: Any
    """`forward`, `forward_backward`, `optim_step`, `save_state`."""
    device: Any
    """The device of the tensors that terms read."""
    limit: int | None
    """How many tokens the model reads at most, if that is known."""
    ends: frozenset[int]
    """The tokens that end a text by the model's own generation config, if that is known."""
    gradients: Any
    """Where gradients of terms are measured, as for `track_grad_norms`."""

    @property
    def server(self) -> str:
        """How the server reduces a loss."""
        ...

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        ...

    def batch(self, data: Sequence[Any]) -> list[Any]:
        """The data as the client's types."""
        ...

    def adam(self, options: dict[str, float]) -> Any:
        """The options of a step as the client's type."""
        ...

    def save(self, folder: Path, name: str) -> str:
        """Save the model and its optimizer, in this folder or elsewhere by this name; returns the path to load."""
        ...

    def another(self, table: "ClientTable") -> Any:
        """A client of another model."""
        ...

    def sample(self, prompts: Sequence[Sequence[int]], count: int, options: Mapping[str, Any]) -> list[list[list[int]]]:
        """The tokens of so many continuations of each prompt, by the model as it is now.

        The options are those of `SamplingParams`.
        """
        ...

    def close(self, status: str) -> None:
        """Release everything; the status is "success", "errored" or "interrupted"."""
        ...


def connect(config: "Config", checkpoint: str | None = None) -> Backend:
    """The backend that a config asks for, with a new model, or the one of a checkpoint."""
    if config.backend.kind != "local" and launched():
        raise RunError(
            f'backend.kind = "{config.backend.kind}": the model is on a server, where other processes cannot help; '
            "start the program without torchrun or accelerate",
            2,
        )
    return (Local if config.backend.kind == "local" else Tinker)(config, checkpoint)


def needs_copy(config: "Config") -> bool:
    """Whether a copy of the weights is kept: references compare with them, and training changes them."""
    return config.model.adapter == "none" and any(one.kind == "initial" for one in config.references.values())


class Local:
    """A model in this process."""

    def __init__(self, config: "Config", checkpoint: str | None = None) -> None:
        """Load the model."""
        model, train = config.model, config.train
        self._options: dict[str, Any] = {
            "device": model.device,
            "dtype": model.dtype,
            "micro_batch_tokens": train.micro_batch_tokens,
            "shard": train.shard,
        }
        self._others: list[Any] = []
        with quietly(), loading(model.name):
            self.client: Any = _client(
                model.name,
                adapter=model.adapter,
                rank=model.rank,
                alpha=model.alpha,
                target_modules=model.target_modules,
                packing=train.packing,
                lora_dropout=model.lora_dropout,
                rslora=model.rslora,
                modules_to_save=model.modules_to_save,
                keep_initial=needs_copy(config),
                quantize=model.quantize,
                attention=model.attention,
                compile=model.compile,
                checkpointing=model.checkpointing,
                optimizer=train.optimizer,
                seed=train.seed,
                **self._options,
            )
            self.tokenizer: Any = self.client.tokenizer
        if checkpoint is not None:
            self.client.load_state_with_optimizer(checkpoint).result()
        # The local client sums losses.
        self.server: str = "sums"
        self.device: Any = self.client.device
        self.limit: int | None = None if math.isinf(self.client.context) else int(self.client.context)
        self.ends: frozenset[int] = self.client.ends
        self.gradients: Any = "parameters"

    def batch(self, data: Sequence[Any]) -> list[Any]:
        """The data as they are."""
        return list(data)

    def adam(self, options: dict[str, float]) -> AdamParams:
        """Our own type."""
        return AdamParams(**options)

    def save(self, folder: Path, name: str) -> str:
        """Save into the folder."""
        return self.client.save_state(folder).result().path

    def another(self, table: "ClientTable") -> Any:
        """A second model in this process."""
        own = {key: value for key in ("device", "dtype") if (value := getattr(table, key)) is not None}
        with quietly(), loading(table.model):
            client = _client(table.model, seed=table.seed, **{**self._options, **own})
            self._others.append(client)
            # A model in a folder may have no tokenizer.
            with contextlib.suppress(OSError, ValueError):
                _check_teacher(self.tokenizer, client.tokenizer, table)
        return client

    def sample(self, prompts: Sequence[Sequence[int]], count: int, options: Mapping[str, Any]) -> list[list[list[int]]]:
        """Draw them here."""
        wanted = SamplingParams(**options)
        drawn = [self.client.sample(ModelInput.from_ints(list(one)), count, wanted) for one in prompts]
        return [[list(sequence.tokens) for sequence in one.result().sequences] for one in drawn]

    def close(self, status: str) -> None:
        """End the threads."""
        for client in (self.client, *self._others):
            client.close()


def _client(model: str, *, shard: bool, **options: Any) -> Any:
    """A client in this process, or in several that train together; one alone has nothing to share."""
    from ...training.local import LocalTrainingClient
    from ...training.local.processes import ParallelTrainingClient, current

    group = current()
    if group is None:
        return LocalTrainingClient(model, **options)
    return ParallelTrainingClient(group, model, shard=shard, **options)


def _check_teacher(tokenizer: Any, teacher: Any, table: "ClientTable") -> None:
    """Raise if another model reads other tokens."""
    try:
        check_vocabulary(tokenizer, teacher, f'"{table.model}"')
    except InputError as error:
        raise RunError(f"references: {error}", 2) from error


class Tinker:
    """A model on a server of the Tinker API. The key is read from the environment, and not stored."""

    def __init__(self, config: "Config", checkpoint: str | None = None) -> None:
        """Connect, and have the server create or load the model."""
        try:
            import tinker
        except ImportError as error:
            raise MissingLibraryError('backend.kind = "tinker"', "tinker", extra="tinker") from error
        # A key that was read from a file often ends with a newline.
        key = os.environ.get(API_KEY, "").strip()
        if not key:
            # The SDK would search files too, with a less helpful error.
            raise RunError(f"{API_KEY} is not set; export the key of the server in the environment", 2)
        self._sdk: Any = tinker
        # The results of a server arrive on the CPU, it raises if a text is too long, and has its own generation config.
        self.device: Any = "cpu"
        self.limit: int | None = None
        self.ends: frozenset[int] = frozenset()
        # At the log-probabilities: the rest of the model is on the server.
        self.gradients: Any = True
        self._base_url = config.backend.base_url
        self._model = config.model.name
        self._rank = config.model.rank
        self._service: Any = None
        address = self._base_url or os.environ.get("TINKER_BASE_URL")
        if address:
            knock(address, "backend.base_url")
        try:
            self._service = self._sdk.ServiceClient(base_url=self._base_url, api_key=key)
            self.client: Any = (
                self._made(self._model, config.train.seed) if checkpoint is None else self._loaded(config, checkpoint)
            )
        except BaseException as error:
            self.close("errored")
            if isinstance(error, Exception):
                raise self._failure(error) from error
            raise
        self._server = config.backend.server

    @property
    def server(self) -> str:
        """How the server reduces a loss; a probe, which takes steps, waits until training needs to know."""
        if self._server == "probe":
            self._server = self._probed()
        return self._server

    def _probed(self) -> str:
        try:
            return probe(self.client)
        except PenaltiesError as error:
            raise RunError(f'{hide(str(error))}; set backend.server to "sums" or "averages"', 2) from error
        except Exception as error:
            raise RunError(f"could not probe {self._where()}: {hide(said(error))}") from error

    def _where(self) -> str:
        return self._base_url or os.environ.get("TINKER_BASE_URL") or "the hosted service"

    def _failure(self, error: Exception) -> RunError:
        return RunError(f"could not get a model from {self._where()}: {hide(said(error))}")

    def _made(self, model: str, seed: int) -> Any:
        return self._service.create_lora_training_client(model, rank=self._rank, seed=seed)

    def _loaded(self, config: "Config", checkpoint: str) -> Any:
        load = getattr(self._service, "create_training_client_from_state_with_optimizer", None)
        if load is not None:
            return load(checkpoint)
        client = self._made(self._model, config.train.seed)
        with warnings.catch_warnings():
            # Newer SDKs deprecate it: they have the function above.
            warnings.simplefilter("ignore", FutureWarning)
            client.load_state_with_optimizer(checkpoint).result()
        return client

    @property
    def tokenizer(self) -> Any:
        """The model's; the built-in model's needs no download."""
        return ByteTokenizer() if self._model == TINY else self.client.get_tokenizer()

    def batch(self, data: Sequence[Any]) -> list[Any]:
        """The data in the SDK's types."""
        return data_for(self.client, data)

    def adam(self, options: dict[str, float]) -> Any:
        """The SDK's type."""
        return adam_for(self.client, AdamParams(**options))

    def save(self, folder: Path, name: str) -> str:
        """Have the server save it by this name."""
        return self.client.save_state(name).result().path

    def another(self, table: "ClientTable") -> Any:
        """A second model on the same server."""
        try:
            client = self._made(table.model, table.seed)
            if table.model != self._model:
                _check_teacher(self.tokenizer, client.get_tokenizer(), table)
        except RunError:
            raise
        except Exception as error:
            raise self._failure(error) from error
        return client

    def sample(self, prompts: Sequence[Sequence[int]], count: int, options: Mapping[str, Any]) -> list[list[list[int]]]:
        """Have the server draw them, from a copy of the weights that it makes for that."""
        types = self._sdk.types
        try:
            sampler = self.client.save_weights_and_get_sampling_client()
            wanted = types.SamplingParams(**options)
            drawn = [sampler.sample(types.ModelInput.from_ints(list(one)), count, wanted) for one in prompts]
            return [[list(sequence.tokens) for sequence in one.result().sequences] for one in drawn]
        except Exception as error:
            raise RunError(f"could not sample on {self._where()}: {hide(said(error))}") from error

    def close(self, status: str) -> None:
        """Close the session, without waiting long for the server."""
        finish = getattr(self._service, "close", None)
        if finish is None:
            return
        try:
            finish(status).result(_GOODBYE)
        except Exception as error:
            warnings.warn(f"could not close the session on the server: {hide(said(error))}", stacklevel=2)
