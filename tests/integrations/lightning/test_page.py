"""The page and the example of this framework run, and show what they promise."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

from tests.pages import run

ROOT = Path(__file__).parents[3]


def test_code_on_the_page_runs_and_prints_what_it_says() -> None:
    with warnings.catch_warnings():
        run("docs/trainers/lightning.md", (ROOT / "docs" / "trainers" / "lightning.md").read_text())


def test_the_example_finds_the_hidden_dimensions() -> None:
    command = [sys.executable, "-W", "error", "examples/trainers/lightning_autoencoder.py"]
    result = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    without, penalised, *_ = result.stdout.splitlines()
    assert "dimensions in use 8 of 8" in without
    assert "dimensions in use 3 of 8" in penalised
    assert float(penalised.split()[-1].rstrip("%")) > 99
