"""Penalties on distributions: Kullback–Leibler, Jensen–Shannon, entropy, cross-entropy.

Inputs are log-probabilities over the last axis. A probability of zero (−inf) contributes exactly 0 to value and
gradient: the products below have one factor `exp(−inf) = 0`, and the other is kept finite *before* it is multiplied, so
that neither the forward nor the backward pass meets `0·inf`. The factor `exp` stays unguarded, so NaN propagates.

Where P > 0 and Q = 0 a KL divergence is infinite. P counts as zero below the smallest normal number of its dtype (log p
about −86 in float32, −707 in float64), where hardware may compute `exp` as 0.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ..arrays import ArrayT, Reduction
from ..backends import Backend, backend_of
from ..errors import OptionError, ShapeError
from . import examples
from .options import POSITIVE, check_choice, check_fits, check_flag, check_number, check_same_shape, is_whole
from .penalty import Classwise, penalty
from .picking import check_classes, picked
from .reduction import REDUCTIONS, check_mask, hide, reduce

__all__ = ["cross_entropy", "entropy", "js_divergence", "kl_divergence", "symmetric_kl", "tempered_log_softmax"]


def _kl_form(options: Mapping[str, Any]) -> Classwise | None:
    if options["floor"] is not None:
        return None
    kind = "symmetric_kl" if options["symmetric"] else "kl"
    return _form(kind, 1.0, options, swapped=options["direction"] == "reverse" and not options["symmetric"])


def _js_form(options: Mapping[str, Any]) -> Classwise | None:
    base = options["base"]
    return None if options["sqrt"] else _form("js", 1.0 if base is None else 1 / math.log(base), options)


def _entropy_form(options: Mapping[str, Any]) -> Classwise | None:
    factor = -1.0 if options["mode"] == "penalty" else 1.0
    return _form("entropy", factor, options, per_log_classes=bool(options["normalize"]))


def _cross_entropy_form(options: Mapping[str, Any]) -> Classwise | None:
    return _form("target", -1.0, options, ignore_index=options["ignore_index"])


def _form(kind: Any, factor: float, options: Mapping[str, Any], **more: Any) -> Classwise | None:
    temperature = float(options["temperature"])
    if not 1e-20 < temperature < 1e20:
        return None
    return Classwise(kind, factor, temperature=temperature, logits=options["logits"] or temperature != 1, **more)


@penalty(
    rows=True,
    classes=True,
    distribution=True,
    divergence="kl",
    classwise=_kl_form,
    example=examples.two_distributions,
    config="""weight = 0.05
inputs = { p = "logits", q = "initial.logits", mask = "mask" }
options = { logits = true }
schedule = { kind = "warmup", steps = 20 }""",
)
def kl_divergence(
    p: ArrayT,
    q: ArrayT,
    *,
    reduction: Reduction = "mean",
    direction: Literal["forward", "reverse"] = "forward",
    symmetric: bool = False,
    floor: float | None = None,
    temperature: float = 1.0,
    mask: ArrayT | None = None,
    logits: bool = False,
) -> ArrayT:
    """`KL(P‖Q) = Σ p·(log p − log q)` over the last axis (Kullback and Leibler, 1951).

    Where P > 0 and Q = 0 the value is +inf, as in mathematics. The gradients with respect to log p and log q are
    `p·(log p − log q + 1)` and `−p`, and 0 where p = 0.

    - `p`, `q`: **log-probabilities** over the last axis, of one shape; not probabilities. `logits=True` takes logits.
    - `reduction`: "mean" or "sum" over all positions, or "none" for a value per position.
    - `direction`: "forward" is KL(P‖Q), "reverse" is KL(Q‖P).
    - `symmetric`: the mean of both directions.
    - `floor`: clamp the log-probability in the denominator to at least this, for a finite value where it is −inf.
    - `temperature`: T ≠ 1 takes log_softmax(x/T) of both inputs first. Gradients shrink by about 1/T²: a weight of T²
      restores them (Hinton et al., 2015).
    - `mask`: which positions count, as flags or weights, in the shape of `p` without its last axis.
    - `logits`: the inputs are unnormalised scores, and log_softmax is taken of both.

    >>> import numpy as np
    >>> p, q = np.log([0.5, 0.5]), np.log([0.9, 0.1])
    >>> round(float(kl_divergence(p, q)), 6)
    0.510826
    """
    check_choice("kl_divergence", "direction", direction, ("forward", "reverse"))
    check_flag("kl_divergence", "symmetric", symmetric)
    if floor is not None:
        expected = "None or a finite log-probability, at most 0"
        floor = check_number("kl_divergence", "floor", floor, expected, high=0)
    ops, (a, b), mask = _distributions("kl_divergence", {"p": p, "q": q}, mask, logits, temperature, reduction)
    if symmetric:
        return _reduced(ops, _symmetric(ops, a, b, floor), 0.5, reduction, mask)
    products = _kl(ops, a, b, floor) if direction == "forward" else _kl(ops, b, a, floor)
    return _reduced(ops, products, 1.0, reduction, mask)


@penalty(
    rows=True,
    classes=True,
    distribution=True,
    divergence="js",
    classwise=_js_form,
    example=examples.two_distributions,
    config="""weight = 0.05
