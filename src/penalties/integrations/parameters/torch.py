"""Parameters of PyTorch modules."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from ...errors import InputError, OptionError
from ..modules import named_modules
from .parameter import Parameter

if TYPE_CHECKING:
    import torch

__all__ = ["parameters"]


def parameters(model: "torch.nn.Module") -> Iterator[Parameter]:
    """Those of every module, in the order of `model.parameters()`."""
    from torch.nn.parameter import is_lazy
    from torch.nn.utils.parametrize import ParametrizationList

    found = list(named_modules(model))
    modules = {name: module for name, _, module in found}
    for prefix, path, module in found:
        if modules[prefix] is not module:
            continue  # a wrapper: what is inside has the same name
        owner = module
        if isinstance(module, ParametrizationList):
            # What is parametrized belongs to the layer, not to the list of its parametrizations.
            owner = modules[prefix.rpartition(".")[0].rpartition(".")[0]]
        for attribute, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            name = f"{prefix}.{attribute}" if prefix else attribute
            if is_lazy(parameter):
                raise OptionError(
                    "select", "model", name, "parameters with a shape: run a batch through the model first"
                )
            read = partial(_read, model, name, (*path.split("."), attribute) if path else (attribute,))
            yield Parameter(name, read, owner, id(parameter), parameter.requires_grad)


def _read(model: Any, name: str, path: tuple[str, ...]) -> Any:
    """A parameter by its path from the root: modules on the way may have been replaced."""
    found = model
    for attribute in path:
        found = getattr(found, attribute, None)
    if found is None:
        raise InputError(f'select: the model has no parameter "{name}" any more; select again')
    return found
