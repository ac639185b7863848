"""Activations of PyTorch modules, by forward hooks."""

import dataclasses
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from ... import trees
from ...errors import GradientError, InputError
from ..matching import Pattern
from ..modules import named_modules
from ..recomputing import recomputing
from .captured import Captured
from .choosing import choose

if TYPE_CHECKING:
    import torch

__all__ = ["capture"]

_ADVICE: Final = (
    "; code that PyTorch compiled before the block skips its hooks: call torch.compiler.reset(), and enter the block "
    "before the first compiled call"
)


class _Call(NamedTuple):
    """One call of a module."""

    output: Any
    nodes: Sequence[Any] | None
    """What made each of its tensors; None where that is unknown, and the tensors are copies."""


@contextmanager
def capture(model: "torch.nn.Module", patterns: Sequence[Pattern]) -> Generator[Captured]:
    """Record the outputs of the modules whose names match, until the block ends."""
    import torch

    found = list(named_modules(model))
    modules, chosen = choose([(name, module) for name, _, module in found if name], patterns)
    training = torch.is_grad_enabled()

    def read(name: str, call: _Call) -> Any:
        _check_unchanged(name, call)
        if training and torch.is_grad_enabled():
            _check_graph(model, name, call)
        return call.output

    captured = Captured(model, modules, read, _ADVICE)
    with ExitStack() as hooks:
        for name, module in modules.items():
            hooks.callback(module.register_forward_hook(_recording(captured.calls[name])).remove)
        regions = _compiled_regions(found, modules)
        called: set[str] = set()
        for path, region, _ in regions:
            hooks.callback(region.register_forward_hook(_noting(called, path)).remove)
        yield captured
        # Only what is read needs a graph: nobody may want a gradient of the rest.
        with torch.no_grad():
            # Of a compiled part that was called, some module must have been seen, unless its hooks were skipped.
            captured.check([*chosen, *((names[0], names) for path, _, names in regions if path in called)])


def _recording(calls: list[Any]) -> Callable[..., None]:
    import torch

    def record(module: Any, args: Any, output: Any) -> None:
        if recomputing():
            return
        tensors = list(_tensors(output))
        graph = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        if torch.compiler.is_compiling() or not graph:
            # A copy: here a later change in place could not be noticed.
            plain = isinstance(output, torch.Tensor | list | tuple)
            calls.append(_Call(trees.map_arrays(torch.clone, output) if plain else output, None))
        else:
            calls.append(_Call(output, [tensor.grad_fn for tensor in tensors]))

    return record


def _compiled_regions(
    found: "Sequence[tuple[str, str, torch.nn.Module]]", modules: "Mapping[str, torch.nn.Module]"
) -> "list[tuple[str, torch.nn.Module, list[str]]]":
    """The modules with a compiled forward, by path, each with the names of those to capture in it."""
    chosen = [(name, path) for name, path, module in found if modules.get(name) is module]
    regions: list[tuple[str, torch.nn.Module, list[str]]] = []
    for _, outer, region in found:
        # Where all of the model is compiled, its patterns say enough.
        if outer and _has_compiled_forward(region):
            inside = [name for name, path in chosen if path.startswith(f"{outer}.")]
            if inside:
                regions.append((outer, region, inside))
    return regions


def _has_compiled_forward(module: "torch.nn.Module") -> bool:
    """Whether `torch.compile` made the forward of a module: then it is its own, and a function of PyTorch's."""
    forward = vars(module).get("forward")
    return getattr(forward, "__globals__", {}).get("__name__", "").startswith("torch.")


def _noting(called: set[str], path: str) -> Callable[..., None]:
    return lambda *_: called.add(path)


def _check_unchanged(name: str, call: _Call) -> None:
    if call.nodes is None:
        return
    if any(tensor.grad_fn is not node for tensor, node in zip(_tensors(call.output), call.nodes, strict=True)):
        raise InputError(
            f'capture: the output of "{name}" was changed in place after the module returned it; capture the module '
            "that changes it, or give that one inplace=False"
        )


def _check_graph(model: "torch.nn.Module", name: str, call: _Call) -> None:
    """Raise where a term over an output would train nothing, although the model trains."""
    floats = [tensor for tensor in _tensors(call.output) if tensor.is_floating_point()]
    if not floats or any(tensor.requires_grad for tensor in floats):
        return
    if any(parameter.requires_grad for parameter in model.parameters()):
        raise GradientError(
            f'capture: the output of "{name}" has no graph, so a term over it would train nothing. Checkpoint with '
            "use_reentrant=False; capture a module after the first that trains; or enter the block under "
            "torch.no_grad() if no gradient is wanted"
        )


def _tensors(output: Any) -> Iterator["torch.Tensor"]:
    """The tensors in what a module returned, which may be a dataclass."""
    if dataclasses.is_dataclass(output) and not isinstance(output, Mapping):
        output = [getattr(output, field.name) for field in dataclasses.fields(cast("Any", output))]
    return trees.arrays(output)
