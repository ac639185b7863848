"""The wire format of the Tinker API, from 0.25: protobuf bodies, to and from the types of `penalties.training`.

The messages are the SDK's generated ones; what turns them into data is written here and shares nothing with the SDK.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from tinker.proto import tinker_public_pb2 as pb

from penalties.training.types import Datum, ModelInput, TensorData

PROTOBUF = "application/x-protobuf"
_DTYPES = {pb.DTYPE_FLOAT32: np.float32, pb.DTYPE_INT64: np.int64, pb.DTYPE_INT32: np.int32}
_STOP = {"stop": pb.STOP_REASON_STOP, "length": pb.STOP_REASON_LENGTH}


@dataclass(frozen=True)
class Pass:
    """A request for a forward, or for a forward and a backward."""

    model_id: str
    seq_id: int
    data: list[Datum]
    loss_fn: str
    config: dict[str, float | str] | None
    forward_only: bool


def array_of(message: Any) -> np.ndarray[Any, Any]:
    """A tensor, dense or in compressed sparse rows: the SDK sends mostly empty (N, K) targets and weights so."""
    dtype, shape = _DTYPES[message.dtype], tuple(message.shape)
    if message.WhichOneof("encoding") != "sparse_csr":
        flat = np.frombuffer(message.dense, dtype)
        return flat.reshape(shape or flat.shape).copy()
    rows = message.sparse_csr
    starts = np.frombuffer(rows.crow_indices, np.int64)
    dense = np.zeros(shape, dtype)
    places = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    dense[places, np.frombuffer(rows.col_indices, np.int64)] = np.frombuffer(rows.values, dtype)
    return dense


def pass_of(body: bytes) -> Pass:
    """What `forward` and `forward_backward` send."""
    request = pb.ForwardBackwardRequest.FromString(body)
    data = [
        Datum(
            ModelInput.from_ints(
                [token for chunk in datum.model_input for token in np.frombuffer(chunk.encoded_text.tokens, np.int32)]
            ),
            {name: TensorData(array_of(tensor)) for name, tensor in datum.loss_fn_inputs.items()},
        )
        for datum in request.data
    ]
    config = {name: getattr(value, value.WhichOneof("value")) for name, value in request.loss_fn_config_v2.items()}
    return Pass(request.model_id, request.seq_id, data, request.loss_fn, config or None, request.forward_only)


def _batched(arrays: Sequence[np.ndarray[Any, Any]]) -> Any:
    """One field of some data, which differ in their first dimension only."""
    ends = np.cumsum([0, *(array.nbytes for array in arrays)], dtype=np.int64)
    return pb.BatchedTensor(
        data=b"".join(array.tobytes() for array in arrays),
        offsets=ends.tobytes(),
        dtype=pb.DTYPE_INT64 if arrays[0].dtype.kind == "i" else pb.DTYPE_FLOAT32,
        trailing_shape=arrays[0].shape[1:],
    )


def output_body(output: Any) -> bytes:
    """What a pass gives. Data that differ in K go into records of their own, as at the service."""
    message = pb.ForwardBackwardOutput(loss_fn_output_type=output.loss_fn_output_type, metrics=output.metrics)
    data: list[Mapping[str, Any]] = [
        {name: value.to_numpy() for name, value in one.items()} for one in output.loss_fn_outputs
    ]
    for _, group in groupby(data, key=lambda one: {name: array.shape[1:] for name, array in one.items()}):
        alike = list(group)
        record = message.loss_fn_outputs.add(num_datums=len(alike))
        for name in alike[0]:
            record.fields[name].CopyFrom(_batched([one[name] for one in alike]))
    return message.SerializeToString()


def sample_body(
    response: Any,
    prompt_logprobs: Sequence[float] | None = None,
    best: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None = None,
) -> bytes:
    """What a sampler gives; `best` are the likeliest tokens at each position of the prompt but the first."""
    message = pb.SampleResponse()
    for sequence in response.sequences:
        message.sequences.add(
            stop_reason=_STOP[sequence.stop_reason],
            tokens=np.asarray(sequence.tokens, np.int32).tobytes(),
            logprobs=np.asarray(sequence.logprobs, np.float32).tobytes(),
        )
    if prompt_logprobs is not None:
        message.prompt_logprobs = np.asarray(prompt_logprobs, np.float32).tobytes()
    if best is not None:
        # Nothing is known about the first.
        tokens, logprobs = (np.pad(one, ((1, 0), (0, 0))) for one in best)
        message.topk_prompt_logprobs.CopyFrom(
            pb.TopkLogprobs(
                token_ids=tokens.astype(np.int32).tobytes(),
                logprobs=logprobs.astype(np.float32).tobytes(),
                k=tokens.shape[1],
                length=len(tokens),
            )
        )
    return message.SerializeToString()
