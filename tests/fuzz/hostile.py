"""Terms that do inline what no term should: each is a function of `x`, and what comes of it.

To add one, write it here under `@hostile(outcome, says)`. Those that an executor's tests have are tried, too.
"""

import math
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

import penalties as pn
from tests.slow.faults import FAULTS
from tests.slow.faults.fault import brought, squares


@dataclass(frozen=True)
class Hostile:
    """A function, and what comes of a term that calls it inline."""

    fn: Callable[..., Any]
    outcome: type[BaseException] | None
    """What is raised; None where the term is worth `squares` after all."""
    says: str = ""
    libraries: tuple[str, ...] = ("numpy", "torch", "jax")
    gradient: bool = False
    """Whether it only fails when its gradient is taken."""

    @property
    def name(self) -> str:
        return self.fn.__name__


HOSTILE = [
    Hostile(fault.fn, pn.TermError if fault.outcome is not None else None, fault.says, fault.libraries)
    for fault in FAULTS
    if "inline" in fault.where and not fault.costs and not fault.state and fault.outcome is not pn.NonFiniteError
]


def hostile(outcome: type[BaseException] | None, says: str = "", **more: Any) -> Callable[[Callable[..., Any]], Any]:
    def put(fn: Callable[..., Any]) -> Callable[..., Any]:
        HOSTILE.append(Hostile(fn, outcome, says, **more))
        return fn

    return put


# Exceptions that are not as others.


class Rigid(Exception):
    """Nothing can be set on it."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("rigid")


class Secretive(Exception):
    """Nothing can be read from it but by its class."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"{name} is a secret")


class Wordless(Exception):
    def __str__(self) -> str:
        return None  # type: ignore[return-value]


class Endless(Exception):
    def __str__(self) -> str:
        return str(self)


class Halt(BaseException):
    """As KeyboardInterrupt: not an error, and not the pipeline's to catch."""


@hostile(pn.TermError, "raised Rigid")
def raises_rigid(x: Any) -> Any:
    raise Rigid


@hostile(pn.TermError, "raised Secretive")
def raises_secretive(x: Any) -> Any:
    raise Secretive("s")


@hostile(pn.TermError, "raised Wordless")
def raises_wordless(x: Any) -> Any:
    raise Wordless


@hostile(pn.TermError, "raised Endless")
def raises_endless(x: Any) -> Any:
    raise Endless


@hostile(pn.TermError, "raised ValueError")
def raises_its_own_cause(x: Any) -> Any:
    error = ValueError("in a circle")
    other = KeyError("of two")
    error.__cause__, other.__context__ = other, error
    raise error


@hostile(pn.TermError, "raised TermError: raises_as_itself_in_disguise: nothing")
def raises_as_another_term(x: Any) -> Any:
    raise pn.TermError("raises_as_itself_in_disguise", "nothing")


