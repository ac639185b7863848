"""All checks of a term in one call."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ..errors import OptionError
from ..functional.options import POSITIVE, check_flag, check_number
from ..pipeline.pipeline import Pipeline, TermLike
from .checks import check_compiled, check_pickling, check_state, check_value
from .edges import Edges, check_edge, edge_samples
from .gradient import check_gradient
from .sample import Sample
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
    """Find out whether a term can be trained with: its value, gradient, edges, pickle, compiled form and state.

    `term` is a `Term`, or whatever a `Pipeline` makes one of. `inputs` is `{name: array or nest}`, or the input itself
    for a term of one. It says what it found in a `Verdict`; a failure is an `AssertionError` with that as its text,
    unless `raises=False`. No input is changed, and the same elements are tried in each run.

    - `wrt`: the inputs to differentiate. Without it those that require grad, or all of floats where none does. `()`
      leaves gradients out, for a term that holds a part of its value constant on purpose.
    - `step`: how far an element `x` is moved for the finite difference, times `max(1, |x|)`. 1e-5, or 1e-2 where the
      term cannot be computed in float64.
    - `tolerance`: how far the gradient may be from it, relative to the largest of the array. 1e-5, or 1e-2.
    - `kinks`: accept a gradient between the slopes of both sides where these differ, as at 0 of a hinge.
    - `edges`: which of "zeros", "tiny" (1e-30), "large" (scaled to 1e4), "one_row" and "half" (float16) to try, all by
      default; or `{name: inputs}` for your own, laid over `inputs`, with None for one of those.
    - `compile`: False for a term that looks at values in Python.

    >>> import numpy as np
    >>> import penalties as pn
    >>> from penalties.testing import check_term
    >>> print(check_term(pn.Term(pn.l2), np.array([1.0, 3.0, 2.0]), edges=["zeros", "one_row"]))
    l2: no check failed
      check         status   detail
      value         passed   14, float64, the same twice
      gradient      skipped  NumPy has none, and the term brings none of its own
      edge zeros    passed   value 0
      edge one_row  passed   value 1
      pickling      passed   equal, with the same value
      compile       skipped  NumPy has no compiler
      state         skipped  it takes none
    """
    __tracebackhide__ = True  # pytest then shows the author's line
    made = Pipeline([term]).terms[0]
    if made.asynchronous:
        raise OptionError("check_term", "term", made.name, "a term that is no async def: check what it awaits")
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
        checks.append(Check("others", "skipped", "they need a value that is right"))
    else:
        checks += [
            check_gradient(sample, step, tolerance, kinks),
            *(check_edge(name, changed) for name, changed in tried.items()),
            check_pickling(sample),
            check_compiled(sample, compile),
            check_state(sample),
        ]
    verdict = Verdict(made.name, tuple(checks))
    if raises and not verdict:
        raise AssertionError(str(verdict))
    return verdict
