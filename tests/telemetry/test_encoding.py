"""Numbers in JSON: every finite one as it is, the others as strings, and all of them back."""

import json
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penalties.encoding import decode, dumps, encode, loads

NUMBERS = st.floats() | st.integers() | st.booleans() | st.none()
NAMES = st.text().filter(lambda text: text not in ("NaN", "Infinity", "-Infinity"))
NESTS = st.recursive(NUMBERS | NAMES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


def refuse(token: str) -> None:
    raise AssertionError(f"{token} is no JSON")


@given(NESTS)
def test_what_is_written_is_strict_json_and_reads_back_the_same(value):
    text = dumps(value)
    assert "\n" not in text
    json.loads(text, parse_constant=refuse)
    # As text: NaN equals nothing, and -0.0 equals 0.0.
    assert repr(loads(text)) == repr(value)
    assert repr(decode(encode(value))) == repr(value)
    assert json.loads(text) == encode(value)


@pytest.mark.parametrize(
    ("number", "name"), [(math.nan, "NaN"), (-math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")]
)
def test_what_json_cannot_hold_is_a_string(number: float, name: str):
    assert encode(number) == name
    assert dumps([number]) == f'["{name}"]'
    assert repr(loads(f'["{name}"]')) == repr([abs(number) if math.isnan(number) else number])


@pytest.mark.parametrize(
    ("scalar", "number"),
    [
        (np.float64(0.5), 0.5),
        (np.float32(0.5), 0.5),
        (np.float16(0.5), 0.5),
        (np.longdouble(0.5), 0.5),
        (np.int64(3), 3),
        (np.uint8(3), 3),
        (np.bool_(True), True),
        (np.float32("nan"), "NaN"),
        (np.float64("-inf"), "-Infinity"),
    ],
)
def test_numpy_scalars_are_numbers(scalar: np.generic, number: object):
    assert encode(scalar) == number
    assert type(encode(scalar)) is type(number)
    assert dumps({"x": scalar}) == json.dumps({"x": number})


def test_tuples_are_lists():
    assert encode({"x": (1, (2.0, None))}) == {"x": [1, [2.0, None]]}
    assert dumps((1, math.nan)) == '[1, "NaN"]'


@pytest.mark.parametrize("value", [1.0, math.nan])
def test_keys_become_strings_in_the_same_way_on_both_paths(value: float):
    assert list(loads(dumps({1: value, 2.5: value, None: value, "x": value}))) == ["1", "2.5", "null", "x"]
    assert list(loads(dumps({True: value}))) == ["true"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            object(),
            "encode: the value is a object; expected a number, a string, a bool, None, or a dict, list or tuple",
        ),
        ({"a": [1.0, {"b": {1, 2}}]}, r"encode: a\[1\].b is a set; expected"),
        ({"a": np.ones(2)}, "encode: a is a ndarray; expected"),
        ([math.nan, 1j], r"encode: \[1\] is a complex; expected"),
        ([np.complex64(1j)], r"encode: \[0\] is a complex64; expected"),
        ([ml_dtypes.bfloat16(1)], r"encode: \[0\] is a bfloat16; expected"),
        ({"a": {(1, 2): 1.0}}, "encode: a has a key that is a tuple; expected a string"),
        ({(1, 2): 1.0}, "encode: the value has a key that is a tuple; expected a string"),
    ],
)
def test_what_cannot_be_written_is_named_with_its_path(value: object, message: str):
    for write in (encode, dumps):
        with pytest.raises(TypeError, match=message):
            write(value)


def test_a_value_inside_itself_is_an_error():
    value: list[object] = []
    value.append(value)
    for write in (encode, dumps):
        with pytest.raises(TypeError, match="contains itself, or is nested too deeply"):
            write(value)


def test_without_numpy_there_are_no_scalars_of_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(__import__("sys").modules, "numpy")
    with pytest.raises(TypeError, match="is a set"):
        encode({1})
