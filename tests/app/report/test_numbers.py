"""The words of numbers."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penalties.app.report.numbers import percent, seconds, shown, steps_shown


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


@pytest.mark.parametrize(("number", "said"), [(math.inf, "∞"), (math.nan, "NaN"), (1e300, "1e300"), (-math.inf, "−∞")])
def test_counts_and_times_that_nobody_counts_to_are_short(number, said):
    assert steps_shown(number) == said
    if not number < 0:
        assert seconds(number) == f"{said}\xa0s"
