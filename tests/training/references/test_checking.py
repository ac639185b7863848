"""References that are arrays, checked against the data."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from tinker import types as sdk

import penalties as pn
from penalties.training import TensorData, references
from tests.training.references.cases import datum, same


class TestChecked:
    DATA = (datum([1, 2, 3]), datum([4]))

    @pytest.mark.parametrize(
        "make",
        [np.asarray, torch.tensor, list, TensorData, lambda x: sdk.TensorData.from_numpy(np.asarray(x, np.float32))],
    )
    def test_arrays_of_any_kind(self, make: Any) -> None:
        given = [make([-1.0, -2.0, -3.0]), make([-4.0])]
        same(references.checked("teacher", given, self.DATA), [np.array([-1.0, -2.0, -3.0]), np.array([-4.0])])

    def test_candidates(self) -> None:
        data, given = [datum([1, 2], 3)], [np.zeros((2, 3))]
        same(references.checked("teacher", given, data), [np.zeros((2, 3))])
        same(references.checked("teacher", np.zeros((1, 2, 3)), data), [np.zeros((2, 3))])

    @pytest.mark.parametrize("given", [[1, 0.5], np.array([1.0, 0.5]), torch.tensor([1.0, 0.5]), (True, 0.5)])
    def test_a_number_for_each_datum(self, given: Any) -> None:
        same(references.checked("reward", given, self.DATA), [np.array(1.0), np.array(0.5)])

    def test_arrays_are_copies(self) -> None:
        given = [np.zeros(3, np.float32), np.zeros(1, np.float32)]
        found = references.checked("teacher", given, self.DATA)
        found[0][:] = 1
        assert given[0].sum() == 0

    def test_memory_that_cannot_be_written_to(self) -> None:
        given = [np.zeros(3, np.float32), np.zeros(1, np.float32)]
        for array in given:
            array.setflags(write=False)
        assert all(array.flags.writeable for array in references.checked("teacher", given, self.DATA))

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (None, "got NoneType; expected a list with one array per datum, or a provider"),
            ("initial", "got str; expected a list"),
            ({"data": []}, "got dict; expected a list"),
            (3.0, "got float; expected a list"),
            ([], "datum 0: got 0 entries for 2 data"),
            ([np.zeros(3)], "datum 1: got 1 entries for 2 data"),
            ([np.zeros(3)] * 3, "datum 2: got 3 entries for 2 data"),
            ([np.zeros(3), None], r"datum 1: got None; expected an array of shape \(1,\)"),
            ([np.zeros(3), np.zeros(2)], r"datum 1: has shape \(2,\); expected \(1,\), the shape of its target_tokens"),
            ([np.zeros((3, 1)), np.zeros(1)], r"datum 0: has shape \(3, 1\); expected \(3,\)"),
            ([0.5, np.zeros(1)], r"datum 1: has shape \(1,\) and datum 0 \(\); expected a single number"),
            ([np.zeros(3), 0.5], r"datum 1: has shape \(\) and datum 0 \(3,\)"),
            ([np.zeros(3), [math.nan]], "datum 1: contains nan; expected finite numbers"),
            ([[0.0, -math.inf, 0.0], [0.0]], "datum 0: contains inf; expected finite numbers"),
            ([np.zeros(3), [1e300]], "datum 1: contains inf; expected finite numbers"),
            ([np.zeros(3), ["high"]], "datum 1: is not numeric"),
            ([np.zeros(3), object()], "datum 1: is not numeric"),
            ([np.zeros(3), {"shape": [1]}], "datum 1: is not numeric"),
            ([[1.0, [2.0], 3.0], [1.0]], "datum 0: is not numeric"),
        ],
    )
    def test_errors_name_the_reference_and_the_datum(self, given: Any, message: str) -> None:
        with pytest.raises(pn.InputError, match=f'reference "teacher": {message}'):
            references.checked("teacher", given, self.DATA)

    def test_data_are_checked_too(self) -> None:
        with pytest.raises(pn.InputError, match="datum 0: got int"):
            references.checked("teacher", [np.zeros(1)], [7])
