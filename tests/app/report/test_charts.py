"""Pictures show the numbers they are given, and carry them for the cursor."""

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penalties.app.report.charts.figure import _apart, _digits
from penalties.app.report.charts.lines import lines
from penalties.app.report.charts.marks import Moment
from penalties.app.report.charts.sheet import Frame, Line
from penalties.app.report.charts.stacks import folded, stack
from penalties.app.report.runlog import EMPTY, Series

from .pictures import Picture


def series(*values: float | None, first: int = 0) -> Series:
    there = [(step, value) for step, value in enumerate(values, first) if value is not None]
    return Series(np.array([step for step, _ in there], np.int64), np.array([value for _, value in there], float))


def frame(*drawn: Series, points: int = 500) -> Frame:
    return Frame.around([one.steps for one in drawn], points)


def line(series: Series, css: str = "t1", **more) -> Line:
    return Line(more.pop("name", css), css, series, **more)


def test_a_line_goes_through_its_numbers():
    numbers = series(4.0, 1.0, 2.5, 2.5, 2.5, 0.3)
    picture = Picture(lines("Loss", [line(numbers)], frame=frame(numbers)))
    (piece,) = picture.line("t1")
    assert [step for step, _ in piece] == pytest.approx([0, 1, 2, 4, 5], abs=0.01), "a level stretch is one move"
    assert [value for _, value in piece] == pytest.approx([4, 1, 2.5, 2.5, 0.3], abs=picture.unit)
    assert picture.column("t1") == [4, 1, 2.5, 2.5, 2.5, 0.3]
    assert picture.steps.tolist() == list(range(6))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=60))
def test_numbers_in_the_picture_equal_those_given(values):
    numbers = series(*values)
    picture = Picture(lines("Loss", [line(numbers)], frame=frame(numbers)))
    for step, value in [point for piece in picture.line("t1") for point in piece]:
        given_value = values[round(step)]
        if picture.low <= given_value <= picture.high:
            assert value == pytest.approx(given_value, abs=picture.unit)
    assert picture.column("t1") == pytest.approx(values, rel=1e-5)


def test_many_steps_are_fewer_in_the_picture_with_their_extremes():
    values = np.random.default_rng(0).normal(size=50_000)
    values[31_415] = 4.9
    numbers = Series(np.arange(50_000), values)
    picture = Picture(lines("Loss", [line(numbers)], frame=frame(numbers, points=400)))
    assert len(picture.steps) <= 400
    assert 31_415 in picture.steps
    kept = dict(zip(picture.steps.tolist(), picture.column("t1"), strict=True))
    assert all(value == pytest.approx(values[step], rel=1e-5) for step, value in kept.items())
    assert max(kept.values()) == pytest.approx(values.max(), rel=1e-5)
    assert min(kept.values()) == pytest.approx(values.min(), rel=1e-5)
    assert 'class="fine"' in picture.figure.svg


def test_many_steps_have_a_trend_that_noise_does_not_hide():
    random = np.random.default_rng(0)
    values = np.linspace(3, 1, 8000) + random.normal(size=8000)
    values[4000] = 500.0
    values[6000:7000] = np.nan
    numbers = Series(np.arange(8000), values)
    few = Series(np.arange(0, 8000, 400), np.ones(20))
    drawn = [line(numbers, letter="A"), line(few, "t2")]
    figure = lines("Loss", drawn, frame=frame(numbers), note="of all")
    picture = Picture(figure)
    before, after = picture.trend("t1")
    assert before[-1][0] < 6100
    assert after[0][0] > 6900
    for step, value in before + after:
        assert value == pytest.approx(3 - 2 * step / 8000, abs=0.6)
    assert np.mean([value - 3 + 2 * step / 8000 for step, value in before]) == pytest.approx(0, abs=0.05)
    assert figure.note == "of all; thick lines are medians of 100 steps"
    assert picture.trend("t2") == [], "a few numbers need none"
    assert figure.ends[0].height == pytest.approx(100 * (1.0 - picture.low) / (picture.high - picture.low), abs=5)
    assert lines("Loss", drawn[:1], frame=frame(numbers)).note == "thick lines are medians of 100 steps"


def test_a_trend_on_a_log_axis_stays_on_it():
    values = np.where(np.arange(2000) < 1500, 0.0, 1.0)
    numbers = Series(np.arange(2000), values)
    picture = Picture(lines("Norms", [line(numbers)], frame=frame(numbers), log=True))
    assert {round(value, 2) for piece in picture.trend("t1") for _, value in piece} == {0.0, 1.0}


