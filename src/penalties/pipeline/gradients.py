"""Which term drives a network: gradients at a shared representation, or with respect to parameters."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from ..backends import Backend, owner
from ..backends.jax.composition import values_and_gradients
from ..errors import BackendError, GradientError, OptionError
from ..functional.nests import Nest, flatten
from ..telemetry import events
from .announcing import are_heard, noted
from .combine import compared
from .output import BASE, LossOutput, TermOutput
from .output.reading import is_traced
from .sums import Sums

__all__ = ["at_parameters", "norm", "track"]


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

    _, _, gradients = ops.value_and_gradients(value_of, nest.leaves)
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
    """The norms of the terms' gradients inside a network, and the cosines between them unless `cosines=False`.

    `at` is a tensor that the terms share, or several: a hidden representation, the logits. It costs a pass from each
    term to there. `out` comes from a call of the pipeline, whose values have their graph, and weights count as
    constants. `wrt` is parameters instead, exactly, and costs a whole pass for each term. `base` is a loss that the
    pipeline does not know of; it is added to the total, and is the output's base. `keep=True` keeps each term's
    unscaled gradient, as `out[name].gradient` in the form of `at` or `wrt`.

    Handlers and sinks get the norms, shares and cosines as the event `gradients.stop`, at the step of the call.

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
    out = with_base("track", out, base)
    nest, points, what = points_of("track", out, at=at, wrt=wrt)

    import torch

    def gradients_of(value: Any) -> list[Any]:
        found: Any = torch.autograd.grad(value, points, retain_graph=True, allow_unused=True)
        return [gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient for gradient in found]

    structure = _structure(nest, [x.requires_grad for x in nest.leaves]) if keep else None
    start = time.perf_counter()
    output = measure(out, gradients_of, len(points), what, cosines=cosines, structure=structure)
    announce(output, time.perf_counter() - start)
    if backward:
        out.total.backward()
    return output


def points_of(function: str, out: LossOutput, *, at: Any, wrt: Any) -> tuple[Nest, list[Any], str]:
    """The tensors at which gradients are taken: their nest, those that require grad, and what they are in words."""
    if (at is None) == (wrt is None):
        given = "neither" if at is None else "both"
        raise OptionError(function, "at, wrt", given, "either at= a shared tensor, or wrt= parameters")
    option, given = ("at", at) if wrt is None else ("wrt", wrt)
    if owner(out.total) is None or not hasattr(out.total, "backward"):
        raise BackendError(
            f"{function}: needs the graph of PyTorch; in JAX use gradients.at_parameters(fn, params), where fn calls "
            "the pipeline"
        )
    nest = flatten(function, option, given)
    points = [x for x in nest.leaves if x.requires_grad]
    if not points:
        raise GradientError(
            f"{function}: no tensor of {option} requires grad; pass one that the terms were computed from"
        )
    if option == "wrt" and any(hasattr(point, "full_tensor") for point in points):
        raise GradientError(
            f"{function}: these parameters are spread over processes (FSDP2), and a loss is computed from copies of "
            "them; pass at= a tensor that the terms share, or take the norms of terms over parameters by value_and_grad"
        )
    if not out.total.requires_grad:
        raise GradientError(f"{function}: the total has no graph; call the pipeline outside torch.no_grad()")
    return nest, points, "the shared tensor" if option == "at" else "these parameters"


def with_base(function: str, out: LossOutput, base: Any) -> LossOutput:
    """The output with a base loss that its pipeline does not know of; None adds none."""
    if not isinstance(cast("object", out), LossOutput):
        raise OptionError(function, "out", type(out).__name__, "the output of a pipeline")
    if base is None:
        return out
    if out.base is not None:
        raise OptionError(function, "base", base, "None: the pipeline has its own base loss")
    if not hasattr(base, "backward") or len(base.shape):
        raise OptionError(function, "base", base, "a scalar tensor")
    return dataclasses.replace(out, total=base + out.total, base=TermOutput(BASE, base))


def with_norms(output: LossOutput, measured: LossOutput) -> LossOutput:
    """The output with the norms and cosines of another, which has the same terms."""

    def with_norm(term: TermOutput) -> TermOutput:
        found = measured[term.name]
        return dataclasses.replace(term, grad_norm=found.grad_norm, grad_error=found.grad_error)

    return dataclasses.replace(
        output,
        terms={name: with_norm(term) for name, term in output.terms.items()},
        base=None if output.base is None else with_norm(output.base),
        total_grad_norm=measured.total_grad_norm,
        cosines=measured.cosines,
        gram=measured.gram,
    )


def announce(output: LossOutput, duration: float, of: Mapping[str, Any] | None = None) -> None:
    """Emit what was measured, with the number and the step of its call, so that sinks put both together.

    `of` is the pipeline and the step of a call that was not announced itself.
    """
    if not are_heard():
        return
    record = output.record
    measured = {"duration": duration, "loss_total": output.total, "total_grad_norm": output.total_grad_norm}
    metadata = {
        "call": None if record is None else record.call,
        "pipeline": None if record is None else record.pipeline.name,
        "step": None if record is None else record.step,
        **(of or {}),
        "output": output,
    }
    events.emit("gradients.stop", measured, metadata)


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
    none = [None] * count
    found = (gradients_of(one.value) if getattr(one.value, "requires_grad", False) else none for one in out.all)
    return with_gradients(out, found, count, what, cosines=cosines, structure=structure)[0]


