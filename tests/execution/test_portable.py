"""What travels between processes: objects, arrays, functions, errors."""

import functools
import os
import pickle
import threading
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import penalties as pn
from penalties.execution.failure import Failure
from penalties.execution.functions import Functions
from penalties.execution.portable import dumps, dumps_data, function_bytes, loads, loads_data
from penalties.execution.slots import Slot, size_of


def back(value: Any) -> Any:
    packed = dumps(value)
    return loads(packed.data, packed.arrays)


class TestObjects:
    @pytest.mark.parametrize(
        "value",
        [
            torch.arange(6.0).reshape(2, 3).T,
            torch.tensor([1.5], dtype=torch.bfloat16),
            torch.tensor([1.5]).to(torch.float8_e4m3fn),
            torch.tensor(3),
            torch.empty(0, 2),
            torch.tensor([1 + 2j]).conj(),
            torch.eye(2).to_sparse(),
        ],
        ids=["strides", "bfloat16", "float8", "0-d", "empty", "conjugate", "sparse"],
    )
    def test_tensors_come_back_as_they_were(self, value: torch.Tensor) -> None:
        found = back({"value": value})["value"]
        assert found.dtype == value.dtype
        assert found.layout == value.layout
        assert torch.equal(found.to_dense().to(torch.complex64), value.to_dense().to(torch.complex64))

    def test_a_tensor_that_requires_a_gradient_still_does(self) -> None:
        assert back(torch.ones(2, requires_grad=True)).requires_grad

    def test_numpy_and_jax(self) -> None:
        key = jax.random.key(0)
        found = back({"a": np.float32([1.0]), "b": jnp.ones(2), "objects": np.array([None, "x"]), "key": key})
        assert found["a"].dtype == np.float32
        assert isinstance(found["b"], jax.Array)
        assert found["objects"].tolist() == [None, "x"]
        assert (jax.random.key_data(found["key"]) == jax.random.key_data(key)).all()

    @pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"])
    def test_dtypes_that_numpy_does_not_have_itself(self, dtype: str) -> None:
        array = np.array([[1.5, -2.0], [0.5, 3.0]]).astype(getattr(ml_dtypes, dtype))
        for value in (array, array.T, array[0, 0], jnp.asarray(array), jnp.asarray(array[1, 1])):
            found = back({"value": value})["value"]
            assert type(found) is type(value)
            assert found.dtype == value.dtype
            assert np.asarray(found).tolist() == np.asarray(value).tolist()

    def test_an_array_that_occurs_twice_travels_once(self) -> None:
        x = np.ones(3)
        packed = dumps([x, x, {"again": x}])
        assert len(packed.arrays) == 1
        first, second, _ = loads(packed.data, packed.arrays)
        assert first is second

    def test_objects_of_any_class(self) -> None:
        class Batch:
            def __init__(self) -> None:
                self.tokens = torch.arange(3)

        assert back(Batch()).tokens.tolist() == [0, 1, 2]

    def test_a_cached_function_of_a_script_travels_with_an_empty_cache(self) -> None:
        @functools.lru_cache(maxsize=3)
        def doubled(x: int) -> int:
            return 2 * x

        doubled(1)
        doubled.__module__ = "__main__"
        found = loads(function_bytes(doubled))
        assert found.cache_info().currsize == 0
        assert found.cache_parameters()["maxsize"] == 3
        assert found(2) == 4


class Ends:
    """Would end the process that reads it."""

    def __reduce__(self) -> Any:
        return os._exit, (1,)


class TestData:
    def test_comes_back_as_it_was(self) -> None:
        value = {"a": [1, 2.5, True, None, "text", b"bytes"], "b": (np.float32(1.5), np.ones(2)), 3: {4}}
        packed = dumps_data(value)
        found = loads_data(packed.data, packed.arrays)
        assert repr(found) == repr(value)
        assert type(found["b"][0]) is np.float32

    @pytest.mark.parametrize("kind", ["threefry2x32", "rbg", "unsafe_rbg"])
    def test_keys_of_jax_are_arrays(self, kind: str) -> None:
        key = jax.random.key(3, impl=kind)
        packed = dumps_data(key)
        found = loads_data(packed.data, packed.arrays)
        assert found.dtype == key.dtype
        assert (jax.random.key_data(found) == jax.random.key_data(key)).all()

    @pytest.mark.parametrize("value", [Ends(), len, Ends, 1j], ids=["object", "function", "class", "complex"])
    def test_anything_else_is_an_error(self, value: Any) -> None:
        with pytest.raises(TypeError, match="it holds an object of class .*; expected arrays, numbers"):
            dumps_data({"deep": [value]})

    @pytest.mark.parametrize("value", [Ends(), os._exit, np.float64(1.0), {1: Ends}])
    def test_reading_calls_nothing_that_the_bytes_name(self, value: Any) -> None:
        with pytest.raises(pickle.UnpicklingError, match="it names .*; expected data alone"):
            loads_data(pickle.dumps(value))


