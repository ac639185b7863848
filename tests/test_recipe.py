"""CONTRIBUTING's recipe for a new penalty, followed: one function in one file, one name in `functional.__all__`."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import penalties as pn

ROOT = Path(__file__).parent.parent

USE = """
import json
import numpy as np
import penalties as pn
from penalties.app.config.schema import schema
from penalties.functional.penalty import facts_of
from penalties.pipeline.catalogue import BUILT_IN
from tests.cases import CASES

x = np.array([[1.0, 3.0, 2.0], [0.0, 0.0, 5.0]])
assert "total_variation" in pn.__all__ and "total_variation" in dir(pn)
assert float(pn.total_variation(x)) == 8.0
assert BUILT_IN["total_variation"] is pn.total_variation
term = pn.Term("total_variation", options={"reduction": "mean"}, chunk=1)
assert float(pn.Pipeline([term])(x).total) == 2.0
try:
    pn.Term("total_variation", options={"reduction": "average"})
except pn.OptionError as error:
    assert "sum" in str(error)
else:
    raise AssertionError("a wrong option went through")
assert "total_variation" in json.dumps(schema())
assert float(pn.total_variation(*facts_of(pn.total_variation).example())) > 0
assert "total_variation" in [case.name for case in CASES]
print(pn.__file__)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the package with the penalty that CONTRIBUTING writes."""
    recipe = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?def total_variation.*?)```", recipe, re.DOTALL)
    assert code is not None, "CONTRIBUTING writes total_variation"
    copy = tmp_path / "src" / "penalties"
    shutil.copytree(Path(pn.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    written = code[1].replace("penalties.functional.", ".").replace("penalties.functional ", ". ")
    written = re.sub(r"from penalties\.", "from ..", written)
    (copy / "functional" / "variation.py").write_text(written.rpartition("\n\n\nprint(")[0] + "\n", encoding="utf-8")
    listing = copy / "functional" / "__init__.py"
    text = listing.read_text(encoding="utf-8")
    text = text.replace("\n__all__ = [", "from .variation import total_variation\n\n__all__ = [")
    text = text.replace('    "valid_logprobs",', '    "total_variation",\n    "valid_logprobs",')
    listing.write_text(text, encoding="utf-8")
    return tmp_path / "src"


def test_a_penalty_is_one_function_and_one_name(source: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", USE],
        cwd=source,
        env={"PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(source))
