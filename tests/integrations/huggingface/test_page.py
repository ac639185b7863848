"""The page and the example of this framework run, and show what they promise."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.pages import run

ROOT = Path(__file__).parents[3]


def test_code_on_the_page_runs_and_prints_what_it_says():
    run("docs/trainers/huggingface.md", (ROOT / "docs" / "trainers" / "huggingface.md").read_text())


def test_the_example_finds_the_right_labels_among_wrong_ones():
    command = [sys.executable, "-W", "error", "examples/trainers/huggingface.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert not result.stderr
    *_, without, penalised = result.stdout.splitlines()
    accuracies = [float(re.search(r"test accuracy +([\d.]+)%", line)[1]) for line in (without, penalised)]
    assert accuracies[0] < 80 < 90 < accuracies[1]
