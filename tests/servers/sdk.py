"""The newest `tinker` SDK, connected to a protocol server.

What the SDK, 0.36, does where something goes wrong, as read in its sources and seen in the tests:

**Where a request is submitted** (`forward`, `forward_backward`, `optim_step`, `load_state`), it is sent up to 11 times,
with waits of 0.5, 1, 2, 4, 8 and then 10 s less up to a quarter, on 408, 409, 429, 5xx, a lost connection and after
60 s without an answer. `retry-after-ms` in an answer (here 20) replaces the wait, `x-should-retry: false` ends it.
Around that is a second loop, with waits of 1, 2, 4 … 30 s, until 300 s have gone by: against a server that stays away
a submission raises after five to six minutes. `save_state` and `asample` have the second loop alone, the creation of a
model or a session the first alone. Every attempt has the same `seq_id`: that a request is not carried out twice is up
to the server. Any other status (400, 401, 404, 410, 422) and an answer that cannot be read raise at once, and the
`seq_id` is spent: on a server that waits for it, what comes later waits too.

**Where an answer is asked for** (`retrieve_future`), there is no limit at all. 408 and 5xx: again at once, without any
wait. 429, a lost connection, 45 s without an answer: again after 1, 2, 4 … 30 s. 400: three times. 410:
`RetryableException`. Anything else, as 404 from a server that has forgotten the request: `ValueError`. A payload that
cannot be read: `ValueError`. So `.result(timeout)` is the only guard against a server that never comes back.

**Telemetry**: an error that ends a call is reported first, and the call waits up to 30 s for that to be taken.
`TINKER_TELEMETRY=0` is the way to see errors at once from a server that is away.

**Chunks** of one call are sent at once, the first one last. Where one of the others cannot be submitted, the first is
never sent and its turn never taken: every later call of that client waits for ever. `parallel_fwdbwd_chunks: False`
in the client config sends them one by one.

**To shorten it in tests**: `retry-after-ms`, the client config that the server hands out (size of chunks, transport,
compression), and `TINKER_TELEMETRY`. There is no setting for the other waits.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest import mock

import tinker

from penalties.training import LocalTrainingClient

from .averaging import AveragingClient
from .protocol_server import ProtocolServer
from .service import Settings

LIMIT = 30.0
"""Seconds that anything may take before it counts as hanging."""


class Connected(NamedTuple):
    """A server, the SDK's client of it, and a model there."""

    server: ProtocolServer
    service: tinker.ServiceClient
    client: tinker.TrainingClient

    @property
    def behind(self) -> Any:
        """The local client that the server runs for the model."""
        return self.server.service.models[self.client.model_id].client


@contextmanager
def connected(
    *, telemetry: bool = False, seed: int = 0, rank: int = 4, averages: bool = False, **settings: Any
) -> Iterator[Connected]:
    """The SDK with a model, on a server of its own. `config` is what the SDK is told to do."""
    kind = AveragingClient if averages else LocalTrainingClient
    clients: list[LocalTrainingClient] = []

    def local_client(base: str, rank: int, seed: int) -> LocalTrainingClient:
        clients.append(kind(base, rank=rank, seed=seed, checkpoints=folder))
        return clients[-1]

    environment = {"TINKER_TELEMETRY": str(int(telemetry)), "TINKER_BASE_URL": "", "TINKER_PROJECT_ID": ""}
    server = ProtocolServer(local_client, Settings(**settings))
    with TemporaryDirectory() as folder, mock.patch.dict(os.environ, environment), server:
        service = tinker.ServiceClient(base_url=server.url, api_key=server.settings.api_key)
        try:
            yield Connected(server, service, service.create_lora_training_client("tiny", rank=rank, seed=seed))
        finally:
            # A server that has lost everything does not know the session.
            with suppress(tinker.NotFoundError):
                service.close("success").result(LIMIT)
            for client in clients:
                client.close()