def test_a_log_axis_shows_decades_and_zeros_in_a_strip_below():
    numbers = series(1e-4, 0.0, 1.0, 1e4, 0.0)
    picture = Picture(lines("Norms", [line(numbers)], frame=frame(numbers), log=True))
    values = [value for _, value in picture.line("t1")[0]]
    assert values == pytest.approx([1e-4, 0.0, 1.0, 1e4, 0.0], rel=0.03)
    assert [words for _, words in picture.figure.y_ticks] == ["0", "1e−4", "0.01", "1", "100", "10000"]
    assert picture.figure.y_ticks[0][0] < picture.figure.y_ticks[1][0] / 2
    assert picture.column("t1") == [1e-4, 0, 1, 10_000, 0]
    assert picture.figure.marks == []


def test_without_a_number_above_zero_an_axis_is_linear():
    numbers = series(0.0, 0.0)
    picture = Picture(lines("Norms", [line(numbers)], frame=frame(numbers), log=True))
    assert not picture.log
    assert "0" in [words for _, words in picture.figure.y_ticks]


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_breaks_the_line_and_is_marked(broken):
    numbers = series(1.0, 2.0, broken, 1.0, 2.0)
    figure = lines("Loss", [line(numbers)], frame=frame(numbers))
    picture = Picture(figure)
    assert [[round(step) for step, _ in piece] for piece in picture.line("t1")] == [[0, 1], [3, 4]]
    assert picture.column("t1")[2] == {math.inf: "Infinity", -math.inf: "-Infinity"}.get(broken, "NaN")
    (mark,) = figure.marks
    assert (mark.kind, mark.left, mark.sign, mark.title) == ("broken", 50.0, "×", "NaN or infinite: step 2")
    assert len(picture.shapes("gap")) == 1
    assert figure.signs == [("broken", "×", "NaN or infinite")]


def test_a_long_stretch_that_is_not_finite_is_one_band():
    values = np.ones(100_000)
    values[40_000:90_000] = np.nan
    figure = lines("Loss", [line(Series(np.arange(100_000), values))], frame=Frame(300, 0, 99_999))
    (mark,) = figure.marks
    assert mark.title == "NaN or infinite: steps 40\u202f000 to 89\u202f999"
    (band,) = Picture(figure).shapes("gap")
    assert band.get("d") == "M800 0V1000H1800V0Z"


def test_steps_without_a_number_are_passed_over():
    numbers, other = series(1.0, None, None, 4.0), series(1.0, 2.0, 3.0, 4.0)
    picture = Picture(lines("Loss", [line(numbers), line(other, "t2")], frame=frame(other)))
    assert [[round(step) for step, _ in piece] for piece in picture.line("t1")] == [[0, 3]]
    assert picture.column("t1") == [1, None, None, 4]


def test_a_failure_breaks_the_line_and_has_a_tick():
    numbers = series(1.0, 2.0, None, 1.0, 1.5)
    figure = lines("Loss", [line(numbers, failed=[2])], frame=frame(numbers))
    picture = Picture(figure)
    assert [[round(step) for step, _ in piece] for piece in picture.line("t1")] == [[0, 1], [3, 4]]
    assert picture.column("t1") == [1, 2, "failed", 1, 1.5]
    (ticks,) = picture.shapes("fail t1")
    assert ticks.get("d") == "M1000 1000v-45"
    assert figure.marks == []
    assert ("failed", "|", "failed") in figure.signs


def test_ticks_that_touch_are_as_strong_as_the_part_that_failed():
    numbers = Series(np.arange(0, 4000, 2), np.ones(2000))
    figure = lines("Loss", [line(numbers, failed=range(1, 4000, 2))], frame=Frame(100, 0, 3999))
    (ticks,) = Picture(figure).shapes("fail")
    assert ticks.get("opacity") == "0.50"


def test_a_single_step_is_a_dot_in_the_middle():
    numbers = series(3.0, first=7)
    figure = lines("Loss", [line(numbers)], frame=frame(numbers))
    picture = Picture(figure)
    assert "M1000 500h0" in figure.svg
    assert [value for _, value in picture.dots("t1")] == pytest.approx([3.0], abs=picture.unit)
    assert figure.x_ticks == [(50.0, "step 7")]


