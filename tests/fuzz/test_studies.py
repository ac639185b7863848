"""Files of ablations and searches with random mistakes: the section of the report is drawn, or left out."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from penalties.app.ablation.outcomes import Facts
from penalties.app.ablation.outcomes import write as write_ablation
from penalties.app.report.study import study_of
from penalties.app.search import Goal
from penalties.app.search.results import write as write_search
from tests.app.ablation.records import outcome, recorded
from tests.app.search.test_results import found

from .cases import try_cases
from .test_run_folders import _changed


def _ablation(folder: Path) -> None:
    outcomes = [outcome(name, seed, 1.0 + seed, kl=0.5) for name in ("all", "without kl", "low") for seed in range(4)]
    settings = {"low": Facts({"kl.weight": 0.1}, None, {"model.name": "tiny"}), "without kl": Facts({}, "kl", {})}
    base = Facts({"kl.weight": 1.0}, None, {"model.name": "tiny"})
    write_ablation(folder, recorded(*outcomes, **{"all": base, **settings})._replace(runs=12))


def _search(folder: Path) -> None:
    write_search(folder, found("kl<2", goals=(Goal("base_loss"), Goal("kl", highest=True))))


@pytest.mark.parametrize(("write", "name"), [(_ablation, "ablation.json"), (_search, "search.json")])
def test_a_value_of_another_type_costs_that_section_at_most(
    tmp_path: Path, write: Callable[[Path], None], name: str
) -> None:
    drawn: list[bool] = []

    def check(generator: np.random.Generator) -> None:
        write(tmp_path)
        assert study_of([tmp_path]) is not None
        draw = random.Random(int(generator.integers(2**32)))
        for _ in range(draw.randint(1, 2)):
            _changed(draw, tmp_path / name)
        drawn.append(study_of([tmp_path]) is not None)

    try_cases(100, check)
    assert len(set(drawn)) == 2 or len(drawn) < 30
