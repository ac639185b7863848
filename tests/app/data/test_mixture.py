"""Several files: which example comes when."""

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penalties.app.config import load, load_again
from penalties.app.data import Stream
from penalties.app.data.mixture import Mixture
from penalties.training.local.tiny import ByteTokenizer

from ..configs import lines, problems, write


def test_without_weights_a_pass_has_every_example_once() -> None:
    mixture = Mixture([3, 5], None, 0, shuffle=True)
    passes = [[mixture.pick(number) for number in range(turn * 8, turn * 8 + 8)] for turn in range(4)]
    everything = {(0, index) for index in range(3)} | {(1, index) for index in range(5)}
    assert all(set(one) == everything for one in passes)
    assert all(one != other for one, other in pairwise(passes))


def test_without_shuffling_files_come_one_after_the_other() -> None:
    mixture = Mixture([2, 3], None, 0, shuffle=False)
    assert [mixture.pick(number) for number in range(6)] == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (0, 0)]


@pytest.mark.parametrize("shuffle", [True, False])
def test_with_weights_each_file_has_passes_of_its_own(shuffle: bool) -> None:
    mixture = Mixture([4, 50], [3.0, 1.0], 0, shuffle=shuffle)
    drawn = [mixture.pick(number) for number in range(4000)]
    shares = Counter(pick.file for pick in drawn)
    assert shares[0] / 4000 == pytest.approx(0.75, abs=0.03)
    first = [pick.row for pick in drawn if pick.file == 0]
    assert all(sorted(first[start : start + 4]) == [0, 1, 2, 3] for start in range(0, len(first) - 4, 4))
    if not shuffle:
        assert first[:8] == [0, 1, 2, 3] * 2


def test_an_example_depends_on_its_number_alone() -> None:
    """Across blocks too, and in any order: a run is resumed anywhere."""
    numbers = [0, 5, 65_535, 65_536, 65_537, 200_000]
    one = Mixture([7, 11], [1.0, 2.0], 3, shuffle=True)
    forward = [one.pick(number) for number in numbers]
    assert [Mixture([7, 11], [1.0, 2.0], 3, shuffle=True).pick(number) for number in numbers] == forward
    assert [one.pick(number) for number in reversed(numbers)] == forward[::-1]


def test_passes_go_on_over_blocks() -> None:
    mixture = Mixture([10], [1.0], 0, shuffle=True)
    around = [mixture.pick(number).row for number in range(65_530, 65_550)]
    assert np.unique(around[:10]).size == np.unique(around[10:]).size == 10


def test_seeds_draw_differently() -> None:
    drawn = {tuple(Mixture([9, 9], [1.0, 1.0], seed, shuffle=True).pick(n) for n in range(20)) for seed in range(4)}
    assert len(drawn) == 4


def config(folder: Path, more: str = "") -> Path:
    lines(folder / "a.jsonl", [{"prompt": "a", "completion": str(number)} for number in range(4)])
    lines(folder / "b.jsonl", [{"prompt": "b", "completion": str(number)} for number in range(8)])
    path = folder / "run.toml"
    path.write_text(f'[data]\npath = ["a.jsonl", "b.jsonl"]\n{more}')
    return path


def test_a_stream_draws_from_all_files(tmp_path: Path) -> None:
    made = Stream(load(config(tmp_path, "weights = [1, 3]\n")), ByteTokenizer())
    assert len(made) == 12
    letters = Counter(chr(one.model_input.to_ints()[0]) for step in range(100) for one in made.batch(step))
    assert letters["b"] / letters.total() == pytest.approx(0.75, abs=0.05)
    assert made.fingerprint.count("-") == 1


def test_paths_of_a_list_are_relative_to_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert load(config(tmp_path)).data.paths == [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ("[data]\npath = []", "data.path", "a string or a list of strings"),
        ('[data]\npath = "lines.jsonl"\nweights = [1, 2]', "data.weights", "one for each path, and there are 1 file"),
        ('[data]\npath = ["lines.jsonl"]\nweights = [0]', "data.weights.1", "a number above 0"),
        ('[data]\npath = ["lines.jsonl"]\nweights = 2', "data.weights", "a list of numbers"),
        ('[data]\npath = ["lines.jsonl", "nothing.jsonl"]', "data.path", "which does not exist"),
    ],
)
def test_what_is_wrong_with_a_list(tmp_path: Path, text: str, where: str, says: str) -> None:
    assert says in problems(tmp_path, text)[where]


@pytest.mark.parametrize(("epochs", "steps"), [(1, 6), (2.5, 15), (0.01, 1)])
def test_epochs_are_passes_through_all_files(tmp_path: Path, epochs: float, steps: int) -> None:
    text = f"[train]\nepochs = {epochs}\nbatch_size = 2\n"
    made = load(config(tmp_path, text))
    assert (made.train.steps, made.train.epochs) == (steps, None)


@pytest.mark.parametrize(
    ("text", "given", "steps"),
    [
        ("steps = 7", ["train.epochs=2"], 2),
        ("epochs = 2", ["train.steps=7"], 7),
        ("steps = 7", ["train.steps=9", "train.epochs=8"], 5),
        ("steps = 7", ["train.epochs=3", "train.steps=9"], 9),
        ("steps = 7", ["train.epochs="], 7),
    ],
)
def test_what_is_set_replaces_the_other(tmp_path: Path, text: str, given: list[str], steps: int) -> None:
    made = load(write(tmp_path, f"[train]\n{text}\n"), given)
    assert (made.train.steps, made.train.epochs) == (steps, None)


def test_a_run_goes_on_for_other_epochs(tmp_path: Path) -> None:
    stored = load(write(tmp_path, "[train]\nepochs = 1\n")).to_dict()
    assert load_again(stored, tmp_path / "run", ["train.epochs=8"]).train.steps == 5


def test_steps_and_epochs_are_one_too_many(tmp_path: Path) -> None:
    found = problems(tmp_path, "[train]\nsteps = 3\nepochs = 1")
    assert "found train.steps too; expected one of them" in found["train.epochs"]


@pytest.mark.parametrize("more", ["", "weights = [1, 3]\n"])
def test_the_data_of_some_steps_come_once(tmp_path: Path, more: str) -> None:
    made = Stream(load(config(tmp_path, more + "[train]\nbatch_size = 5\n")), ByteTokenizer())

    def words(batches: Iterable[list[Any]]) -> list[str]:
        return [str(one.model_input.to_ints()) for batch in batches for one in batch]

    for steps in (1, 2, 100):
        once = words(made.once(steps))
        assert len(set(once)) == len(once)
        assert set(once) == set(words(made.batch(step) for step in range(steps)))
