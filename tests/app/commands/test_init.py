"""`penalties init`: recipes that run as they are, and overwrite nothing."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from penalties.app import recipes
from penalties.app.recipes import RECIPES
from penalties.app.runs import Run as RunFolder

from .conftest import Run


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def held_out(folder: str) -> list[float]:
    return [one["loss"]["loss_total"] for one in RunFolder(folder).records() if one["kind"] == "eval"]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_right_and_its_loss_falls(run: Run, here: Path, recipe: str) -> None:
    names = [f"{recipe}.toml", *RECIPES[recipe]]
    said = f"wrote {names[0]}, {names[1]} and {names[2]}; train it with:\npenalties train {recipe}.toml\n"
    assert run("init", recipe) == (0, said, "")
    assert sorted(path.name for path in here.iterdir()) == sorted(names)
    assert run("check", f"{recipe}.toml", "--quiet") == (0, "", "")
    values = ["--set", "train.steps=6", "--set", "train.eval_every=3", "--set", "train.schedule="]
    assert run("train", f"{recipe}.toml", "--quiet", *values) == (0, "", "")
    losses = held_out(f"runs/{recipe}")
    assert len(losses) == 3
    assert losses[-1] < losses[0]


def test_a_student_comes_nearer_to_the_teacher_that_a_recipe_trained(run: Run) -> None:
    """As the comments of the recipe say it."""
    run("init", "sft", "--quiet")
    run("init", "distill", "--quiet")
    few = ["--quiet", "--set", "train.steps=6", "--set", "train.eval_every=6"]
    assert run("train", "sft.toml", *few, "--set", "train.schedule=") == (0, "", "")
    assert run("export", "runs/sft", "--to", "teacher", "--merged", "--quiet") == (0, "", "")
    values = ["--set", "references.teacher.model=./teacher", "--set", "term.distillation.weight=1"]
    assert run("train", "distill.toml", *few, *values) == (0, "", "")
    found = [one for one in RunFolder("runs/distill").records() if one["kind"] == "eval"]
    first, last = (one["loss"]["regularizers"]["distillation"]["value"] for one in found)
    assert 0 < last < 0.7 * first


def test_a_command_without_a_recipe_names_them(run: Run) -> None:
    status, _, err = run("init")
    assert status == 2
    assert err.startswith("error: Missing argument '{sft|dpo|distill}'. Choose from: sft, dpo, distill\n")


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_runs_to_its_end(run: Run, recipe: str) -> None:
    run("init", recipe)
    assert run("train", f"{recipe}.toml", "--quiet") == (0, "", "")
    losses = held_out(f"runs/{recipe}")
    assert losses[-1] < 0.75 * losses[0]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_points_at_the_lines_to_change(recipe: str) -> None:
    text = (Path(recipes.__file__).parent / f"{recipe}.toml").read_text()
    assert all(len(line) <= 120 for line in text.splitlines())
    changed = [line.split("=")[0].strip() for line in text.splitlines() if "# ←" in line]
    assert {"name", "path", "eval_path", "steps", "learning_rate"} <= set(changed)
    assert {"model", "data", "train", "term"} <= set(tomllib.loads(text))


class TestFiles:
    def test_a_folder_is_made(self, run: Run, here: Path) -> None:
        status, out, _ = run("init", "sft", "--to", "new/place")
        assert status == 0
        assert out.splitlines()[-1] == "penalties train new/place/sft.toml"
        assert (here / "new" / "place" / "pig_latin.jsonl").is_file()

    def test_recipes_share_their_data(self, run: Run, here: Path) -> None:
        assert run("init", "sft", "--quiet") == (0, "", "")
        assert run("init", "distill", "--quiet") == (0, "", "")
        assert run("init", "sft", "--quiet") == (0, "", "")
        assert len(list(here.iterdir())) == 4

    @pytest.mark.parametrize("name", ["sft.toml", "pig_latin_eval.jsonl"])
    @pytest.mark.parametrize("kind", ["file", "link", "folder"])
    def test_nothing_is_overwritten(self, run: Run, here: Path, name: str, kind: str) -> None:
        path = here / name
        if kind == "file":
            path.write_text("mine")
        elif kind == "link":
            path.symlink_to(here / "elsewhere")
        else:
            path.mkdir()
        why = {
            "file": "it exists, with other contents",
            "link": "it is a symbolic link; expected a file",
            "folder": "it is a folder; expected a file",
        }
        said = f"error: {name} cannot be written: {why[kind]}; choose another folder with --to\n"
        assert run("init", "sft") == (2, "", said)
        assert [one.name for one in here.iterdir()] == [name]

    def test_a_failure_leaves_nothing(self, run: Run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = recipes.open_plain
        full = OSError(28, "No space left on device")

        def failing(path: Any, flags: int) -> int:
            if Path(path).name == "pig_latin_eval.jsonl":
                raise full
            return opened(path, flags)

        monkeypatch.setattr(recipes, "open_plain", failing)
        status, _, err = run("init", "sft", "--to", "new")
        assert status == 1
        assert "the disk is full" in err
        assert list((here / "new").iterdir()) == []

    @pytest.mark.parametrize(("arguments", "says"), [([], "sft|dpo|distill"), (["rlhf"], "'sft', 'dpo', 'distill'")])
    def test_an_unknown_recipe_is_an_error_that_lists_them(self, run: Run, arguments: list[str], says: str) -> None:
        status, out, err = run("init", *arguments)
        assert (status, out) == (2, "")
        assert says in err


def test_pairs_have_the_phrases_of_the_demo(run: Run, here: Path) -> None:
    run("init", "dpo", "--quiet")
    run("init", "sft", "--quiet")
    pairs = [json.loads(line) for line in (here / "pig_latin_pairs.jsonl").read_text().splitlines()]
    phrases = [json.loads(line) for line in (here / "pig_latin.jsonl").read_text().splitlines()]
    assert [(one["prompt"], one["chosen"]) for one in pairs] == [(one["prompt"], one["completion"]) for one in phrases]
    assert all(one["chosen"] != one["rejected"] for one in pairs)