class TestFunctions:
    def test_are_pickled_once_whatever_the_weight(self) -> None:
        functions, term = Functions(), pn.Term("l1")
        assert functions.of(term) is functions.of(term.with_weight(0.5))
        assert functions.of(term).digest != functions.of(pn.Term("l1", options={"reduction": "mean"})).digest

    def test_the_same_bytes_have_the_same_digest(self) -> None:
        assert Functions().of(pn.Term("l1")) == Functions().of(pn.Term("l1"))


class Particular(Exception):
    """With a constructor of its own, which is not called again."""

    def __init__(self, one: int, other: Any) -> None:
        super().__init__(f"{one} and {other}")
        self.one = one
        self.other = other


class Unannotated(Exception):
    """Nobody else may run its code."""

    def add_note(self, note: str) -> None:
        raise AssertionError("called")


def sent(cause: BaseException) -> Any:
    """The cause of a failure, after its travel."""
    packed = dumps_data(tuple(Failure.of("term", cause)))
    return Failure(*loads_data(packed.data, packed.arrays)).error().__cause__


class TestFailures:
    def test_come_back_with_their_cause_and_where_it_was_raised(self) -> None:
        try:
            raise KeyError("lost")
        except KeyError as error:
            found = sent(error)
        assert isinstance(found, KeyError)
        assert found.args == ("lost",)
        assert "test_portable.py" in found.__notes__[0]

    def test_a_cause_of_any_class_has_its_attributes(self) -> None:
        found = sent(Particular(1, threading.Lock()))
        assert type(found) is Particular
        assert found.one == 1
        assert str(found).startswith("1 and <unlocked")
        assert not hasattr(found, "other")
        missing = sent(FileNotFoundError(2, "No such file", "here.txt"))
        assert (type(missing), missing.errno, missing.filename) == (FileNotFoundError, 2, "here.txt")

    def test_a_class_that_is_not_known_here_is_replaced_by_the_nearest_that_is(self) -> None:
        class Local(Particular):
            pass

        found = sent(Local(1, 2))
        assert type(found) is Particular
        assert "Local: 1 and 2" in found.__notes__[0]

    def test_groups_keep_what_is_in_them(self) -> None:
        found = sent(ExceptionGroup("several", [ValueError(1), ExceptionGroup("more", [KeyError("two")])]))
        assert isinstance(found, ExceptionGroup)
        assert [type(one) for one in found.exceptions] == [ValueError, ExceptionGroup]
        assert found.exceptions[1].exceptions[0].args == ("two",)

    def test_a_cause_that_cannot_be_made_again_is_shown_as_text(self) -> None:
        failure = Failure("term", "raised Odd", "value", ((("nowhere", "Odd"),), (), [], {}), "Odd: here")
        found = failure.error().__cause__
        assert isinstance(found, RuntimeError)
        assert "Odd: here" in found.__notes__[0]

    def test_a_cause_whose_class_takes_other_arguments_is_of_the_next_class(self) -> None:
        cause = UnicodeDecodeError("utf-8", b"x", 0, 1, "odd")
        cause.args = (threading.Lock(),)
        assert type(sent(cause)) is UnicodeError

    def test_a_cause_gets_its_note_by_no_code_of_its_own(self) -> None:
        found = sent(Unannotated("the reason"))
        assert type(found) is Unannotated
        assert "Unannotated: the reason" in found.__notes__[0]

    def test_notes_that_are_no_list_do_not_hide_the_reason(self) -> None:
        cause = ValueError("the reason")
        cause.__notes__ = "mine"  # pyright: ignore[reportAttributeAccessIssue]
        found = sent(cause)
        assert found.args == ("the reason",)
        assert "ValueError: the reason" in found.__notes__[0]

    def test_without_a_cause_there_is_none(self) -> None:
        assert Failure.of("term", pn.TermError("term", "alone")).error().__cause__ is None


class TestSlots:
    def test_what_was_written_is_read(self) -> None:
        arrays = [np.arange(5.0), np.ones((0, 2)), np.arange(6, dtype=np.int8).reshape(2, 3).T]
        slot = Slot.of_size(64 + size_of(b"words", arrays))
        slot.write(64, b"words", arrays)
        with slot.take_file() as file:
            data, found, end = Slot(file.fileno()).read(64)
        assert (data, end) == (b"words", 64 + size_of(b"words", arrays))
        assert [array.tobytes() for array in found] == [array.tobytes() for array in arrays]

    def test_what_was_read_is_a_copy(self) -> None:
        slot = Slot.of_size(1000)
        slot.write(0, b"", [np.ones(2, np.uint8)])
        _, (found,), _ = slot.read(0)
        slot.write(0, b"", [np.zeros(2, np.uint8)])
        assert found.tolist() == [1, 1]
        slot.close()

    def test_one_that_is_too_large_is_an_error_and_leaves_nothing_open(self) -> None:
        before = os.listdir("/dev/fd")
        with pytest.raises(OSError, match=r"Errno (27|28)"):
            Slot.of_size(1 << 62)
        assert len(os.listdir("/dev/fd")) == len(before)
