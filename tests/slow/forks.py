"""A process that has loaded everything and forks runs: each begins in milliseconds, and can be killed at any moment.

Spoken with over its standard streams, a line of JSON each way: `{"config": …, "folder": …, "resume": …, "after": …,
"at": …}` forks a run, and is answered by its status. With `after` the run is killed after so many seconds, with `at` at
the n-th thing that it does to the disk. This process itself computes nothing: forked after PyTorch has, a run would
hang.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Self

_DISK = ("write", "fsync", "replace", "rename", "ftruncate", "mkdir", "unlink", "rmdir")


class Forks:
    """The process from outside."""

    def __init__(self, errors: Path) -> None:
        self._errors = errors.open("w")
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.slow.forks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )
        assert self._read() == "ready"

    def run(
        self,
        config: dict[str, Any],
        folder: Path,
        *,
        resume: bool = False,
        after: float | None = None,
        at: int | None = None,
    ) -> int:
        """Train; gives the status of the process; below zero, the signal that ended it."""
        assert self._process.stdin is not None
        request = {"config": config, "folder": str(folder), "resume": resume, "after": after, "at": at}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"it has ended; see {self._errors.name}"
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()
        self._errors.close()


def _serve() -> None:
    from penalties.app.config import Config
    from penalties.app.train import train

    _load_everything()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: Any) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    answer("ready")
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                if request["at"] is not None:
                    _die_at(request["at"])
                train(Config.from_dict(request["config"]), request["folder"], resume=request["resume"])
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            # As a program that ends, without the parent's own endings.
            os._exit(0)
        answer(_ended(child, request["after"]))


def _ended(child: int, after: float | None) -> int:
    """Wait for a run, and kill it where it takes longer than it has; gives its status."""
    if after is not None:
        deadline = time.monotonic() + after
        while (left := deadline - time.monotonic()) > 0:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(min(left, 0.005))
        # Nobody has waited for it yet, so that its number is still its own.
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _load_everything() -> None:
    for module in ("peft", "transformers.models.qwen3", "penalties.app.data", "penalties.training.local"):
        importlib.import_module(module)
    # A name loads what is behind it.
    from transformers import AutoModelForCausalLM, Qwen3ForCausalLM  # noqa: F401


def _die_at(count: int) -> None:
    """Kill this process at the n-th thing that it does to the disk."""
    left = [count]

    def deadly(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    for name in _DISK:
        setattr(os, name, deadly(getattr(os, name)))


if __name__ == "__main__":
    _serve()
