"""Which term drives a network: gradients at a shared representation, or with respect to parameters."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

from ..backends import owner
from ..errors import BackendError, GradientError, OptionError
from ..functional.nests import flatten
from .measuring import measured
from .output import LossOutput, TermOutput

__all__ = ["norm", "track"]


def norm(fn: Callable[[Any], Any], x: Any) -> float:
    """The length of the gradient of a scalar function, as a number.

    A function that does not depend on `x` has length 0.

    >>> import torch
    >>> import penalties as pn
    >>> round(pn.gradients.norm(lambda x: (x**2).sum(), torch.tensor([1.0, 2.0, 3.0])), 6)
    7.483315
    """
    nest = flatten("gradients.norm", "x", [x])
    ops = nest.ops
    if not all(ops.differentiable(leaf, asked=True) for leaf in nest.leaves):
        raise GradientError(f"gradients.norm: x has dtype {nest.leaves[0].dtype}; expected floats")

    def value_of(xs: Sequence[Any]) -> tuple[Any, list[Any]]:
        value = fn(nest.rebuild(iter(xs))[0])
        if owner(value) is not ops or len(value.shape) or not ops.differentiable(value, asked=True):
            raise GradientError(f"gradients.norm: fn returned {value!r}; expected a scalar (0-d) {ops.LIBRARY} float")
        return value, []

    _, _, gradients = ops.value_and_gradients(value_of, nest.leaves, 1.0)
    present = [gradient for gradient in gradients if gradient is not None]
    return float(ops.read([ops.norm(present)])[0]) if present else 0.0


def track(
    out: LossOutput,
    *,
    at: Any = None,
    wrt: Any = None,
    base: Any = None,
    cosines: bool = True,
    backward: bool = True,
) -> LossOutput:
    """The norms of the terms' gradients inside a network, and the cosines between them; then one backward pass.

    `at` is a tensor that the terms share, or several: a hidden representation, the logits. It costs a pass from each
    term to there. `out` comes from a call of the pipeline, whose values have their graph, and weights count as
    constants. `wrt` is parameters instead, exactly, and costs a whole pass for each term. `base` is a loss that
    the pipeline does not know of; it is added to the total, and is the output's base. At the end the total goes
    backward, so that every parameter has its `.grad`; `backward=False` leaves that to the caller.

    >>> import torch
    >>> import penalties as pn
    >>> layer = torch.nn.Linear(3, 2)
    >>> hidden = layer(torch.ones(4, 3))
    >>> out = pn.Pipeline([pn.Term(pn.l1, name="small"), pn.Term(pn.l2)])(hidden)
    >>> out = pn.gradients.track(out, at=hidden)
    >>> round(float(out["small"].grad_norm), 4), layer.weight.grad is not None
    (2.8284, True)
    """
    if not isinstance(cast("object", out), LossOutput):
        raise OptionError("track", "out", type(out).__name__, "the output of a pipeline")
    if (at is None) == (wrt is None):
        given = "neither" if at is None else "both"
        raise OptionError("track", "at, wrt", given, "either at= a shared tensor, or wrt= parameters")
    given = "at" if wrt is None else "wrt"
    if owner(out.total) is None or not hasattr(out.total, "backward"):
        raise BackendError(
            "track: needs the graph of PyTorch; in JAX take the representation as an input, "
            "value_and_grad(h=h), and pull out.gradient back by jax.vjp"
        )
    points = [x for x in flatten("track", given, [at if wrt is None else wrt]).leaves if x.requires_grad]
    if not points:
        raise GradientError(f"track: no tensor of {given} requires grad; pass one that the terms were computed from")
    if not out.total.requires_grad:
        raise GradientError("track: the total has no graph; call the pipeline outside torch.no_grad()")
    if base is not None:
        if out.base is not None:
            raise OptionError("track", "base", base, "None: the pipeline has a base loss of its own")
        if not hasattr(base, "backward") or len(base.shape):
            raise OptionError("track", "base", base, "a scalar tensor")
        out = dataclasses.replace(out, total=base + out.total, base=TermOutput("base_loss", base))

    import torch

    def slopes(value: Any) -> list[Any]:
        return list(torch.autograd.grad(value, points, retain_graph=True, allow_unused=True))

    # What value_and_grad has differentiated has no graph any more.
    output = measured(out, slopes, len(points), "the shared tensor" if given == "at" else "these parameters", cosines)
    if backward:
        out.total.backward()
    return output
