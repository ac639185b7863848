"""The caller's modes of the array libraries, which do not follow it into another thread by themselves."""

import contextlib
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, Final, TypeAlias

from ..backends import double_precision

__all__ = ["Modes"]

_AUTOCAST: Final = ("cpu", "cuda")

Flags: TypeAlias = tuple[Any, ...]
"""PyTorch's modes that are set and read, not entered: gradients, and autocast for each kind of device."""


class Modes:
    """The modes as they were where this was made; entered where a term runs."""

    def __init__(self) -> None:
        """As they are now."""
        self._flags: Flags | None = _flags()
        self._entering: list[Callable[[], AbstractContextManager[Any]]] = []
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            if torch.is_inference_mode_enabled():
                self._entering.append(torch.inference_mode)
            # `get_default_device` takes ten times as long.
            here = torch.empty(0).device
            device = here if here.type == "cpu" else torch.get_default_device()
            # An earlier term may have set another one in the thread.
            self._entering.append(lambda: contextlib.nullcontext() if torch.empty(0).device == device else device)
        jax: Any = sys.modules.get("jax")
        if jax is not None:
            default = jax.config.jax_default_device
            if default is not None:
                self._entering.append(lambda: jax.default_device(default))
            wide = jax.config.jax_enable_x64
            self._entering.append(lambda: double_precision(wide))

    @contextlib.contextmanager
    def __call__(self) -> Generator[None]:
        """Inside, these modes are on, whatever ran in this thread before."""
        # Not set back: whatever else runs in a thread of ours enters modes of its own.
        _set(self._flags)
        with contextlib.ExitStack() as stack:
            for enter in self._entering:
                stack.enter_context(enter())
            yield

    @contextlib.contextmanager
    def step(self) -> Generator[None]:
        """The same for one step of a coroutine. What it changes is there again at its next step, and nowhere else."""
        with self():
            try:
                yield
            finally:
                self._flags = _flags()


def _flags() -> Flags | None:
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    cast = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _AUTOCAST]
    return torch.is_grad_enabled(), torch.is_autocast_cache_enabled(), *cast


def _set(flags: Flags | None) -> None:
    if flags is None:
        return
    torch: Any = sys.modules["torch"]
    gradients, cached, *cast = flags
    torch.set_grad_enabled(gradients)
    torch.set_autocast_cache_enabled(cached)
    for kind, (enabled, dtype) in zip(_AUTOCAST, cast, strict=True):
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)
