"""The page and the example of this framework run, and show what they promise."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

from tests.pages import run

ROOT = Path(__file__).parents[3]


def test_code_on_the_page_runs_and_prints_what_it_says() -> None:
    with warnings.catch_warnings():
        run("docs/trainers/keras.md", (ROOT / "docs" / "trainers" / "keras.md").read_text())


def test_the_example_learns_a_sparse_code() -> None:
    command = [sys.executable, "-W", "error", "examples/trainers/keras_sparse_code.py"]
    result = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    without, *_, penalised = result.stdout.splitlines()
    assert re.match(r"without penalties: test accuracy 9\d\.\d%, 1[4-7]\.\d of 32 units active, [3-6]\d% ", without)
    assert re.match(r"with penalties: test accuracy 99\.\d%, [1-3]\.\d of 32 units active, 0% of the kernel", penalised)
