"""The notebooks run, and their pages are what they print."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from docs._plots import notebooks

from penalties.backends import double_precision

ROOT = Path(__file__).parents[1]
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def written(tmp_path: Path, text: str) -> str:
    """The page that becomes of a notebook."""
    source = tmp_path / "small.py"
    source.write_text(text)
    notebooks.render(source, tmp_path)
    return (tmp_path / "small.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("source", notebooks.SOURCES, ids=lambda source: source.stem)
def test_page_is_what_the_notebook_prints(source: Path, tmp_path: Path):
    before = torch.random.get_rng_state()
    # The other tests turn 64 bits on in JAX; a reader has not.
    with double_precision(False):
        notebooks.render(source, tmp_path)
    torch.random.set_rng_state(before)
    again = f"python -m docs._plots.notebooks {source.stem} writes it again"
    for name in (f"{source.stem}.md", f"{source.stem}.ipynb"):
        assert (tmp_path / name).read_text() == (notebooks.FOLDER / name).read_text(), f"{name} is out of date: {again}"

    drawn = {path.name for path in tmp_path.glob("*.svg")}
    assert drawn == {path.name for path in notebooks.FOLDER.glob(f"{source.stem}-*.svg")}
    for name in drawn:
        made, kept = ((folder / name).read_text() for folder in (tmp_path, notebooks.FOLDER))
        assert NUMBER.sub("", made) == NUMBER.sub("", kept), name
        # Points in a sheet of 760 by 300, where the last bits of another machine may show.
        numbers = [float(number) for number in NUMBER.findall(kept)]
        assert [float(number) for number in NUMBER.findall(made)] == pytest.approx(numbers, abs=2.0), name


@pytest.mark.parametrize("source", notebooks.SOURCES, ids=lambda source: source.stem)
def test_notebook_is_short_and_listed(source: Path):
    kinds = [cell.kind for cell in notebooks.cells(source.read_text())]
    assert kinds[0] == kinds[-1] == "markdown"
    assert 7 <= kinds.count("code") <= 15
    assert f"({source.stem}.md)" in (notebooks.FOLDER / "index.md").read_text()


def test_every_page_has_its_notebook():
    names = {source.stem for source in notebooks.SOURCES}
    assert {path.stem for path in notebooks.FOLDER.glob("*.md")} == {"index", *names}
    assert {path.stem for path in notebooks.FOLDER.glob("*.ipynb")} == names


def test_jupyter_gets_the_same_cells_and_their_output(tmp_path: Path):
    written(tmp_path, "# %% [markdown]\n# # Title\n\n# %%\nx = 2\n\n# %%\nprint(x)\nprint(3)\n")
    notebook = json.loads((tmp_path / "small.ipynb").read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    text, assigned, printed = notebook["cells"]
    assert (text["cell_type"], text["source"]) == ("markdown", ["# Title"])
    assert (assigned["execution_count"], assigned["outputs"]) == (1, [])
    assert printed["source"] == ["print(x)\n", "print(3)"]
    assert printed["outputs"] == [{"name": "stdout", "output_type": "stream", "text": ["2\n", "3\n"]}]
    assert len({cell["id"] for cell in notebook["cells"]}) == 3


def test_words_code_and_what_was_printed_become_a_page(tmp_path: Path):
    text = "# %% [markdown]\n# # Title\n#\n# Words.\n\n# %%\nx = 2\n\n\n# %%\nprint(x)\n\n# %% [markdown]\n# End.\n"
    title, about, *rest = written(tmp_path, text).split("\n\n")
    assert title == "# Title"
    assert "(small.py)" in about
    assert rest == ["Words.", "```python\nx = 2\n```", "```python\nprint(x)\n```", "```text\n2\n```", "End.\n"]


def test_a_plot_is_drawn_from_the_variable_as_it_is_there(tmp_path: Path):
    code = "my_curve = {'a < b': [0.0, 1.0, 0.5]}"
    text = f"# %% [markdown]\n# # Title\n\n# %%\n{code}\n\n# %% [markdown]\n# ![A](plot:{{}})\n"
    assert written(tmp_path, text.replace("{}", "my_curve")).endswith("\n\n![A](small-my-curve.svg)\n")
    drawing = (tmp_path / "small-my-curve.svg").read_text()
    assert "a &lt; b" in drawing
    assert ">step<" in drawing
    written(tmp_path, text.replace("{}", "my_curve:day"))
    assert ">day<" in (tmp_path / "small-my-curve.svg").read_text()


def test_a_failure_names_the_line_of_the_notebook(tmp_path: Path):
    with pytest.raises(ZeroDivisionError) as caught:
        written(tmp_path, "# %% [markdown]\n# # Title\n\n# %%\nx = 0\n1 / x\n")
    assert caught.traceback[-1].lineno == 5


def test_what_stands_before_the_first_cell_is_an_error(tmp_path: Path):
    with pytest.raises(ValueError, match="begins with a line"):
        written(tmp_path, "import torch\n\n# %%\nprint(1)\n")


@pytest.mark.parametrize("numbers", [[0.0, 1.0], [-18.96, 6.04], [3.0, 3.0], [0.0011, 0.0012], [0.0, 2401.6]])
def test_ticks_are_few_and_enclose_the_numbers(numbers: list[float]):
    parts = "".join(notebooks.draw("", {"a": numbers}, "x").parts)
    ticks = [float(word) for word in re.findall(r'text-anchor="end">([^<]+)<', parts)]
    assert 2 <= len(ticks) <= 6
    assert ticks[0] <= min(numbers) <= max(numbers) <= ticks[-1]


@pytest.mark.slow
def test_a_notebook_is_a_program_that_prints_the_same():
    command = [sys.executable, "-W", "error", "docs/notebooks/divergences_and_entropy.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    page = (notebooks.FOLDER / "divergences_and_entropy.md").read_text()
    assert result.stdout == "".join(re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
