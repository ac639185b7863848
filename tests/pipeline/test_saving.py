"""State on disk."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penalties as pn
from tests.libraries import JAX, LIBRARIES


def test_round_trip(tmp_path: Path) -> None:
    state = {
        "ema": {"before": np.float32(1.5), "inner": None},
        "own": {"text": "é", "list": [1, 2.5, True], "tuple": (np.arange(6.0).reshape(2, 3), ()), "nan": math.nan},
    }
    pn.save_state(state, tmp_path / "state.safetensors")
    np.testing.assert_equal(pn.load_state(tmp_path / "state.safetensors"), state)
    assert [path.name for path in tmp_path.iterdir()] == ["state.safetensors"]


def test_a_run_goes_on_where_it_stopped(library: Any, tmp_path: Path) -> None:
    pipeline = pn.Pipeline([pn.EMA(pn.Term(pn.l1)), pn.Normalized(pn.Term(pn.l2))])
    out = pipeline(library.array([1.0, 2.0]))
    pn.save_state(out.state, tmp_path / "state")
    state = pn.load_state(tmp_path / "state")
    x = library.array([3.0, 1.0])
    assert pipeline(x, state=state).metrics() == pipeline(x, state=out.state).metrics()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "bool"])
def test_arrays_keep_their_library_and_dtype(autodiff: Any, tmp_path: Path, dtype: str) -> None:
    saved = autodiff.array([1.0, 0.0], dtype)
    pn.save_state({"a": saved, "b": np.ones(1)}, tmp_path / "state")
    loaded = pn.load_state(tmp_path / "state")
    assert type(loaded["a"]) is type(saved)
    assert loaded["a"].dtype == saved.dtype
    assert loaded["a"].tolist() == saved.tolist()
    assert isinstance(loaded["b"], np.ndarray)


def test_another_library_on_request(autodiff: Any, tmp_path: Path) -> None:
    pn.save_state({"a": autodiff.array([1.5], "bfloat16")}, tmp_path / "state")
    wide = pn.load_state(tmp_path / "state", "numpy")["a"]
    assert (type(wide), wide.dtype, wide.tolist()) == (np.ndarray, np.float32, [1.5])
    pn.save_state({"a": np.array([1.5])}, tmp_path / "state")
    assert type(pn.load_state(tmp_path / "state", autodiff.name)["a"]) is type(autodiff.array([1.5]))


def test_files_that_do_not_say_the_library_hold_numpy_arrays(tmp_path: Path) -> None:
    import safetensors.numpy

    state = {"dict": {"ema": {"dict": {"before": {"array": "0"}, "inner": {"value": None, "float": False}}}}}
    header = {"penalties": json.dumps({"version": 1, "state": state})}
    (tmp_path / "state").write_bytes(safetensors.numpy.save({"0": np.array(3.0)}, metadata=header))
    assert pn.load_state(tmp_path / "state") == {"ema": {"before": np.array(3.0), "inner": None}}


def test_a_library_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pn.save_state({"a": np.ones(1)}, tmp_path / "state")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(pn.MissingLibraryError, match=r'library="numpy"\) needs torch: pip install'):
        pn.load_state(tmp_path / "state", "torch")


def test_the_state_comes_before_the_path(tmp_path: Path) -> None:
    with pytest.raises(pn.OptionError, match="save_state: state=.*; expected the state of an output, as out.state"):
        pn.save_state(str(tmp_path / "state"), {"a": 1})


@pytest.mark.parametrize(
    "array",
    [
        np.array([1 + 1j]),
        np.array(["a"]),
        np.array([1.0], np.longdouble),
        np.array(["2026-01-01"], "datetime64[D]"),
        np.ma.array([1.0], mask=[True]),
    ],
    ids=lambda array: str(array.dtype),
)
def test_an_array_that_would_come_back_as_another_is_an_error(array: Any, tmp_path: Path) -> None:
    with pytest.raises(pn.TermError, match=r"state\.a: holds a .* of .*; expected numbers of at most 64 bits"):
        pn.save_state({"a": array}, tmp_path / "state")


def test_numbers_are_kept_whatever_the_order_of_their_bytes(tmp_path: Path) -> None:
    pn.save_state({"a": np.array([1 / 3], ">f8")}, tmp_path / "state")
    assert pn.load_state(tmp_path / "state")["a"].tolist() == [1 / 3]


def test_nothing_is_left_of_a_write_that_fails(tmp_path: Path) -> None:
    pn.save_state({"a": 1}, tmp_path / "state")
    with pytest.raises(pn.TermError, match=r"state\.b: holds an object; state is saved as"):
        pn.save_state({"b": object()}, tmp_path / "state")
    with pytest.raises(pn.TermError, match=r"state\.b: has the key 3; keys must be strings"):
        pn.save_state({"b": {3: 1}}, tmp_path / "state")
    with pytest.raises(FileNotFoundError):
        pn.save_state({"a": 1}, tmp_path / "missing" / "state")
    assert pn.load_state(tmp_path / "state") == {"a": 1}


def test_files_that_are_not_states(tmp_path: Path) -> None:
    for name, data in (("text", b"not a state at all"), ("empty", b"")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(pn.InputError, match="was not written by save_state"):
            pn.load_state(tmp_path / name)


@pytest.mark.parametrize(
    "content", [[], {"version": 1}, {"version": 1, "state": 5}, {"version": 1, "state": {"array": "9"}}, {"state": {}}]
)
def test_states_that_are_not_of_its_form(tmp_path: Path, content: Any) -> None:
    import safetensors.numpy

    header = {"penalties": json.dumps(content)}
    (tmp_path / "state").write_bytes(safetensors.numpy.save({}, metadata=header))
    with pytest.raises(pn.InputError, match="was not written by save_state"):
        pn.load_state(tmp_path / "state")


def test_another_version(tmp_path: Path) -> None:
    import safetensors.numpy

    header = {"penalties": json.dumps({"version": 99, "state": {}})}
    (tmp_path / "state").write_bytes(safetensors.numpy.save({}, metadata=header))
    with pytest.raises(pn.InputError, match="has version 99; this library reads 1"):
        pn.load_state(tmp_path / "state")


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(pn.OptionError, match='library="keras"; expected None, "numpy", "torch" or "jax"'):
        pn.load_state(tmp_path / "state", "keras")  # type: ignore[arg-type]
    with pytest.raises(pn.OptionError, match='device="cpu"; expected None: NumPy has no devices'):
        pn.load_state(tmp_path / "state", "numpy", "cpu")


def test_without_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(pn.MissingLibraryError, match=r'needs safetensors: pip install "penalties\[state\]"'):
        pn.save_state({}, tmp_path / "state")


def test_jax_state_is_on_the_requested_device(tmp_path: Path) -> None:
    if JAX not in LIBRARIES:
        pytest.skip("needs JAX")
    import jax

    pn.save_state({"a": np.ones(2)}, tmp_path / "state")
    device = jax.devices()[0]
    assert pn.load_state(tmp_path / "state", "jax", device)["a"].devices() == {device}
