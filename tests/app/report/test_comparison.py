"""Several runs side by side."""

import json
import math
import re

import pytest

from penalties.app.report import make, read
from penalties.app.report.comparison.contenders import contenders, ranking
from penalties.app.report.comparison.sections import comparison_charts, run_rows
from penalties.app.report.comparison.verdict import compare
from penalties.app.report.config_text import differences, toml
from penalties.app.report.summary import summarise
from penalties.app.runs.disk import RunError

from .drawn import drawings
from .synthetic import Part, config, write_run


def run(
    tmp_path, name, loss, *, terms=("kl", "l1"), seed=0, held_out=None, settings=..., weight=0.1, steps=4, nan_from=99
):
    parts = {term: Part(lambda step: 1.0, lambda step: weight) for term in terms}
    told = config(terms, 4, seed=seed) if settings is ... else settings
    if told is not None and weight != 0.1:
        told["term"][0]["weight"] = weight
    fall = lambda step: loss + 5 - step if step < 4 else loss
    base = Part(lambda step: math.nan if step >= nan_from else fall(step), lambda step: 1.0)
    evaluate = None if held_out is None else {2: held_out + 1, 4: held_out}
    order = range(1, steps + 1)
    return write_run(tmp_path / name, steps=order, base=base, parts=parts, settings=told, evaluate=evaluate)


def entered(*folders):
    logs = [read(folder) for folder in folders]
    return contenders(logs, [summarise(log) for log in logs], [folder.name for folder in folders])


def told(*folders):
    return str(compare(entered(*folders))).splitlines()


def test_the_lowest_run_comes_first_and_the_highest_last(tmp_path):
    folders = [run(tmp_path, name, loss, settings=None) for name, loss in (("a", 2.0), ("b", 1.0), ("c", 3.0))]
    assert told(*folders) == [
        "b ended lowest, with a base loss of 1.",
        "b ended with the lowest base loss: 1.",
        "a follows, with 2 (100 % more).",
        "With one seed the difference may be chance.",
        "c ended with the highest: 3 (200 % more).",
        "a, b and c have no config: whether data, models and seeds are alike is not known.",
    ]


def test_runs_compare_by_held_out_data_where_all_have_it(tmp_path):
    a, b = run(tmp_path, "a", 2.0, held_out=1.5), run(tmp_path, "b", 1.0, held_out=1.75, weight=0.2)
    assert told(a, b)[0] == "a ended lowest, with a held-out base loss of 1.5."
    c = run(tmp_path, "c", 0.5, weight=0.3)
    assert told(a, b, c)[0] == "c ended lowest, with a base loss of 0.5."


def test_seeds_are_one_group_with_a_mean_and_a_spread(tmp_path):
    first = [run(tmp_path, f"a{seed}", 2.0 + seed / 10, seed=seed) for seed in range(3)]
    second = [run(tmp_path, f"b{seed}", 2.15 + seed / 10, seed=seed + 7, weight=0.2) for seed in range(2)]
    third = run(tmp_path, "c", 9.0, weight=0.3)
    found = entered(*first, *second)
    assert [one.group for one in found] == [0, 0, 0, 1, 1]
    assert [one.css for one in found] == ["r0", "r0 dash1", "r0 dash2", "r1 dash1", "r1 dash2"]
    lines = told(*first, *second, third)
    assert lines[:4] == [
        "a0, a1, a2 and 2 others ended lowest, with a base loss of about 2.1.",
        "a0, a1 and a2 ended, on average, with the lowest base loss: 2.1 (mean of 3 seeds, 2 to 2.2).",
        "b0 and b1 follow, with 2.2 (mean of 2 seeds, 2.15 to 2.25) (4.8 % more).",
        "Which of these two is lower depends on the seed: the difference may be chance.",
    ]
    assert told(*first, *second)[0] == "All runs ended about equal, with a base loss of 2.14."
    assert told(*first)[:2] == [
        "a0, a1 and a2 ended, on average, with a base loss of 2.1.",
        "a0, a1 and a2 ended, on average, with a base loss of 2.1 (mean of 3 seeds, 2 to 2.2).",
    ]


