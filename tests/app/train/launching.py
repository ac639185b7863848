"""The program in several processes, as a launcher starts it, or by a launcher."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

WAIT = 240.0


class Ended(NamedTuple):
    """A process that ended."""

    status: int
    out: str
    err: str


class Launched:
    """The program in some processes that know of each other; by `with`, none is left behind."""

    def __init__(self, folder: Path, arguments: Sequence[str], count: int = 2) -> None:
        """Start them in a folder."""
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "penalties", *arguments],
                cwd=folder,
                env=_environment(rank, count, port),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for port in [free_port()]
            for rank in range(count)
        ]

    def ended(self) -> list[Ended]:
        """Wait for all of them."""
        found: list[Ended] = []
        for process in self.processes:
            out, err = process.communicate(timeout=WAIT)
            found.append(Ended(process.returncode, out, err))
        return found

    def __enter__(self) -> "Launched":
        return self

    def __exit__(self, *exception: Any) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError):
                process.kill()
            process.communicate()


def run(folder: Path, *arguments: str, count: int = 2) -> list[Ended]:
    with Launched(folder, arguments, count) as launched:
        return launched.ended()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def plain_environment() -> dict[str, str]:
    """Without what a launcher sets, and with the paths of this process."""
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


def _environment(rank: int, count: int, port: int) -> dict[str, str]:
    if count == 1:
        return plain_environment()
    given = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return plain_environment() | {name: str(value) for name, value in given.items()}
