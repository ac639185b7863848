"""Fewer steps, and every extreme."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from penalties.app.report.charts.downsample import keep, ranges


def none(rows):
    return np.zeros(rows.shape, bool)


@pytest.mark.parametrize("count", [0, 1, 2, 99, 100])
def test_few_columns_all_stay(count):
    rows = np.random.default_rng(0).normal(size=(3, count))
    assert keep(rows, none(rows), 100).tolist() == list(range(count))


@pytest.mark.parametrize("count", [101, 5_000, 100_000])
def test_at_most_the_requested_points_and_most_of_them_used(count):
    rows = np.random.default_rng(0).normal(size=(4, count))
    kept = keep(rows, none(rows), 500)
    assert len(kept) <= 500
    assert len(kept) >= min(count, 250)
    assert kept[0] == 0
    assert kept[-1] == count - 1
    assert np.all(np.diff(kept) > 0)


@settings(max_examples=80, deadline=None)
@given(
    arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 400)), elements=st.floats(-1e300, 1e300)),
    st.integers(2, 60),
)
def test_the_lowest_and_highest_number_of_every_row_stays(rows, points):
    kept = keep(rows, none(rows), points)
    for row in rows:
        assert row[kept].max() == row.max()
        assert row[kept].min() == row.min()


def test_the_envelope_of_every_stretch_stays():
    rows = np.random.default_rng(1).normal(size=(2, 64_000))
    kept = keep(rows, none(rows), 600)
    for start in range(0, 64_000, 6_400):
        inside = kept[(kept >= start) & (kept < start + 6_400)]
        for row in rows:
            assert row[inside].max() > np.quantile(row[start : start + 6_400], 0.999)


def test_rows_that_agree_leave_room_for_more():
    rows = np.tile(np.sin(np.arange(10_000) / 50), (6, 1))
    assert len(keep(rows, none(rows), 400)) > 200


def test_a_level_row_keeps_its_ends():
    rows = np.ones((1, 10_000))
    assert {0, 9_999} <= set(keep(rows, none(rows), 100).tolist())


def test_a_break_stays_where_it_begins():
    rows = np.zeros((2, 10_000))
    broken = none(rows)
    broken[1, 6_543:6_600] = True
    rows[broken] = np.nan
    assert 6_543 in keep(rows, broken, 100)


def test_a_row_without_a_number_keeps_nothing():
    rows = np.full((2, 1000), np.nan)
    rows[0] = np.arange(1000)
    assert set(keep(rows, none(rows), 50)) <= set(range(1000))
    assert keep(np.full((1, 1000), np.nan), none(rows[:1]), 50).tolist() == [0, 999]


def test_steps_as_ranges():
    assert ranges(np.array([], int), gap=1) == []
    assert ranges(np.array([4]), gap=1) == [(4, 4)]
    assert ranges(np.array([1, 2, 5, 6, 20]), gap=3) == [(1, 6), (20, 20)]
