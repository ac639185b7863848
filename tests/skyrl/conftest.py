import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# `make test-servers` has an environment for these; elsewhere they are no tests.
collect_ignore_glob = [] if importlib.util.find_spec("skyrl") else ["*.py"]

PATIENCE = 60.0  # the first call of a kind compiles for up to 20 s where others use the machine


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from .model import save_model
    from .server import running

    folder: Path = tmp_path_factory.mktemp("skyrl")
    save_model(folder / "model")
    with running(folder / "model", folder) as server:
        yield server


@pytest.fixture(scope="session")
def service(server: Any) -> Iterator[Any]:
    os.environ["TINKER_TELEMETRY"] = "0"
    import tinker

    service = tinker.ServiceClient(base_url=server.url, api_key="tml-none")
    yield service
    service.holder.close()
