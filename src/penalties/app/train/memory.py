"""How much memory a run takes: the peak of its GPU, or of this process."""

import importlib
import sys
from typing import Any

__all__ = ["peak_memory"]


def peak_memory(device: Any) -> int | None:
    """The most bytes that were in use so far: by tensors on a GPU, else by this process; None if that is unknown."""
    if str(device).startswith("cuda"):
        torch: Any = importlib.import_module("torch")
        return int(torch.cuda.max_memory_allocated(device))
    try:
        import resource
    except ImportError:
        # Windows has no such module.
        return None
    # In bytes on macOS, in KiB elsewhere.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