def test_short_lines_have_dots_and_long_ones_have_them_where_they_are_alone():
    short, long = series(*range(9)), series(*range(50), math.nan, 3.0, math.nan, 4.0, 5.0)
    assert len(Picture(lines("L", [line(short)], frame=frame(short))).dots("t1")) == 9
    assert [round(step) for step, _ in Picture(lines("L", [line(long)], frame=frame(long))).dots("t1")] == [51]


def test_a_spike_is_off_the_scale_and_marked_with_its_number():
    up, down = np.linspace(1, 2, 500), -np.linspace(1, 2, 500)
    up[100], up[103], up[400] = 500.0, 900.0, 70.0
    down[250] = -800.0
    figure = lines("L", [line(Series(np.arange(500), up))], frame=Frame(1000, 0, 499))
    assert [(mark.kind, mark.title, mark.words) for mark in figure.marks] == [
        ("over", "off the scale: 900 at step 103", "900"),
        ("over", "off the scale: 70 at step 400", ""),
    ]
    figure = lines("L", [line(Series(np.arange(500), down))], frame=Frame(1000, 0, 499))
    assert [(mark.kind, mark.sign, mark.title) for mark in figure.marks] == [
        ("under", "▼", "off the scale: −800 at step 250")
    ]


def test_without_lines_or_numbers_there_is_an_empty_picture():
    for drawn in ([], [line(EMPTY)], [line(series(math.nan))]):
        figure = lines("L", drawn, frame=Frame(100, 0, 0))
        assert Picture(figure).shapes("grid")
    assert Picture(stack("L", [line(EMPTY)], frame=Frame(100, 0, 0))).shapes("grid")


def test_a_stack_adds_up():
    parts = [
        line(series(1.0, 2.0, 3.0), "t0"),
        line(series(0.5, 0.25, 1.0), "t1"),
        line(series(-1.0, -0.5, -0.25), "t2"),
    ]
    total = line(series(0.5, 1.75, 3.75), "total")
    picture = Picture(stack("Loss", parts, total=total, frame=Frame(100, 0, 2)))
    edges = {css: [value for _, value in picture.area(css)[0]] for css in ("t0", "t1", "t2")}
    assert edges["t0"] == pytest.approx([1, 2, 3], abs=picture.unit)
    assert edges["t1"] == pytest.approx([1.5, 2.25, 4], abs=picture.unit)
    assert edges["t2"] == pytest.approx([-1, -0.5, -0.25], abs=picture.unit)
    assert [value for _, value in picture.line("total")[0]] == pytest.approx([0.5, 1.75, 3.75], abs=picture.unit)
    assert picture.column("t1") == [0.5, 0.25, 1]
    order = [shape.get("class") for shape in picture.shapes("area")]
    assert order == ["area t1", "area t0", "area t2"], "what lies in front is drawn last"


def test_a_sum_off_the_scale_has_a_mark_and_the_band_above_it_has_none():
    up = np.full(200, 2.0) - np.arange(200) / 1000
    up[50] = 60.0
    down = np.full(200, -0.5)
    parts = [line(Series(np.arange(200), up), "t0"), line(Series(np.arange(200), down), "t1")]
    total = line(Series(np.arange(200), up + down), "total")
    figure = stack("Loss", parts, total=total, frame=Frame(500, 0, 199))
    assert [(mark.kind, mark.words) for mark in figure.marks] == [("over", "59.5")]


def test_bands_of_a_stack_lie_between_their_neighbours():
    parts = [line(series(1.0, 2.0, 3.0), "t0"), line(series(0.5, 0.25, 1.0), "t1")]
    picture = Picture(stack("Loss", parts, frame=Frame(100, 0, 2)))
    way = picture.shapes("area t1")[0].get("d")
    lower = picture.value(int(way.partition("V")[0].split()[1]))
    assert lower == pytest.approx(1.0, abs=6 * picture.unit), "not zero: what is under it is not its own"
    assert lower < 1.0, "it reaches a little under its neighbour"


