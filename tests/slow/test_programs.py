"""Programs that end in the middle, each in a process of its own: interrupted, killed, forked."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from . import resources

pytestmark = pytest.mark.slow

PATIENCE = 40.0
"""Seconds in which a program has ended, on a machine that has other things to do; what it waits for takes longer."""

PREAMBLE = """
import asyncio, os, sys, time
import numpy as np
import penalties as pn

def squares(x):
    return (x * x).sum()

def hangs(x):
    time.sleep(60)

def holds_the_lock(x):
    return sum(range(10**11)) * x.sum()

async def waits(x):
    await asyncio.sleep(60)

x = np.ones(20_000)
executor = pn.Executor(max_workers=3)
executor.run(pn.Pipeline([pn.Term(squares, runs="process")]), {"x": x})
mixed = pn.Pipeline([pn.Term(hangs, name=where, runs=where) for where in ("process", "thread")] + [pn.Term(waits)])
stubborn = pn.Pipeline([pn.Term(holds_the_lock, runs="process")])
print("ready", flush=True)
"""
# No `if __name__ == "__main__"`: workers do not run the script again.
RUNNING = "with executor:\n    executor.run(mixed, {'x': x})\n"
STUBBORN = "with executor:\n    executor.run(stubborn, {'x': x})\n"
LOOPING = (
    "with executor:\n    while True:\n        executor.run(pn.Pipeline([pn.Term(squares, runs='process')]), {'x': x})\n"
)
IDLE = "time.sleep(60)\n"


class Program:
    """A script that runs, and what it holds."""

    def __init__(self, folder: Path, body: str) -> None:
        script = folder / "program.py"
        script.write_text(textwrap.dedent(PREAMBLE) + body)
        self.token = os.urandom(8).hex()
        self.shared = set(os.listdir("/dev/shm"))
        self.process = subprocess.Popen(
            [sys.executable, script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, resources.MARK: self.token, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n", self.process.communicate()[1]
        time.sleep(0.7)
        self.blocks = {
            name
            for pid in resources.marked(self.token)
            for name in (entry.name for entry in Path("/dev/shm").iterdir())
            if name in resources.mapped(pid)
        }

    def end(self, how: Callable[[int], object] | None) -> tuple[int, str]:
        """Its status and what it said; it is to end soon, with everything that it started and shared."""
        if how is not None:
            assert self.process.poll() is None, self.process.communicate()[1]
            how(self.process.pid)
        end = time.monotonic() + PATIENCE
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=PATIENCE)
        left = self._left(end)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _, said = self.process.communicate()
        assert not left, f"still run: {left}"
        still = {name for name in self.blocks if (Path("/dev/shm") / name).exists()}
        assert not still, f"still in /dev/shm: {still}"
        return self.process.returncode, said

    def _left(self, end: float) -> dict[int, str]:
        while True:
            left = {pid: resources.command(pid) for pid in resources.marked(self.token, trackers=True)}
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.05)


def to_it(number: int) -> Callable[[int], None]:
    return lambda pid: os.kill(pid, number)


def to_all(number: int) -> Callable[[int], None]:
    """As a terminal does."""
    return lambda pid: os.killpg(pid, number)


def twice(number: int) -> Callable[[int], None]:
    def send(pid: int) -> None:
        os.killpg(pid, number)
        time.sleep(0.15)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)

    return send


BODIES = {"running": RUNNING, "stubborn": STUBBORN, "looping": LOOPING, "idle": IDLE}


@pytest.mark.parametrize(
    ("body", "send"),
    [*((body, to_all) for body in BODIES), ("running", to_it), ("running", twice), ("stubborn", twice)],
)
def test_interrupt(tmp_path: Path, body: str, send: Any) -> None:
    program = Program(tmp_path, BODIES[body])
    status, said = program.end(send(signal.SIGINT))
    assert status in (1, -signal.SIGINT)
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert "leaked" not in said


@pytest.mark.parametrize(
    ("body", "number"), [*((body, signal.SIGKILL) for body in BODIES), ("running", signal.SIGTERM)]
)
def test_the_caller_is_killed(tmp_path: Path, body: str, number: int) -> None:
    status, _ = Program(tmp_path, BODIES[body]).end(to_it(number))
    assert status == -number


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ("", 0, ""),
        ("sys.exit(4)", 4, ""),
        ("raise ValueError('of the user')", 1, "ValueError: of the user"),
        ("with executor:\n    raise ValueError('of the user')", 1, "ValueError: of the user"),
        (
            "executor.run(pn.Pipeline([pn.Term(hangs, runs='thread', timeout=0.1, on_error='skip')]), {'x': x})",
            0,
            "",
        ),
    ],
    ids=["end", "exit", "raise", "raise inside", "abandoned thread"],
)
def test_a_program_that_ends_without_closing(tmp_path: Path, body: str, status: int, says: str) -> None:
    found, said = Program(tmp_path, body).end(None)
    assert found == status, said
    assert said.rstrip().endswith(says)
    assert said.count("Traceback") == (1 if says else 0), said
    assert "leaked" not in said


FORKING = {
    "exits": "sys.exit(0)",
    "raises": "raise ValueError('in the child')",
    "closes": "executor.close(); os._exit(0)",
    "forgets": "import gc\n    del executor\n    gc.collect()\n    os._exit(0)",
}


@pytest.mark.parametrize("child", FORKING)
def test_a_caller_that_forks(tmp_path: Path, child: str) -> None:
    """What the child does with its copy is nothing to the parent, whose terms run on."""
    body = f"""
import threading
ended = []
def slow(x):
    time.sleep(1.0)
    return squares(x)
p = pn.Pipeline([pn.Term(slow, runs="process"), pn.Term(squares, runs="thread")])
caller = threading.Thread(target=lambda: ended.append(float(executor.run(p, {{"x": x}}).total)))
caller.start()
time.sleep(0.3)
pid = os.fork()
if pid == 0:
    sys.stderr = open(os.devnull, "w") if {child!r} == "raises" else sys.stderr
    {FORKING[child]}
os.waitpid(pid, 0)
caller.join()
assert ended == [40_000.0], ended
assert float(executor.run(p, {{"x": x}}).total) == 40_000.0
executor.close()
"""
    status, said = Program(tmp_path, body).end(None)
    assert (status, said) == (0, "")


def test_little_shared_memory(tmp_path: Path) -> None:
    """As in containers, where it is 64 MB: an array that does not fit is no reason to die."""
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(PREAMBLE)
        + """
import torch

large = torch.ones(20_000_000, dtype=torch.float64, requires_grad=True)
for _ in range(2):
    out = executor.run(pn.Pipeline([pn.Term(squares, runs="process", on_error="skip")]), {"x": large})
    error = out["squares"].error
    assert error is not None or float(out.total) == 20_000_000.0, out
assert float(executor.run(pn.Pipeline([pn.Term(squares, runs="process")]), {"x": x}).total) == 20_000.0
executor.close()
"""
    )
    small = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    mount = "mount -t tmpfs -o size=64m tmpfs /dev/shm"
    try:
        subprocess.run([*small, mount], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to mount a file system of its own")
    found = subprocess.run(
        [*small, f'{mount} && exec "$0" "$1"', sys.executable, script],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert found.returncode == 0, found.stderr
