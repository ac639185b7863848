"""Values from the command line."""

from pathlib import Path
from typing import Any

import pytest

from penalties.app.config.overrides import override, value_of

from ..configs import config, problems

TERMS = """
[references]
initial = { kind = "initial" }
[[term]]
fn = "kl_estimate"
name = "kl"
inputs = ["logprobs", "initial"]
[[term]]
fn = "l2"
inputs = "params"
[[term]]
fn = "l2"
name = "train"
inputs = "params"
[sinks]
wandb = true
"""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("200", 200),
        ("-3", -3),
        ("1_000", 1000),
        ("1e-3", 1e-3),
        ("3E5", 3e5),
        (".5", 0.5),
        ("5.", 5.0),
        ("+.5e1", 5.0),
        ("true", True),
        ("False", False),
        ("tiny", "tiny"),
        ('"200"', "200"),
        ("'a b'", "a b"),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("./model", "./model"),
        ("[1, 2]", [1, 2]),
        ('{ kind = "warmup", steps = 5 }', {"kind": "warmup", "steps": 5}),
        ("2026-01-01", "2026-01-01"),
        ("07:30:00", "07:30:00"),
        ("nan", "nan"),
        ("inf", "inf"),
        ("1\nsteps = 2", "1\nsteps = 2"),
        ("package.module:function", "package.module:function"),
        ("[broken", "[broken"),
        ("[" * 3000, "[" * 3000),
        ("9" * 5000, float("inf")),
    ],
)
def test_a_value_is_what_it_would_be_in_a_config(text: str, value: Any) -> None:
    found = value_of(text)
    assert found == value
    assert type(found) is type(value)


def test_a_key_has_only_so_many_parts(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, "", [f"{'a.' * 3000}b=1"]).values()
    assert found == "expected a key and a value, such as train.steps=200"


def test_tables_that_are_not_there_are_made(tmp_path: Path) -> None:
    assert config(tmp_path, "", ["model.rank=4", "train.schedule.kind=cosine"]).train.schedule is not None


def test_terms_are_set_by_name_and_by_number(tmp_path: Path) -> None:
    made = config(tmp_path, TERMS, ["kl.weight=0.1", "term.l2.weight=0.2", "term.3.weight=0.3", "train.steps=4"])
    assert [table.weight for table in made.term] == [0.1, 0.2, 0.3]
    assert made.train.steps == 4


def test_a_table_comes_before_a_term_of_its_name(tmp_path: Path) -> None:
    assert config(tmp_path, TERMS, ["term.train.weight=5"]).term[2].weight == 5
    assert list(problems(tmp_path, TERMS, ["train.weight=5"])) == ["train.weight"]


def test_the_last_of_several_counts(tmp_path: Path) -> None:
    assert config(tmp_path, "", ["train.steps=4", "train.steps=5"]).train.steps == 5


def test_without_a_value_the_default_counts(tmp_path: Path) -> None:
    text = "[train]\nsteps = 7\nseed = 3"
    assert config(tmp_path, text, ["train.steps=", "train.beta1="]).train.steps == 100


def test_whole_tables_can_be_set(tmp_path: Path) -> None:
    made = config(
        tmp_path, TERMS, ['kl.schedule={ kind = "warmup", steps = 5 }', "kl.schedule.value=3", "kl.enabled=false"]
    )
    assert made.term[0].schedule is not None
    assert made.pipeline()["kl"].weight(5) == 3.0
    assert not made.term[0].enabled


def test_a_switch_becomes_a_table(tmp_path: Path) -> None:
    sinks = config(tmp_path, TERMS, ["sinks.wandb.project=mine", "sinks.mlflow.experiment=other"]).sinks
    assert sinks.wandb is not None
    assert sinks.wandb.project == "mine"


def test_a_wrong_value_has_the_same_message_as_in_a_config(tmp_path: Path) -> None:
    assert "found 0; expected a whole number" in problems(tmp_path, "", ["train.steps=0"])["train.steps"]
    assert "did you mean steps?" in problems(tmp_path, "", ["train.step=1"])["train.step"]


def test_what_is_neither_a_term_nor_a_table(tmp_path: Path) -> None:
    found = problems(tmp_path, TERMS, ["trian.steps=1", "kll.weight=2"])
    tables = "(terms: kl, l2, train; tables: model, "
    assert f"no such term or table; did you mean train? {tables}" in found["--set trian.steps=1"]
    assert f"no such term or table; did you mean kl? {tables}" in found["--set kll.weight=2"]


@pytest.mark.parametrize("given", ["train.steps", "steps=4", "train.=4", ".steps=4", "=4", ""])
def test_an_override_without_key_or_value_is_a_problem(tmp_path: Path, given: str) -> None:
    assert "as train.steps=200" in problems(tmp_path, "", [given])[f"--set {given}"]


@pytest.mark.parametrize("given", ["term.nothing.weight=1", "term.kl=5", "term.9.weight=1"])
def test_a_term_that_is_not_there(tmp_path: Path, given: str) -> None:
    assert "the terms are: kl, l2, train" in problems(tmp_path, TERMS, [given])[f"--set {given}"]
    assert "the terms are: none" in problems(tmp_path, "", [given])[f"--set {given}"]


def test_a_key_below_a_value_that_is_not_a_table_is_a_problem() -> None:
    raw: dict[str, Any] = {"train": {"steps": 5}, "term": [5]}
    (steps,) = override(raw, ["train.steps.more=1"], ["train"])
    assert steps == ("--set train.steps.more=1", "train.steps is not a table, so nothing can be set in it")
    (term,) = override(raw, ["term.1.weight=1"], ["train"])
    assert term.message == "the term is not a table, so nothing can be set in it"
    assert raw == {"train": {"steps": 5}, "term": [5]}
