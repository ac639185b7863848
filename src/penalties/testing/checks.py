"""The value of a term, its pickle, its compiled form, its state."""

import importlib
import inspect
import pickle
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, cast

import numpy as np

from ..errors import MissingLibraryError, PenaltiesError
from ..execution.portable import function_bytes, loads
from ..pipeline.catalogue import path_of
from ..pipeline.pipeline import Pipeline
from ..pipeline.saving import load_state, save_state
from ..pipeline.term import Term
from .sample import Numbers, Sample, number, numbers
from .verdict import Check

__all__ = ["check_compiled", "check_pickling", "check_state", "check_value"]

# Sums on a GPU may come in another order each time.
_SAME: Final = 1e-6
_COMPILED: Final = 1e-4
_LONGEST: Final = 240
"""Characters of a compiler's message that are shown."""


def check_value(sample: Sample) -> Check:
    """A finite number, the same for the same inputs, which stay as they are."""
    before = _everything(sample)
    try:
        evaluation = sample.evaluate()
        value = number(evaluation)
        after = _everything(sample)
        again = sample.value()
    except PenaltiesError as error:
        return Check("value", "failed", str(error))
    for place, old, new in zip(sample.places, before, after, strict=True):
        if not np.array_equal(old, new, equal_nan=old.dtype.kind == "f"):
            return Check("value", "failed", f"it changes its input {sample.label(*place)} in place; make a new array")
    if not np.isfinite(value):
        return Check("value", "failed", f"it is {value} at the given inputs")
    if not _close(again, value):
        return Check(
            "value",
            "failed",
            f"{value:.6g}, and {again:.6g} the second time; draw by a seed, keep nothing between calls",
        )
    count = len(evaluation.metrics)
    counted = f", {count} metric{'' if count == 1 else 's'}" if count else ""
    dtype = str(evaluation.value.dtype).removeprefix("torch.")
    return Check("value", "passed", f"{value:.6g}, {dtype}, the same twice{counted}")


def _everything(sample: Sample) -> list[Numbers]:
    return [numbers(flat.ops, leaf) for flat in sample.nests.values() for leaf in flat.leaves]


def _close(a: float, b: float, tolerance: float = _SAME) -> bool:
    return abs(a - b) <= tolerance * max(abs(a), abs(b))


def check_pickling(sample: Sample) -> Check:
    """The same term after a trip between processes."""
    term = sample.term
    travels = term.runs in ("process", "ray")
    try:
        restored: Term = loads(function_bytes(term), ()) if travels else pickle.loads(pickle.dumps(term))
    except Exception as error:  # pickle raises whatever an object's own methods raise
        lost = inspect.isfunction(term.fn) and path_of(term.fn) is None
        why = "no module has it under its name: define it at the top level of one" if lost else _short(error)
        where = f'runs="{term.runs}" needs it' if travels else f'runs="{term.runs}" can do without'
        return Check("pickling", "failed" if travels else "note", f"it does not pickle, and {where}; {why}")
    try:
        value = replace(sample, term=restored).value()
    except PenaltiesError as error:
        return Check("pickling", "failed", f"it comes back broken: {error}")
    expected = sample.value()
    if not _close(value, expected):
        return Check("pickling", "failed", f"it comes back with the value {value:.6g} instead of {expected:.6g}")
    # A function or object that does not say when it is equal is judged by its value.
    silent = type(term.fn).__eq__ is object.__eq__
    if (restored.replace(fn=term.fn) if silent else restored) != term:
        return Check("pickling", "note", "it comes back with the same value, and yet unequal")
    return Check("pickling", "passed", "equal, with the same value")


