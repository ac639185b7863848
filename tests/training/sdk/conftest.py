"""A server and its clients."""

from collections.abc import Iterator

import pytest
import tinker

from penalties.training import (
    LocalTrainingClient,
)
from tests.servers.sdk import Connected, connected


@pytest.fixture(scope="module")
def sdk() -> Iterator[Connected]:
    with connected() as made:
        yield made


@pytest.fixture
def client(sdk: Connected) -> Iterator[tinker.TrainingClient]:
    """A model of its own."""
    sdk.server.executed.clear()
    yield sdk.service.create_lora_training_client("tiny", rank=4, seed=0)
    assert not len(sdk.server.faults)


@pytest.fixture
def local() -> LocalTrainingClient:
    return LocalTrainingClient("tiny", rank=4, seed=0)