@pytest.mark.parametrize("key", ["tokens", "seconds", "loss", "base", "durations"])
@pytest.mark.parametrize("value", [1e308, -1e308, 1e-310, 10**400])
def test_numbers_may_be_as_large_or_as_small_as_numbers_are(tmp_path, key, value):
    folders = [run(tmp_path, name, 2.0, seed=seed) for seed, name in enumerate(("a", "b", "c"))]
    folders.append(run(tmp_path, "other", 3.0, weight=0.2))
    for folder in folders:
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            if key == "loss":
                line["loss"]["loss_total"] = value
            elif key == "base":
                line["loss"]["base_loss"]["value"] = value
            elif key == "durations":
                line["durations"] = dict.fromkeys(("kl", "l1"), value)
            else:
                line[key] = value
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    text = make(folders).html
    assert all(f">{folder.name}<" in text for folder in folders)
    assert len(text) < 2_000_000


def test_runs_that_end_alike(tmp_path):
    a, b = run(tmp_path, "a", 2.0, settings=None), run(tmp_path, "b", 2.01, settings=None)
    lines = told(a, b)
    assert lines[0] == "Both runs ended about equal, with a base loss of 2.005."
    assert lines[2] == "b follows, with 2.01 (0.5 % more)."
    lost = run(tmp_path, "c", 1.0, settings=None, nan_from=3)
    assert told(a, b, lost)[0] == (
        "Both runs that stayed finite are about equal, with a base loss of 2.005. c diverged: NaN from step 3."
    )


def test_a_run_that_diverged_ranks_last(tmp_path):
    good, bad = run(tmp_path, "good", 2.0), run(tmp_path, "bad", 1.0, nan_from=3, weight=0.2)
    lines = told(bad, good)
    assert lines[0] == "good ended with a base loss of 2. bad diverged: NaN from step 3."
    assert lines[-1] == "bad diverged: NaN from step 3. It ranks last."
    assert run_rows(entered(bad, good))[1][0][1] == "NaN"
    many = [run(tmp_path, name, 1.0, nan_from=3, settings=None) for name in "abc"]
    assert told(good, *many)[0] == "good ended with a base loss of 2. a, b and c diverged."


def test_runs_of_different_lengths_compare_at_the_last_common_step(tmp_path):
    whole, short = run(tmp_path, "whole", 1.0, settings=None), run(tmp_path, "short", 1.5, steps=3, weight=0.2)
    lines = told(whole, short)
    assert lines[0] == "whole was lowest at step 3, the last that all have, with a base loss of 3."
    assert lines[1:] == [
        "whole had the lowest base loss: 3.",
        "short follows, with 3.5 (17 % more).",
        "With one seed the difference may be chance.",
        "short has 3 of 4 steps. Runs are compared at step 3, the last that all have.",
        "whole has no config: whether data, models and seeds are alike is not known.",
    ]
    assert run_rows(entered(short))[1][0][0] == "3 of 4"
    other = run(tmp_path, "other", 1.0, settings=None, steps=3)
    assert "other has 3 steps, the longest run 4. Runs are" in told(whole, other)[-2]
    both = [run(tmp_path, name, 1.5, steps=3, weight=0.2) for name in "ab"]
    assert told(*both)[-1] == "a and b have 3 of 4 steps."


def test_a_run_that_ended_early_is_complete(tmp_path):
    whole, early = (
        write_run(
            tmp_path / name,
            steps=range(1, steps + 1),
            settings=config([], 4, seed=seed),
            events=[(steps, "finished", "", {"early": steps < 4})],
        )
        for seed, (name, steps) in enumerate((("whole", 4), ("early", 3)))
    )
    assert [row[0] for row in run_rows(entered(whole, early))[1]] == ["4", "3"]
    assert told(whole, early)[-1] == (
        "early has 3 steps, the longest run 4. Runs are compared at step 3, the last that all have."
    )
    assert "has" not in " ".join(told(early))