def check_compiled(sample: Sample, wanted: bool) -> Check:
    """The same value and gradient inside `torch.compile` or `jax.jit`."""
    if not wanted:
        return Check("compile", "skipped", "compile=False")
    if sample.library == "NumPy":
        return Check("compile", "skipped", "NumPy has no compiler")
    if sample.term.runs != "inline":
        return Check("compile", "skipped", f'runs="{sample.term.runs}": it is never compiled')
    assert sample.ops is not None, "there are arrays"
    plain = sample.evaluate(gradient=sample.term.differentiable)
    slopes = {} if plain.gradient is None else sample.gradients(plain)
    torch = sample.library == "PyTorch"
    name = "torch.compile" if torch else "jax.jit"
    try:
        found = (_by_torch if torch else _by_jax)(sample, bool(slopes))
    except Exception as error:  # each compiler has its own
        return Check("compile", "failed", f"{name} cannot trace it: {_short(error)}")
    for what, one, other in zip(
        ["value", *(f"gradient at {sample.label(*target)}" for target in slopes)],
        [plain.value, *slopes.values()],
        found,
        strict=True,
    ):
        # No path counts as 0, which either of the two may say.
        a, b = np.broadcast_arrays(*[0.0 if x is None else numbers(sample.ops, x) for x in (one, other)])
        scale = float(np.max(np.abs(a), initial=0.0))
        if not np.allclose(a, b, rtol=_COMPILED, atol=_COMPILED * scale, equal_nan=True):
            worst = int(np.argmax(np.abs(a - b)))
            pair = f"{b.flat[worst]:.6g} instead of {a.flat[worst]:.6g}"
            return Check("compile", "failed", f"{name} gives another {what}: {pair}")
    return Check("compile", "passed", f"{name}: the same value{' and gradient' if slopes else ''}")


def _by_torch(sample: Sample, gradient: bool) -> list[Any]:
    torch: Any = importlib.import_module("torch")  # typed in part only
    # The limit on recompilations counts all checks of a process together.
    torch.compiler.reset()
    compiled = torch.compile(_value_of(sample), fullgraph=True, backend="aot_eager")
    leaves = [leaf.clone() for leaf in sample.leaves]
    targets = [leaves[index].requires_grad_() for index in _indices(sample)] if gradient else []
    value = compiled(*leaves)
    return [value, *(torch.autograd.grad(value, targets, allow_unused=True) if gradient else ())]


def _by_jax(sample: Sample, gradient: bool) -> list[Any]:
    jax: Any = importlib.import_module("jax")  # typed in part only
    value_of = _value_of(sample)
    if not gradient:
        return [jax.jit(value_of)(*sample.leaves)]
    value, slopes = jax.jit(jax.value_and_grad(value_of, argnums=tuple(_indices(sample))))(*sample.leaves)
    return [value, *slopes]


def _value_of(sample: Sample) -> Callable[..., Any]:
    """The value as a function of all arrays, by a pipeline: what a training loop compiles."""
    pipeline = Pipeline([sample.term.replace(weight=1.0, enabled=True, every=1, on_error="raise")])
    step = 0 if sample.term.needs_step else None
    return lambda *leaves: pipeline.total(step=step, **sample.filled(leaves).inputs)


def _indices(sample: Sample) -> list[int]:
    """Where the targets stand among all arrays."""
    return [sample.places.index(target) for target in sample.targets]


def check_state(sample: Sample) -> Check:
    """State that comes in, goes out, and can be written to a file."""
    name = sample.term.name
    if not sample.term.takes_state:
        return Check("state", "skipped", "it takes none")
    try:
        first = sample.evaluate().state
        if first is None:
            return Check("state", "failed", "it takes state and returns none; return Evaluation(…, state=new)")
        second = sample.value(first)
        if not _close(sample.value(first), second):
            return Check("state", "failed", "the same state gives two values; make a new one instead of changing it")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state.safetensors"
            save_state({name: first}, path)
            library = {"PyTorch": "torch", "JAX": "jax", "NumPy": "numpy"}[sample.library]
            loaded = load_state(path, cast("Literal['numpy', 'torch', 'jax']", library))[name]
        third = sample.value(loaded)
    except MissingLibraryError as error:
        return Check("state", "passed", f"taken and returned; not saved: {error}")
    except PenaltiesError as error:
        return Check("state", "failed", str(error))
    if not _close(third, second):
        return Check("state", "failed", f"saved and loaded it gives {third:.6g} instead of {second:.6g}")
    return Check("state", "passed", "taken, returned, saved and loaded")


def _short(error: BaseException) -> str:
    """The first line of an error, cut to what fits in a table."""
    lines = str(error).strip().splitlines() or [""]
    text = f"{type(error).__name__}: {lines[0]}"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
