"""Every penalty once more, as its docstring has it: in exact numbers, with its gradient by hand.

A formula has the values before they are reduced, and a function from the weight of each value in the result to the
gradient at each input.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mpmath
import numpy as np

from tests.fuzz.exact import Exact, choose, exact, exp, expm1, given, log, sign, sqrt, total


class Formula(NamedTuple):
    """Values, and how weights on them become gradients."""

    values: Any
    pull: Callable[[Any], Sequence[Any]]


Inputs = Sequence[Any]


def _over(w: Any) -> Any:
    """One number for each vector of the last axis."""
    return np.asarray(w, object)[..., None]


def l1(inputs: Inputs, options: Any) -> Formula:
    (x,) = inputs
    return Formula(abs(x), lambda w: [w * sign(x)])


def l2(inputs: Inputs, options: Any) -> Formula:
    (x,) = inputs
    center, clip = options.get("center"), options.get("clip")
    mean = total(x) / max(x.size, 1) if center == "mean" else Exact(0) if center is None else exact(center)
    moved = x - mean if center is not None else x
    size = abs(moved)
    bound = math.inf if clip is None else exact(clip)
    inside = size <= bound
    clipped = moved if clip is None else choose(inside, moved, sign(moved) * bound)

    def pull(w: Any) -> list[Any]:
        slopes = choose(inside, 2 * clipped * w, 0)
        if clip is not None:
            for index in np.ndindex(slopes.shape):
                if abs(size[index].value - bound.value) <= 4 * (size[index].tolerance + bound.tolerance):
                    slopes[index].error = math.inf  # at the kink, after rounding on either side of it
        return [slopes - total(slopes) / x.size if center == "mean" and x.size else slopes]

    return Formula(clipped * clipped, pull)


def elastic_net(inputs: Inputs, options: Any) -> Formula:
    (x,) = inputs
    a = exact(options.get("l1_ratio", 0.5))
    if a.value in (0, 1):
        return (l1 if a.value else l2)(inputs, {})
    values = a * abs(x) + (1 - a) * (x * x)
    for value in values.reshape(-1):
        # The two parts are reduced apart, and the sum of squares may be out of range before it is weighed.
        value.peak = max(value.peak, total(x * x).size)
    return Formula(values, lambda w: [w * (a * sign(x) + 2 * (1 - a) * x)])


def smooth_l1(inputs: Inputs, options: Any) -> Formula:
    (x,) = inputs
    delta = exact(options.get("delta", 1.0))
    size = abs(x)
    near = size < delta
    values = choose(near, x / delta * x / 2, size - delta / 2)
    return Formula(values, lambda w: [w * choose(near, x / 2 / delta + x / delta / 2, sign(x))])


def kl_estimate(inputs: Inputs, options: Any) -> Formula:
    policy, reference = inputs
    d = reference - policy
    if options.get("estimator", "k3") == "k1":
        return Formula(policy - reference, lambda w: [w, -w])
    if options.get("estimator", "k3") == "k2":
        return Formula(0.5 * (d * d), lambda w: [-(w * d), w * d])
    # e^d and 1 are subtracted from each other, whichever way the slope is computed.
    return Formula(expm1(d) - d, lambda w: [-(w * (exp(d) - 1)), w * (exp(d) - 1)])


def entropy_estimate(inputs: Inputs, options: Any) -> Formula:
    (policy,) = inputs
    s = -1 if options.get("mode", "penalty") == "penalty" else 1
    return Formula(s * policy, lambda w: [s * w])


def _log_softmax(x: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Over the last axis, and how gradients pass through it."""
    if not x.size:
        return x, lambda w: w
    largest = np.max(x, -1, keepdims=True)
    shifted = x - largest
    values = shifted - log(total(exp(shifted), -1, keepdims=True))
    return values, lambda w: w - exp(values) * total(w, -1, keepdims=True)


def _distributions(inputs: Inputs, options: Any) -> tuple[list[Any], Callable[[Sequence[Any]], list[Any]]]:
    """Log-probabilities, from logits where the options say so, and how gradients pass through that."""
    temperature = options.get("temperature", 1.0)
    if not options.get("logits") and temperature == 1:
        return list(inputs), list
    taken = [_log_softmax(x / exact(temperature)) for x in inputs]
    return [values for values, _ in taken], lambda slopes: [
        pull(slope) / exact(temperature) for (_, pull), slope in zip(taken, slopes, strict=True)
    ]


