"""Checks of a term with state: at its second and third call, and through a file."""

import math
import tempfile
from pathlib import Path
from typing import Any, Final

from .. import trees
from ..errors import MissingLibraryError, PenaltiesError
from ..pipeline.saving import load_state, save_state
from .checks import check_value, close
from .gradient import check_gradient
from .sample import Sample
from .verdict import Check

__all__ = ["check_state"]

_CALLS: Final = ("first call", "second call", "third call")


def check_state(sample: Sample, step: float | None, tolerance: float | None, kinks: bool) -> list[Check]:
    """The state itself, and the second and third call, each with the state that the call before returned.

    There is no state yet at the first call, so that most terms take a separate branch there: a mistake in the other
    branch shows only later.
    """
    if not sample.term.takes_state:
        return [Check("state", "skipped", "it takes no state")]
    state = sample.after(1).state
    if state is None:
        return [Check("state", "failed", "it takes state but returns none; return Evaluation(…, state=new)")]
    if _holds_graph(sample):
        return [Check("state", "failed", "the state is attached to the graph of its call; detach it")]
    try:
        value, again = sample.value(state), sample.value(state)
    except PenaltiesError as error:
        return [Check(_CALLS[1], "failed", str(error))]
    if not math.isfinite(value):
        # Not close to itself either, whatever became of the state.
        return [_check_call(sample, 1, step, tolerance, kinks)]
    if not close(value, again):
        return [Check("state", "failed", "it modifies the state that it is given; return a new one instead")]
    saved = _check_saving(sample, state, value)
    calls = [_check_call(sample, calls, step, tolerance, kinks) for calls in (1, 2)]
    return [saved, *calls]


def _check_saving(sample: Sample, state: Any, value: float) -> Check:
    name = sample.term.name
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state.safetensors"
            save_state({name: state}, path)
            loaded = load_state(path)[name]
        again = sample.value(loaded)
    except MissingLibraryError as error:
        return Check("state", "passed", f"accepted and returned; not saved: {error}")
    except PenaltiesError as error:
        return Check("state", "failed", str(error))
    if not close(again, value):
        return Check("state", "failed", f"with saved and loaded state the value is {again:.6g} instead of {value:.6g}")
    return Check("state", "passed", "accepted, returned, saved and loaded")


def _check_call(sample: Sample, calls: int, step: float | None, tolerance: float | None, kinks: bool) -> Check:
    """Value and gradient after this many calls."""
    label, before = _CALLS[calls], _CALLS[calls - 1]
    try:
        later = sample.after(calls)
    except PenaltiesError as error:
        return Check(label, "failed", str(error))
    if later.state is None:
        return Check(label, "failed", f"the {before} returned no state; return Evaluation(…, state=new)")
    value = check_value(later)
    if value.status == "failed":
        return Check(label, "failed", f"value: {value.detail}")
    gradient = check_gradient(sample, step, tolerance, kinks, calls=calls)
    if gradient.status == "failed":
        return Check(label, "failed", f"gradient: {gradient.detail}")
    checked = "value and gradient" if gradient.status == "passed" else "value"
    return Check(label, "passed", f"{checked}, with the state of the {before}")


def _holds_graph(sample: Sample) -> bool:
    """Whether a call on inputs that require grad returns state that requires grad too."""
    if sample.library != "PyTorch" or not sample.term.differentiable:
        return False
    attached = sample.mapped(lambda _, leaf: leaf.detach().clone().requires_grad_())
    state = attached.evaluate().state
    return any(getattr(array, "requires_grad", False) for array in trees.arrays([state]))
