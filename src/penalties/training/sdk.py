"""The Tinker SDK's training client with data and options that are not of the SDK's own classes.

The SDK tests the classes of what it is given, so that equal attributes are not enough for it.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..errors import OptionError
from .reading import inputs_of, numpy_of, tokens_of
from .types import ModelInput, SamplingParams

__all__ = ["TinkerTrainingClient", "adam_for", "data_for", "prompt_for"]

_ADAM: Final = ("learning_rate", "beta1", "beta2", "eps", "weight_decay", "grad_clip_norm")


def _sdk_of(client: Any, kind: str = "TrainingClient") -> Any:
    """The SDK if the client is one of its own, else None. Without the SDK imported, there is no such client."""
    sdk = sys.modules.get("tinker")
    own = getattr(sdk, kind, None)
    return sdk if own is not None and isinstance(client, own) else None


def data_for(client: Any, data: Sequence[Any]) -> list[Any]:
    """The data as a client takes them: the SDK's client its own classes, any other client whatever it is given."""
    sdk = _sdk_of(client)
    return list(data) if sdk is None else [_datum(sdk.types, index, datum) for index, datum in enumerate(data)]


def adam_for(client: Any, params: Any) -> Any:
    """The options of an optimizer step as a client takes them; those of another optimizer stay as they are."""
    sdk = _sdk_of(client)
    if sdk is None or isinstance(params, sdk.types.AdamParams) or not all(hasattr(params, name) for name in _ADAM):
        return params
    return sdk.types.AdamParams(**{name: getattr(params, name) for name in _ADAM})


def prompt_for(sampler: Any, tokens: Sequence[int], **options: Any) -> tuple[Any, Any]:
    """A prompt and the options of a sample as a sampling client takes them."""
    sdk = _sdk_of(sampler, "SamplingClient")
    if sdk is None:
        return ModelInput.from_ints(list(tokens)), SamplingParams(**options)
    return sdk.types.ModelInput.from_ints(list(tokens)), sdk.types.SamplingParams(**options)


def _datum(types: Any, index: int, datum: Any) -> Any:
    """The datum itself if all of it is the SDK's."""
    arrays = inputs_of(index, datum)
    text = datum.model_input
    ours = {name: array for name, array in arrays.items() if not isinstance(array, types.TensorData)}
    if isinstance(datum, types.Datum) and isinstance(text, types.ModelInput) and not ours:
        return datum
    if not isinstance(text, types.ModelInput):
        text = types.ModelInput.from_ints(tokens_of(index, datum).tolist())
    # Copied: the SDK may keep the array, and ours must not change with it.
    made = {name: types.TensorData.from_numpy(numpy_of(array).copy()) for name, array in ours.items()}
    return types.Datum(model_input=text, loss_fn_inputs={**arrays, **made})


class TinkerTrainingClient:
    """The training client of the Tinker SDK for data and options of any class: ours, the SDK's own, or another's.

    What is not of the SDK's classes is converted; everything else is the SDK's own, its results included.

    >>> from penalties.training import AdamParams, Datum, ModelInput, TinkerTrainingClient
    >>> def step(client):  # what tinker.ServiceClient().create_lora_training_client(...) returns
    ...     client = TinkerTrainingClient(client)
    ...     datum = Datum(ModelInput.from_ints([1, 2]), {"target_tokens": [2, 3]})
    ...     client.forward_backward([datum], "cross_entropy")
    ...     return client.optim_step(AdamParams(learning_rate=1e-4)).result()
    """

    def __init__(self, client: Any) -> None:
        """Wrap a `tinker.TrainingClient`."""
        if _sdk_of(client) is None:
            expected = "a tinker.TrainingClient; other clients need no wrapper"
            raise OptionError(type(self).__name__, "client", client, expected)
        self.sdk: Any = client
        """The SDK's client."""

    def forward(self, data: Sequence[Any], loss_fn: str, loss_fn_config: Mapping[str, Any] | None = None) -> Any:
        """The SDK's `forward`."""
        return self.sdk.forward(data_for(self.sdk, data), loss_fn, loss_fn_config)

    async def forward_async(
        self, data: Sequence[Any], loss_fn: str, loss_fn_config: Mapping[str, Any] | None = None
    ) -> Any:
        """The SDK's `forward_async`."""
        return await self.sdk.forward_async(data_for(self.sdk, data), loss_fn, loss_fn_config)

    def forward_backward(
        self, data: Sequence[Any], loss_fn: str, loss_fn_config: Mapping[str, Any] | None = None
    ) -> Any:
        """The SDK's `forward_backward`."""
        return self.sdk.forward_backward(data_for(self.sdk, data), loss_fn, loss_fn_config)

    async def forward_backward_async(
        self, data: Sequence[Any], loss_fn: str, loss_fn_config: Mapping[str, Any] | None = None
    ) -> Any:
        """The SDK's `forward_backward_async`."""
        return await self.sdk.forward_backward_async(data_for(self.sdk, data), loss_fn, loss_fn_config)

    def optim_step(self, adam_params: Any) -> Any:
        """The SDK's `optim_step`."""
        return self.sdk.optim_step(adam_for(self.sdk, adam_params))

    async def optim_step_async(self, adam_params: Any) -> Any:
        """The SDK's `optim_step_async`."""
        return await self.sdk.optim_step_async(adam_for(self.sdk, adam_params))

    def __getattr__(self, name: str) -> Any:
        """Everything else."""
        if name == "sdk":
            # Not wrapped yet: while it is copied, for example.
            raise AttributeError(name)
        return getattr(self.sdk, name)