def _kl(a: Any, b: Any, floor: float | None) -> tuple[Any, Callable[[Any], tuple[Any, Any]]]:
    """`KL(A‖B)` of log-probabilities, and its gradients; probabilities below the smallest normal number are 0."""
    lowest = math.log(4 * Exact.tiny)
    there = ~np.asarray(a <= lowest)
    kept = np.ones(b.shape, bool) if floor is None else ~np.asarray(b < exact(floor))
    bounded = b if floor is None else choose(kept, b, exact(floor))
    ratio = choose(there, a, 0) - choose(there, bounded, 0)
    p = choose(there, exp(a), Exact(0, 5 * Exact.tiny / Exact.precision))

    def pull(w: Any) -> tuple[Any, Any]:
        return _over(w) * (p * ratio + p), choose(kept, -(_over(w) * p), 0)

    return total(p * ratio, -1), pull


def kl_divergence(inputs: Inputs, options: Any) -> Formula:
    (p, q), back = _distributions(inputs, options)
    floor = options.get("floor")
    forward, pull_forward = _kl(p, q, floor)
    reverse, pull_reverse = _kl(q, p, floor)
    if options.get("symmetric"):

        def pull(w: Any) -> list[Any]:
            (fp, fq), (rq, rp) = pull_forward(w), pull_reverse(w)
            return back([0.5 * (fp + rp), 0.5 * (fq + rq)])

        return Formula(0.5 * (forward + reverse), pull)
    if options.get("direction") == "reverse":
        return Formula(reverse, lambda w: back(pull_reverse(w)[::-1]))
    return Formula(forward, lambda w: back(pull_forward(w)))


def js_divergence(inputs: Inputs, options: Any) -> Formula:
    logs, back = _distributions(inputs, options)
    finite = [choose(x > -1e30, x, -1e30) for x in logs]
    ps = [exp(x) for x in logs]
    both = ps[0] + ps[1]
    middle = log(choose(both > 0, both, 1)) - Exact(mpmath.log(2), 1.0)
    base = options.get("base")
    scale = Exact(0.5) if base is None else Exact(mpmath.mpf(0.5) / mpmath.log(base), abs(0.5 / math.log(base)))
    values = np.asarray(scale * total(ps[0] * finite[0] + ps[1] * finite[1] - both * middle, -1), object)

    def pull(w: Any) -> list[Any]:
        # With what cancels: p + p·log p − p·log m − p.
        weight = _over(scale * w)
        return back([weight * (p * x + p - p * middle - p) for p, x in zip(ps, finite, strict=True)])

    if not options.get("sqrt"):
        return Formula(values, pull)
    equal = np.asarray(_equal(*logs))
    zero = equal | np.asarray(values <= 0)
    roots = choose(zero, 0, sqrt(values))
    for index in np.ndindex(roots.shape):
        if equal[index]:
            roots[index] = Exact(0, 0.0, values[index])
        elif zero[index]:
            roots[index].error = math.sqrt(values[index].error / Exact.precision)

    def pull_root(w: Any) -> list[Any]:
        slopes = choose(zero, 0, w / (2 * choose(zero, 1, roots)))
        for index in np.ndindex(slopes.shape):
            if not equal[index] and values[index].value <= 2 * values[index].tolerance:
                slopes[index].error = math.inf  # lost in rounding
        return pull(slopes)

    return Formula(roots, pull_root)


def _equal(a: Any, b: Any) -> Any:
    same = np.frompyfunc(lambda x, y: x.value == y.value, 2, 1)(a, b).astype(bool)
    return np.all(same, -1)


def entropy(inputs: Inputs, options: Any) -> Formula:
    (x,), back = _distributions(inputs, options)
    scale = exact(-1 if options.get("mode", "penalty") == "penalty" else 1)
    if options.get("normalize"):
        classes = x.shape[-1]
        scale = scale / Exact(mpmath.log(classes), math.log(classes)) if classes > 1 else Exact(0)
    finite, p = choose(x > -1e30, x, -1e30), exp(x)
    return Formula(scale * total(p * finite, -1), lambda w: back([_over(scale * w) * (p * finite + p)]))


def target_logprobs(inputs: Inputs, options: Any) -> Formula:
    (x,), back = _distributions(inputs, options)
    targets = options["targets"]
    several = targets.ndim == x.ndim
    index = targets if several else targets[..., None]
    values = np.take_along_axis(x, index, -1)

    def pull(w: Any) -> list[Any]:
        slopes, w = choose(np.ones(x.shape, bool), 0, 0), np.asarray(w, object)
        for at in np.ndindex(index.shape):
            slopes[(*at[:-1], index[at])] += w[at if several else at[:-1]]
        return back([slopes])

    return Formula(values if several else values[..., 0], pull)


