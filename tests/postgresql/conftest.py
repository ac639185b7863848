import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cluster import Cluster, running

# `make test-servers` asks for these; elsewhere they are no tests.
collect_ignore_glob = [] if os.environ.get("PENALTIES_POSTGRESQL") else ["test_*.py"]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    # Not in the folder of pytest, which no other user may enter.
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as cluster:
        yield cluster
