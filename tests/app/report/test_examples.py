"""Held-out texts with their tokens coloured by loss."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from penalties.app import report
from penalties.app.report.page import compose
from penalties.app.report.reading import read


def evaluation(step: int, *examples: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "eval", "step": step, "loss": {"loss_total": 1.0}, "examples": list(examples)}


def example(index: int, *kinds: str, losses: tuple[Any, ...] = (0.25,), **more: Any) -> dict[str, Any]:
    tokens = [["ask\n", None], *([f" <{loss}>", loss] for loss in losses)]
    return {"index": index, "kinds": kinds, "loss": 0.5, "tokens": tokens, **more}


def written(folder: Path, *evaluations: dict[str, Any]) -> Path:
    """A run of 20 steps with an evaluation after every tenth, beginning before the first."""
    lines: list[dict[str, Any]] = [*evaluations[:1]]
    for step in range(1, 21):
        lines.append({"kind": "step", "step": step, "loss": {"loss_total": 1.0}})
        lines += [one for one in evaluations[1:] if one["step"] == step]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def headings(page: str) -> list[str]:
    return re.findall(r"<h3>(.*?)</h3>", page)


def test_the_last_evaluation_has_the_worst_and_the_best_and_both_ends_the_first(tmp_path: Path) -> None:
    folder = written(
        tmp_path,
        evaluation(0, example(7, "worst"), example(0, "first")),
        evaluation(10, example(8, "worst"), example(0, "first")),
        evaluation(20, example(9, "worst"), example(0, "best", "first")),
    )
    page = report.make([folder]).html
    assert headings(page) == [
        "Highest loss, after step 20",
        "Lowest loss, after step 20",
        "First texts, before training",
        "First texts, after step 20",
    ]
    assert re.findall(r"Example (\d)", page) == ["9", "0", "0", "0"]


def test_tokens_have_their_loss_as_number_and_as_class(tmp_path: Path) -> None:
    losses = (0.0999, 0.1, 2.5, 8.0, "NaN", "Infinity")
    page = report.make([written(tmp_path, evaluation(0, example(3, "worst", losses=losses)))]).html
    assert '<i class="read">ask↵\n</i>' in page
    found = re.findall(r'<i class="(\w+)" title="(.*?)"> &lt;(.*?)&gt;</i>', page)
    classes = ["l0", "l1", "l4", "l6", "broken", "broken"]
    assert found == list(zip(classes, ["0.0999", "0.1", "2.5", "8", "NaN", "∞"], map(str, losses), strict=True))


def test_the_page_says_what_was_left_out(tmp_path: Path) -> None:
    page = report.make([written(tmp_path, evaluation(0, example(3, "best", before=1200, after=1)))]).html
    assert "1\u202f200 tokens left out …" in page
    assert "… 1 token left out" in page


def test_only_the_first_and_the_last_are_kept_and_what_a_run_repeats_replaces_them(tmp_path: Path) -> None:
    lines = [evaluation(step, example(step, "first")) for step in (0, 10, 20)]
    for more, expected in (
        ([], {0: 0, 20: 20}),
        ([evaluation(30)], {0: 0, 20: 20}),
        ([evaluation(10, example(7, "first"))], {0: 0, 10: 7}),
    ):
        (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in [*lines, *more]))
        found = read(tmp_path).examples
        assert {step: one["index"] for step, (one,) in found.items()} == expected


def test_runs_that_share_a_page_show_fewer(tmp_path: Path) -> None:
    long = [example(index, "worst", losses=(2.345,) * 200) for index in range(20)]
    log = read(written(tmp_path, evaluation(0, *long)))
    for runs, each in ((1, 20), (10, 2), (30, 1)):
        page = compose([log] * runs, [f"run {number}" for number in range(runs)]).html
        assert len(re.findall("Example \\d+", page)) == runs * each
    assert len(page) < 1_000_000


def test_a_log_without_them_has_no_such_section(tmp_path: Path) -> None:
    one = evaluation(0)
    del one["examples"]
    assert 'class="texts"' not in report.make([written(tmp_path, one)]).html


@pytest.mark.parametrize("damaged", [{"tokens": 5}, {"tokens": [["a"]]}, {"index": "0"}, {"kinds": None}])
def test_a_damaged_line_is_left_out(tmp_path: Path, damaged: dict[str, Any]) -> None:
    log = read(written(tmp_path, evaluation(0, example(0, "first") | damaged), evaluation(20, example(1, "first"))))
    assert list(log.unreadable) == [1]
    assert list(log.examples) == [20]
