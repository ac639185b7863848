"""Batches of lines of similar lengths."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penalties.app.data import Stream
from penalties.app.data.grouping import Grouping
from penalties.app.data.mixture import Mixture, Pick
from penalties.app.runs.differences import differences
from penalties.training.local.tiny import ByteTokenizer

from ..configs import PAIRS, config, problems

LINES = [{"prompt": "", "completion": "x" * int(size)} for size in np.random.default_rng(0).integers(1, 200, 60)]
GROUPED = '[data]\npath = "lines.jsonl"\ngroup_by_length = true\n'


def grouped(size: int = 4, steps: int = 130, seed: int = 0) -> Grouping:
    mixture = Mixture([1000], None, seed, shuffle=True)
    return Grouping(mixture.pick, lambda picks: [pick.row % 100 for pick in picks], size=size, steps=steps, seed=seed)


def spread(picks: list[Pick]) -> int:
    lengths = [pick.row % 100 for pick in picks]
    return max(lengths) - min(lengths)


def test_lengths_in_a_batch_are_similar() -> None:
    found = grouped()
    mixture = Mixture([1000], None, 0, shuffle=True)
    plain = [[mixture.pick(number) for number in range(step * 4, step * 4 + 4)] for step in range(130)]
    assert np.mean([spread(found.batch(step)) for step in range(130)]) < 0.1 * np.mean([spread(one) for one in plain])


@pytest.mark.parametrize("steps", [1, 30, 50, 130, 250])
def test_the_examples_are_those_of_the_steps_without_it(steps: int) -> None:
    found, mixture = grouped(steps=steps), Mixture([1000], None, 0, shuffle=True)
    drawn = [pick for step in range(steps) for pick in found.batch(step)]
    assert sorted(drawn) == sorted(mixture.pick(number) for number in range(4 * steps))


def test_a_step_depends_on_the_seed_and_its_number_alone() -> None:
    forward = [grouped().batch(step) for step in (0, 49, 50, 129)]
    one = grouped()
    assert [one.batch(step) for step in (129, 50, 49, 0)] == forward[::-1]
    assert grouped(seed=1).batch(0) != forward[0]


def test_batches_come_in_random_order() -> None:
    found = grouped()
    means = [np.mean([pick.row % 100 for pick in found.batch(step)]) for step in range(50)]
    assert abs(np.corrcoef(means, range(50))[0, 1]) < 0.5


@pytest.mark.parametrize("room", [None, 50])
def test_a_stream_has_less_padding(tmp_path: Path, room: int | None) -> None:
    def padding(text: str) -> float:
        made = Stream(config(tmp_path, f"{text}[train]\nbatch_size = 6\nepochs = 1", data=LINES), ByteTokenizer())
        batches = [made.batch(step) for step in range(10)]
        sizes = [[one.model_input.length for one in batch] for batch in batches]
        assert sum(map(len, sizes)) == 60
        return sum(max(some) * len(some) - sum(some) for some in sizes)

    cut = "" if room is None else f"max_length = {room}\n"
    assert padding(GROUPED + cut) < 0.3 * padding(GROUPED.replace("true", "false") + cut)


def test_pairs_stay_pairs(tmp_path: Path) -> None:
    text = f'{GROUPED}[references]\ninitial = {{ kind = "initial" }}\n[train]\nloss = "dpo"\nbatch_size = 2\nsteps = 3'
    made = Stream(config(tmp_path, text, data=PAIRS), ByteTokenizer())
    assert [len(made.batch(step)) for step in range(3)] == [4, 4, 4]


def test_the_order_of_the_file_cannot_be_kept_too(tmp_path: Path) -> None:
    found = problems(tmp_path, f"{GROUPED}shuffle = false")
    message = "found true, but data.shuffle = false keeps the order of the file; remove one of the two"
    assert found == {"data.group_by_length": message}


@pytest.mark.parametrize(("grouping", "expected"), [(False, []), (True, ["train.steps was 3 and is 9"])])
def test_a_run_that_groups_keeps_its_length(grouping: bool, expected: list[str]) -> None:
    def made(steps: int) -> dict[str, Any]:
        return {"train": {"steps": steps}, "data": {"group_by_length": grouping}}

    assert differences(made(3), made(9)) == expected
