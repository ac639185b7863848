"""The model that a run trains: in this process, or on a server of the Tinker API."""

import math
import os
import socket
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies

from ...errors import MissingLibraryError, said
from ...training.local.model import TINY
from ...training.local.tiny import ByteTokenizer
from ...training.types import AdamParams
from ..privacy import API_KEY, hide
from ..runs.disk import RunError

if TYPE_CHECKING:
    from ..config import Config
    from ..config.tables import ClientTable

__all__ = ["Backend", "Local", "Tinker", "connect"]

_ANSWER: Final = 10.0
"""Seconds that a server may take to accept a connection."""
_GOODBYE: Final = 10.0
"""Seconds that a server may take to close the session."""


class Backend(Protocol):
    """A client, and what depends on where its model runs."""

    client: Any
    """`forward`, `forward_backward`, `optim_step`, `save_state`."""
    server: str
    """How the server reduces a loss."""
    device: Any
    """The device of the tensors that terms read."""
    limit: int | None
    """How many tokens the model reads at most, if that is known."""
    gradients: Any
    """Where gradients of terms are measured, as for `track_grad_norms`."""

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

    def close(self, status: str) -> None:
        """Release everything; the status is "success", "errored" or "interrupted"."""
        ...


def connect(config: "Config", checkpoint: str | None = None) -> Backend:
    """The backend that a config asks for, with a new model, or the one of a checkpoint."""
    return (Local if config.backend.kind == "local" else Tinker)(config, checkpoint)


class Local:
    """A model in this process."""

    def __init__(self, config: "Config", checkpoint: str | None = None) -> None:
        """Load the model."""
        from ...training.local import LocalTrainingClient

        model = config.model
        self._options: dict[str, Any] = {"device": model.device, "dtype": model.dtype}
        self._others: list[Any] = []
        self.client: Any = LocalTrainingClient(
            model.name,
            rank=model.rank,
            alpha=model.alpha,
            target_modules=model.target_modules,
            seed=config.train.seed,
            **self._options,
        )
        if checkpoint is not None:
            self.client.load_state_with_optimizer(checkpoint).result()
        self.tokenizer: Any = self.client.tokenizer
        # The local client sums losses.
        self.server: str = "tinker"
        self.device: Any = self.client.device
        self.limit: int | None = None if math.isinf(self.client.context) else int(self.client.context)
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
        from ...training.local import LocalTrainingClient

        client = LocalTrainingClient(table.model, seed=table.seed, **self._options)
        self._others.append(client)
        return client

    def close(self, status: str) -> None:
        """End the threads."""
        for client in (self.client, *self._others):
            client.close()


def _knock(address: str) -> None:
    """Raise if no server answers at an address: the SDK would retry for minutes without a message."""
    parts = urlsplit(address)
    if parts.scheme in getproxies() or parts.hostname is None:
        return
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname, port), _ANSWER).close()
    except OSError as error:
        raise RunError(
            f"no server answers at {hide(address)} ({said(error)}); start it, or fix backend.base_url", 2
        ) from error


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
        self.server: str = config.backend.server
        # The results of a server arrive on the CPU, and it raises if a text is too long.
        self.device: Any = "cpu"
        self.limit: int | None = None
        # At the log-probabilities: the rest of the model is on the server.
        self.gradients: Any = True
        self._base_url = config.backend.base_url
        self._model = config.model.name
        self._rank = config.model.rank
        self._service: Any = None
        address = self._base_url or os.environ.get("TINKER_BASE_URL")
        if address:
            _knock(address)
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

    def _failure(self, error: Exception) -> RunError:
        where = self._base_url or os.environ.get("TINKER_BASE_URL") or "the hosted service"
        return RunError(f"could not get a model from {where}: {hide(said(error))}")

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
        types = self._sdk.types
        return [
            types.Datum(
                model_input=types.ModelInput.from_ints(datum.model_input.to_ints()),
                loss_fn_inputs={
                    name: types.TensorData.from_numpy(one.to_numpy().copy())
                    for name, one in datum.loss_fn_inputs.items()
                },
            )
            for datum in data
        ]

    def adam(self, options: dict[str, float]) -> Any:
        """The SDK's type."""
        return self._sdk.types.AdamParams(**options)

    def save(self, folder: Path, name: str) -> str:
        """Have the server save it by this name."""
        return self.client.save_state(name).result().path

    def another(self, table: "ClientTable") -> Any:
        """A second model on the same server."""
        try:
            return self._made(table.model, table.seed)
        except Exception as error:
            raise self._failure(error) from error

    def close(self, status: str) -> None:
        """Close the session, without waiting long for the server."""
        finish = getattr(self._service, "close", None)
        if finish is None:
            return
        try:
            finish(status).result(_GOODBYE)
        except Exception as error:
            warnings.warn(f"could not close the session on the server: {hide(said(error))}", stacklevel=2)