@hostile(pn.TermError, "raised UserWarning")
def warns_as_an_error(x: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.warn("loudly", stacklevel=1)


@hostile(Halt)
def halts(x: Any) -> Any:
    raise Halt


@hostile(SystemExit)
def exits(x: Any) -> Any:
    sys.exit(4)


@hostile(KeyboardInterrupt)
def is_interrupted(x: Any) -> Any:
    raise KeyboardInterrupt


@hostile(BaseExceptionGroup)
def halts_in_a_group(x: Any) -> Any:
    raise BaseExceptionGroup("several", [Halt(), ValueError()])


# Values that are none.


class Liar:
    """Says that it is an array."""

    shape = ()
    dtype = np.dtype(float)

    def __float__(self) -> float:
        return 1.0


class Leaky(dict[str, Any]):
    def items(self) -> Any:
        raise OSError("leaks")


class Odd(NamedTuple):
    value: Any
    metrics: Any


class Swelling(Mapping[str, Any]):
    """Has other keys at each look."""

    def __init__(self) -> None:
        self.looks = 0

    def __getitem__(self, key: str) -> Any:
        return 1.0

    def __iter__(self) -> Iterator[str]:
        self.looks += 1
        return iter([f"m{i}" for i in range(self.looks)])

    def __len__(self) -> int:
        return 3


@hostile(pn.TermError, "returned")
def returns_a_liar(x: Any) -> Any:
    return Liar()


@hostile(pn.TermError, "returned")
def returns_its_class(x: Any) -> Any:
    return type(x)


@hostile(pn.TermError, "returned")
def returns_itself(x: Any) -> Any:
    return returns_itself


@hostile(pn.TermError, "returned")
def returns_an_object_array(x: Any) -> Any:
    return np.array(None, dtype=object)


@hostile(pn.TermError, "complex")
def returns_a_complex_number(x: Any) -> Any:
    return (x * 1j).sum()


@hostile(pn.TermError, "returned")
def returns_a_complex_plain_number(x: Any) -> Any:
    return 1j


@hostile(pn.TermError, "returned", libraries=("torch", "jax"))
def returns_another_library(x: Any) -> Any:
    return np.float64(3.0)


@hostile(pn.TermError, "returned a value on meta", libraries=("torch",))
def returns_a_value_without_memory(x: Any) -> Any:
    return torch.zeros((), device="meta")


@hostile(pn.TermError, "an array is a MaskedConstant", libraries=("numpy",))
def returns_a_number_that_is_masked(x: Any) -> Any:
    return pn.Evaluation(np.ma.masked_array([1.0], True).sum(), gradient={"x": 2 * x})


@hostile(pn.TermError, "an array is a MaskedConstant")
def measures_a_number_that_is_masked(x: Any) -> Any:
    return brought(x, squares_alone(x), 2 * x, metrics={"a": np.ma.masked})


@hostile(pn.TermError, "the metric all as an int beyond the range of floats")
def measures_beyond_floats(x: Any) -> Any:
    return brought(x, squares_alone(x), 2 * x, metrics={"all": 10**400})


@hostile(None, libraries=("torch",))
def returns_a_sparse_number(x: Any) -> Any:
    nowhere = torch.zeros((0, 1), dtype=torch.long)
    return torch.sparse_coo_tensor(nowhere, squares_alone(x).reshape(1), (), check_invariants=True)


@hostile(pn.TermError, "could not be used: OSError: leaks")
def returns_leaky_metrics(x: Any) -> Any:
    return pn.Evaluation(squares_alone(x), gradient={"x": 2 * x}, metrics=Leaky(a=1.0))


@hostile(pn.TermError, "returned")
def returns_an_evaluation_of_an_evaluation(x: Any) -> Any:
    return pn.Evaluation(pn.Evaluation(x.sum()))


@hostile(pn.TermError, "returned")
def returns_an_evaluation_of_nothing(x: Any) -> Any:
    return pn.Evaluation(None)


@hostile(pn.TermError, "returned")
def brings_a_number_for_a_gradient(x: Any) -> Any:
    return pn.Evaluation(x.sum(), gradient={"x": 3.0})


@hostile(pn.TermError, "returned")
def brings_its_gradient_in_a_list(x: Any) -> Any:
    return pn.Evaluation(x.sum(), gradient={"x": [2 * x]})


@hostile(pn.TermError, "returned")
def brings_complex_gradients(x: Any) -> Any:
    return pn.Evaluation(x.sum(), gradient={"x": 2j * x})


@hostile(pn.TermError, "returned")
def brings_words_for_gradients(x: Any) -> Any:
    return pn.Evaluation(x.sum(), gradient={"x": np.full(tuple(x.shape), "steep")})


@hostile(pn.TermError, "returned")
def has_metrics_in_a_list(x: Any) -> Any:
    return pn.Evaluation(x.sum(), gradient={"x": 2 * x}, metrics=[("a", 1.0)])  # type: ignore[arg-type]


@hostile(None)
def returns_a_named_pair(x: Any) -> Any:
    value = brought(x, squares_alone(x), 2 * x)
    return value if isinstance(value, pn.Evaluation) else Odd(value, {"a": True})


@hostile(None)
def has_swelling_metrics(x: Any) -> Any:
    return pn.Evaluation(squares_alone(x), gradient={"x": 2 * x}, metrics=Swelling())


@hostile(None, libraries=("numpy", "torch"))
def brings_wide_gradients(x: Any) -> Any:
    wide = np.asarray(x.detach().cpu() if isinstance(x, torch.Tensor) else x, np.longdouble)
    return pn.Evaluation(squares_alone(x), gradient={"x": 2 * wide.astype(np.float64)})


def squares_alone(x: Any) -> Any:
    return (x * x).sum()


# What a term does to the world around it.


@hostile(None, libraries=("torch",))
def changes_the_default_dtype(x: Any) -> Any:
    torch.set_default_dtype(torch.bfloat16)
    return squares(x)


@hostile(None, libraries=("torch",))
def turns_gradients_off(x: Any) -> Any:
    value = squares(x)
    torch.set_grad_enabled(False)
    return value


@hostile(None)
def makes_numpy_raise(x: Any) -> Any:
    np.seterr(all="raise")
    return squares(x)


@hostile(None)
def seeds_everything(x: Any) -> Any:
    np.random.seed(0)  # noqa: NPY002 (that is the fault)
    torch.manual_seed(0)
    return squares(x)


@hostile(None)
def starts_a_thread(x: Any) -> Any:
    threading.Thread(target=math.sqrt, args=(2.0,)).start()
    return squares(x)


@hostile(None)
def makes_warnings_raise(x: Any) -> Any:
    warnings.simplefilter("error")
    return squares(x)


@hostile(None, libraries=("torch",))
def registers_a_hook(x: Any) -> Any:
    value = squares(x)
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient * 1)
    return value


@hostile(None, libraries=("torch",))
def runs_a_backward_of_its_own(x: Any) -> Any:
    y = x.detach().clone().requires_grad_()
    squares(y).backward()
    return squares(x)


# Gradients that fail.


class Steep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:  # type: ignore[override]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # type: ignore[override]
        raise Wordless


@hostile(pn.TermError, "gradient raised", libraries=("torch",), gradient=True)
def has_a_backward_that_raises(x: Any) -> Any:
    once: Any = Steep
    return squares(once.apply(x))


@hostile(pn.TermError, "gradient raised", libraries=("torch",), gradient=True)
def has_no_graph_left(x: Any) -> Any:
    value = squares(x)
    if x.requires_grad:
        torch.autograd.grad(value, x)
    return value
