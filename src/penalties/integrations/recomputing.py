"""Whether PyTorch runs a part of the model again for its backward pass."""

import functools
import sys
from typing import Any

__all__ = ["recomputing"]


def recomputing() -> bool:
    """Whether a backward pass is running: a module that is called now was checkpointed, and was called before.

    While torch.compile traces, the answer is no.
    """
    torch = sys.modules.get("torch")
    return torch is not None and not torch.compiler.is_compiling() and bool(_tracker().is_bw)


@functools.cache
def _tracker() -> Any:
    # The one public way to ask; the tracker is never entered, so it tracks nothing.
    from torch.utils.module_tracker import ModuleTracker

    return ModuleTracker()
