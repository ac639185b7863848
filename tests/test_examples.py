"""The examples run as they stand, without warnings, and show what they promise."""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

KEY_LINES = {
    "http_service.py": r"^372 requests, \d+ of them failed, and no step was lost$",
    "jax_loop.py": r"^4002 steps with as many different weights: traced 1 time$",
    "knowledge_base.py": r"^with the facts: +7\d\.\d% of cities right, +\d\.\d% of answers against the facts$",
    "persistent_homology.py": r"^loops in the code of a knot: 4 without the term, 1 with it$",
    "pytorch_loop.py": r"^base_loss and confidence conflict: the cosine between their gradients is -0\.\d\d$",
    "quickstart.py": r"^after:  test accuracy",
    "smt_solver.py": r"^test accuracy with ten labels: [67]\d\.\d% without the solver, 9\d\.\d% with it$",
}


@functools.cache
def printed(example: str) -> str:
    command = [sys.executable, "-W", "error", f"examples/{example}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert not result.stderr
    return result.stdout


def accuracy(line: str) -> float:
    return float(re.search(r"test accuracy +([\d.]+)%", line)[1])


def test_every_example_is_run():
    assert [path.name for path in EXAMPLES] == sorted(KEY_LINES)


@pytest.mark.parametrize("example", KEY_LINES)
def test_example_prints_its_key_line(example: str):
    assert re.search(KEY_LINES[example], printed(example), re.MULTILINE)


def test_penalties_find_the_right_labels_among_wrong_ones():
    *_, without, penalised = printed("pytorch_loop.py").splitlines()
    assert accuracy(without) < 80 < 90 < accuracy(penalised)
    assert "inputs in use 30 of 30" in without


def test_penalties_find_the_inputs_that_matter():
    *_, truth, without, penalised = printed("jax_loop.py").splitlines()
    support = truth.partition(": ")[2]
    assert penalised.endswith(f"5 inputs in use: {support}")
    assert int(re.search(r"(\d+) inputs in use", without)[1]) > 50
