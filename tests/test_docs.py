"""The documentation: its code runs and prints what it says, and no public name is missing from it."""

import importlib
import importlib.util
import inspect
import operator
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from docs._plots import matrix

import penalties
from penalties import functional
from tests.pages import PYTHON, run

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
FAMILIES = ("norms", "divergences", "estimators", "structure", "smoothness", "logprobs", "finite", "precomputed")

NAMES = [name for name in penalties.__all__ if name != "__version__"]
FUNCTIONS = functional.__all__
MODULES = [name for name in NAMES if inspect.ismodule(getattr(penalties, name))]
MEMBERS = [f"{module}.{member}" for module in MODULES for member in getattr(penalties, module).__all__]

# What one gets and does not make: the pages have them as `out`, `out["l1"]`, `explanation`; and a protocol.
RETURNED = ("TermOutput", "Explanation", "Regularizer")

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def page_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def headings(path: Path) -> list[str]:
    return re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text()), re.MULTILINE)


def test_a_page_that_prints_something_else_fails():
    page = "```python\nx = 1\n```\n\n```python\nprint(x)\n```\n\n```text\n{}\n```\n"
    run("page", page.format(1))
    with pytest.raises(AssertionError):
        run("page", page.format(2))


def test_a_page_that_prints_without_saying_so_fails():
    with pytest.raises(AssertionError):
        run("page", "```python\nprint(1)\n```\n\nText in between.\n\n```text\n1\n```\n")


# Pages of notebooks are what the notebooks print: their own tests run them.
# Pages of trainers need those, so that the tests of integrations run them.
WRITTEN = [path for path in PAGES if path.parent not in (DOCS / "notebooks", DOCS / "trainers")]


# Those that compile the most run among the slow tests.
COMPILING = [DOCS / name for name in ("own-terms.md", "composing.md", "backends.md")]


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=page_id(path), marks=pytest.mark.slow if path in COMPILING else ()) for path in WRITTEN],
)
def test_code_on_the_page_runs_and_prints_what_it_says(path: Path):
    text = path.read_text()
    # A fence that the extractor does not see, because it is indented, would never run.
    assert len(PYTHON.findall(text)) == len(re.findall(r"^\s*```\s*(?:python|py)\b", text, re.MULTILINE))
    run(page_id(path), text)


@pytest.mark.parametrize("path", [path for path in PAGES if path.parent == ROOT], ids=page_id)
def test_links_of_the_page_lead_somewhere(path: Path):
    # Those inside docs/ are checked when the site is built.
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", path.read_text()) if "://" not in target]
    for target in targets:
        file, _, anchor = target.partition("#")
        assert (path.parent / file).is_file(), target
        if anchor:
            assert anchor in [heading.lower().replace(" ", "-") for heading in headings(path.parent / file)], target


def public(name: str) -> object:
    """What `penalties.name` is, where the name may lie in one of the public modules."""
    return operator.attrgetter(name)(penalties)


def is_code(thing: object) -> bool:
    """A function or a class. Modules have members instead, and what else there is has its docstring in the source."""
    return inspect.isfunction(thing) or inspect.isclass(thing)


def api_entries() -> dict[str, dict[str, Any]]:
    """The entries of the API page with their options."""
    found = re.findall(r"^::: penalties\.([\w.]+)\n((?:    .*\n)*)", (DOCS / "api.md").read_text(), re.MULTILINE)
    names = [name for name, _ in found]
    assert len(set(names)) == len(names)
    return {name: (yaml.safe_load(options) or {}).get("options", {}) for name, options in found}


def test_modules_that_pages_run_with_m_can_be_run():
    found = {name for path in PAGES for name in re.findall(r"-m (penalties[\w.]*)", path.read_text())}
    assert "penalties" in found
    for name in found:
        spec = importlib.util.find_spec(name)
        assert spec is not None, name
        # A package runs if it has a __main__.
        assert spec.submodule_search_locations is None or importlib.util.find_spec(f"{name}.__main__"), name


def test_every_penalty_is_public():
    assert set(FUNCTIONS) <= set(NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES + MEMBERS if is_code(public(name))])
def test_public_name_has_a_docstring_with_an_example(name: str):
    docstring = public(name).__doc__
    assert docstring
    assert ">>> " in docstring


# What an editor shows where these are written must be enough to call them. Penalties are checked with their facts.
CALLED = (
    "Term",
    "Pipeline",
    "Pipeline.__call__",
    "Pipeline.value_and_grad",
    "Executor",
    "Executor.run",
    "Monitor",
    "explain",
    "wrap_loss",
    "train_step",
    "gradients.track",
    "training.forward_backward_custom",
)