inputs = { p = "logits", q = "initial.logits", mask = "mask" }
options = { logits = true }""",
)
def js_divergence(
    p: ArrayT,
    q: ArrayT,
    *,
    reduction: Reduction = "mean",
    base: float | None = None,
    sqrt: bool = False,
    temperature: float = 1.0,
    mask: ArrayT | None = None,
    logits: bool = False,
) -> ArrayT:
    """`½KL(P‖M) + ½KL(Q‖M)` with `M = ½(P + Q)`: symmetric, finite, between 0 and ln 2 (Lin, 1991).

    The gradient with respect to log p is `½p·(log p − log m)`, and 0 where p = 0. The square root is a distance
    (Endres and Schindelin, 2003); its gradient is 0 where the two distributions are equal.

    - `p`, `q`: **log-probabilities** over the last axis, of one shape; not probabilities. `logits=True` takes logits.
    - `reduction`: "mean" or "sum" over all positions, or "none" for a value per position.
    - `base`: of the logarithm; with 2 the result is in bits, and its bound is 1. None is the natural logarithm.
    - `sqrt`: the square root at each position, before it is reduced.
    - `temperature`: T ≠ 1 takes log_softmax(x/T) of both inputs first.
    - `mask`: which positions count, as flags or weights, in the shape of `p` without its last axis.
    - `logits`: the inputs are unnormalised scores, and log_softmax is taken of both.

    >>> import numpy as np
    >>> p, q = np.array([0.0, -np.inf]), np.array([-np.inf, 0.0])
    >>> float(js_divergence(p, q, base=2))
    1.0
    """
    check_flag("js_divergence", "sqrt", sqrt)
    if base is not None:
        expected = "None or a finite number above 0, not 1"
        if check_number("js_divergence", "base", base, expected, low=POSITIVE) == 1:
            raise OptionError("js_divergence", "base", base, expected)
        if sqrt and base < 1:
            raise OptionError("js_divergence", "base", base, "None or a finite number above 1, with sqrt=True")
    ops, (a, b), mask = _distributions("js_divergence", {"p": p, "q": q}, mask, logits, temperature, reduction)
    pa, pb = ops.exp(a), ops.exp(b)
    both = pa + pb
    halves = pa * _finite(ops, a) + pb * _finite(ops, b) - ops.xlogx(both, -math.log(2))
    scale = 0.5 if base is None else 0.5 / math.log(base)
    if not sqrt:
        return _reduced(ops, halves, scale, reduction, mask)
    divergence = scale * ops.sum(halves, -1)
    # Rounding leaves the divergence of close distributions just above or below 0, that of equal ones too.
    zero = (divergence <= 0) | ~ops.any(a != b)
    distance = ops.where(zero, 0.0, ops.sqrt(ops.where(zero, 1.0, divergence)))
    return reduce(ops, distance, reduction, mask)


@penalty(
    rows=True,
    classes=True,
    distribution=True,
    divergence="entropy",
    classwise=_entropy_form,
    example=examples.distribution,
    config="""weight = 0.02
