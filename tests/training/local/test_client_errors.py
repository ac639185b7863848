"""What a local client rejects."""

from typing import Any

import numpy as np
import pytest
import torch

from penalties.errors import InputError, OptionError
from penalties.training.local import LocalTrainingClient
from penalties.training.types import Datum, ModelInput, TensorData
from tests.training.local.cases import (
    WAIT,
    data,
    gradients,
    logprobs,
    tiny,
)


@pytest.fixture(scope="module")
def client() -> Any:
    """For tests that change no parameters."""
    with tiny() as made:
        yield made


def datum(tokens: Any = (1, 2, 3), **inputs: Any) -> Datum:
    return Datum(ModelInput.from_ints(tokens), {"target_tokens": [2, 3, 4], **inputs})


GOOD = datum()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "data: got an empty list; expected at least one datum"),
        (GOOD, "data: got Datum; expected a list of data"),
        ("text", "data: got str; expected a list of data"),
        ([GOOD, 3], "datum 1: its model_input is NoneType; expected tokens"),
        ([GOOD, Datum(GOOD.model_input, {"weights": [1.0]})], "datum 1: .*no target_tokens; there is weights"),
        ([Datum(GOOD.model_input, {})], "datum 0: .*no target_tokens; there is nothing"),
        ([GOOD, datum((1, 2))], "datum 1: it has 3 target_tokens and 2 tokens in its model_input; expected as many"),
        ([datum((), target_tokens=[])], "datum 0: its model_input has no tokens"),
        ([datum(target_tokens=np.zeros((3, 0), int))], r"datum 0: its target_tokens have shape \(3, 0\)"),
        ([datum(target_tokens=np.zeros((3, 1, 1), int))], r"datum 0: its target_tokens have shape \(3, 1, 1\)"),
        ([GOOD, datum((1, 257, 3))], "datum 1: its model_input: found 257; expected .* 0 to 256"),
        ([datum((1, -1, 3))], "datum 0: its model_input: found -1"),
        ([GOOD, datum(target_tokens=[1, 2, 300])], "datum 1: its target_tokens: found 300; expected .* 0 to 256"),
        ([datum(target_tokens=[[1], [-2], [3]])], "datum 0: its target_tokens: found -2"),
        ([datum([1] * 2049)], "datum 0: its model_input has 2049 tokens; the model reads at most 2048"),
        ([GOOD, datum(weights=[1.0, 2.0])], r"datum 1: its weights have shape \(2,\) and its target_tokens \(3,\)"),
        ([datum(weights=[[1.0], [2.0], [1.0]])], r"datum 0: its weights have shape \(3, 1\)"),
        ([GOOD, datum(weights=[1.0, np.nan, np.inf])], "datum 1: its weights contain nan; expected finite numbers"),
        ([datum(weights=[1.0, 0.0, np.inf])], "datum 0: its weights contain inf"),
    ],
)
@pytest.mark.parametrize("method", ["forward", "forward_backward"])
def test_an_error_has_the_index_of_the_datum(
    client: LocalTrainingClient, method: str, given: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        getattr(client, method)(given, "cross_entropy")
    assert gradients(client) == {}


def test_the_longest_context_is_read(client: LocalTrainingClient) -> None:
    longest = Datum(ModelInput.from_ints([1] * 2048), {"target_tokens": [1] * 2048})
    assert logprobs(client.forward([longest]).result(WAIT))[0].shape == (2048,)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"advantages": [1.0, 1.0, 1.0]},
            "datum 1: importance_sampling needs logprobs; there is target_tokens, adv",
        ),
        ({"logprobs": [1.0, 1.0, 1.0]}, "datum 1: importance_sampling needs advantages"),
        ({}, "datum 1: importance_sampling needs logprobs and advantages; there is target_tokens"),
        ({"logprobs": [0.0] * 3, "advantages": [1.0]}, r"datum 1: its advantages have shape \(1,\) .* \(3,\)"),
        ({"logprobs": [0.0] * 2, "advantages": [1.0] * 3}, r"datum 1: its logprobs have shape \(2,\) .* \(3,\)"),
        ({"logprobs": [0.0] * 3, "advantages": [1.0, np.nan, 1.0]}, "datum 1: its advantages contain nan"),
        ({"logprobs": [0.0, -np.inf, 0.0], "advantages": [1.0] * 3}, "datum 1: its logprobs contain inf"),
        (
            {"logprobs": [0.0] * 3, "advantages": [1.0] * 3, "weights": [1.0] * 3},
            "datum 1: importance_sampling does not read weights",
        ),
    ],
)
def test_importance_sampling_names_missing_inputs(client: LocalTrainingClient, given: Any, message: str) -> None:
    good = datum(logprobs=[0.0] * 3, advantages=[0.0] * 3)
    with pytest.raises(InputError, match=message):
        client.forward_backward([good, datum(**given)], "importance_sampling")


def test_losses_by_name_and_their_options(client: LocalTrainingClient) -> None:
    with pytest.raises(OptionError, match='forward_backward: loss_fn="ppo"; expected "cross_entropy" or "importance'):
        client.forward_backward([GOOD], "ppo")
    with pytest.raises(OptionError, match="loss_fn="):
        client.forward_backward([GOOD], ["ppo"])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="forward: loss_fn="):
        client.forward([GOOD], "mse")
    with pytest.raises(OptionError, match="loss_fn_config={'clip': 1.0}; expected none: cross_entropy has no options"):
        client.forward_backward([GOOD], "cross_entropy", {"clip": 1.0})
    assert client.forward([GOOD], "cross_entropy", {}).result(WAIT).metrics


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "LocalTrainingClient: rank=0; expected a whole number of at least 1"),
        ({"alpha": 0.5}, "alpha=0.5; expected a whole number"),
        ({"seed": "x"}, 'seed="x"; expected a 64-bit integer'),
        ({"batch_size": 0}, "batch_size=0; expected a whole number of at least 1"),
        ({"seed": 2**70}, "expected a 64-bit integer"),
        ({"checkpoints": None}, "checkpoints=None; expected a folder"),
        pytest.param(
            {"device": "cuda"},
            'device="cuda"; expected an available torch device',
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="has one"),
        ),
        ({"device": "tpu9"}, 'device="tpu9"; expected an available torch device'),
        ({"dtype": "int64"}, 'dtype="int64"; expected "float32", "bfloat16" or another floating'),
        ({"dtype": "nothing"}, 'dtype="nothing"'),
        ({"target_modules": ["nowhere"]}, "target_modules=.'nowhere'.; expected names of linear layers of the model"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        LocalTrainingClient("tiny", **options)


def test_outputs_are_tensor_data(client: LocalTrainingClient) -> None:
    output = client.forward(data(2)).result(WAIT)
    assert output.loss_fn_output_type == "TorchLossReturn"
    assert isinstance(output.loss_fn_outputs[0]["logprobs"], TensorData)