def test_a_stack_of_many_steps_is_of_means_with_the_range_of_the_total():
    random = np.random.default_rng(0)
    at = np.arange(100_000)
    first, second = 2 + random.random(100_000), random.random(100_000)
    first[77_777] = 500.0
    first[90_000:] = np.nan
    parts = [line(Series(at, first), "t0"), line(Series(at, second), "t1")]
    total = line(Series(at, first + second), "total")
    figure = stack("Loss", parts, total=total, frame=Frame(500, 0, 99_999), note="stacked")
    picture = Picture(figure)
    (edge,) = picture.area("t0")
    assert len(edge) <= 160
    assert edge[-1][0] < 91_000
    assert np.median([value for _, value in edge]) == pytest.approx(2.5, abs=0.05)
    assert len(picture.shapes("range")) == 1
    assert figure.note == "stacked; drawn are means of 625 steps, with the range of the sum in them"
    assert [mark.words for mark in figure.marks if mark.kind == "over"] == [picture_word(first, second)]
    assert 77_777 in picture.steps, "the cursor reads single steps"
    alone = stack("Loss", parts[1:], frame=Frame(500, 0, 99_999))
    assert alone.note == "drawn are means of 625 steps"
    assert Picture(alone).shapes("range") == []


def picture_word(first, second):
    return f"{first[77_777] + second[77_777]:.1f}"


def test_small_parts_of_many_are_one():
    large = [line(series(5.0, 5.0), f"t{place}") for place in range(9)]
    small = [line(series(0.1, 0.2), "t9", failed=[5]), line(series(None, 0.1), "t10"), line(series(0.0, 0.0), "t11")]
    *kept, rest = folded(large + small)
    assert kept == large
    assert (rest.name, rest.css, rest.failed) == ("3 others", "rest", [5])
    assert rest.series.values == pytest.approx([0.1, 0.3])
    assert folded(large) == large
    assert folded(large + small[:1] + large[:1]) == large + small[:1] + large[:1], "one alone keeps its name"


def test_the_axis_of_steps_ends_at_the_last_one():
    numbers = series(*range(60))
    figure = lines("L", [line(numbers)], frame=frame(numbers))
    assert [words for _, words in figure.x_ticks] == ["step 0", "20", "40", "59"]
    numbers = series(*range(102))
    figure = lines("L", [line(numbers)], frame=frame(numbers))
    assert [words for _, words in figure.x_ticks][-2:] == ["50", "101"]


def test_a_term_that_changes_its_sign_is_on_both_sides():
    parts = [line(series(1.0, 1.0), "t0"), line(series(1.0, -1.0), "t1")]
    picture = Picture(stack("Loss", parts, frame=Frame(100, 0, 1)))
    above, below = picture.area("t1")
    assert [value for _, value in above] == pytest.approx([2, 1], abs=picture.unit)
    assert [value for _, value in below] == pytest.approx([0, -1], abs=picture.unit)


def test_a_term_that_adds_nothing_is_not_drawn_but_is_in_the_data():
    parts = [line(series(1.0, 1.0), "t0"), line(series(0.0, 0.0), "t1")]
    picture = Picture(stack("Loss", parts, frame=Frame(100, 0, 1)))
    assert picture.shapes("area t1") == []
    assert picture.column("t1") == [0, 0]
    assert [name for _, name in picture.figure.legend] == ["t0", "t1"]


def test_a_stack_is_broken_where_its_total_is():
    parts = [line(series(1.0, math.nan, 1.0, 1.0), "t0"), line(series(1.0, 1.0, None, 1.0), "t1")]
    total = line(series(2.0, math.nan, 1.0, 2.0), "total")
    picture = Picture(stack("Loss", parts, total=total, frame=Frame(100, 0, 3)))
    assert len(picture.area("t0")) == 2
    assert [round(step) for step, _ in picture.area("t0")[1]] == [2, 3]
    assert [round(value, 1) for _, value in picture.area("t1")[1]] == [1.0, 2.0]


def test_a_stack_of_one_step_is_a_bar():
    picture = Picture(stack("Loss", [line(series(2.0), "t0")], total=line(series(2.0), "total"), frame=Frame(9, 0, 0)))
    assert "M960" in picture.shapes("area t0")[0].get("d")
    assert len(picture.dots("total")) == 1


def test_shares_fill_the_axis():
    parts = [line(series(0.25, 0.5), "t0"), line(series(0.75, 0.5), "t1")]
    picture = Picture(stack("Shares", parts, shares=True, frame=Frame(100, 0, 1)))
    assert [value for _, value in picture.area("t1")[0]] == pytest.approx([1, 1])
    assert picture.figure.y_ticks[-1] == (100.0, "100\xa0%")
    assert picture.data["unit"] == "share"
    third = line(series(0.7, 0.1), "t0"), line(series(0.2, 0.2), "t1"), line(series(0.1 + 1e-16, 0.7), "t2")
    assert stack("Shares", third, shares=True, frame=Frame(100, 0, 1)).marks == []