def test_a_run_that_shares_no_step_cannot_be_compared(tmp_path):
    early = [write_run(tmp_path / name, steps=range(1, last + 1)) for last, name in enumerate("ab", 1)]
    late = write_run(tmp_path / "late", steps=range(5, 10))
    lines = told(*early, late)
    assert lines[0] == "Both runs were about equal at step 1, with a base loss of 2."
    assert "late cannot be compared: no step in common with the others." in lines
    assert "a has 1 step, the longest run 9; " in " ".join(lines)


def test_runs_of_one_config_and_seed_are_not_seeds_of_one_group(tmp_path):
    before, after = run(tmp_path, "before", 2.0), run(tmp_path, "after", 1.0)
    assert [one.group for one in entered(before, after)] == [0, 1]
    assert told(before, after)[0] == "after ended lowest, with a base loss of 1."
    seeds = [run(tmp_path, f"{name}{seed}", 2.0, seed=seed) for name in "ab" for seed in range(2)]
    assert [one.group for one in entered(*seeds)] == [0, 0, 1, 1]


def test_a_spike_near_the_end_does_not_decide(tmp_path):
    level = lambda loss, at: Part(lambda step: 1e6 if step == at else loss, lambda step: 1.0)
    a = write_run(tmp_path / "a", steps=60, base=level(1.0, 58))
    b = write_run(tmp_path / "b", steps=60, base=level(2.0, None))
    assert told(a, b)[0] == "a ended lowest, with a base loss of 1."


def test_held_out_losses_compare_at_one_step(tmp_path):
    whole = run(tmp_path, "whole", 1.0, held_out=1.5)
    short = run(tmp_path, "short", 1.5, held_out=3.0, steps=2, weight=0.2)
    assert told(whole, short)[0] == (
        "whole was lowest at step 2, the last evaluation that all have, with a held-out base loss of 2.5."
    )


def test_the_run_without_a_term_stands_beside_the_one_with_it(tmp_path):
    whole = run(tmp_path, "all", 2.0, terms=("kl", "l1", "l2", "l3"))
    without = {
        "kl": run(tmp_path, "without-kl", 2.5, terms=("l1", "l2", "l3")),
        "l1": run(tmp_path, "without-l1", 1.0, terms=("kl", "l2", "l3")),
        "l2": run(tmp_path, "without-l2", 2.01, terms=("kl", "l1", "l3")),
        "l3": run(tmp_path, "without-l3", 2.005, terms=("kl", "l1", "l2")),
    }
    lines = told(whole, *without.values())
    assert lines[0] == ("without-l1 ended lowest, with a base loss of 1.")
    # An ablation of several seeds says what is more than chance.
    assert [lines[-4], lines[-2], lines[-1]] == [
        "Without l1 the base loss ended at 1 instead of 2, 50 % lower (one seed).",
        "Without l2 the base loss ended at 2.01 instead of 2, 0.5 % higher (one seed).",
        "Without kl the base loss ended at 2.5 instead of 2, 25 % higher (one seed).",
    ]
    assert not any(claim in " ".join(lines) for claim in ("helped", "cost", "difference (", "nothing"))


def test_the_effect_of_a_term_is_the_difference_seed_by_seed(tmp_path):
    def all_and_without(losses):
        whole = [run(tmp_path, f"all{seed}", a, seed=seed) for seed, (a, _) in enumerate(losses)]
        return told(
            *whole, *(run(tmp_path, f"no{seed}", b, seed=seed, terms=("kl",)) for seed, (_, b) in enumerate(losses))
        )

    lines = all_and_without([(2.0, 2.2), (2.3, 2.1), (2.0, 2.25)])
    assert lines[0] == "All runs ended about equal, with a base loss of 2.142."
    assert lines[-1] == (
        "Without l1 the base loss ended at 2.183 instead of 2.1, 4 % higher (3 seeds); "
        "from seed to seed the difference is −0.2 to 0.25."
    )
    lines = all_and_without([(2.0, 2.2), (3.0, 3.21), (4.0, 4.19)])
    assert lines[0] == "all0, all1 and all2 ended lowest, with a base loss of 3."
    assert lines[-1] == (
        "Without l1 the base loss ended at 3.2 instead of 3, 6.7 % higher (3 seeds); "
        "from seed to seed the difference is 0.19 to 0.21."
    )


