"""The server as a thing to start, use and stop."""

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0  # the first call of a kind compiles, for up to 20 s on a busy machine
OPTIONS = {"max_lora_adapters": 8, "max_lora_rank": 8}  # the first adapter is the server's own

_numbers = itertools.count()


@dataclass(frozen=True)
class Server:
    """Where it answers, which model it trains, and where it writes adapters."""

    url: str
    model: Path
    checkpoints: Path

    def export(self, client: Any) -> Path:
        """Write the adapter of a client, and say where."""
        name = f"adapter-{next(_numbers)}"
        client.save_weights_for_sampler(name).result(PATIENCE)
        return self.checkpoints / client.model_id / "sampler_weights" / f"{name}.tar.gz"


@contextlib.contextmanager
def running(model: Path, folder: Path, *, patience: float = 120.0) -> Iterator[Server]:
    """A server of `model` that keeps its files in `folder`, gone at the end with the process that it starts itself."""
    checkpoints = folder / "checkpoints"
    log = folder / "server.log"
    command = [
        *(sys.executable, "-m", "tests.skyrl.launcher", "serve"),
        *("--base-model", str(model)),
        *("--backend", "jax"),
        *("--backend-config", json.dumps(OPTIONS)),
        *("--checkpoints-base", str(checkpoints)),
        *("--database-url", f"sqlite:///{folder / 'server.db'}"),
    ]
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "JAX_PLATFORMS": "cpu",
        "TOKENIZERS_PARALLELISM": "false",
        # What was compiled for one run serves the next.
        "JAX_COMPILATION_CACHE_DIR": str(Path(sys.prefix, "jax-cache")),
        "COLUMNS": "1000",  # a line of the log stays a line
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group to end as one; and Ctrl-C reaches the tests first
        )
    try:
        port = _wait(process, log, patience)
        yield Server(f"http://127.0.0.1:{port}", model, checkpoints)
    finally:
        _stop(process)


def _wait(process: subprocess.Popen[bytes], log: Path, patience: float) -> int:
    """Its port, once the model is in memory."""
    end = time.monotonic() + patience
    while time.monotonic() < end and process.poll() is None:
        text = log.read_text(errors="replace")
        port = re.search(r"Listening on port (\d+)", text)
        if port and "Initialized base model" in text:
            return int(port[1])
        time.sleep(0.2)
    raise RuntimeError(
        f"the server was not ready in {patience:g} s; its log:\n{log.read_text(errors='replace')[-4000:]}"
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask, wait, then end whatever is left of its group."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin:
        process.stdin.close()
