import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# `make test-servers` has an environment for these; elsewhere they are no tests.
collect_ignore_glob = [] if importlib.util.find_spec("skyrl") else ["*.py"]


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
    import tinker

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINKER_TELEMETRY", "0")  # it would go to this server, which keeps none
        service = tinker.ServiceClient(base_url=server.url, api_key="tml-none")
        yield service
        service.holder.close()
