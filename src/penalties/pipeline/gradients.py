"""Which term drives a network: gradients at a shared representation, or with respect to parameters."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

from ..backends import Backend, owner
from ..errors import BackendError, GradientError, OptionError
from ..functional.nests import Nest, flatten
from .combine import Sums, cosines_of
from .output import BASE, LossOutput, TermOutput

__all__ = ["norm", "track"]


def norm(fn: Callable[[Any], Any], x: Any) -> float:
    """The norm of the gradient of a scalar function, as a number; 0 for a function that does not depend on `x`.

    >>> import torch
    >>> import penalties as pn
    >>> round(pn.gradients.norm(lambda x: (x**2).sum(), torch.tensor([1.0, 2.0, 3.0])), 6)
    7.483315
    """
    nest = flatten("gradients.norm", "x", [x])
    ops = nest.ops
    if not all(ops.differentiable(leaf, requested=True) for leaf in nest.leaves):
        raise GradientError(f"gradients.norm: x has dtype {nest.leaves[0].dtype}; expected floats")

    def value_of(xs: Sequence[Any]) -> tuple[Any, list[Any]]:
        value = fn(nest.rebuild(iter(xs))[0])
        if owner(value) is not ops or len(value.shape) or not ops.differentiable(value, requested=True):
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
    keep: bool = False,
    backward: bool = False,
) -> LossOutput:
    """The norms of the terms' gradients inside a network, and the cosines between them.

    `at` is a tensor that the terms share, or several: a hidden representation, the logits. It costs a pass from each
    term to there. `out` comes from a call of the pipeline, whose values have their graph, and weights count as
    constants. `wrt` is parameters instead, exactly, and costs a whole pass for each term. `base` is a loss that the
    pipeline does not know of; it is added to the total, and is the output's base. `keep=True` keeps each term's
    unscaled gradient, as `out[name].gradient` in the form of `at` or `wrt`.

    The graph is kept and no `.grad` is touched: the backward is your own, with whatever loss scale or accumulation
    your loop has. `backward=True` runs `out.total.backward()` at the end, for loops that have neither.

    >>> import torch
    >>> import penalties as pn
    >>> layer = torch.nn.Linear(3, 2)
    >>> hidden = layer(torch.ones(4, 3))
    >>> out = pn.Pipeline([pn.Term(pn.l1, name="small"), pn.Term(pn.l2)])(hidden)
    >>> out = pn.gradients.track(out, at=hidden)
    >>> round(float(out["small"].grad_norm), 4), layer.weight.grad is None
    (2.8284, True)
    >>> out.total.backward()
    """
    if not isinstance(cast("object", out), LossOutput):
        raise OptionError("track", "out", type(out).__name__, "the output of a pipeline")
    if (at is None) == (wrt is None):
        given = "neither" if at is None else "both"
        raise OptionError("track", "at, wrt", given, "either at= a shared tensor, or wrt= parameters")
    option, given = ("at", at) if wrt is None else ("wrt", wrt)
    if owner(out.total) is None or not hasattr(out.total, "backward"):
        raise BackendError(
            "track: needs the graph of PyTorch; in JAX take the representation as an input, "
            "value_and_grad(h=h), and pull out.gradient back by jax.vjp"
        )
    nest = flatten("track", option, [given])
    points = [x for x in nest.leaves if x.requires_grad]
    if not points:
        raise GradientError(f"track: no tensor of {option} requires grad; pass one that the terms were computed from")
    if not out.total.requires_grad:
        raise GradientError("track: the total has no graph; call the pipeline outside torch.no_grad()")
    if base is not None:
        if out.base is not None:
            raise OptionError("track", "base", base, "None: the pipeline has a base loss of its own")
        if not hasattr(base, "backward") or len(base.shape):
            raise OptionError("track", "base", base, "a scalar tensor")
        out = dataclasses.replace(out, total=base + out.total, base=TermOutput(BASE, base))

    import torch

    def gradients_of(value: Any) -> list[Any]:
        found = torch.autograd.grad(value, points, retain_graph=True, allow_unused=True)
        return list(found)

    what = "the shared tensor" if option == "at" else "these parameters"
    structure = _structure(nest) if keep else None
    output = measure(out, gradients_of, len(points), what, cosines=cosines, structure=structure)
    if backward:
        out.total.backward()
    return output


def measure(
    out: LossOutput,
    gradients_of: Callable[[Any], list[Any]],
    count: int,
    what: str,
    *,
    cosines: bool = True,
    structure: Callable[[Sequence[Any]], Any] | None = None,
) -> LossOutput:
    """The output with the norms, and cosines, of the gradients that `gradients_of` takes of each value with a graph.

    Those are `count` tensors, None where there is no dependence, at `what`. With a `structure`, gradients are kept.
    """
    ops = owner(out.total)
    assert ops is not None, "a total with a graph is an array"
    hold = cosines or structure is not None
    held: list[list[Any]] = []
    terms: list[TermOutput] = []
    total = Sums(ops, count)
    for term in out.all:
        gradients: list[Any] = [None] * count
        if getattr(term.value, "requires_grad", False):
            gradients = gradients_of(term.value)
        terms.append(_with_norm(ops, term, gradients, what, structure))
        total.add(gradients, term.weight)
        if hold:
            held.append(gradients)
    present = [gradient for gradient in total.leaves if gradient is not None]
    gram = ops.gram(held) if hold else None
    base = terms.pop(0) if out.base is not None else None
    return dataclasses.replace(
        out,
        terms={term.name: term for term in terms},
        base=base,
        total_grad_norm=ops.norm(present) if present else None,
        gradient=None,
        cosines=cosines_of(ops, gram) if cosines else None,
        gram=gram,
    )


def _with_norm(
    ops: Backend, term: TermOutput, gradients: Sequence[Any], what: str, structure: Callable[..., Any] | None
) -> TermOutput:
    present = [gradient for gradient in gradients if gradient is not None]
    if term.value is None:
        return term
    if not present:
        reason = f"its value does not depend on {what} by operations that PyTorch can differentiate"
        return dataclasses.replace(term, grad_norm=None, grad_error=reason)
    kept = None if structure is None else structure(gradients)
    return dataclasses.replace(term, grad_norm=ops.norm(present), grad_error=None, gradient=kept)


def _structure(nest: Nest) -> Callable[[Sequence[Any]], Any]:
    """What puts gradients of the tensors that require them into the structure of all."""

    def structure(gradients: Sequence[Any]) -> Any:
        found = iter(gradients)
        return nest.rebuild(iter([next(found) if leaf.requires_grad else None for leaf in nest.leaves]))[0]

    return structure
