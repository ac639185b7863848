"""Several runs side by side."""

import json
import math

import pytest

from penalties.app.report import make, read
from penalties.app.report.compare import compare, comparison_figures, contenders, groups, run_rows, unlike
from penalties.app.report.config_text import differences, toml
from penalties.app.report.summary import summarise
from penalties.app.report.verdict_terms import CONFLICT

from .pictures import Picture
from .synthetic import Part, config, write_run


def run(tmp_path, name, loss, *, terms=("kl", "l1"), seed=0, held_out=None, settings=..., weight=0.1):
    parts = {term: Part(lambda step: 1.0, lambda step: weight) for term in terms}
    told = config(terms, 4, seed=seed) if settings is ... else settings
    if told is not None and weight != 0.1:
        told["term"][0]["weight"] = weight
    base = Part(lambda step: loss + 4 - step if step < 3 else loss, lambda step: 1.0)
    evaluate = None if held_out is None else {1: held_out + 1, 3: held_out}
    return write_run(tmp_path / name, steps=4, base=base, parts=parts, settings=told, evaluate=evaluate)


def entered(*folders):
    logs = [read(folder) for folder in folders]
    return contenders(logs, [summarise(log, CONFLICT) for log in logs], [folder.name for folder in folders])


def told(*folders):
    return str(compare(entered(*folders))).splitlines()


def test_the_lowest_run_is_told_first_and_the_highest_last(tmp_path):
    folders = [run(tmp_path, name, loss, settings=None) for name, loss in (("a", 2.0), ("b", 1.0), ("c", 3.0))]
    assert told(*folders) == [
        "b ended lowest, with a base loss of 1.",
        "b ended with the lowest base loss: 1.",
        "a follows, with 2 (100 % more).",
        "c ended highest, at 3 (200 % more).",
    ]


def test_runs_compare_by_held_out_data_where_all_have_it(tmp_path):
    a, b = run(tmp_path, "a", 2.0, held_out=1.5), run(tmp_path, "b", 1.0, held_out=1.75, weight=0.2)
    assert told(a, b)[0] == "a ended lowest, with a held-out base loss of 1.5."
    c = run(tmp_path, "c", 0.5, weight=0.3)
    assert told(a, b, c)[0] == "c ended lowest, with a base loss of 0.5."


def test_seeds_are_one_group_with_a_mean_and_a_spread(tmp_path):
    first = [run(tmp_path, f"a{seed}", 2.0 + seed / 10, seed=seed) for seed in range(3)]
    second = [run(tmp_path, f"b{seed}", 2.15 + seed / 10, seed=seed, weight=0.2) for seed in range(2)]
    found = entered(*first, *second)
    assert [one.group for one in found] == [0, 0, 0, 1, 1]
    assert [one.css for one in found] == ["r0", "r0 dash1", "r0 dash2", "r1 dash1", "r1 dash2"]
    lines = told(*first, *second)
    assert lines[:4] == [
        "a0, a1 and a2 ended lowest, with a base loss of 2.1.",
        "a0, a1 and a2 ended, on average, with the lowest base loss: 2.1 (mean of 3 seeds, 2 to 2.2).",
        "b0 and b1 follow, with 2.2 (mean of 2 seeds, 2.15 to 2.25) (4.8 % more).",
        "Their seeds spread further than they differ: it may be chance.",
    ]


def test_runs_that_end_alike(tmp_path):
    lines = told(run(tmp_path, "a", 2.0, settings=None), run(tmp_path, "b", 2.0, settings=None))
    assert lines[2:] == ["b follows, with 2."]


def test_what_a_term_did_is_seen_by_the_run_without_it(tmp_path):
    whole = run(tmp_path, "all", 2.0, terms=("kl", "l1", "l2"))
    without = {
        "kl": run(tmp_path, "without-kl", 2.5, terms=("l1", "l2")),
        "l1": run(tmp_path, "without-l1", 1.0, terms=("kl", "l2")),
        "l2": run(tmp_path, "without-l2", 2.01, terms=("kl", "l1")),
    }
    lines = told(whole, *without.values())
    assert lines[0] == ("without-l1 ended lowest, with a base loss of 1. l1 cost; l2 made no difference; kl helped.")
    assert lines[-3:] == [
        "Without l1 the base loss ended at 1 instead of 2, 50 % lower: it cost.",
        "Without l2 the base loss ended at 2.01 instead of 2: it made no difference.",
        "Without kl the base loss ended at 2.5 instead of 2, 25 % higher: it helped.",
    ]


def test_a_run_that_differs_in_more_than_a_term_shows_nothing_about_it(tmp_path):
    whole = run(tmp_path, "all", 2.0)
    other = run(tmp_path, "other", 2.5, terms=("l1",), settings=config(["l1"], 4, learning_rate=1.0))
    assert not any(line.startswith("Without") for line in told(whole, other))


def test_a_sweep_is_told_by_its_values(tmp_path):
    folders = [
        run(tmp_path, f"w{weight}", loss, weight=weight) for weight, loss in ((0.01, 2.0), (0.5, 1.5), (9.0, 4.0))
    ]
    assert told(*folders)[-1] == (
        "The runs differ in term.kl.weight alone. Base loss by its value, lowest first: 0.5: 1.5, 0.01: 2, 9.0: 4."
    )


