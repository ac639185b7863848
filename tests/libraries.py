"""The three libraries behind one face, so that a test is written once.

`PENALTIES_BACKEND` (numpy, torch, jax, comma-separated) and `PENALTIES_DEVICE` (cpu, cuda) choose what the suite runs
on; `PENALTIES_DTYPE` (float32, float64) chooses the precision of tests that leave it open.
"""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch

import penalties as pn

jax.config.update("jax_enable_x64", True)

DEVICE = os.environ.get("PENALTIES_DEVICE", "cpu")
DTYPE = os.environ.get("PENALTIES_DTYPE", "float64")
EPSILON = {"float64": 1e-9, "float32": 1e-5}


class Numpy:
    name = "numpy"
    differentiates = False
    errors = "NumPy"

    def array(self, x: Any, dtype: str = DTYPE) -> Any:
        return np.asarray(x).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)

    def numpy(self, x: Any) -> Any:
        return np.asarray(x).astype(np.float64)

    def dtype(self, x: Any) -> str:
        return str(x.dtype)

    def compiled(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The function as one program, where the library would compile each operation and take longer."""
        return fn


class Torch(Numpy):
    name = "torch"
    differentiates = True
    errors = "PyTorch"

    def array(self, x: Any, dtype: str = DTYPE) -> Any:
        return torch.tensor(np.array(x), dtype=getattr(torch, dtype), device=DEVICE)

    def numpy(self, x: Any) -> Any:
        return x.detach().cpu().to(torch.float64).numpy()

    def dtype(self, x: Any) -> str:
        return str(x.dtype).removeprefix("torch.")

    def raw_gradients(self, fn: Callable[..., Any], *arrays: Any) -> Sequence[Any]:
        leaves = [x.clone().requires_grad_() for x in arrays]
        return torch.autograd.grad(fn(*leaves), leaves, allow_unused=True, materialize_grads=True)

    def gradients(self, fn: Callable[..., Any], *arrays: Any) -> list[Any]:
        return [self.numpy(g) for g in self.raw_gradients(fn, *arrays)]


class Jax(Numpy):
    name = "jax"
    differentiates = True
    errors = "JAX"

    def array(self, x: Any, dtype: str = DTYPE) -> Any:
        return jnp.asarray(np.asarray(x)).astype(dtype)

    def compiled(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        return jax.jit(fn)

    def raw_gradients(self, fn: Callable[..., Any], *arrays: Any) -> Sequence[Any]:
        return jax.grad(fn, argnums=tuple(range(len(arrays))))(*arrays)

    def gradients(self, fn: Callable[..., Any], *arrays: Any) -> list[Any]:
        return [self.numpy(g) for g in self.raw_gradients(fn, *arrays)]


NUMPY, TORCH, JAX = Numpy(), Torch(), Jax()
_CHOSEN = os.environ.get("PENALTIES_BACKEND", "numpy,torch,jax").split(",")
LIBRARIES: list[Any] = [library for library in (NUMPY, TORCH, JAX) if library.name in _CHOSEN]
DIFFERENTIABLE = [library for library in LIBRARIES if library.differentiates]


def call(library: Any, name: str, *inputs: Any, dtype: str = DTYPE, **options: Any) -> Any:
    """The public function `name` on inputs turned into arrays of the library; NumPy options become arrays too."""
    arrays = [library.array(x, dtype) for x in inputs]
    given = {key: library.array(x, str(x.dtype)) if isinstance(x, np.ndarray) else x for key, x in options.items()}
    return getattr(pn, name)(*arrays, **given)


def close(found: Any, expected: Any, precision: str = DTYPE) -> None:
    tolerance = EPSILON[precision]
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@functools.cache
def value_and_gradients(library: Any, fn: Callable[..., Any]) -> Callable[..., tuple[Any, Sequence[Any]]]:
    """A scalar function with its gradients. A function that is given again is not compiled again."""
    return library.compiled(lambda *arrays: (fn(*arrays), library.raw_gradients(fn, *arrays)))


def check(autodiff: Any, precision: str, fn: Any, inputs: Any, value: Any, gradients: Any) -> None:
    """The function and its gradients are the given numbers."""
    found, slopes = value_and_gradients(autodiff, fn)(*[autodiff.array(x, precision) for x in inputs])
    close(autodiff.numpy(found), value, precision)
    for slope, right in zip(slopes, gradients, strict=True):
        close(autodiff.numpy(slope), right, precision)
