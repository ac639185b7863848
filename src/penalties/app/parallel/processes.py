"""Processes on this machine that train runs, each with its own GPU where there are several."""

import contextlib
import importlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..runs.disk import writing
from .driving import Failure
from .worker import STOP, end_group

if TYPE_CHECKING:
    from ..config import Config

__all__ = ["Processes", "devices_for"]

_PASSIVE: Final = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
"""Threads that wait leave the processors to the other processes. Their number stays: it changes the last bits."""

_DRIVERS: Final = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Of NVIDIA, of AMD, and of Windows underneath."""


def devices_for(configs: "Sequence[Config]") -> list[str]:
    """The names of the GPUs to share out, as `CUDA_VISIBLE_DEVICES` has them; none if runs choose their own."""
    if any(one.backend.kind != "local" or one.model.device not in (None, "cuda") for one in configs):
        return []
    if sys.platform == "linux" and not any(map(os.path.exists, _DRIVERS)):
        # Importing PyTorch takes seconds, in which no process would start.
        return []
    torch: Any = importlib.import_module("torch")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    given = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]
    names = given if len(given) == count else [str(number) for number in range(count)]
    return names if count > 1 else []


_Ended: TypeAlias = tuple[Path, Failure | None]
_Answer: TypeAlias = "tuple[subprocess.Popen[str], dict[str, Any] | None]"
"""Of a process; None where it died."""


class Processes:
    """As many processes as runs at once; each trains one run after the other."""

    def __init__(self, count: int, logs: Path, devices: Sequence[str] = ()) -> None:
        """Processes start with the first runs; what they print goes to files in a folder."""
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._idle: list[_Process] = []
        self._busy: dict[Path, _Process] = {}
        for number in range(count):
            device = {"CUDA_VISIBLE_DEVICES": devices[number % len(devices)]} if devices else {}
            self._idle.append(_Process(logs / f"worker-{number + 1}.log", device, self._answers))

    @property
    def free(self) -> int:
        """Those without a run."""
        return len(self._idle)

    def submit(self, folder: Path) -> None:
        """Give a run to a process that has none."""
        process = self._idle.pop(0)
        self._busy[folder] = process
        process.order(str(folder))

    def wait(self, seconds: float) -> list[_Ended]:
        """The runs that ended; one whose process died failed."""
        ended: list[_Ended] = []
        with contextlib.suppress(queue.Empty):
            ended += self._ended(*self._answers.get(timeout=seconds))
            while True:
                ended += self._ended(*self._answers.get_nowait())
        return ended

    def _ended(self, process: "subprocess.Popen[str]", answer: dict[str, Any] | None) -> Iterator[_Ended]:
        folder = next((one for one, by in self._busy.items() if by.process is process), None)
        if folder is None:
            # It died without a run; it is started again with the next.
            return
        failure = Failure(self._busy[folder].obituary()) if answer is None else Failure(**answer) if answer else None
        self._idle.append(self._busy.pop(folder))
        yield folder, failure

    def interrupt(self) -> None:
        """Tell those that have a run."""
        for process in self._busy.values():
            process.order(STOP)

    def close(self) -> None:
        """Kill all of them."""
        for process in [*self._idle, *self._busy.values()]:
            process.end()


class _Process:
    """A process, started with its first order and again if it died."""

    def __init__(self, log: Path, environment: Mapping[str, str], answers: "queue.SimpleQueue[Any]") -> None:
        self._log = log
        self._environment = environment
        self._answers = answers
        self.process: subprocess.Popen[str] | None = None

    def order(self, what: str) -> None:
        if self.process is None or self.process.poll() is not None:
            if what == STOP:
                return
            self._start()
        assert self.process is not None
        assert self.process.stdin is not None
        # If it dies now, its reader says so.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{json.dumps(what)}\n")
            self.process.stdin.flush()

    def _start(self) -> None:
        self.end()
        with writing(self._log), open(self._log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penalties.app.parallel.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                env={**_PASSIVE, **os.environ, **self._environment},
                # Ctrl-C reaches us alone, and we tell the others.
                start_new_session=True,
            )
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self._answers.put((process, json.loads(line)))
        process.wait()
        self._answers.put((process, None))

    def obituary(self) -> str:
        """How it died, in words."""
        code = None if self.process is None else self.process.returncode
        return f"its process ended with exit code {code}; {self._log} has what it printed"

    def end(self) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            end_group(self.process.pid)
        # Where there are no groups.
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
