"""Types of our own, and reading those of others."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from penalties.training import Datum, ModelInput, TensorData
from penalties.training.reading import like, numpy_of, tokens_of, weights_of, with_inputs


class TestTensorData:
    def test_takes_numbers_arrays_and_tensors(self) -> None:
        assert TensorData([1, 2]).dtype == "int64"
        assert TensorData([1.0, 2.0], "float32").to_numpy().dtype == np.float32
        assert TensorData([1, 2, 3, 4], shape=[2, 2]).tolist() == [[1, 2], [3, 4]]
        assert TensorData(np.ones((2, 2))).shape == [2, 2]
        tensor = TensorData.from_torch(torch.ones(2, dtype=torch.bfloat16, requires_grad=True))
        assert (tensor.dtype, tensor.data) == ("float32", [1.0, 1.0])
        assert tensor.to_torch().tolist() == [1.0, 1.0]
        assert TensorData.from_numpy(np.arange(2)).data == [0, 1]

    def test_compares_shows_and_pickles(self) -> None:
        one = TensorData([1.0, 2.0])
        assert one == TensorData(np.array([1.0, 2.0]))
        assert one != TensorData([1, 2])
        assert one != 3
        assert len({one, TensorData([1.0, 2.0])}) == 1
        assert repr(one) == "TensorData([1.0, 2.0], dtype='float32')"
        assert pickle.loads(pickle.dumps(one)) == one

    def test_wrong_arguments_raise(self) -> None:
        with pytest.raises(pn.InputError, match="dtype='float64'"):
            TensorData([1.0], "float64")
        with pytest.raises(pn.InputError, match="as many numbers as the shape holds"):
            TensorData([1.0], shape=[2])
        with pytest.raises(pn.InputError, match="numbers"):
            TensorData(["a"], "float32")


def test_a_datum_makes_arrays_of_lists() -> None:
    datum = Datum(ModelInput.from_ints([1, 2]), {"target_tokens": [2, 3], "weights": [0, 1], "extra": np.ones(3)})
    assert datum.loss_fn_inputs["target_tokens"].dtype == "int64"
    assert datum.loss_fn_inputs["weights"].dtype == "float32"
    assert datum.loss_fn_inputs["extra"].data == [1.0] * 3
    assert pickle.loads(pickle.dumps(datum)) == datum
    assert (datum.model_input.to_ints(), datum.model_input.length) == ([1, 2], 2)


@pytest.mark.parametrize("tokens", [[2.9, 3.2], [float("nan")], ["a"]])
def test_tokens_are_whole(tokens: Any) -> None:
    for make in (ModelInput.from_ints, lambda given: Datum(ModelInput.from_ints([1]), {"target_tokens": given})):
        with pytest.raises(pn.InputError, match="whole numbers"):
            make(tokens)
    assert ModelInput.from_ints([]).length == 0
    assert ModelInput.from_ints([2.0]).to_ints() == [2]


class Theirs:
    """As an SDK has it, that knows nothing of NumPy."""

    def __init__(self, data: list[Any], dtype: str, shape: Any) -> None:
        self.data, self.dtype, self.shape = data, dtype, shape


@pytest.mark.parametrize(
    "value",
    [
        [[1.0, 2.0]],
        np.array([[1.0, 2.0]]),
        torch.tensor([[1.0, 2.0]]).to_sparse(),
        TensorData([[1.0, 2.0]]),
        Theirs([1.0, 2.0], "float32", [1, 2]),
        {"data": [1.0, 2.0], "shape": [1, 2]},
    ],
)
def test_arrays_of_any_form(value: Any) -> None:
    found = numpy_of(value)
    assert found.tolist() == [[1.0, 2.0]]


def test_arrays_without_a_shape_are_flat() -> None:
    assert numpy_of(Theirs([1, 2], "int64", None)).tolist() == [1, 2]


class Sparse:
    sparse_crow_indices = (0, 1)

    def to_numpy(self) -> Any:
        raise TypeError("sparse")

    def to_torch(self) -> Any:
        return torch.tensor([[0.0, 3.0]])


def test_sparse_arrays_of_the_sdk() -> None:
    assert numpy_of(Sparse()).tolist() == [[0.0, 3.0]]


def test_new_data_are_of_the_same_kind() -> None:
    class Datum0:
        def __init__(self, model_input: Any, loss_fn_inputs: Any) -> None:
            self.model_input, self.loss_fn_inputs = model_input, loss_fn_inputs

    class Pydantic(Datum0):
        def model_copy(self, update: Any) -> Any:
            return Pydantic(self.model_input, **update)

    for kind in (Datum0, Pydantic, Datum):
        made = with_inputs(kind(ModelInput.from_ints([1]), {"target_tokens": TensorData([1])}), {"weights": [1.0]})
        assert type(made) is kind
        assert made.model_input.to_ints() == [1]
        assert set(made.loss_fn_inputs) == {"weights"}
    assert like([1], np.ones(1)).tolist() == [1.0]
    assert isinstance(like(TensorData([1]), np.ones(1)), TensorData)


def test_rejects_what_is_not_a_datum() -> None:
    with pytest.raises(pn.InputError, match="datum 3: its model_input is NoneType; expected tokens"):
        tokens_of(3, object())
    assert tokens_of(0, Datum(ModelInput.from_ints([4]))).tolist() == [4]
    assert weights_of(0, Datum(ModelInput.from_ints([4])), (2,)).tolist() == [1.0, 1.0]


def test_unknown_names_raise() -> None:
    assert "forward_backward_custom" in dir(pn.training)
    assert pn.training.losses.__name__ == "penalties.training.losses"
    with pytest.raises(AttributeError, match="forward_backward_costum"):
        pn.training.forward_backward_costum  # noqa: B018