@pytest.mark.parametrize("name", CALLED)
def test_docstring_names_every_parameter(name: str):
    thing = public(name)
    docstring = f"{thing.__doc__}{thing.__init__.__doc__ if inspect.isclass(thing) else ''}"
    parameters = [
        parameter.name
        for parameter in inspect.signature(thing).parameters.values()
        if parameter.name != "self" and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    assert not [parameter for parameter in parameters if not re.search(rf"`{parameter}\b", docstring)]


@pytest.mark.parametrize("name", MODULES)
def test_public_module_says_what_it_is(name: str):
    assert public(name).__doc__


@pytest.mark.parametrize("name", NAMES)
def test_public_name_is_on_the_api_page(name: str):
    entries = (DOCS / "api.md").read_text().splitlines()
    assert entries.count(f"::: penalties.{name}") == 1


@pytest.mark.parametrize("name", MODULES)
def test_every_member_of_a_public_module_is_on_the_api_page(name: str):
    assert sorted(api_entries()[name]["members"]) == sorted(public(name).__all__)


def test_api_page_has_no_name_that_is_not_public():
    entries = api_entries()
    assert sorted(name for name in entries if "." not in name) == sorted(NAMES)
    # What public functions return may have an entry where it lives.
    for name in entries:
        package, _, member = name.rpartition(".")
        assert not package or member in importlib.import_module(f"penalties.{package}").__all__


@pytest.mark.parametrize("name", [name for name in NAMES if name not in FUNCTIONS and not name.endswith("Error")])
def test_other_names_are_shown_at_work_on_a_page(name: str):
    """A penalty has its own section; everything else is used in code that a page runs."""
    code = "".join(code for path in PAGES for code, _ in PYTHON.findall(path.read_text()))
    assert re.search(rf"\b(?:pn\.|penalties\.|import .*){name}\b", code) or name in RETURNED


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_has_its_own_section_on_one_family_page(name: str):
    pages = [family for family in FAMILIES if name in headings(DOCS / f"{family}.md")]
    assert len(pages) == 1


@pytest.mark.parametrize("name", FUNCTIONS)
def test_section_of_the_function_says_what_one_needs_to_know(name: str):
    (section,) = (
        found[0]
        for family in FAMILIES
        if (found := re.findall(rf"^## {name}\n(.*?)(?=^## |\Z)", (DOCS / f"{family}.md").read_text(), re.M | re.S))
    )
    for part in ("When", "Typical weights", "ptions", "dges", "radient"):
        assert re.search(rf"\*\*[^*]*{part}[^*]*\*\*", section), part
    assert "```python" in section
    assert "```text" in section


def test_every_page_is_in_the_navigation_once():
    _, _, navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")
    listed = re.findall(r"[\w./-]+\.md", navigation)
    assert sorted(listed) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


@pytest.mark.slow
def test_what_works_where_is_what_was_tried():
    assert matrix.table() in matrix.PAGE.read_text(), "python -m docs._plots.matrix writes the table again"


@pytest.mark.slow
def test_site_builds_without_warnings(tmp_path: Path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    api = (tmp_path / "api" / "index.html").read_text()
    for name in NAMES + MEMBERS:
        assert f'id="penalties.{name}"' in api
    assert "<blockquote>" not in api  # a doctest outside a code fence reads as one


@pytest.mark.slow
def test_quickstart_prints_its_table():
    command = [sys.executable, "-W", "error", "examples/quickstart.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    header, *lines = result.stdout.splitlines()
    assert header.split() == ["step", "term", "value", "weight", "contribution"]

    rows = [line.split() for line in lines if "base" in line or line.startswith("      ")]
    totals = [float(row[-1]) for row in rows if row[0] == "total"]
    assert len(totals) == 4
    for name in ("sparsity", "confidence", "overlap", "consistency"):
        terms = [[float(number) for number in row[1:]] for row in rows if row[0] == name]
        assert len(terms) == len(totals)
        for value, weight, contribution in terms:
            assert contribution == pytest.approx(weight * value, abs=2e-4)
    assert totals[-1] < totals[0]

    before, after = lines[-2:]
    assert before.startswith("before: test accuracy")
    assert after.startswith("after:  test accuracy")
    accuracies = [float(re.search(r"accuracy +([\d.]+)%", line)[1]) for line in (before, after)]
    assert accuracies[0] < 90 < accuracies[1]
