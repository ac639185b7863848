"""Starts a module in two processes that know of each other, as torchrun does."""

import gc
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["leave", "torchrun"]


def torchrun(worker: ModuleType, folder: Path) -> list[dict[Any, Any]]:
    """What each rank saved as `rank0.pt` and `rank1.pt` in the folder, which the worker is given."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), *([os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else [])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    result = subprocess.run(
        [*command, worker.__name__, str(folder)], cwd=root, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]


def leave() -> None:
    """The end of a worker: threads of gloo that still run at exit may abort the process."""
    dist.barrier()
    # DDP is in a cycle with its process group.
    gc.collect()
    dist.destroy_process_group()
