"""Checks of a term's value, of its pickling, and of its compiled form."""

import importlib
import inspect
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ..errors import PenaltiesError
from ..execution.portable import function_bytes, loads
from ..pipeline.catalogue import path_of
from ..pipeline.pipeline import Pipeline
from ..pipeline.term import Term
from .sample import Numbers, Sample, number, numbers
from .verdict import Check

__all__ = ["check_compiled", "check_pickling", "check_value", "close"]

# A GPU may add up in a different order each time.
_SAME: Final = 1e-6
_COMPILED: Final = 1e-4
_LONGEST: Final = 240
"""How many characters of a compiler's message are shown."""


def check_value(sample: Sample) -> Check:
    """The value is finite and repeatable, and the inputs are left unchanged."""
    before = _everything(sample)
    try:
        evaluation = sample.evaluate()
        value = number(evaluation)
        after = _everything(sample)
        again = sample.value()
    except PenaltiesError as error:
        return Check("value", "failed", str(error))
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        if not np.array_equal(old, new, equal_nan=old.dtype.kind == "f"):
            return Check("value", "failed", f"it modifies its input {sample.label(index)} in place; make a new array")
    if not np.isfinite(value):
        return Check("value", "failed", f"it is {value} at the given inputs")
    if not close(again, value):
        return Check(
            "value",
            "failed",
            f"{value:.6g} at first and {again:.6g} when repeated; draw from a seed, and keep nothing between calls",
        )
    count = len(evaluation.metrics)
    counted = f", {count} metric{'' if count == 1 else 's'}" if count else ""
    dtype = str(evaluation.value.dtype).removeprefix("torch.")
    return Check("value", "passed", f"{value:.6g}, {dtype}, repeatable{counted}")


def _everything(sample: Sample) -> list[Numbers]:
    return [numbers(sample.ops, leaf) for leaf in sample.leaves]


def close(a: float, b: float, tolerance: float = _SAME) -> bool:
    """Whether two numbers are equal up to rounding."""
    return abs(a - b) <= tolerance * max(abs(a), abs(b))


def check_pickling(sample: Sample) -> Check:
    """The term survives being sent to another process."""
    term = sample.term
    travels = term.runs in ("process", "ray")
    try:
        restored: Term = loads(function_bytes(term), ()) if travels else pickle.loads(pickle.dumps(term))
    except Exception as error:  # pickling runs the object's own methods, which may raise anything
        lost = inspect.isfunction(term.fn) and path_of(term.fn) is None
        why = "define the function at the top level of a module" if lost else _short(error)
        needed = f'runs="{term.runs}" {"requires" if travels else "does not require"} that it does'
        return Check("pickling", "failed" if travels else "note", f"it does not pickle; {needed}; {why}")
    try:
        value = replace(sample, term=restored).value()
    except PenaltiesError as error:
        return Check("pickling", "failed", f"unpickled, it fails: {error}")
    expected = sample.value()
    if not close(value, expected):
        return Check("pickling", "failed", f"unpickled, its value is {value:.6g} instead of {expected:.6g}")
    # An object without __eq__ is compared by its value alone.
    incomparable = type(term.fn).__eq__ is object.__eq__
    if (restored.replace(fn=term.fn) if incomparable else restored) != term:
        return Check("pickling", "note", "unpickled, it has the same value but does not compare equal")
    return Check("pickling", "passed", "equal, with the same value")


def check_compiled(sample: Sample, wanted: bool) -> Check:
    """Value and gradient are the same under `torch.compile` or `jax.jit`."""
    if not wanted:
        return Check("compile", "skipped", "compile=False")
    if sample.library == "NumPy":
        return Check("compile", "skipped", "NumPy has no compiler")
    if sample.term.runs != "inline":
        return Check("compile", "skipped", f'runs="{sample.term.runs}": it is never compiled')
    plain = sample.evaluate(gradient=sample.term.differentiable)
    slopes = {} if plain.gradient is None else sample.gradients(plain)
    torch = sample.library == "PyTorch"
    name = "torch.compile" if torch else "jax.jit"
    try:
        found = (_by_torch if torch else _by_jax)(sample, bool(slopes))
    except Exception as error:  # each compiler has its own exceptions
        return Check("compile", "failed", f"{name} cannot trace it: {_short(error)}")
    for what, one, other in zip(
        ["value", *(f"gradient at {sample.label(target)}" for target in slopes)],
        [plain.value, *slopes.values()],
        found,
        strict=True,
    ):
        # A missing path and a zero gradient are the same; either side may report it either way.
        a, b = np.broadcast_arrays(*[0.0 if x is None else numbers(sample.ops, x) for x in (one, other)])
        scale = float(np.max(np.abs(a), initial=0.0))
        if not np.allclose(a, b, rtol=_COMPILED, atol=_COMPILED * scale, equal_nan=True):
            worst = int(np.argmax(np.abs(a - b)))
            pair = f"{b.flat[worst]:.6g} instead of {a.flat[worst]:.6g}"
            return Check("compile", "failed", f"{name} changes the {what}: {pair}")
    return Check("compile", "passed", f"{name}: same value{' and gradient' if slopes else ''}")


def _by_torch(sample: Sample, gradient: bool) -> list[Any]:
    torch: Any = importlib.import_module("torch")  # typed in part only
    # The limit on recompilations is shared by every check in the process.
    torch.compiler.reset()
    compiled = torch.compile(_value_of(sample), fullgraph=True, backend="aot_eager")
    leaves = [leaf.clone() for leaf in sample.leaves]
    targets = [leaves[index].requires_grad_() for index in sample.targets] if gradient else []
    value = compiled(*leaves)
    return [value, *(torch.autograd.grad(value, targets, allow_unused=True) if gradient else ())]


def _by_jax(sample: Sample, gradient: bool) -> list[Any]:
    jax: Any = importlib.import_module("jax")  # typed in part only
    value_of = _value_of(sample)
    if not gradient:
        return [jax.jit(value_of)(*sample.leaves)]
    value, slopes = jax.jit(jax.value_and_grad(value_of, argnums=tuple(sample.targets)))(*sample.leaves)
    return [value, *slopes]


def _value_of(sample: Sample) -> Callable[..., Any]:
    """The value as a function of all arrays, through a pipeline, as a training loop compiles it."""
    pipeline = Pipeline([sample.term.replace(weight=1.0, enabled=True, every=1, on_error="raise")])
    step = 0 if sample.term.needs_step else None
    return lambda *leaves: pipeline.total(step=step, **sample.filled(leaves).inputs)


def _short(error: BaseException) -> str:
    """The first line of an error, truncated to fit in a table."""
    lines = str(error).strip().splitlines() or [""]
    text = f"{type(error).__name__}: {lines[0]}"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
