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


def accuracies(example: str) -> list[float]:
    """What the last two lines of an example say, without terms and with them."""
    command = [sys.executable, "-W", "error", f"examples/trainers/{example}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert not result.stderr
    *_, without, penalised = result.stdout.splitlines()
    return [float(re.search(r"test accuracy +([\d.]+)%", line)[1]) for line in (without, penalised)]


def test_the_example_finds_the_right_labels_among_wrong_ones():
    without, penalised = accuracies("huggingface.py")
    assert without < 80 < 90 < penalised


def test_the_example_of_trl_finds_the_rule_among_wrong_answers():
    without, penalised = accuracies("trl_first_letter.py")
    assert without < 85 < 90 < penalised