def cross_entropy(inputs: Inputs, options: Any) -> Formula:
    known = {**options, "targets": np.maximum(options["targets"], 0)}
    picked = target_logprobs(inputs, known)
    return Formula(-np.asarray(picked.values, object), lambda w: picked.pull(-w))


def consistency(inputs: Inputs, options: Any) -> Formula:
    a, b = inputs
    metric = options.get("metric", "mse")
    if metric == "kl":
        return kl_divergence(inputs, {"symmetric": True})
    if metric == "cosine":
        return _cosine_distance(a, b)
    d = a - b
    if metric == "l1":
        return Formula(abs(d), lambda w: [w * sign(d), -(w * sign(d))])
    return Formula(d * d, lambda w: [2 * d * w, -(2 * d * w)])


def _unit(x: Any) -> tuple[Any, Any, Callable[[Any], Any]]:
    """Vectors of the last axis by their lengths, which are zero, and how gradients pass."""
    largest = _largest(x)
    zero = np.asarray(largest <= 0)
    scale = choose(zero, 1, largest)
    scaled = x / scale
    length = sqrt(total(scaled * scaled, -1, keepdims=True))
    length = choose(zero, 1, length)
    unit = choose(zero, 0, scaled / length)

    def pull(w: Any) -> Any:
        along = total(w * unit, -1, keepdims=True)
        return choose(zero, 0, (w - unit * along) / length / scale)

    return unit, zero[..., 0], pull


def _largest(x: Any) -> Any:
    """The largest size along the last axis; NaN wins."""
    found = np.max(abs(x), -1, keepdims=True, initial=Exact(0))
    lost = np.frompyfunc(lambda one: bool(mpmath.isnan(one.value)), 1, 1)(x).astype(bool).any(-1, keepdims=True)
    return choose(lost, mpmath.nan, found)


def _cosine_distance(a: Any, b: Any) -> Formula:
    u, u_zero, pull_u = _unit(a)
    v, v_zero, pull_v = _unit(b)
    apart = u - v
    zero = u_zero | v_zero
    values = choose(zero, 1, 0.5 * total(apart * apart, -1))

    def pull(w: Any) -> list[Any]:
        slope = _over(choose(zero, 0, w)) * apart
        return [pull_u(slope), -pull_v(slope)]

    return Formula(values, pull)


def output_magnitude(inputs: Inputs, options: Any) -> Formula:
    (y,) = inputs
    target = exact(options.get("target", 1.0))
    flat = y.reshape(1, -1)
    largest = np.max(abs(flat), initial=Exact(0))
    root = Exact(1) if options.get("reduction") == "sum" else exact(1 / math.sqrt(max(y.size, 1)))
    if not y.size or largest <= 0:
        return Formula(np.asarray((0 - target) * (0 - target)), lambda w: [choose(np.ones(y.shape, bool), 0, 0)])
    size = total(abs(flat))
    if not mpmath.isfinite(size.value):
        return Formula(np.asarray(size), lambda w: [])
    unit, _, _ = _unit(flat)
    scaled = flat / largest
    length = sqrt(total(scaled * scaled)) * largest * root
    value = length - target
    return Formula(
        np.asarray(value * value), lambda w: [(2 * value * root * w * largest * (unit / largest)).reshape(y.shape)]
    )


def precomputed(inputs: Inputs, options: Any) -> Formula:
    return Formula(inputs[0], lambda w: [w])


def renormalize(inputs: Inputs, options: Any) -> Formula:
    values, pull = _log_softmax(inputs[0])
    return Formula(values, lambda w: [pull(w)])


def safe_log(inputs: Inputs, options: Any) -> Formula:
    (p,) = inputs
    zero = np.frompyfunc(lambda x: x.value == 0, 1, 1)(p)
    return Formula(choose(zero, -mpmath.inf, log(p)), lambda w: [choose(zero, 0, w / choose(zero, 1, p))])