inputs = { p = "logits", mask = "mask" }
options = { mode = "bonus", logits = true }""",
)
def entropy(
    p: ArrayT,
    *,
    mode: Literal["penalty", "bonus"] = "penalty",
    reduction: Reduction = "mean",
    normalize: bool = False,
    temperature: float = 1.0,
    mask: ArrayT | None = None,
    logits: bool = False,
) -> ArrayT:
    """Shannon entropy `H = −Σ p·log p` over the last axis, signed by its effect on a loss that is minimised.

    The gradient of H with respect to log p is `−p·(log p + 1)`, and 0 where p = 0.

    - `p`: **log-probabilities** over the last axis; not probabilities. `logits=True` takes logits.
    - `mode`: "penalty" returns +H, which lowers entropy; "bonus" returns −H, which raises it.
    - `reduction`: "mean" or "sum" over all positions, or "none" for a value per position.
    - `normalize`: divide by ln V, the largest entropy of V classes; one class has entropy 0.
    - `temperature`: T ≠ 1 takes log_softmax(p/T) first.
    - `mask`: which positions count, as flags or weights, in the shape of `p` without its last axis.
    - `logits`: `p` holds unnormalised scores, and log_softmax is taken of it.

    >>> import numpy as np
    >>> uniform = np.log(np.full(4, 0.25))
    >>> round(float(entropy(uniform)), 6), float(entropy(uniform, mode="bonus", normalize=True))
    (1.386294, -1.0)
    """
    check_choice("entropy", "mode", mode, ("penalty", "bonus"))
    check_flag("entropy", "normalize", normalize)
    ops, (x,), mask = _distributions("entropy", {"p": p}, mask, logits, temperature, reduction)
    scale = -1.0 if mode == "penalty" else 1.0
    if normalize:
        classes = x.shape[-1]
        scale = scale / math.log(classes) if classes > 1 else 0.0
    return _reduced(ops, ops.exp(x) * _finite(ops, x), scale, reduction, mask)


def _counted(p: Any, targets: Any, *, mask: Any = None, ignore_index: int | None = -100, **_: Any) -> Any:
    """How much each position counts; None where all count alike."""
    ops = backend_of("cross_entropy", p=p, targets=targets, mask=mask)
    index = ops.indices("cross_entropy", "targets", targets)
    if tuple(index.shape) != tuple(p.shape[:-1]):
        raise ShapeError(
            f"cross_entropy: targets has shape {tuple(index.shape)}; expected {tuple(p.shape[:-1])}, "
            "the shape of p without its last axis"
        )
    mask = check_mask("cross_entropy", ops, mask, p.shape[:-1], "the shape of p without its last axis")
    if ignore_index is None:
        return mask
    return ops.where(index == ignore_index, 0.0, 1.0 if mask is None else mask)


@penalty(
    rows=True,
    classes=True,
    distribution=True,
    labels=("targets",),
    weights=_counted,
    divergence="cross_entropy",
    classwise=_cross_entropy_form,
    example=examples.labelled,
    config="# For logits and targets in your own loop; in a config it is a loss: see the one of this name.",
)
def cross_entropy(
    p: ArrayT,
    targets: ArrayT,
    *,
    reduction: Reduction = "mean",
    temperature: float = 1.0,
    mask: ArrayT | None = None,
    logits: bool = False,
    ignore_index: int | None = -100,
) -> ArrayT:
    """`−log p[target]` over the last axis, the negative log-likelihood of the targets.

    Where a target has probability 0 the value is +inf. The gradient with respect to log p is −1 at the target, and with
    respect to logits the softmax, minus 1 at the target.

    A target that is neither a class nor `ignore_index` is an `OptionError`; on a GPU, inside a compiler and in JAX its
    position is NaN.

    - `p`: **log-probabilities** over the last axis; not probabilities. `logits=True` takes logits.
    - `targets`: whole numbers, the indices of classes, in the shape of `p` without its last axis.
    - `reduction`: "mean" or "sum" over all positions that count, or "none" for a value per position.
    - `temperature`: T ≠ 1 takes log_softmax(p/T) first.
    - `mask`: which positions count, as flags or weights, in the shape of `p` without its last axis.
    - `logits`: `p` holds unnormalised scores, and log_softmax is taken of it.
    - `ignore_index`: a target whose position does not count. The default is that of PyTorch, and what data sets of
      Hugging Face use for prompts and padding; None turns it off.

    >>> import numpy as np
    >>> p = np.log([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
    >>> round(float(cross_entropy(p, np.array([0, 1, -100]))), 6)
    0.458145
    """
    check_choice("cross_entropy", "reduction", reduction, REDUCTIONS)
    if ignore_index is not None and not (is_whole(ignore_index) and abs(ignore_index) < 2**31):
        raise OptionError("cross_entropy", "ignore_index", ignore_index, "None or a whole number of 32 bits")
    ops = backend_of("cross_entropy", p=p, targets=targets, mask=mask)
    check_classes("cross_entropy", p)
    weights = _counted(p, targets, mask=mask, ignore_index=ignore_index)
    index = ops.indices("cross_entropy", "targets", targets)[..., None]
    found = picked(
        "cross_entropy",
        ops,
        p,
        index,
        logits=logits,
        temperature=temperature,
        counted=None if weights is None else weights != 0,
        also="" if ignore_index is None else f", or ignore_index={ignore_index}",
    )
    return reduce(ops, -found[..., 0], reduction, weights)


def symmetric_kl(ops: Backend, a: Any, b: Any, floor: float | None = None) -> Any:
    """`½(KL(A‖B) + KL(B‖A))` per position."""
    return 0.5 * ops.sum(_symmetric(ops, a, b, floor), -1)


def _symmetric(ops: Backend, a: Any, b: Any, floor: float | None) -> Any:
    return _kl(ops, a, b, floor) + _kl(ops, b, a, floor)


def _kl(ops: Backend, a: Any, b: Any, floor: float | None) -> Any:
    """What a KL divergence sums over the last axis."""
    if floor is not None:
        b = ops.clip(b, floor, None)
    # The condition is on the input, not on exp(a) > 0: compiled code then keeps nothing between forward and backward.
    # Below it a probability is 0, on hardware that flushes denormals too.
    lowest = math.log(4 * ops.limits(a)[0])
    ratio = ops.subtract_where(a > lowest, a, b)
    return ops.exp(a) * ratio


def _reduced(ops: Backend, products: Any, scale: float, reduction: str, mask: Any) -> Any:
    """`scale · Σ products` over the last axis, reduced over the positions."""
    if mask is not None or reduction == "none":
        return reduce(ops, scale * ops.sum(products, -1), reduction, mask)
    # All axes at once: two operations less, there and back, a quarter of the time at ten thousand elements.
    if reduction == "mean":
        scale = scale / (math.prod(products.shape[:-1]) or 1)
    return scale * ops.sum(products)


def _finite(ops: Backend, x: Any) -> Any:
    """`x` with a finite number for −inf, for a product with `exp(x)`, which is 0 there."""
    return ops.clip(x, -1e30, None)


def _distributions(
    function: str, inputs: dict[str, Any], mask: Any, logits: bool, temperature: float, reduction: str
) -> tuple[Backend, Sequence[Any], Any]:
    """Check the inputs, hide what is masked, and return log-probabilities of at least 32 bits, and the mask."""
    check_choice(function, "reduction", reduction, REDUCTIONS)
    check_flag(function, "logits", logits)
    temperature = check_number(function, "temperature", temperature, "a finite number above 0", low=POSITIVE)
    ops = backend_of(function, **inputs, mask=mask)
    if len(inputs) == 2:
        check_same_shape(function, **inputs)
    name, first = next(iter(inputs.items()))
    if len(first.shape) == 0:
        raise ShapeError(f"{function}: {name} is a scalar; expected log-probabilities over the last axis")
    mask = check_mask(function, ops, mask, first.shape[:-1], f"the shape of {name} without its last axis")
    arrays = [hide(ops, ops.upcast(function, x), mask) for x in inputs.values()]
    if logits or temperature != 1:
        arrays = [tempered_log_softmax(function, ops, x, temperature) for x in arrays]
    return ops, arrays, mask


def tempered_log_softmax(function: str, ops: Backend, x: Any, temperature: float) -> Any:
    """`log_softmax(x / temperature)` over the last axis."""
    if temperature != 1:
        check_fits(function, "temperature", temperature, ops, x, divisor=True)
        x = x / temperature
    return ops.log_softmax(x)
