"""A local client that reduces as SkyRL's JAX backend does, for a server that averages.

As read in SkyRL 0.3.0: the loss of a sequence is divided by the sum of its weights, or by 1e-9 where that is less;
without weights they are ones. At a step, everything added up since the last one is divided by its number of sequences.
Its torch backends (fsdp, megatron) add up, `(loss * weights).sum()`, as the local client itself does.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from penalties.training import Datum, LocalTrainingClient
from penalties.training.reading import numpy_of


class AveragingClient(LocalTrainingClient):
    """Averages over the weights of a sequence, and over the sequences of a step."""

    _sequences = 0

    def forward_backward(self, data: Sequence[Any], loss_fn: str, loss_fn_config: Any = None) -> Any:
        self._sequences += len(data)
        return super().forward_backward([_averaged(one, loss_fn) for one in data], loss_fn, loss_fn_config)

    def optim_step(self, adam_params: Any) -> Any:
        # One operation at a time is under way behind a server: the gradients are there.
        for parameter in self.parameters().values():
            if parameter.grad is not None:
                parameter.grad.div_(self._sequences)
        self._sequences = 0
        return super().optim_step(adam_params)


def _averaged(datum: Any, loss_fn: str) -> Datum:
    inputs = dict(datum.loss_fn_inputs)
    name = "weights" if loss_fn == "cross_entropy" else "advantages"
    array = numpy_of(inputs[name])
    total = array.sum() if loss_fn == "cross_entropy" else len(array)
    inputs[name] = (array / np.maximum(total, 1e-9)).astype(np.float32)
    return Datum(datum.model_input, inputs)
