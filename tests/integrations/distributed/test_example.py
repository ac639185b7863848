"""The example for several processes trains under torchrun as in one process, and prints once."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def printed(*launcher: str) -> list[str]:
    command = [sys.executable, "-W", "error", *launcher, "examples/distributed_loop.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


@pytest.mark.slow
def test_two_processes_train_as_one_and_print_once():
    alone, together = printed(), printed(*TORCHRUN)
    assert len(alone) == len(together)
    for line, other in zip(alone, together, strict=True):
        numbers, others = (list(map(float, re.findall(r"-?\d+\.\d+", one))) for one in (line, other))
        # L1 oscillates about 0, so differences in the last digit grow.
        assert numbers == pytest.approx(others, rel=0.03, abs=1e-3)
    accuracy, used = re.fullmatch(r"test accuracy +([\d.]+)%, inputs in use +(\d+) of 30", together[-1]).groups()
    assert float(accuracy) > 92
    assert int(used) == 2
