"""A function as a graph of torch.compile."""

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

from ... import trees
from ...backends import owner
from ...errors import BackendError, TermError, said
from ..kinds import compiling

__all__ = ["KEPT", "Compiled", "compile_failure", "graph"]

KEPT: Final = 64
"""How many compiled functions are kept."""


class Compiled:
    """A function that runs as one graph, which its first call makes; inside another graph it is inlined."""

    def __init__(self, term: str, call: Callable[..., Any], backend: str, options: Mapping[str, Any]) -> None:
        """For the term of this name, which calls the function with these options."""
        self.term = term
        self.call = call
        self.backend = backend
        # A graph for each choice of them: torch.compile keeps a limited number for one function.
        plain = sorted((name, repr(value)) for name, value in options.items() if isinstance(value, str | float | int))
        self.options: tuple[tuple[str, str], ...] = tuple(plain)

    def __eq__(self, other: object) -> bool:
        """By the function itself and its options."""
        if not isinstance(other, Compiled) or self.call is not other.call:
            return False
        return (self.backend, self.options) == (other.backend, other.options)

    def __hash__(self) -> int:
        """By the function itself, which need not be hashable."""
        return hash((id(self.call), self.backend, self.options))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns."""
        if compiling():
            return self.call(*args, **kwargs)
        for array in trees.arrays([args, kwargs]):
            ops = owner(array)
            if ops is not None and ops.LIBRARY != "PyTorch":
                hint = "put the call of the pipeline into jax.jit" if ops.LIBRARY == "JAX" else "pass tensors"
                raise BackendError(
                    f"compile=True is for PyTorch tensors, and it was given a {ops.LIBRARY} array; {hint}, or set "
                    "compile=False"
                )
            if ops is not None and ops.tracing(array):
                # A transform of torch.func looks into the function itself.
                return self.call(*args, **kwargs)
        try:
            with warnings.catch_warnings():
                # While it traces, torch.compile asks every tensor for its .grad, also one that is not a leaf.
                warnings.filterwarnings("ignore", "The .grad attribute of a Tensor", UserWarning)
                return _graph_of(self)(*args, **kwargs)
        except Exception as error:
            raise compile_failure(self.term, error) from error


def compile_failure(term: str, error: Exception) -> TermError:
    """The error for a term that failed inside a graph, or could not become one."""
    if "RecompileLimit" in said(error):
        return TermError(
            term,
            "needs more graphs than torch.compile keeps for one function: its inputs change in dtype, device or number "
            "of axes, or an array of its options does; raise torch.compiler.config.recompile_limit, or leave it "
            "uncompiled",
        )
    return TermError(
        term,
        f"failed as a graph of torch.compile: {said(error).splitlines()[0]}; if it runs with compile=False, it does "
        "something that cannot be traced, such as reading a value: change that, or leave it uncompiled",
    )


@functools.lru_cache(maxsize=KEPT)
def _graph_of(compiled: Compiled) -> Callable[..., Any]:
    call = compiled.call

    def run(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return graph(run, compiled.backend)


def graph(fn: Any, backend: str) -> Callable[..., Any]:
    """The function as one graph, without breaks."""
    import torch

    library: Any = torch  # the type of its compile is partly unknown
    # Functions that share their code would share the limit on its graphs. Releases without the option let them.
    known = inspect.signature(library.compile).parameters
    apart = {"isolate_recompiles": True} if "isolate_recompiles" in known else {}
    return library.compile(fn, fullgraph=True, backend=backend, **apart)
