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
from penalties.app.catalogue.entries import entries
from penalties.app.config.schema import schema
from penalties.pipeline.catalogue import BUILT_IN

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
assert "total_variation" in [entry.name for entry in entries() if entry.kind == "penalty"]
print(pn.__file__)
"""

OTHERS = '''

@penalty(rows=True, classes=True, example=examples.pair)
def variation_distance(a: ArrayT, b: ArrayT, *, reduction: str = "sum") -> ArrayT:
    """The total variation of a difference, which takes two arrays.

    - `a`, `b`: arrays of one shape.
    - `reduction`: as in `total_variation`.
    """
    ops = backend_of("variation_distance", a=a, b=b)
    check_same_shape("variation_distance", a=a, b=b)
    first, second = (ops.upcast("variation_distance", x) for x in (a, b))
    return total_variation(first - second, reduction=reduction)


@penalty(needs_gradient=True, example=examples.samples)
def variation_penalty(fn: Callable[[Any], Any], x: ArrayT) -> ArrayT:
    """The total variation of a slope, which takes a function.

    - `fn`: a function of samples.
    - `x`: where its slope is taken.
    """
    return total_variation(backend_of("variation_penalty", x=x).value_and_gradient("variation_penalty", fn, x)[1])
'''
"""Penalties of other kinds, written by the same recipe."""

CHECKED = (
    "tests/test_bad_input.py",
    "tests/test_facts.py",
    "tests/test_gradients.py",
    "tests/test_parity.py",
    "tests/app/test_catalogue.py",
    "tests/app/config/test_schema.py",
    "tests/execution/test_parity.py",
    "tests/fuzz/test_functions.py",
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the penalty that CONTRIBUTING writes, and others like it."""
    recipe = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?def total_variation.*?)```", recipe, re.DOTALL)
    assert code is not None, "CONTRIBUTING writes total_variation"
    folder = tmp_path_factory.mktemp("recipe")
    copy = folder / "src" / "penalties"
    shutil.copytree(Path(pn.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    written = code[1].replace("penalties.functional.", ".").replace("penalties.functional ", ". ")
    written = re.sub(r"from penalties\.", "from ..", written).rpartition("\n\n\nprint(")[0]
    imports = "from collections.abc import Callable\nfrom typing import Any\nfrom .options import check_same_shape\n"
    (copy / "functional" / "variation.py").write_text(f"{imports}{written}\n{OTHERS}", encoding="utf-8")
    names = re.findall(r"^def (\w+)", written + OTHERS, re.MULTILINE)
    listing = copy / "functional" / "__init__.py"
    text = listing.read_text(encoding="utf-8")
    text = text.replace("\n__all__ = [", f"from .variation import {', '.join(names)}\n\n__all__ = [")
    text = text.replace('    "valid_logprobs",\n', "".join(f'    "{name}",\n' for name in (*names, "valid_logprobs")))
    listing.write_text(text, encoding="utf-8")
    followed(folder / "src", "-m", "penalties", "schema", "--out", str(copy / "app" / "config" / "schema.json"))
    return folder / "src"


def followed(source: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python on the copy."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**own, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_a_penalty_is_one_function_and_one_name(source: Path) -> None:
    assert followed(source, "-c", USE).stdout.startswith(str(source))


def test_the_program_lists_and_describes_it(source: Path) -> None:
    assert "\n  total_variation " in followed(source, "-m", "penalties", "list", "penalty").stdout
    shown = followed(source, "-m", "penalties", "describe", "total_variation").stdout
    assert 'fn = "total_variation"\n    weight = 0.01\n    inputs = ["flat_logits"]' in shown


@pytest.mark.slow
def test_the_tests_of_all_penalties_find_it_and_pass(source: Path) -> None:
    options = ["-v", "-n", "0", "-p", "no:cacheprovider", "-k", "variation or file_is_current", "-m", "not slow"]
    shown = followed(source, "-m", "pytest", *options, *CHECKED).stdout
    for file in CHECKED:
        assert re.search(rf"^{file}::.*variation.* PASSED", shown, re.MULTILINE), f"{file}: {shown}"
