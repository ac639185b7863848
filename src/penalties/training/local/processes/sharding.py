"""Models that do not fit: the frozen weights of each layer are spread over all processes, by FSDP2."""

from typing import Any

from ....errors import OptionError

__all__ = ["shard_layers"]


def shard_layers(model: Any, device: Any, processes: int) -> None:
    """Spread the frozen weights of a peft model; they come together while their layer runs, forward and backward.

    What is trained is whole in every process, so that nothing else need know. So are embedding and output layer.
    """
    import torch
    from torch.distributed.device_mesh import init_device_mesh
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
    mesh = init_device_mesh(device.type, (processes,))
    for layer in layers:
        fully_shard(layer, mesh=mesh, ignored_params=trained)