def test_moments_are_lines_across_the_picture():
    marked = [Moment(5, "resumed"), Moment(99, "interrupted")]
    numbers = series(*[1.0] * 11)
    figure = stack("Loss", [line(numbers)], marked=marked, frame=frame(numbers))
    assert [(mark.kind, mark.left, mark.title) for mark in figure.marks] == [("moment", 50.0, "resumed after step 5")]
    assert len(Picture(figure).shapes("moment")) == 1


def test_a_moment_before_the_first_step_is_at_its_side():
    figure = stack("Loss", [line(series(1.0, 2.0))], marked=[Moment(0, "resumed")], frame=Frame(100, 1, 2))
    assert [(mark.left, mark.title) for mark in figure.marks] == [(0.0, "resumed before step 1")]


def test_a_series_that_never_changes_is_one_number_in_the_data():
    numbers = series(0.1, 0.1, 0.1)
    data = json.loads(lines("W", [line(numbers)], frame=frame(numbers)).data)
    assert data["series"][0]["values"] == 0.1


@settings(max_examples=200)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_numbers_have_six_digits(values):
    values.append(1e300)
    assert _digits(np.array(values)) == [float(f"{value:.6g}") for value in values]


@settings(max_examples=200)
@given(st.lists(st.floats(1e-12, 1e12), min_size=1))
def test_ordinary_numbers_have_six_digits(values):
    got = _digits(np.array(values))
    assert got == pytest.approx([float(f"{value:.6g}") for value in values], rel=2e-6)
    assert all(len(repr(number).replace(".", "").replace("-", "").strip("0").partition("e")[0]) <= 7 for number in got)


def test_data_cannot_end_the_script_that_holds_it():
    numbers = series(1.0)
    figure = lines("L", [line(numbers, name="</script><b>")], frame=frame(numbers))
    assert "<" not in figure.data
    assert json.loads(figure.data)["series"][0]["name"] == "</script><b>"


def test_times_have_units():
    numbers = series(0.002, 0.5, 20.0)
    figure = lines("Time", [line(numbers)], frame=frame(numbers), log=True, unit="seconds")
    assert [words.replace("\xa0", " ") for _, words in figure.y_ticks] == ["10 ms", "100 ms", "1 s", "10 s"]


def test_letters_stand_at_the_ends_of_lines():
    drawn = [line(series(1.0, 5.0), "r0", letter="A"), line(series(1.0, 1.0), "r1", letter="B")]
    drawn.append(line(series(math.nan, math.nan), "r2", letter="C"))
    figure = lines("L", drawn, frame=Frame(9, 0, 1))
    low, high = figure.ends
    assert [(end.css, end.letter, end.left) for end in figure.ends] == [("r1", "B", 100.0), ("r0", "A", 100.0)]
    assert low.height == pytest.approx(100 * (1 - figure_low(figure)) / figure_span(figure))
    assert high.height > 90
    assert lines("L", [line(series(1.0))], frame=Frame(9, 0, 0)).ends == []


def test_more_letters_than_fit_are_left_out():
    drawn = [line(series(1.0, 5.0), f"r{place}", letter="A") for place in range(15)]
    assert lines("L", drawn, frame=Frame(9, 0, 1)).ends == []
    assert len(lines("L", drawn[:14], frame=Frame(9, 0, 1)).ends) == 14


def figure_low(figure):
    return json.loads(figure.data)["y"][0]


def figure_span(figure):
    low, high, *_ = json.loads(figure.data)["y"]
    return high - low


@settings(max_examples=100)
@given(st.lists(st.floats(0, 100), max_size=14).map(sorted))
def test_letters_never_cover_each_other(heights):
    apart = _apart(heights)
    assert len(apart) == len(heights)
    assert all(b - a >= 7 - 1e-6 for a, b in itertools.pairwise(apart))
    assert all(-1e-6 <= height <= 100 + 1e-6 for height in apart)


def test_a_label_says_what_is_seen():
    numbers = series(1.0, 2.0)
    figure = lines("Loss", [line(numbers, name="kl"), line(numbers, name="l1")], frame=frame(numbers))
    assert figure.label == "Loss: kl, l1; steps 0 to 1. Arrow keys move the cursor."
