"""Axes and the words of numbers."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from penalties.app.report.charts.scales import Scale, fitted, percent, seconds, shown, steps_shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1, "1"),
        (-1.5, "−1.5"),
        (2.05349, "2.053"),
        (100000, "100000"),
        (999999.9, "1000000"),
        (1234567, "1.235e6"),
        (1e6, "1e6"),
        (0.001, "0.001"),
        (0.00099, "9.9e−4"),
        (-1e-300, "−1e−300"),
        (1e308, "1e308"),
        (math.nan, "NaN"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
    ],
)
def test_numbers_for_people(value, text):
    assert shown(value) == text


@settings(max_examples=200)
@given(st.floats(-1e307, 1e307), st.integers(2, 6))
def test_a_number_in_words_is_near_the_number(value, digits):
    read = float(shown(value, digits).replace("−", "-"))
    assert read == pytest.approx(value, rel=10.0 ** (1 - digits), abs=1e-320)


def test_steps_have_their_thousands_apart():
    assert steps_shown(999) == "999"
    assert steps_shown(1234567) == "1\u202f234\u202f567"


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0 %"), (1, "100 %"), (0.514, "51 %"), (0.0123, "1.2 %"), (-0.5, "50 %"), (1e-5, "less than 0.1 %")],
)
def test_shares(share, text):
    assert percent(share).replace("\xa0", " ") == text


@pytest.mark.parametrize(
    ("time", "text"),
    [(5e-6, "5 µs"), (0.0021, "2.1 ms"), (3.14159, "3.14 s"), (75, "1 min 15 s"), (7300, "2 h 1 min")],
)
def test_times(time, text):
    assert seconds(time).replace("\xa0", " ") == text


def test_ticks_are_round_and_few():
    assert Scale(0, 1).ticks() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert Scale(-0.3, 4.7).ticks() == [0, 1, 2, 3, 4]
    assert Scale(0, 59).ticks() == [0, 20, 40]
    assert Scale(3, 3).ticks() == [3]
    assert Scale(0.5, 20000, log=True).ticks() == [1, 10, 100, 1000, 10000]
    assert Scale(1, 30, log=True).ticks() == [1, 2, 5, 10, 20]
    assert Scale(1e-20, 1e20, log=True).ticks() == pytest.approx([1e-20, 1e-13, 1e-6, 1e1, 1e8, 1e15])


def test_positions_run_from_the_low_end_to_the_high_end():
    assert Scale(1, 3).positions(np.array([1.0, 2.0, 3.0, 5.0])).tolist() == [0, 0.5, 1, 2]
    assert Scale(1, 100, log=True).positions(np.array([1.0, 10.0, 100.0])).tolist() == [0, 0.5, 1]
    assert Scale(3, 3).position(3) == 0.5


def test_a_scale_has_room_for_its_numbers_and_ends_at_zero():
    scale = fitted(np.array([1.0, 2.0]))
    assert scale.low == pytest.approx(0.96)
    assert scale.high == pytest.approx(2.04)
    assert fitted(np.array([0.01, 2.0])).low == 0
    assert fitted(np.array([-2.0, -0.01])).high == 0
    assert fitted(np.array([1.0, 2.0]), zero=True).low == 0
    assert fitted(np.array([-1.0, -2.0]), zero=True).high == 0


def test_equal_numbers_lie_in_the_middle():
    assert fitted(np.array([2.0, 2.0])).position(2.0) == pytest.approx(0.5)
    assert fitted(np.array([0.0])).position(0.0) == pytest.approx(0.5)
    assert fitted(np.array([5.0]), log=True).position(5.0) == pytest.approx(0.5, abs=0.05)


def test_without_numbers_there_is_still_a_scale():
    assert fitted(np.array([np.nan, np.inf])) == Scale(0.0, 1.0)


def test_a_log_scale_ends_at_ticks():
    scale = fitted(np.array([1.3, 170.0]), log=True)
    assert (scale.low, scale.high) == pytest.approx((1, 200))
    assert fitted(np.array([1.0, 100.0]), log=True).high == pytest.approx(100)


def test_zeros_have_their_own_strip_on_a_log_scale():
    scale = fitted(np.array([0.0, 1.0, 100.0]), log=True)
    zero, one, hundred = scale.positions(np.array([0.0, 1.0, 100.0]))
    assert zero < scale.zeros / 2
    assert one == pytest.approx(scale.zeros)
    assert hundred == 1
    assert fitted(np.array([1.0, 100.0]), log=True).zeros == 0


def test_where_nothing_is_above_zero_a_scale_is_linear():
    assert fitted(np.array([0.0, -1.0]), log=True) == fitted(np.array([0.0, -1.0]))


def test_a_rare_spike_is_off_the_scale_and_a_frequent_one_is_not():
    values = np.linspace(1, 2, 1000)
    spiked = values.copy()
    spiked[500] = 1000.0
    assert fitted(spiked).high < 3
    assert fitted(-spiked).low > -3
    assert fitted(spiked, zero=True).low == 0
    assert fitted(-spiked, zero=True).high == 0
    spiked[500:700] = 1000.0
    assert fitted(spiked).high > 1000
    assert fitted(np.r_[np.ones(500), 9.0]).high > 9, "level numbers leave nothing else to see"


@settings(max_examples=200, deadline=None)
@given(arrays(np.float64, st.integers(0, 30), elements=st.floats()), st.booleans(), st.booleans())
def test_any_numbers_have_a_scale_with_ticks_on_it(values, log, zero):
    scale = fitted(values, log=log, zero=zero)
    assert math.isfinite(scale.low)
    assert scale.low < scale.high < math.inf
    ticks = scale.ticks()
    assert len(ticks) <= 8
    assert all(-1e-6 <= scale.position(tick) <= 1 + 1e-6 for tick in ticks)
    assert all(map(shown, ticks))


@pytest.mark.parametrize(("number", "said"), [(math.inf, "∞"), (math.nan, "NaN"), (1e300, "1e300"), (-math.inf, "−∞")])
def test_counts_and_times_that_nobody_counts_to_are_short(number, said):
    assert steps_shown(number) == said
    if not number < 0:
        assert seconds(number) == f"{said}\xa0s"
