"""The examples run without warnings, and show what they promise."""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

KEY_LINES = {
    "cart_pole.py": r"^after:  up for [78]\.\d\d s, to the end (9\d|100)%$",
    "custom_distillation.py": r"^of the answers are right: teacher 100%, student \d% before and (9\d|100)% after$",
    "custom_dpo.py": r"^after:  100% of unseen pairs right, margin +[3-9]\.\d\d$",
    "custom_lora_orthogonality.py": r"^with the term: +loss 0\.\d+, overlap 0\.0\d+, effective rank [3-8]\.\d\d of 8$",
    "custom_remote_terms.py": r"^31 requests to the service, and 1 process beside this one$",
    "custom_supervised.py": r"^with terms: +(9\d|100)% of sums right, entropy 3\.\d\d, 0\.\d\d nats a token from",
    "distributed_loop.py": r"^test accuracy +9\d\.\d%, inputs in use +2 of 30$",
    "fair_loans.py": r"^with it: +accuracy 7[3-9]\.\d%, .* gap 0\.0[0-4]\d \(p = 0\.[1-9]",
    "http_service.py": r"^372 requests, \d+ of them failed, and no step was lost$",
    "jax_loop.py": r"^4002 steps with as many different weights: traced 1 time$",
    "judge.py": r"^after:  people like it by  [1-9]\.\d\d, ",
    "knowledge_base.py": r"^with the facts: +7\d\.\d% of cities right, +\d\.\d% of answers against the facts$",
    "mixture_of_experts.py": r"^with the term: +the busiest expert gets 1\d% of the inputs, accuracy 9\d\.\d%$",
    "persistent_homology.py": r"^loops in the code of a knot: 4 without the term, 1 with it$",
    "pytorch_loop.py": r"^base_loss and confidence conflict: the cosine between their gradients is -0\.\d\d$",
    "pytorch_train_step.py": r"^with terms: +test accuracy +9[5-9]\.\d%, inputs in use +\d of 30$",
    "quickstart.py": r"^after:  test accuracy",
    "soft_rules.py": r"^with rules: +9[6-9]\.\d% of unseen animals right, (99\.\d|100\.0)% of answers satisfy all",
    "smt_solver.py": r"^test accuracy with ten labels: [67]\d\.\d% without the solver, 9\d\.\d% with it$",
    "validation_service.py": r"^(8[5-9]|9\d|100)% of new texts are formulas, \d+ of 128 different$",
}


FAST = ("jax_loop.py",)
"""Those that `make test` runs; the others take several seconds each, and `make test-slow` runs them."""

slow = pytest.mark.slow


def marked(example: str, *values: object) -> object:
    return pytest.param(example, *values, marks=() if example in FAST else slow)


@functools.cache
def printed(example: str) -> str:
    command = [sys.executable, "-W", "error", f"examples/{example}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert not result.stderr
    return result.stdout


def accuracy(line: str) -> float:
    return float(re.search(r"test accuracy +([\d.]+)%", line)[1])


def test_every_example_is_run():
    assert [path.name for path in EXAMPLES] == sorted(KEY_LINES)


@pytest.mark.parametrize("example", [marked(example) for example in KEY_LINES])
def test_example_prints_its_key_line(example: str):
    assert re.search(KEY_LINES[example], printed(example), re.MULTILINE)


@slow
@pytest.mark.parametrize("example", ["pytorch_loop.py", "pytorch_train_step.py"])
def test_penalties_find_the_right_labels_among_wrong_ones(example: str):
    *_, without, penalised = printed(example).splitlines()
    assert accuracy(without) < 80 < 90 < accuracy(penalised)
    assert "inputs in use 30 of 30" in without


def test_penalties_find_the_inputs_that_matter():
    *_, truth, without, penalised = printed("jax_loop.py").splitlines()
    support = truth.partition(": ")[2]
    assert penalised.endswith(f"5 inputs in use: {support}")
    assert int(re.search(r"(\d+) inputs in use", without)[1]) > 50


def table(example: str) -> dict[str, list[float]]:
    """The columns of the first table that an example prints, by name."""
    header, *lines = printed(example).partition("\n\n")[0].splitlines()
    rows = [line.replace("%", "").split() for line in lines if "skipped" not in line]
    names = re.split(r" +(?!KL)", header.strip())
    assert len(rows) > 3
    return dict(zip(names, zip(*[map(float, row) for row in rows], strict=True), strict=True))


def last(example: str) -> list[list[float]]:
    """The numbers in the last two lines of an example: without the term that it shows, and with it."""
    return [
        [float(number) for number in re.findall(r"\d+(?:\.\d+)?", line)] for line in printed(example).splitlines()[-2:]
    ]


def assert_falls(values: list[float]) -> None:
    assert max(values[1:]) < values[0]
    assert values[-1] < values[0] / 2


@pytest.mark.parametrize(
    ("example", "columns"),
    [
        marked("custom_supervised.py", ["sums", "total"]),
        marked("custom_dpo.py", ["loss"]),
        marked("custom_distillation.py", ["reverse KL", "worst", "total"]),
        marked("custom_remote_terms.py", ["base", "passage", "total"]),
        marked("custom_lora_orthogonality.py", ["loss", "total"]),
    ],
)
def test_what_is_trained_falls(example: str, columns: list[str]):
    for column in columns:
        assert_falls(table(example)[column])


@slow
def test_a_model_is_held_to_what_it_said_and_learns_all_the_same():
    (free_right, free_entropy, free_drift), (held_right, entropy, drift) = last("custom_supervised.py")
    assert free_right > 90 < held_right
    assert entropy > free_entropy + 0.2
    assert drift < free_drift / 2


@slow
def test_preferences_are_learned():
    columns = table("custom_dpo.py")
    assert columns["accuracy"][0] == 0 < 100 == columns["accuracy"][-1]
    assert columns["margin"][-1] > 3
    assert columns["better"][-1] > 0 > columns["worse"][-1]
    # The brake works: without it the margin grows on.
    assert columns["margin"][-1] < max(columns["margin"])


@slow
def test_the_student_gives_its_probability_to_what_the_teacher_does():
    columns = table("custom_distillation.py")
    assert columns["student"][0] < 5 < 50 < columns["student"][-1]


@slow
def test_the_judge_is_skipped_once_and_heard_otherwise():
    assert printed("custom_remote_terms.py").count("skipped judge: raised RuntimeError: the service answered") == 1
    assert table("custom_remote_terms.py")["judge"][-1] < 0
    (good, spam), (judged_good, judged_spam) = last("custom_remote_terms.py")
    assert spam < good + 0.5
    assert judged_spam > judged_good + 1.5


@slow
def test_directions_of_an_adapter_are_made_to_differ():
    (loss, overlap, rank, _), (apart_loss, apart, apart_rank, _) = last("custom_lora_orthogonality.py")
    assert apart < overlap / 3
    assert apart_rank > rank + 1
    assert apart_loss < loss + 0.1


@slow
def test_experts_share_the_work_and_know_as_much():
    (busiest, accuracy), (balanced, balanced_accuracy) = last("mixture_of_experts.py")
    assert busiest > 50 > 20 > balanced
    assert balanced_accuracy > accuracy - 2