def test_the_spread_of_many_seeds_stands_for_that_of_one(tmp_path):
    many = [run(tmp_path, f"a{seed}", 2.0 + seed / 10, seed=seed) for seed in range(3)]
    near, far = run(tmp_path, "b", 2.2, seed=9, weight=0.2), run(tmp_path, "c", 2.9, seed=9, weight=0.3)
    assert told(*many, near)[0].startswith("All runs ended about equal")
    assert told(*many, far)[0] == "a0, a1 and a2 ended lowest, with a base loss of 2.1."


def test_losses_far_apart_differ_by_a_factor(tmp_path):
    lines = told(run(tmp_path, "a", 1e-3), run(tmp_path, "b", 5.0, terms=("kl",)))
    assert lines[2] == "b follows, with 5 (5000 times as much)."
    assert lines[-1] == "Without l1 the base loss ended at 5 instead of 0.001 (one seed)."


def test_losses_below_zero_differ_by_amounts_and_not_by_parts(tmp_path):
    lines = told(run(tmp_path, "a", -2.0), run(tmp_path, "b", -1.0, terms=("kl",)))
    assert lines[2] == "b follows, with −1 (1 more)."
    assert lines[-1] == "Without l1 the base loss ended at −1 instead of −2 (one seed)."


def test_a_run_that_differs_in_more_than_a_term_shows_nothing_about_it(tmp_path):
    whole = run(tmp_path, "all", 2.0)
    other = run(tmp_path, "other", 2.5, terms=("l1",), settings=config(["l1"], 4, learning_rate=1.0))
    assert not any(line.startswith("Without") for line in told(whole, other))


def test_a_sweep_lists_the_loss_of_each_value(tmp_path):
    folders = [
        run(tmp_path, f"w{weight}", loss, weight=weight) for weight, loss in ((0.01, 2.0), (0.5, 1.5), (9.0, 4.0))
    ]
    assert told(*folders)[-1] == (
        "The runs differ in term.kl.weight alone. Base loss by its value, lowest first: 0.5: 1.5, 0.01: 2, 9.0: 4."
    )


def test_long_values_of_a_sweep_are_short(tmp_path):
    folders = [run(tmp_path, f"w{weight}", weight * 100, weight=weight) for weight in (0.018662266976517967, 0.5)]
    assert told(*folders)[-1].endswith(" Base loss by its value, lowest first: 0.01866: 1.866, 0.5: 50.")


def test_losses_that_are_equal_are_not_put_in_order(tmp_path):
    folders = [run(tmp_path, name, 2.0, weight=weight) for name, weight in (("a", 0.1), ("b", 0.2), ("c", 0.3))]
    lines = told(*folders)
    assert lines[:2] == [
        "All runs ended about equal, with a base loss of 2.",
        "Every run ended with the same base loss, to four digits: 2.",
    ]
    assert not any("follows" in line or "highest" in line for line in lines)


def test_a_run_without_a_finite_loss_cannot_be_compared(tmp_path):
    good, bad = run(tmp_path, "good", 2.0, settings=None), run(tmp_path, "bad", math.nan, settings=None)
    assert told(good, bad)[-2] == "bad diverged: NaN from step 1. It ranks last."
    assert told(bad)[0] == "No run has a loss to compare."
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.json").write_text("{}")
    (empty / "lock").touch()
    assert told(good, empty)[-2] == "empty cannot be compared: no step yet."
    path = good / "metrics.jsonl"
    path.write_text(path.read_text().replace('"base_loss": {"value": 2.0', '"base_loss": {"value": "NaN"'))
    for value in ("3.0", "4.0", "5.0", "6.0"):
        path.write_text(path.read_text().replace(f'"value": {value}', '"value": "NaN"'))
    assert told(good)[-2] == "good diverged: its loss is not finite. It ranks last."


