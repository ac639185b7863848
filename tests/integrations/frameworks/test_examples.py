"""The examples for other frameworks train, without warnings, to what they promise; skipped without the framework."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EXAMPLES = {
    "equinox_pruning.py": (
        "equinox",
        r"group lasso 0\.3: test accuracy 99\.\d%, (\d|1\d) of 64 hidden units in use",
    ),
    "nnx_input_selection.py": ("flax", r"group lasso 0\.04: test accuracy 9[89]\.\d%, inputs in use \[0, 1\]"),
}


def test_every_example_is_run():
    assert sorted(path.name for path in (ROOT / "examples" / "frameworks").glob("*.py")) == sorted(EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_example_trains_to_what_it_promises(example: str):
    framework, line = EXAMPLES[example]
    pytest.importorskip(framework)
    pytest.importorskip("optax")
    command = [sys.executable, "-W", "error", f"examples/frameworks/{example}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert re.search(f"^{line}$", result.stdout, re.MULTILINE), result.stdout
