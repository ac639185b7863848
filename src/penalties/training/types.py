"""The types of the Tinker API's requests and responses, for use without the SDK."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..errors import InputError
from .reading import numpy_of

if TYPE_CHECKING:
    from ..pipeline import LossOutput

__all__ = [
    "AdamParams",
    "Datum",
    "EncodedTextChunk",
    "ForwardBackwardOutput",
    "ModelInput",
    "OptimStepResponse",
    "SampleResponse",
    "SampledSequence",
    "SamplingParams",
    "SaveWeightsResponse",
    "TensorData",
]

_DTYPES: Final = {"int64": np.dtype(np.int64), "float32": np.dtype(np.float32)}


class TensorData:
    """An array to send: numbers, a dtype (`"int64"` or `"float32"`) and a shape.

    >>> TensorData([[1.0, 2.0]]).shape
    [1, 2]
    """

    __slots__ = ("_array", "dtype")

    dtype: str

    def __init__(self, data: Any, dtype: str | None = None, shape: Sequence[int] | None = None) -> None:
        """From nested or flat numbers; dtype and shape default to those of the numbers."""
        array = np.asarray(data)
        if dtype is None:
            dtype = "float32" if array.dtype.kind == "f" else "int64"
        if dtype not in _DTYPES:
            raise InputError(f'TensorData: got dtype={dtype!r}; expected "int64" or "float32"')
        try:
            self._array: np.ndarray[Any, Any] = array.astype(_DTYPES[dtype]).reshape(
                array.shape if shape is None else tuple(shape)
            )
        except (TypeError, ValueError) as error:
            raise InputError(f"TensorData: {error}; expected as many numbers as the shape holds") from error
        self.dtype = dtype

    @property
    def shape(self) -> list[int]:
        """As in NumPy."""
        return list(self._array.shape)

    @property
    def data(self) -> list[Any]:
        """The numbers, flat."""
        return self._array.reshape(-1).tolist()

    @classmethod
    def from_numpy(cls, array: np.ndarray[Any, Any]) -> "TensorData":
        """From a NumPy array."""
        return cls(array)

    @classmethod
    def from_torch(cls, tensor: Any) -> "TensorData":
        """From a PyTorch tensor."""
        return cls(numpy_of(tensor))

    def to_numpy(self) -> np.ndarray[Any, Any]:
        """As a NumPy array."""
        return self._array

    def to_torch(self) -> Any:
        """As a PyTorch tensor."""
        import torch

        module: Any = torch
        return module.from_numpy(self._array.copy())

    def tolist(self) -> list[Any]:
        """The numbers, nested."""
        return self._array.tolist()

    def __eq__(self, other: object) -> bool:
        """Equal dtype, shape and numbers."""
        if not isinstance(other, TensorData):
            return NotImplemented
        return self.dtype == other.dtype and bool(np.array_equal(self._array, other._array))

    def __hash__(self) -> int:
        """From shape and dtype only: there may be many numbers."""
        return hash((self.dtype, self._array.shape))

    def __repr__(self) -> str:
        """The call that makes it."""
        return f"TensorData({self._array.tolist()}, dtype={self.dtype!r})"


@dataclass(frozen=True)
class EncodedTextChunk:
    """A run of tokens."""

    tokens: Sequence[int]

    @property
    def length(self) -> int:
        """The number of tokens."""
        return len(self.tokens)


@dataclass(frozen=True)
class ModelInput:
    """The input of a model: chunks of tokens.

    >>> ModelInput.from_ints([5, 6, 7]).length
    3
    """

    chunks: Sequence[EncodedTextChunk]

    @classmethod
    def from_ints(cls, tokens: Sequence[int]) -> "ModelInput":
        """From tokens."""
        whole = _whole("ModelInput", np.asarray(tokens))
        return cls([EncodedTextChunk(whole.tolist())])

    def to_ints(self) -> list[int]:
        """The tokens of all chunks."""
        return [token for chunk in self.chunks for token in chunk.tokens]

    @property
    def length(self) -> int:
        """The number of tokens."""
        return sum(chunk.length for chunk in self.chunks)


@dataclass(frozen=True)
class Datum:
    """One sequence: the input of the model, and the inputs of a loss.

    `target_tokens` are the tokens to predict at each position, (N,), or (N, K) for K candidates per position; `weights`
    says how much each counts.

    >>> datum = Datum(ModelInput.from_ints([1, 2]), {"target_tokens": [2, 3], "weights": [0.0, 1.0]})
    >>> datum.loss_fn_inputs["weights"]
    TensorData([0.0, 1.0], dtype='float32')
    """

    model_input: ModelInput
    loss_fn_inputs: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        """Convert arrays and lists to `TensorData`."""
        made: dict[str, TensorData] = {}
        for key, value in self.loss_fn_inputs.items():
            data = value if isinstance(value, TensorData) else None
            if key in ("weights", "advantages", "logprobs") and (data is None or data.dtype != "float32"):
                data = TensorData(numpy_of(value), "float32")
            elif data is None:
                array = numpy_of(value)
                data = TensorData(_whole(key, array) if key == "target_tokens" else array)
            made[str(key)] = data
        object.__setattr__(self, "loss_fn_inputs", made)


def _whole(what: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Tokens: whole numbers of any dtype."""
    if not array.size:
        return array.astype(np.int64)
    if array.dtype.kind not in "iuf" or (array.dtype.kind == "f" and not (array == np.floor(array)).all()):
        raise InputError(f"{what}: got {array.reshape(-1)[:3].tolist()} …; expected tokens, as whole numbers")
    return array.astype(np.int64)


@dataclass(frozen=True)
class AdamParams:
    """AdamW with the service's defaults: no weight decay, and no clipping if `grad_clip_norm` is 0.

    >>> AdamParams(learning_rate=3e-4).beta2
    0.95
    """

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are sampled.

    >>> SamplingParams(max_tokens=4).temperature
    1.0
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    seed: int | None = None
    stop: Sequence[int] | None = None
    """Tokens that end a sequence; None stands for the model's own end tokens."""


@dataclass(frozen=True)
class ForwardBackwardOutput:
    """The result of a pass: one dict of arrays per datum, and metrics.

    >>> ForwardBackwardOutput("TorchLossReturn", [], {"loss:sum": 1.0}).metrics["loss:sum"]
    1.0
    """

    loss_fn_output_type: str
    loss_fn_outputs: list[Mapping[str, TensorData]]
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    custom_loss: "LossOutput | None" = None
    """Every term, if the loss was a custom one."""


@dataclass(frozen=True)
class OptimStepResponse:
    """The result of an optimizer step.

    >>> OptimStepResponse({"grad_norm": 0.5}).metrics
    {'grad_norm': 0.5}
    """

    metrics: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True)
class SaveWeightsResponse:
    """The path of a checkpoint.

    >>> SaveWeightsResponse("checkpoints/first").path
    'checkpoints/first'
    """

    path: str


@dataclass(frozen=True)
class SampledSequence:
    """Sampled tokens, and the log-probability of each.

    >>> SampledSequence([5], [-0.5]).stop_reason
    'length'
    """

    tokens: list[int]
    logprobs: list[float]
    stop_reason: str = "length"


@dataclass(frozen=True)
class SampleResponse:
    """The result of sampling.

    >>> len(SampleResponse([SampledSequence([5], [-0.5])]).sequences)
    1
    """

    sequences: list[SampledSequence]
