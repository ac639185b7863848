"""`penalties train` as a process, with faults in it, and what a run must come to whatever happened to it."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from penalties.app.runs.log import records
from tests.app.stand_ins import comparable

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]


def started(folder: Path, *arguments: Any, toy: bool, largest: int = -1, **fault: Any) -> subprocess.Popen[str]:
    """Train the run of a folder; `largest` limits the size of files, and the rest is for `startup/sitecustomize.py`."""
    paths = [str(_HERE / "startup"), str(_ROOT / "src"), str(_ROOT)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    if toy:
        environment["PENALTIES_TOY"] = "1"
    if fault:
        environment["PENALTIES_FAULT"] = json.dumps({"folder": str(folder), **fault})

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))

    return subprocess.Popen(
        [sys.executable, "-m", "penalties", "train", *map(str, arguments), "--run", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=limit,
    )


def trained(folder: Path, *arguments: Any, toy: bool, **options: Any) -> tuple[int, str]:
    """The status of the process, below zero for the signal that ended it, and its error."""
    process = started(folder, *arguments, toy=toy, **options)
    _, error = process.communicate(timeout=300)
    assert "Traceback" not in error, error
    return process.returncode, error


def result(folder: Path) -> tuple[dict[str, bytes], list[Any]]:
    """Everything that must be equal: the weights, the optimizer and the state of terms, to the bit, and the log."""
    last = max((folder / "checkpoints").iterdir())
    weights = {path.name: path.read_bytes() for path in sorted(last.rglob("*.safetensors"))}
    assert len(weights) > 1
    return weights, comparable(list(records(folder / "metrics.jsonl")))
