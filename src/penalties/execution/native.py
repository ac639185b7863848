"""Threads of native libraries inside workers; imported before those are."""

import os
import sys
from typing import Any, Final

__all__ = ["cap_threads"]

_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


def cap_threads(count: int) -> None:
    """Let native libraries start so many threads at most: workers that start more only fight for the cores."""
    for variable in _VARIABLES:
        given = os.environ.get(variable, "")
        if not given.isdigit() or int(given) > count:
            os.environ[variable] = str(count)
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() > count:
        torch.set_num_threads(count)
