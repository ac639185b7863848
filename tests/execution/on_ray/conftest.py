import logging
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import penalties as pn

from .terms import connect


@pytest.fixture(scope="class")
def executor() -> Iterator[pn.Executor]:
    """One that starts a cluster on this machine."""
    import ray

    assert not ray.is_initialized()
    with pn.Executor(max_workers=2, timeout=120.0) as executor:
        yield executor
    assert not ray.is_initialized()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("penalties-ray")]


@pytest.fixture(scope="class")
def theirs() -> Iterator[None]:
    """A cluster that the user is connected to."""
    import ray

    connect()
    yield
    ray.shutdown()


@pytest.fixture
def nodes() -> Iterator[Any]:
    """Two machines, both of them this one, and a node that only holds the cluster together."""
    import ray
    from ray.cluster_utils import Cluster as Machines

    memory = {"object_store_memory": 100_000_000, "include_dashboard": False}
    machines = Machines(initialize_head=True, head_node_args={"num_cpus": 0, **memory})
    first, second = (machines.add_node(num_cpus=2, object_store_memory=100_000_000) for _ in range(2))
    ray.init(address=machines.address, log_to_driver=False, logging_level=logging.ERROR)
    machines.wait_for_nodes()
    yield SimpleNamespace(machines=machines, first=first, second=second)
    ray.shutdown()
    machines.shutdown()
