"""What travels between processes: objects, arrays, functions, errors."""

import functools
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import penalties as pn
from penalties.execution.failure import Failure
from penalties.execution.functions import Functions
from penalties.execution.portable import dumps, function_bytes, loads
from penalties.execution.slots import START, Slot, size_of


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


class TestFunctions:
    def test_are_pickled_once_whatever_the_weight(self) -> None:
        functions, term = Functions(), pn.Term("l1")
        assert functions.of(term) is functions.of(term.with_weight(0.5))
        assert functions.of(term).digest != functions.of(pn.Term("l1", options={"reduction": "mean"})).digest

    def test_the_same_bytes_have_the_same_digest(self) -> None:
        assert Functions().of(pn.Term("l1")) == Functions().of(pn.Term("l1"))


class TestFailures:
    def test_come_back_with_their_cause_and_where_it_was_raised(self) -> None:
        try:
            raise KeyError("lost")
        except KeyError as error:
            found = loads(dumps(Failure.of("term", error)).data).error()
        assert isinstance(found, pn.TermError)
        assert isinstance(found.__cause__, KeyError)
        assert "test_portable.py" in found.__cause__.__notes__[0]

    def test_a_cause_that_cannot_travel_is_shown_as_text(self) -> None:
        class Local(Exception):
            pass

        cause = Local("here")
        cause.lock = threading.Lock()
        found = Failure.of("term", cause).error().__cause__
        assert isinstance(found, RuntimeError)
        assert "Local: here" in found.__notes__[0]

    def test_without_a_cause_there_is_none(self) -> None:
        assert Failure.of("term", pn.TermError("term", "alone")).error().__cause__ is None


class TestSlots:
    def test_what_was_written_is_read(self, tmp_path: Path) -> None:
        arrays = [np.arange(5.0), np.ones((0, 2)), np.arange(6, dtype=np.int8).reshape(2, 3).T]
        slot = Slot(str(tmp_path), "slot", START + size_of(b"words", arrays))
        slot.write(START, b"words", arrays)
        data, found, end = Slot(str(tmp_path), "slot").read(START)
        assert (data, end) == (b"words", START + size_of(b"words", arrays))
        assert [array.tobytes() for array in found] == [array.tobytes() for array in arrays]

    def test_what_was_read_is_a_copy(self, tmp_path: Path) -> None:
        slot = Slot(str(tmp_path), "slot", 1000)
        slot.write(START, b"", [np.ones(2, np.uint8)])
        _, (found,), _ = slot.read(START)
        slot.write(START, b"", [np.zeros(2, np.uint8)])
        assert found.tolist() == [1, 1]
