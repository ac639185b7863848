"""Every check of a term, in one call."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ..errors import OptionError
from ..functional.options import POSITIVE, check_flag, check_number
from ..pipeline.pipeline import Pipeline, TermLike
from .checks import check_compiled, check_pickling, check_value
from .edges import Edges, check_edge, edge_samples
from .gradient import check_gradient
from .sample import Sample
from .state import check_state
from .verdict import Check, Verdict

__all__ = ["check_term"]


def check_term(
    term: TermLike,
    inputs: Mapping[str, Any] | Any,
    *,
    wrt: str | Sequence[str] | None = None,
    step: float | None = None,
    tolerance: float | None = None,
    kinks: bool = False,
    edges: Edges = None,
    compile: bool = True,
    raises: bool = True,
) -> Verdict:
    """Check that a term can be used in training: its value, gradient, edge cases, pickling, compiled form and state.

    `term` is a `Term`, or anything that a `Pipeline` accepts as one. `inputs` is `{name: array or nest}`, or the input
    itself if the term reads one. The result is a `Verdict`; a failure raises `AssertionError` with the verdict as its
    message, unless `raises=False`. Inputs are never modified, and every run tries the same elements. A term with state
    is called three times, each with the state that the call before returned, and each call is checked.

    - `wrt`: the inputs to differentiate. By default those that require grad, or every floating input if none does.
      `()` skips gradients, for a term that deliberately holds part of its value constant.
    - `step`: the step of the finite difference at an element `x`, in units of `max(1, |x|)`. Default 1e-5, or 1e-2 if
      the term cannot be computed in float64.
    - `tolerance`: the allowed error of the gradient, relative to the largest entry of the array. Default 1e-5, or 1e-2.
    - `kinks`: where the slopes on the two sides differ, as at the 0 of a hinge, accept any gradient between them.
    - `edges`: which of "zeros", "tiny" (1e-30), "large" (scaled to 1e4), "one_row" and "half" (float16) to try; all by
      default. Or `{name: inputs}` with your own, merged into `inputs`; None selects the built-in edge of that name.
    - `compile`: False for a term that branches on values in Python.

    >>> import numpy as np
    >>> import penalties as pn
    >>> from penalties.testing import check_term
    >>> print(check_term(pn.Term(pn.l2), np.array([1.0, 3.0, 2.0]), edges=["zeros", "one_row"]))
    l2: no check failed
      check         status   detail
      value         passed   14, float64, repeatable
      gradient      skipped  NumPy has no autograd, and the term returns no gradient
      edge zeros    passed   value 0
      edge one_row  passed   value 1
      pickling      passed   equal, with the same value
      compile       skipped  NumPy has no compiler
      state         skipped  it takes no state
    """
    __tracebackhide__ = True  # pytest then shows the author's line
    made = Pipeline([term]).terms[0]
    if made.asynchronous:
        raise OptionError("check_term", "term", made.name, "a term that is not async: check what it awaits")
    for option, number in (("step", step), ("tolerance", tolerance)):
        if number is not None:
            check_number("check_term", option, number, "a finite number above 0, or None", low=POSITIVE)
    for option, flag in (("kinks", kinks), ("compile", compile), ("raises", raises)):
        check_flag("check_term", option, flag)
    if wrt is not None and not isinstance(cast("object", wrt), str | list | tuple):
        raise OptionError("check_term", "wrt", wrt, "a name or names of inputs, or None")
    sample = Sample.of(made, inputs, wrt)
    tried = edge_samples(sample, inputs, edges)
    checks = [check_value(sample)]
    if checks[0].status == "failed":
        checks.append(Check("others", "skipped", "they need a valid value"))
    else:
        checks += [
            check_gradient(sample, step, tolerance, kinks),
            *(check_edge(name, changed) for name, changed in tried.items()),
            check_pickling(sample),
            check_compiled(sample, compile),
            *check_state(sample, step, tolerance, kinks),
        ]
    verdict = Verdict(made.name, tuple(checks))
    if raises and not verdict:
        raise AssertionError(str(verdict))
    return verdict
