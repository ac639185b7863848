"""Which backend owns an array."""

import sys
from typing import Any, Final

import numpy as np

from ..errors import BackendError
from . import jax as jax_backend
from . import numpy as numpy_backend
from . import torch as torch_backend
from .protocol import Backend

__all__ = ["backend_of", "no_array", "owner", "two_libraries"]

# A tuple, not a union: torch.compile cannot trace the union of NumPy's types.
_NUMPY: Final = (np.ndarray, np.generic)


def owner(x: object) -> Backend | None:
    """The backend that `x` is an array of, or None.

    A library that is not loaded cannot have made `x`, so it is looked up among the loaded modules and never imported.
    """
    # No cache by type: torch.compile would guard on its contents and recompile when a new type turns up.
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return torch_backend
    if isinstance(x, _NUMPY):
        return numpy_backend
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(x, jax.Array):
        return jax_backend
    return None


def backend_of(function: str, *, mask: Any = None, **arrays: Any) -> Backend:
    """The backend of all the named arrays, and of the mask if there is one.

    Raises `BackendError` where one is not an array, or where two belong to different libraries.
    """
    if mask is not None:
        arrays["mask"] = mask
    found: Backend | None = None
    first = ""
    for name, x in arrays.items():
        ops = owner(x)
        if ops is None:
            raise no_array(function, name, x)
        if found is None:
            found, first = ops, name
        elif ops is not found:
            raise two_libraries(function, first, found, name, ops)
    assert found is not None, "called without arrays"
    return found


def no_array(function: str, name: str, x: object) -> BackendError:
    """The error for something that is neither an array nor, where that is allowed, a nest."""
    hint = "; for a module pass module.parameters()" if callable(getattr(x, "parameters", None)) else ""
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(x, getattr(keras, "Variable", ())):
        hint = "; for a Keras variable pass its .value"
    return BackendError(
        f"{function}: {name} is a {type(x).__name__}; expected a NumPy array, a torch.Tensor or a jax.Array{hint}"
    )


def two_libraries(function: str, first: str, a: Backend, second: str, b: Backend) -> BackendError:
    """The error for arrays of two libraries in one call."""
    return BackendError(
        f"{function}: {first} is a {a.LIBRARY} array and {second} is a {b.LIBRARY} array; "
        "expected one library in a call: convert one of them"
    )
