"""What a caller is in that does not follow into another thread by itself."""

import contextlib
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any

__all__ = ["captured"]


def captured() -> Callable[[], AbstractContextManager[None]]:
    """The modes of the libraries that are loaded, as they are now; entered wherever the result is called."""
    entering: list[Callable[[], AbstractContextManager[Any]]] = []
    torch = sys.modules.get("torch")
    if torch is not None:
        _torch(torch, entering)
    jax = sys.modules.get("jax")
    if jax is not None:
        _jax(jax, entering)

    @contextlib.contextmanager
    def entered() -> Generator[None]:
        with contextlib.ExitStack() as stack:
            for enter in entering:
                stack.enter_context(enter())
            yield

    return entered


def _torch(torch: Any, entering: list[Callable[[], AbstractContextManager[Any]]]) -> None:
    # A thread begins with gradients, without autocast and with the processor as its device.
    if torch.is_inference_mode_enabled():
        entering.append(torch.inference_mode)
    elif not torch.is_grad_enabled():
        entering.append(torch.no_grad)
    device = torch.get_default_device()
    if device.type != "cpu":
        entering.append(lambda: device)
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            dtype, cached = torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled()
            entering.append(lambda k=kind, d=dtype, c=cached: torch.autocast(k, dtype=d, cache_enabled=c))


def _jax(jax: Any, entering: list[Callable[[], AbstractContextManager[Any]]]) -> None:
    device = jax.config.jax_default_device
    if device is not None:
        entering.append(lambda: jax.default_device(device))
    wide = jax.config.jax_enable_x64
    entering.append(lambda: jax.enable_x64(wide))
