"""A browser, and reports to open in it."""

import dataclasses
import math
from pathlib import Path

import pytest

from penalties.app import report

from .browser import browser
from .synthetic import Part, _small, config, everything, small, write_run


@pytest.fixture(scope="session")
def driver():
    with browser() as started:
        yield started


@pytest.fixture(scope="session")
def pages(tmp_path_factory) -> dict[str, Path]:
    """Reports by name, beside the folders of their runs."""
    folder = tmp_path_factory.mktemp("runs")
    whole = _small(60, 0)
    compared = [small(folder / "all")]
    for gone, cost in (("kl_estimate", 1.12), ("entropy", 1.05), ("sparsity", 1.002)):
        changed = {
            "base": dataclasses.replace(whole["base"], value=lambda step, cost=cost: whole["base"].value(step) * cost),
            "parts": {name: part for name, part in whole["parts"].items() if name != gone},
            "evaluate": {step: loss * cost for step, loss in whole["evaluate"].items()},
            "settings": config([name for name in whole["parts"] if name != gone], 60),
        }
        compared.append(small(folder / f"without-{gone}", **changed))
    runs = {
        "small": [small(folder / "pig-latin")],
        "everything": [everything(folder / "everything")],
        "one": [small(folder / "one", steps=1)],
        "long": [
            write_run(folder / "long", steps=3000, base=Part(lambda step: 2 + math.sin(step / 90), lambda step: 1.0))
        ],
        "compared": compared,
        "names": [_long_names(folder / f"{LONG}_{number}", 40 - 10 * number) for number in range(2)],
        "rare": [_rare(folder / "rare")],
    }
    for name, folders in runs.items():
        report.make(folders).save(folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in runs}


LONG = "a_run_with_a_name_that_says_everything_about_its_learning_rate"


def _long_names(folder: Path, steps: int) -> Path:
    """A run of more terms than there are colours, all of long names."""
    names = [f"a_term_whose_name_says_more_than_a_reader_wants_{place}_v2" for place in range(12)]
    parts = {name: Part(lambda step: 1.0) for name in names}
    return write_run(folder, steps=steps, parts=parts, cosines=lambda *_: -0.6, settings=config(names, 40))


def _rare(folder: Path) -> Path:
    """A run whose gradients are measured at every tenth step."""
    base = Part(lambda step: 3 - step / 50, lambda step: 1.0, lambda step: 1 + step, measured=10)
    return write_run(folder, steps=45, base=base, parts={"kl": Part(lambda step: 1.0, measured=10)})