def at_parameters(
    fn: Callable[..., LossOutput], params: Any, /, *args: Any, cosines: bool = True, keep: bool = False
) -> LossOutput:
    """The output of `fn(params, *args)` with gradients at the parameters: of the total, and the norm of each term's.

    For JAX, where `track` finds no graph. `fn` runs the network, and calls the pipeline. It runs once; each term then
    costs one pass back through the network, and all norms are of gradients with respect to the same thing, also those
    of terms that read the parameters themselves. It works inside `jax.jit`.

    `out.gradient` has the structure of `params`, for the optimizer: it is what `jax.grad` of the total returns, with
    weights that count as constants. `cosines` and `keep` are those of `value_and_grad`. Handlers and sinks get the
    event `gradients.stop`, as from `track`, unless a transform such as `jax.jit` is around it.

    >>> import jax.numpy as jnp
    >>> import penalties as pn
    >>> pipeline = pn.Pipeline([pn.Term(pn.l1, weight=0.1, inputs="params"), pn.Term(pn.l2, inputs="h")])
    >>> x = jnp.array([[1.0, 2.0]])
    >>> out = pn.gradients.at_parameters(lambda params: pipeline(h=x @ params, params=params), jnp.array([1.0, 1.0]))
    >>> [round(float(out[name].grad_norm), 3) for name in out.names]
    [1.414, 13.416]
    >>> [round(float(one), 3) for one in out.gradient]
    [6.1, 12.1]
    """
    nest = flatten("at_parameters", "params", params)
    ops = nest.ops
    if ops.LIBRARY != "JAX":
        raise BackendError(
            f"at_parameters: params are {ops.LIBRARY} arrays; expected JAX arrays. In PyTorch call the pipeline, then "
            "gradients.track(out, wrt=parameters)"
        )
    chosen = [ops.differentiable(leaf, requested=True) for leaf in nest.leaves]
    points = [leaf for leaf, floats in zip(nest.leaves, chosen, strict=True) if floats]
    if not points:
        raise GradientError("at_parameters: params has no floats; expected some to differentiate with respect to")

    def values_of(xs: Sequence[Any]) -> tuple[list[Any], LossOutput]:
        given = iter(xs)
        leaves = [next(given) if floats else leaf for leaf, floats in zip(nest.leaves, chosen, strict=True)]
        out = fn(nest.rebuild(iter(leaves)), *args)
        if not isinstance(cast("object", out), LossOutput):
            raise OptionError("at_parameters", "fn", type(out).__name__, "a function that returns a pipeline's output")
        return [term.value for term in out.all if _is_float(ops, term.value)], out

    start = time.perf_counter()
    with noted() as call:
        _, out, found = values_and_gradients(values_of, points)
    gradients = iter(found)
    none = [None] * len(points)
    by_term = [next(gradients) if _is_float(ops, term.value) else none for term in out.all]
    structure = _structure(nest, chosen)
    output, total = with_gradients(
        out, by_term, len(points), "params", cosines=cosines, structure=structure if keep else None
    )
    if output.total_grad_norm is None:
        raise GradientError("at_parameters: no term depends on params; use the params that fn is called with")
    summed = [gradient.astype(point.dtype) for gradient, point in zip(total, points, strict=True)]
    output = dataclasses.replace(output, gradient=structure(summed))
    if not is_traced(output.total, *summed):
        announce(output, time.perf_counter() - start, call)
    return output


def _is_float(ops: Backend, value: Any) -> bool:
    return owner(value) is ops and ops.differentiable(value, requested=True)


def with_gradients(
    out: LossOutput,
    found: Iterable[list[Any]],
    count: int,
    what: str,
    *,
    cosines: bool,
    structure: Callable[[Sequence[Any]], Any] | None,
) -> tuple[LossOutput, list[Any]]:
    """The output with the norms, and cosines, of these gradients of its terms, and the gradient of the total."""
    ops = owner(out.total)
    assert ops is not None, "a total with a graph is an array"
    hold = cosines or structure is not None
    held: list[list[Any]] = []
    terms: list[TermOutput] = []
    total = Sums(ops, count)
    for term, gradients in zip(out.all, found, strict=True):
        terms.append(_with_norm(ops, term, gradients, what, structure))
        total.add(gradients, term.weight)
        if hold:
            held.append(gradients)
    present = [gradient for gradient in total.leaves if gradient is not None]
    gram, between = compared(ops, held) if hold else (None, None)
    base = terms.pop(0) if out.base is not None else None
    output = dataclasses.replace(
        out,
        terms={term.name: term for term in terms},
        base=base,
        total_grad_norm=ops.norm(present) if present else None,
        gradient=None,
        cosines=between if cosines else None,
        gram=gram,
    )
    return output, total.leaves


def unreached(what: str, library: str) -> str:
    """Why a term has no gradient there."""
    return f"its value does not depend on {what} by operations that {library} can differentiate"


def _with_norm(
    ops: Backend, term: TermOutput, gradients: Sequence[Any], what: str, structure: Callable[..., Any] | None
) -> TermOutput:
    present = [gradient for gradient in gradients if gradient is not None]
    if term.value is None:
        return term
    if not present:
        return dataclasses.replace(term, grad_norm=None, grad_error=unreached(what, ops.LIBRARY))
    kept = None if structure is None else structure(gradients)
    return dataclasses.replace(term, grad_norm=ops.norm(present), grad_error=None, gradient=kept)


def _structure(nest: Nest, chosen: Sequence[bool]) -> Callable[[Sequence[Any]], Any]:
    """What puts gradients of the chosen leaves into the structure of all."""

    def structure(gradients: Sequence[Any]) -> Any:
        found = iter(gradients)
        return nest.rebuild(iter([next(found) if taken else None for taken in chosen]))

    return structure