def test_a_loss_of_zero_has_no_parts(tmp_path):
    first, second = run(tmp_path, "a", 0.0), run(tmp_path, "b", 1.0, terms=("kl",))
    assert told(first, second)[2] == "b follows, with 1 (1 more)."
    assert told(first, second)[-1] == "Without l1 the base loss ended at 1 instead of 0 (one seed)."


def test_runs_without_base_loss_compare_by_the_total(tmp_path):
    parts = {"l1": Part(lambda step: 2.0)}
    folders = [write_run(tmp_path / name, steps=2, base=None, parts=parts, evaluate=None) for name in "ab"]
    assert ranking(entered(*folders)).what == "loss"
    folders = [write_run(tmp_path / name, steps=2, evaluate={1: 1.0}) for name in "ab"]
    for folder in folders:
        path = folder / "metrics.jsonl"
        found = [json.loads(line) for line in path.read_text().splitlines()]
        del found[-1]["loss"]["base_loss"]
        path.write_text("".join(json.dumps(one) + "\n" for one in found))
    assert ranking(entered(*folders)).what == "held-out loss"


def totals(tmp_path, name, value, *, base=None, weight=0.1, evaluate=None, settings=None):
    parts = {"l1": Part(lambda step: value, lambda step: weight)}
    return write_run(tmp_path / name, steps=range(1, 5), base=base, parts=parts, evaluate=evaluate, settings=settings)


def test_totals_with_other_weights_or_terms_are_not_ranked(tmp_path):
    a, b = totals(tmp_path, "a", 2.0), totals(tmp_path, "b", 3.0)
    assert told(a, b)[0] == "a ended lowest, with a loss of 0.2."
    c = totals(tmp_path, "c", 2.0, weight=0.5)
    assert told(a, c)[0] == "The runs are not ranked: their terms or weights differ."
    d = totals(tmp_path, "d", 2.0, base=Part(lambda step: 0.01))
    assert told(a, d)[:2] == [
        "The runs are not ranked: their terms or weights differ.",
        "The loss: a 0.2 and d 0.21. It ranks nothing: their terms or weights differ.",
    ]
    assert [row[:2] for row in run_rows(entered(a, d))[1]] == [["4", "0.2"], ["4", "0.21"]]
    assert run_rows(entered(a, d))[0][1] == "loss"
    charts = {chart.title: chart for chart in comparison_charts(entered(a, d))}
    assert [name for name, *_ in charts["Base loss"].legend] == ["d"]


def test_totals_of_other_functions_are_not_ranked(tmp_path):
    one, other = config(["l1"], 4), config(["l1"], 4)
    other["term"][0]["options"] = {"reduction": "mean"}
    a, b = totals(tmp_path, "a", 2.0, settings=one), totals(tmp_path, "b", 3.0, settings=other)
    assert told(a, b)[0] == "The runs are not ranked: their terms or weights differ."


def test_letters_continue_after_z(tmp_path):
    folder = run(tmp_path, "a", 1.0, settings=None)
    log = read(folder)
    summary = summarise(log)
    letters = [one.letter for one in contenders([log] * 28, [summary] * 28, ["a"] * 28)]
    assert letters[:2] + letters[25:] == ["A", "B", "Z", "A1", "B1"]


def test_the_table_has_the_numbers_of_each_run(tmp_path):
    a, b = run(tmp_path, "a", 2.0, held_out=1.5), run(tmp_path, "b", math.nan)
    _, (first, second) = run_rows(entered(a, b))
    assert first[:5] == ["4", "2", "1.5", "0", "0"]
    assert second[:5] == ["4", "NaN", "–", "4", "0"]
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.json").write_text("{}")
    (empty / "lock").touch()
    assert run_rows(entered(empty))[1][0] == ["0", "–", "–", "0", "0", "–", "–", "–"]


def test_the_table_has_the_memory_that_a_run_took(tmp_path):
    folder = write_run(tmp_path / "a", steps=4, memory=lambda step: 1e9 + step)
    assert run_rows(entered(folder))[1][0][-1] == "1 GB"