def replace_nonfinite(inputs: Inputs, options: Any) -> Formula:
    (x,) = inputs
    number, bound = exact(options.get("nan", 0.0)), exact(options.get("inf", 1e10))
    missing = np.frompyfunc(lambda x: bool(mpmath.isnan(x.value)), 1, 1)(x)
    inside = abs(choose(missing, 0, x)) <= bound
    kept = choose(inside, x, choose(missing, 0, sign(choose(missing, 0, x))) * bound)
    values = choose(missing, number, kept)
    return Formula(values, lambda w: [choose(np.asarray(missing, bool) | ~np.asarray(inside, bool), 0, w)])


def cubes(z: Any) -> Any:
    """A critic, whose slope is 3z²."""
    return (z * z * z).sum(-1)


def gradient_penalty(inputs: Inputs, options: Any) -> Formula:
    (x,) = inputs
    target = exact(options.get("target_norm", 1.0))
    samples = x if x.ndim > 1 and not options.get("joint") else x.reshape(1, -1)
    slope = 3 * samples * samples
    unit, _, _ = _unit(slope)
    largest = _largest(slope)
    scale = choose(largest <= 0, 1, largest)
    scaled = slope / scale
    length = (sqrt(total(scaled * scaled, -1, keepdims=True)) * scale)[..., 0]
    apart = length - target
    count = max(len(samples), 1)

    def pull(w: Any) -> list[Any]:
        return [(w * 2 * _over(apart) * unit * (6 * samples) / count).reshape(x.shape)]

    return Formula(np.asarray(total(apart * apart) / count), pull)


def orthogonality(inputs: Inputs, options: Any) -> Formula:
    (x,) = inputs
    axis = options.get("axis", "rows")
    if x.ndim == 1:
        moved = x.reshape(1, -1)
    elif axis == "rows":
        moved = x
    else:
        moved = np.moveaxis(x, -2 if axis == "sequence" else -1, 0)
    width = moved.shape[-1] if axis == "rows" or x.ndim == 1 else math.prod(moved.shape[1:])
    whole = moved.reshape(-1 if width else math.prod(moved.shape[:-1]), width)
    count = len(whole)
    sample = options.get("sample_size")
    drawn = np.arange(count)
    if sample is not None and sample < count:
        drawn = np.random.default_rng(options.get("seed", 0)).choice(count, sample, replace=False)
    rows = whole[drawn]
    unit, _, pull_unit = _unit(rows) if options.get("normalize", True) else (rows, None, lambda w: w)
    n = len(rows)
    gram = unit @ unit.T if n and width else given(np.zeros((n, n)))
    eye = np.eye(n, dtype=bool)
    off = choose(eye, 0, gram)
    diagonal = choose(eye, gram - 1, 0)
    hard = options.get("mode", "soft") == "hard"
    apart = count * (count - 1) / (n * (n - 1)) if n < count else 1.0
    alike = count / n if n < count else 1.0
    value = total(off * off) * exact(apart) + (total(diagonal * diagonal) * exact(alike) if hard else 0)
    if n > width:
        # From MᵀM, whose squares are those of G: the diagonal is among them, and taken off again.
        squares = total(gram * gram)
        value.error += 4 * (n + width) * squares.size * apart
        value.peak = max(value.peak, squares.peak)
    divisor = 1
    if options.get("reduction") == "mean":
        divisor = max(count * count if hard else count * (count - 1), 1)

    def pull(w: Any) -> list[Any]:
        inner = off * exact(apart) + (diagonal * exact(alike) if hard else 0)
        slope = 4 * (inner @ unit) * w / divisor if n and width else rows
        if n > width:
            lost = 16 * (abs(gram) @ abs(unit)) * abs(w) * exact(apart) / divisor if width else rows
            for index in np.ndindex(slope.shape):
                slope[index].error += (n + width) * lost[index].size
        gradient = choose(np.zeros(whole.shape, bool), 0, 0)
        gradient[drawn] = pull_unit(slope)
        back = gradient.reshape(moved.shape)
        if x.ndim > 1 and axis != "rows":
            back = np.moveaxis(back, 0, -2 if axis == "sequence" else -1)
        return [back.reshape(x.shape)]

    return Formula(np.asarray(value / divisor), pull)


def reduced(values: Any, reduction: str, mask: Any) -> tuple[Any, Any]:
    """The result, and the weight of each value in it."""
    weights = choose(np.ones(values.shape, bool), 1, 0) if mask is None else mask
    result = weights * values
    if reduction == "none":
        return result, weights
    added = total(result)
    if reduction == "sum":
        return added, weights
    whole = total(weights)
    if whole.value == 0:
        return Exact(0), choose(np.ones(values.shape, bool), 0, 0)
    return added / whole, weights / whole
