"""Models that do not fit: the frozen weights of each layer are spread over all processes, by FSDP2."""

from collections.abc import Mapping
from typing import Any, Final

from ....errors import OptionError

__all__ = ["check_sharded", "mesh_of", "shard_layers"]

_WHOLE: Final[Mapping[str, tuple[Any, str]]] = {
    "adapter": ("lora", '"lora" with shard=True: only frozen weights are sharded'),
    "quantize": (None, "None with shard=True: quantized weights cannot be sharded"),
    "compile": (False, "False with shard=True: weights come together between layers, which would be compiled as one"),
    "packing": (False, "False with shard=True: shared rows would be another number of parts in each process"),
}
"""Options that a sharded model cannot change: their defaults, and what messages say."""


def check_sharded(options: Mapping[str, Any]) -> None:
    """Raise if a client with these options cannot be sharded."""
    for name, (default, expected) in _WHOLE.items():
        if (given := options.get(name, default)) != default:
            raise OptionError("LocalTrainingClient", name, given, expected)
    if options.get("micro_batch_tokens") == "auto":
        expected = "a number or None with shard=True: a process that runs out of memory would keep the others waiting"
        raise OptionError("LocalTrainingClient", "micro_batch_tokens", "auto", expected)


def mesh_of(device: Any, processes: int) -> Any:
    """All processes, as FSDP2 takes them, each with a device like this one, which is that of the thread from now on."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    where = torch.device("cpu" if device is None else device)
    if where.type == "cuda":
        torch.cuda.set_device(where)
    return init_device_mesh(where.type, (processes,))


def shard_layers(model: Any, mesh: Any) -> None:
    """Spread the frozen weights of a peft model; they come together while their layer runs, forward and backward.

    What is trained is whole in every process, so that nothing else need know. So are embedding and output layer.
    """
    import torch
    from torch.distributed.fsdp import fully_shard

    base = model.get_base_model()
    count = base.config.get_text_config().num_hidden_layers
    lists = (one for one in base.modules() if isinstance(one, torch.nn.ModuleList) and len(one) == count)
    layers = next(lists, None)
    if layers is None:
        raise OptionError("LocalTrainingClient", "shard", True, "a model with a list of layers, or False")
    if all(one.requires_grad for one in layers.parameters()):
        raise OptionError("LocalTrainingClient", "shard", True, "a model with frozen weights and an adapter, or False")
    trained = {one for one in model.parameters() if one.requires_grad}
    for layer in layers:
        fully_shard(layer, mesh=mesh, ignored_params=trained)