def test_metrics_are_on_the_same_axes(tmp_path):
    base = Part(lambda step: 2.0, lambda step: 1.0, metrics={"accuracy": lambda step: step / 4})
    a = write_run(tmp_path / "a", steps=4, base=base, evaluate={3: 1.5})
    b = write_run(tmp_path / "b", steps=4, parts={"kl": Part(lambda step: 1.0, metrics={"kl_max": lambda step: 3.0})})
    lines = [json.loads(line) for line in (a / "metrics.jsonl").read_text().splitlines()]
    lines[-1]["loss"]["base_loss"]["custom"] = {"accuracy": 0.25}
    spoken = {"kind": "samples", "step": 3, "samples": [], "metrics": {"exact_match": 0.5}}
    (a / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in [*lines, spoken]))
    figures = {figure.title: figure for figure in comparison_charts(entered(a, b))}
    own = ["base_loss/accuracy", "kl/kl_max", "base_loss/accuracy, held out", "exact_match"]
    assert list(figures)[-5:-1] == own
    notes = ["in training", "in training", "on data that is not trained on", "over samples for held-out prompts"]
    assert [figure.note for figure in figures.values()][-5:-1] == notes


def test_runs_are_on_the_same_axes(tmp_path):
    a, b = run(tmp_path, "a", 2.0, held_out=1.5), run(tmp_path, "b", 1.0, terms=("kl",))
    charts = {chart.title: chart for chart in comparison_charts(entered(a, b))}
    assert list(charts) == ["Held-out base loss", "Base loss", "Total loss", "kl", "l1", "Gradient norm"]
    drawn = drawings(make([a, b]).html)["Base loss"]
    assert drawn.line("a") == {1: 6, 2: 5, 3: 4, 4: 2}
    assert drawn.line("b") == {1: 5, 2: 4, 3: 3, 4: 1}
    assert [name for name, *_ in charts["l1"].legend] == ["a"]
    assert [letter for *_, letter in charts["Base loss"].legend] == ["A", "B"]
    assert charts["Held-out base loss"].ends == (2, 4)


def test_what_is_not_finite_is_said_by_run(tmp_path):
    a, b, c = (run(tmp_path, name, 2.0, settings=None, nan_from=at) for name, at in (("a", 2), ("b", 4), ("c", 9)))
    charts = {chart.title: chart for chart in comparison_charts(entered(a, b, c))}
    assert charts["Base loss"].signs == [
        ("broken", "A NaN or infinite: steps 2 to 4"),
        ("broken", "B NaN or infinite: step 4"),
    ]


def test_differences_are_listed_by_key(tmp_path):
    a, b = run(tmp_path, "a", 2.0), run(tmp_path, "b", 1.0, terms=("kl",), seed=7)
    assert differences([read(a).config, read(b).config]) == {"train.seed": ["0", "7"], "term.l1": ["yes", "–"]}
    assert differences([read(a).config, None])["train.seed"] == ["0", "–"]


def test_options_of_a_term_are_compared_among_the_runs_that_have_it():
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


def test_a_run_given_twice_is_one_run(tmp_path):
    folder = run(tmp_path, "a", 1.0)
    assert list(make([folder, tmp_path / "b" / ".." / "a"]).verdicts) == ["a"]


def test_a_seed_that_all_share_is_not_in_their_names(tmp_path):
    folders = [run(tmp_path, f"{name}-seed-3", 1.0) for name in ("all", "without-kl")]
    assert list(make(folders).verdicts) == ["all", "without-kl"]
    assert list(make(folders[:1]).verdicts) == ["all-seed-3"]
    folders.append(run(tmp_path, "all-seed-4", 1.0, seed=4))
    assert list(make(folders).verdicts) == ["all-seed-3", "without-kl-seed-3", "all-seed-4"]


