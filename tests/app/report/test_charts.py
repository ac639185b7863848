"""Charts as data: what stays of many steps, and the words around a chart."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from penalties.app.report.charts.chart import as_json
from penalties.app.report.charts.columns import Columns, buckets_for
from penalties.app.report.charts.lines import Line, Moment, lines, shares, spark
from penalties.app.report.charts.points import Dots, Spot, dots, scatter
from penalties.app.report.charts.thinning import keep, means
from penalties.app.report.runlog import EMPTY, RunLog, Series

from .drawn import numbers


def series(values, first: int = 1) -> Series:
    values = np.asarray(values, float)
    return Series(np.arange(first, first + len(values)), values)


def columns(steps: int = 3) -> Columns:
    return Columns("A", RunLog(np.arange(1, steps + 1)))


def data(made: Columns, buckets: int = 2000, *, exact: bool = True) -> dict:
    return json.loads(made.data(buckets, exact=exact))


@settings(max_examples=60, deadline=None)
@given(arrays(np.float64, st.integers(1, 3000), elements=st.floats(-1e9, 1e9)), st.integers(1, 40))
def test_every_bucket_keeps_its_minimum_its_maximum_and_its_last(values, buckets):
    kept = keep(values[None], np.zeros((1, len(values)), bool), buckets)
    assert np.all(np.diff(kept) > 0)
    assert kept[0] == 0
    assert kept[-1] == len(values) - 1
    if len(values) > 3 * buckets:
        width = -(-len(values) // buckets)
        assert len(kept) <= 3 * buckets + 1
        for start in range(0, len(values), width):
            inside = values[start : start + width]
            stays = values[kept[(kept >= start) & (kept < start + width)]]
            assert {inside.min(), inside.max(), inside[-1]} <= set(stays.tolist())


def test_rows_that_keep_the_same_steps_keep_the_extremes_of_each():
    rows = np.random.default_rng(0).normal(size=(3, 10_000))
    rows[1, 4321], rows[2, 8765] = 50.0, -50.0
    kept = keep(rows, np.zeros(rows.shape, bool), 20)
    assert {4321, 8765} <= set(kept.tolist())
    assert len(kept) <= 7 * 20 + 1


def test_the_first_of_what_is_not_finite_stays():
    values = np.zeros((1, 10_000))
    marked = np.zeros(values.shape, bool)
    marked[0, 6_543:6_600] = True
    values[marked] = np.nan
    assert 6_543 in keep(values, marked, 10)


def test_means_are_of_what_is_finite():
    at, mean = means(np.array([1.0, math.nan, 3.0, math.inf, math.nan, math.nan]), 3)
    assert at.tolist() == [1, 3, 5]
    assert mean[:2].tolist() == [1.0, 3.0]
    assert math.isnan(mean[2])


def test_a_series_is_there_once_however_many_charts_draw_it():
    made, loss = columns(), series([3, 2, 1])
    charts = [lines(title, [Line("loss", "total", made, loss)]) for title in "ab"]
    assert charts[0].spec["lines"][0]["column"] == charts[1].spec["lines"][0]["column"] == 0
    assert len(data(made)["columns"]) == 1


def test_numbers_are_those_given_with_words_for_the_others():
    made = columns(6)
    at = made.column(series([0.1, math.nan, math.inf, -math.inf]), failed=[7, 8])
    assert numbers(data(made), at) == {
        1: 0.1, 2: "NaN", 3: "Infinity", 4: "-Infinity", 7: "failed", 8: "failed"
    }  # fmt: skip


def test_a_series_that_never_changes_is_one_number():
    made = columns()
    at = made.column(series([0.5] * 100))
    assert data(made)["columns"][at][1] == 0.5
    assert numbers(data(made), at)[100] == 0.5


def test_a_long_series_has_its_means_for_smoothing():
    made = columns()
    at = made.column(series(np.arange(10_000) % 7))
    _, values, last, mean = data(made, 50)["columns"][at]
    assert len(values) <= 151
    assert len(mean) == 50
    assert np.mean(mean) == pytest.approx(3, abs=0.05)
    assert sum(data(made, 50)["steps"][last]) == 10_000


def test_many_series_share_a_page():
    few, many = [columns()], [columns() for _ in range(10)]
    few[0].column(series(np.random.default_rng(0).random(100)))
    for one in many:
        for seed in range(30):
            one.column(series(np.random.default_rng(seed).random(20_000)))
    assert buckets_for(few) == (2000, True)
    buckets, exact = buckets_for(many)
    assert 200 < buckets < 300
    assert not exact
    assert sum(len(one.data(buckets, exact=exact)) for one in many) < 4_000_000


@settings(max_examples=30, deadline=None)
@given(arrays(np.float64, st.integers(1, 20), elements=st.floats(allow_nan=False, allow_infinity=False)))
def test_numbers_have_six_digits_or_all(values):
    made = columns()
    at = made.column(series(values))
    assert list(numbers(data(made), at).values()) == values.tolist()
    assert list(numbers(data(made, exact=False), at).values()) == pytest.approx(values.tolist(), rel=1e-5)


def test_axes_are_tokens_and_seconds_so_far():
    steps = np.arange(1, 5)
    run = RunLog(steps, tokens=Series(steps, np.full(4, 10.0)), seconds=Series(steps[1:], np.array([1.0, 2.0, 3.0])))
    made = Columns("A", run)
    assert data(made)["axes"] == {"step": [0, 1, 2, 3, 4], "tokens": [0, 10, 20, 30, 40], "seconds": [0, 0, 1, 3, 6]}
    assert made.over("tokens")
    assert not columns().over("tokens")
    assert data(Columns("A", RunLog(np.empty(0, np.int64))))["axes"] == {"step": [0]}


@pytest.mark.parametrize(
    ("values", "log", "scales"),
    [
        ([1, 2], False, ["linear", "log"]),
        ([1, 2], True, ["log", "linear"]),
        ([1, 0], False, ["linear", "log", "asinh"]),
        ([-1, 2], True, ["log", "linear", "asinh"]),
        ([-1, -2], True, ["linear", "asinh"]),
        ([math.nan, math.nan], False, ["linear"]),
    ],
)
def test_the_scales_of_a_chart_are_those_that_its_numbers_have(values, log, scales):
    assert lines("a", [Line("x", "t1", columns(), series(values))], log=log).spec["scales"] == scales


def test_marks_are_said_with_their_steps():
    made = columns(400)
    values = np.ones(400)
    values[[9, 10, 11, 200]] = np.nan
    drawn = [Line("x", "t1", made, series(values), failed=[401]), Line("y", "t2", made, series([1.0]), hidden=True)]
    found = lines("a", drawn, moments=[Moment(0, "resumed"), Moment(50, "interrupted")])
    assert found.signs == [
        ("broken", "NaN or infinite: steps 10 to 12, 201"),
        ("failed", "x failed: step 401"),
        ("moment", "resumed before step 1"),
        ("moment", "interrupted after step 50"),
    ]
    assert found.spec["moments"] == [[0, "resumed"], [50, "interrupted"]]
    assert found.label == "a: x, y; steps 1 to 400. Arrow keys move the cursor."


def test_many_marks_are_counted():
    values = np.ones(1000)
    values[::100] = np.nan
    (sign,) = lines("a", [Line("x", "t1", columns(), series(values))]).signs
    assert sign == ("broken", "NaN or infinite: steps 1, 101, 201, 301 and 6 more times")


def test_shares_keep_the_same_steps():
    made = columns()
    parts = [series(np.random.default_rng(seed).random(10_000)) for seed in range(3)]
    chart = shares("s", [Line(str(place), "t1", made, one) for place, one in enumerate(parts)])
    found = data(made, 100)
    at = [list(numbers(found, line["column"])) for line in chart.spec["lines"]]
    assert at[0] == at[1] == at[2]
    assert len(at[0]) < 10_000


def test_a_spark_is_small_and_apart_from_the_whole_series():
    made, loss = columns(), series(np.random.default_rng(0).random(5000))
    chart = spark("s", Line("x", "total", made, loss), low=0.0)
    assert chart.size == "spark"
    assert (chart.spec["low"], chart.spec["high"]) == (0.0, None)
    assert made.column(loss) != chart.spec["lines"][0]["column"]
    assert len(numbers(data(made), chart.spec["lines"][0]["column"])) <= 121


def test_nothing_to_draw_is_a_chart_too():
    chart = lines("a", [Line("x", "t1", columns(), EMPTY)])
    assert chart.ends == (0, 0)
    assert chart.spec["scales"] == ["linear"]


def test_data_cannot_end_the_script_that_holds_it():
    made = columns()
    chart = lines("a", [Line("</script><!--", "t1", made, series([1]))])
    assert "<" not in chart.data
    assert json.loads(chart.data)["lines"][0]["name"] == "</script><!--"
    assert as_json("<") == '"\\u003c"'


def test_a_dot_plot_has_a_row_for_each_name():
    rows = [Dots("kl", "t1", [0.1, 0.3, math.nan], mean=0.2, low=0.05, high=0.35), Dots("l1", "t2", [1.0])]
    chart = dots("Effects", rows, x_name="Δ")
    assert [row["values"] for row in chart.spec["rows"]] == [[0.1, 0.3], [1.0]]
    assert (chart.spec["rows"][0]["low"], chart.spec["rows"][1]["low"]) == (0.05, None)
    assert chart.label == "Effects: Δ of kl 0.05 to 0.35; l1 1"
    assert chart.rows == 2


def test_a_scatter_leaves_out_what_its_axes_cannot_show():
    spots = [Spot("a", "r0", 0.1, 2.0, front=True), Spot("b", "r1", 0.0, 1.0), Spot("c", "r2", 1.0, math.inf)]
    names = lambda chart: [one["name"] for one in chart.spec["spots"]]
    assert names(scatter("s", spots, x_name="w", y_name="loss")) == ["a", "b"]
    assert names(scatter("s", spots, x_name="w", y_name="loss", x_scale="log")) == ["a"]
    assert scatter("s", spots[:1], x_name="w", y_name="loss").label == "s: a: w 0.1, loss 2"