def test_a_run_without_a_finite_loss_cannot_be_compared(tmp_path):
    good, bad = run(tmp_path, "good", 2.0, settings=None), run(tmp_path, "bad", math.nan, settings=None)
    assert told(good, bad)[-1] == "bad cannot be compared: no finite loss."
    assert told(bad, bad) == ["No run has a loss to compare."]


def test_a_loss_of_zero_has_no_parts(tmp_path):
    first, second = run(tmp_path, "a", 0.0), run(tmp_path, "b", 1.0, terms=("kl",))
    assert told(first, second)[2] == "b follows, with 1."
    assert told(first, second)[-1] == "Without l1 the base loss ended at 1 instead of 0: it helped."


def test_runs_without_base_loss_compare_by_the_total(tmp_path):
    parts = {"l1": Part(lambda step: 2.0)}
    folders = [write_run(tmp_path / name, steps=2, base=None, parts=parts, evaluate=None) for name in "ab"]
    assert groups(entered(*folders))[0] == "loss"
    folders = [write_run(tmp_path / name, steps=2, evaluate={1: 1.0}) for name in "ab"]
    for folder in folders:
        path = folder / "metrics.jsonl"
        found = [json.loads(line) for line in path.read_text().splitlines()]
        del found[-1]["loss"]["base_loss"]
        path.write_text("".join(json.dumps(one) + "\n" for one in found))
    assert groups(entered(*folders))[0] == "held-out loss"


def test_letters_go_on_after_z(tmp_path):
    folder = run(tmp_path, "a", 1.0, settings=None)
    log = read(folder)
    summary = summarise(log, CONFLICT)
    letters = [one.letter for one in contenders([log] * 28, [summary] * 28, ["a"] * 28)]
    assert letters[:2] + letters[25:] == ["A", "B", "Z", "A1", "B1"]


def test_the_table_has_the_numbers_of_each_run(tmp_path):
    a, b = run(tmp_path, "a", 2.0, held_out=1.5), run(tmp_path, "b", math.nan)
    first, second = run_rows(entered(a, b))
    assert first[:5] == ["4", "2", "1.5", "0", "0"]
    assert second[:5] == ["4", "–", "–", "4", "0"]
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.json").write_text("{}")
    assert run_rows(entered(empty))[0] == ["0", "–", "–", "0", "0", "–", "–"]


def test_runs_are_on_the_same_axes(tmp_path):
    a, b = run(tmp_path, "a", 2.0, held_out=1.5), run(tmp_path, "b", 1.0, terms=("kl",))
    figures = {figure.title: figure for figure in comparison_figures(entered(a, b), 100)}
    assert list(figures) == ["Base loss", "Held-out loss", "Total loss", "Gradient norm", "kl", "l1"]
    picture = Picture(figures["Base loss"])
    assert picture.column("a") == [6, 5, 4, 2]
    assert picture.column("b") == [5, 4, 3, 1]
    assert [name for _, name in figures["l1"].legend] == ["a"]
    assert {(figure.first, figure.last) for figure in figures.values()} == {(0, 3)}
    assert {letter for _, _, letter in figures["Base loss"].ends} == {"A", "B"}


def test_what_differs_is_told_by_key(tmp_path):
    a, b = run(tmp_path, "a", 2.0), run(tmp_path, "b", 1.0, terms=("kl",), seed=7)
    assert unlike(entered(a, b)) == {"train.seed": ["0", "7"], "term.l1": ["yes", "–"]}
    assert unlike(entered(a, run(tmp_path, "c", 1.0, settings=None)))["train.seed"] == ["0", "–"]


def test_differences_of_a_term_are_told_among_the_runs_that_have_it():
    def of(*terms):
        return {"term": [{"fn": "l1", **term} for term in terms]}

    found = differences([of({"name": "a", "weight": 1}), of({"name": "a", "weight": 2}), of()])
    assert found == {"term.a": ["yes", "yes", "–"], "term.a.weight": ["1", "2", "–"]}
    assert differences([of({"weight": 1}), of({"weight": 2})]) == {"term.l1.weight": ["1", "2"]}
    assert differences([{"term": [{"weight": 1}]}, None]) == {"term.0": ["yes", "–"]}
    assert differences([{}, {}]) == {}


def test_a_config_as_toml_reads_back():
    import tomllib

    told = {
        "note": 'a "quoted" note \\ with ü',
        "model": {"name": "tiny", "rank": 8, "bias": False},
        "references": {"initial": {"kind": "initial", "skip": None}, "x.y": {}},
        "data": {"paths": ["a", "b"], "split": [0.5, [1, 2]]},
        "term": [{"fn": "l1", "options": {"a b": 1}}, {"fn": "l2"}],
        "empty": [],
    }
    read_back = tomllib.loads(toml(told))
    told["references"]["initial"].pop("skip")
    assert read_back == told


def test_a_comparison_of_a_run_with_itself(tmp_path):
    folder = run(tmp_path, "a", 1.0)
    report = make([folder, folder])
    assert list(report.verdicts) == ["a (1)", "a (2)"]


@pytest.mark.parametrize("count", [2, 30])
def test_any_number_of_runs_has_a_page(tmp_path, count):
    folders = [run(tmp_path, f"run{place}", 1.0 + place / 9, settings=None) for place in range(count)]
    assert f"{count} runs compared" in make(folders).html