def test_the_folder_of_an_ablation_stands_for_its_runs(tmp_path):
    for name in ("all-seed-0", "a-seed-0", "b-seed-0"):
        run(tmp_path, name, 1.0)
    (tmp_path / "other").mkdir()
    with pytest.raises(RunError, match=re.escape(f"{tmp_path} is not a run, but contains 3 runs; use ")):
        make([tmp_path])
    (tmp_path / "ablation.json").write_text('{"runs": [{"folder": "all-seed-0"}, {"folder": "gone"}]}')
    assert list(make([tmp_path]).verdicts) == ["all", "a", "b"]
    for broken in ("{", "[]", '{"runs": 3}', '{"runs": [{}]}'):
        (tmp_path / "ablation.json").write_text(broken)
        assert list(make([tmp_path]).verdicts) == ["a", "all", "b"]


def test_a_folder_with_one_run_in_it_names_that(tmp_path):
    folder = run(tmp_path, "a", 1.0)
    with pytest.raises(RunError, match=f"contains a run; use penalties report {re.escape(str(folder))}$"):
        make([tmp_path])


@pytest.mark.parametrize("count", [2, 30])
def test_any_number_of_runs_has_a_page(tmp_path, count):
    folders = [run(tmp_path, f"run{place}", 1.0 + place / 9, settings=None) for place in range(count)]
    assert f"{count} runs compared" in make(folders).html


def evaluated(tmp_path, name, losses, *, steps=4, metric=None, **changes):
    """A run with these held-out losses by step, 0 being before training."""
    told = config(["kl"], steps)
    for key, value in changes.items():
        table, _, name_ = key.partition("__")
        told[table][name_] = value
    parts = {"kl": Part(lambda step: 1.0)}
    folder = write_run(tmp_path / name, steps=range(1, steps + 1), parts=parts, evaluate=losses, settings=told)
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines()
    if 0 in losses:
        first = json.loads(next(line for line in lines if '"eval"' in line))
        first |= {"step": 0, "loss": first["loss"] | {"base_loss": {"value": losses[0]}}}
        lines.insert(0, json.dumps(first))
    if metric is not None:
        lines.append(json.dumps({"kind": "samples", "step": steps, "samples": [], "metrics": {"exact_match": metric}}))
    path.write_text("".join(f"{line}\n" for line in lines))
    return folder


def test_the_step_that_is_named_is_the_one_that_is_compared(tmp_path):
    first = evaluated(tmp_path, "first", {2: 5.0, 4: 1.0})
    second = evaluated(tmp_path, "second", {2: 4.0, 3: 0.5}, train__seed=1)
    lines = told(first, second)
    assert lines[0] == "first and second had, on average, a held-out base loss of 4.5 at step 2."
    assert ranking(entered(first, second)).step == 2
    header, rows = run_rows(entered(first, second))
    assert header[2] == "held-out at step 2"
    assert [row[2] for row in rows] == ["5", "4"]


def test_the_model_before_training_is_never_compared(tmp_path):
    first = evaluated(tmp_path, "first", {0: 0.1, 2: 5.0})
    second = evaluated(tmp_path, "second", {0: 0.1, 3: 4.0}, train__learning_rate=1.0)
    order = ranking(entered(first, second))
    assert (order.held_out, order.what, order.step) == (False, "base loss", 4)


@pytest.mark.parametrize(
    ("key", "value", "why", "stated"),
    [
        ("data__eval_path", "b.jsonl", "held-out data", "Held-out data differ: none in a; b.jsonl in b."),
        ("model__name", "gpt2", "models (and so perhaps tokenizers)",
         "Models (and so perhaps tokenizers) differ: tiny in a; gpt2 in b."),
        ("train__loss", "dpo", "base losses", "Base losses differ: none in a; dpo in b."),
        ("data__mask_prompt", False, "masks of prompts", "Masks of prompts differ: none in a; false in b."),
    ],
)  # fmt: skip
def test_runs_with_other_held_out_data_or_tokenizers_are_not_ranked(tmp_path, key, value, why, stated):
    a, b = evaluated(tmp_path, "a", {4: 2.0}), evaluated(tmp_path, "b", {4: 1.0}, **{key: value})
    found = compare(entered(a, b))
    assert found.summary.startswith("The runs are not ranked: their ")
    assert why in found.summary
    assert "lowest" not in str(found)
    assert stated in str(found)


