"""The array operations that the mathematics is written in, once per library.

`numpy.py`, `torch.py` and `jax.py` hold the same operations under the same names (`Backend` lists them).
`backend_of` finds the one that owns the arrays of a call, and imports nothing that the caller has not loaded.
"""

from .precision import double_precision
from .protocol import Backend
from .resolve import backend_of, no_array, owner, two_libraries

__all__ = ["Backend", "backend_of", "double_precision", "no_array", "owner", "two_libraries"]
