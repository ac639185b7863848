"""PyTorch modules, by the names that they have without wrappers."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    import torch

__all__ = ["named_modules"]

_WRAPPED: Final = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""What torch.compile, FSDP and PyTorch's wrapper for checkpointing call the module inside."""


def named_modules(model: "torch.nn.Module") -> Iterator[tuple[str, str, "torch.nn.Module"]]:
    """Every module with its name and its path, a shared one under each of its names.

    In a name the prefixes that compiling and distributing add are left out, so that a pattern keeps its meaning. The
    path has them.
    """
    import torch

    parallel = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    names: dict[str, str] = {}
    modules: dict[str, torch.nn.Module] = {}
    for path, module in cast("Iterator[tuple[str, torch.nn.Module]]", model.named_modules(remove_duplicate=False)):
        parent, _, child = path.rpartition(".")
        wrapped = child in _WRAPPED or (child == "module" and isinstance(modules[parent], parallel))
        names[path] = names[parent] if wrapped else f"{names[parent]}.{child}" if path and names[parent] else child
        modules[path] = module
        yield names[path], path, module