@pytest.mark.parametrize("options", [{"train__reduction": "sum"}, {"train__loss_options": {"reduction": "sum"}}])
def test_sums_over_batches_of_other_sizes_are_not_ranked(tmp_path, options):
    a, b = (
        evaluated(tmp_path, name, {4: 2.0 * size}, train__batch_size=size, **options)
        for name, size in (("a", 4), ("b", 16))
    )
    lines = told(a, b)
    assert lines[0] == "The runs are not ranked: their batch sizes differ."
    assert "Batch sizes differ: 4 in a; 16 in b." in lines
    c, d = (evaluated(tmp_path, name, {4: 2.0}, train__batch_size=size) for name, size in (("c", 4), ("d", 16)))
    assert "ranked" not in told(c, d)[0]


def test_other_training_data_are_stated_and_rank_where_the_held_out_data_are_the_same(tmp_path):
    a, b = evaluated(tmp_path, "a", {4: 2.0}), evaluated(tmp_path, "b", {4: 1.0}, data__path="other.jsonl")
    lines = told(a, b)
    assert lines[0] == "b ended lowest, with a held-out base loss of 1."
    assert "Training data differ: pig_latin.jsonl in a; other.jsonl in b." in lines
    a, b = (run(tmp_path, name, loss) for name, loss in (("c", 2.0), ("d", 1.0)))
    settings = json.loads((b / "config.json").read_text())
    settings["data"]["path"] = "other.jsonl"
    (b / "config.json").write_text(json.dumps(settings))
    assert told(a, b)[0] == "The runs are not ranked: their training data differ."


def with_data(folder, **hashes):
    """The folder, with what its run says of its data."""
    processes = [{"step": 0, "time": "2026-01-01T00:00:00Z", "versions": {}, "data": hashes}]
    (folder / "environment.json").write_text(json.dumps({"processes": processes}))
    return folder


def test_files_of_the_same_path_whose_contents_differ_are_other_data(tmp_path):
    a, b = evaluated(tmp_path, "a", {4: 2.0}), evaluated(tmp_path, "b", {4: 1.0})
    with_data(a, training="1" * 64, held_out="2" * 64)
    with_data(b, training="3" * 64, held_out="2" * 64)
    lines = told(a, b)
    assert lines[0].startswith("b ended lowest")
    assert "Contents of training data differ: 11111111 in a; 33333333 in b." in lines
    with_data(b, training="1" * 64, held_out="4" * 64)
    lines = told(a, b)
    assert lines[0] == "The runs are not ranked: their contents of held-out data differ."
    assert "Contents of held-out data differ: 22222222 in a; 44444444 in b." in lines
    # Of a run from before this was recorded nothing is known.
    (b / "environment.json").unlink()
    assert told(a, b)[0].startswith("b ended lowest")


def test_seeds_are_stated_unless_each_setting_has_the_same(tmp_path):
    a, b = run(tmp_path, "a", 2.0), run(tmp_path, "b", 1.0, seed=1, weight=0.2)
    assert told(a, b)[-1] == "Seeds differ: 0 in a; 1 in b."
    both = [
        run(tmp_path, f"{name}{seed}", 2.0, seed=seed, weight=weight)
        for name, weight in (("c", 0.1), ("d", 0.2))
        for seed in range(2)
    ]
    assert "Seeds" not in " ".join(told(*both))


def test_metrics_are_compared_at_a_step_that_all_have(tmp_path):
    a, b = (
        evaluated(tmp_path, name, {4: 2.0}, metric=value, train__seed=seed)
        for seed, (name, value) in enumerate((("a", 0.25), ("b", 0.75)))
    )
    assert "exact_match at step 4: b 0.75 and a 0.25." in told(a, b)
    many = [evaluated(tmp_path, f"r{seed}", {4: 2.0}, metric=seed / 10, train__seed=seed) for seed in range(8)]
    assert "exact_match at step 4: r7 0.7 and r0 0, the highest and the lowest of 8." in told(*many)
