"""Every public function with every option, on every dtype, at ordinary numbers and at the ends, against 50 digits."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import penalties as pn
from penalties import functional
from penalties.functional.penalty import facts_of
from penalties.pipeline.catalogue import BUILT_IN
from tests.cases import declared
from tests.fuzz import drawing, mathematics
from tests.fuzz.cases import try_cases
from tests.fuzz.exact import Exact, choose, given
from tests.libraries import JAX, LIBRARIES, NUMPY, TORCH

SLACK = 4.0
"""How many times the error of first order is allowed: libraries round some functions less well than by half a digit."""


@dataclass
class Call:
    """A call of a function, in float64 numbers that the dtype can hold."""

    name: str
    dtype: str
    inputs: list[np.ndarray]
    options: dict[str, Any] = field(default_factory=dict)
    mask: np.ndarray | None = None
    extreme: bool = False
    """Whether an option may be beyond what the dtype can take: then an `OptionError` is right, too."""
    nest: bool = False

    def __str__(self) -> str:
        inputs = ", ".join(f"{x.tolist()} {x.shape}" for x in self.inputs)
        mask = "" if self.mask is None else f", mask={self.mask.tolist()} ({self.mask.dtype})"
        return f"{self.name}({inputs}, {self.options}{mask}) in {self.dtype}"


Draw = Callable[[np.random.Generator, str], Call]
DRAWS: dict[str, Draw] = {}


def drawn(draw: Draw) -> Draw:
    """Register how to draw a call of the function of that name."""
    DRAWS[draw.__name__] = draw
    return draw


def options(rng: np.random.Generator, **choices: list[Any]) -> dict[str, Any]:
    """Some of the options, each with one of its values."""
    return {name: rng.choice(np.array(given, object)) for name, given in choices.items() if rng.integers(2)}


REDUCTIONS = ["sum", "mean", "none"]
SIZES = [1.0, 0.3, 1e-3, 1e3, 1e-20, 1e20]
EXTREMES = [1e-39, 1e38, 1e-45, 1e39, 1e-308, 1e308, 5e-324]


def sized(rng: np.random.Generator, dtype: str) -> tuple[float, bool]:
    """A number above 0 for an option, and whether it is extreme."""
    if rng.integers(4):
        return float(rng.choice(SIZES)), False
    return float(rng.choice(EXTREMES)), True


def shape(rng: np.random.Generator, least: int = 0) -> tuple[int, ...]:
    fitting = [shape for shape in drawing.SHAPES if len(shape) >= least]
    return fitting[rng.integers(len(fitting))]


def norm(name: str, rng: np.random.Generator, dtype: str) -> Call:
    x = drawing.values(rng, shape(rng), dtype)
    nest = x.shape == (4,) and bool(rng.integers(2))
    return Call(name, dtype, [x], options(rng, reduction=REDUCTIONS[: 2 if nest else 3]), nest=nest)


@drawn
def l1(rng: np.random.Generator, dtype: str) -> Call:
    return norm("l1", rng, dtype)


@drawn
def l2(rng: np.random.Generator, dtype: str) -> Call:
    call = norm("l2", rng, dtype)
    for name in ("center", "clip"):
        if rng.integers(2):
            call.options[name], extreme = sized(rng, dtype)
            call.extreme |= extreme
    if rng.integers(3) == 0:
        call.options["center"] = "mean"
    return call


@drawn
def elastic_net(rng: np.random.Generator, dtype: str) -> Call:
    call = norm("elastic_net", rng, dtype)
    call.options |= options(rng, l1_ratio=[0.0, 1.0, 0.3, 1e-8, 1e-300, 1 - 1e-12])
    return call


@drawn
def smooth_l1(rng: np.random.Generator, dtype: str) -> Call:
    call = norm("smooth_l1", rng, dtype)
    if rng.integers(2):
        call.options["delta"], call.extreme = sized(rng, dtype)
    return call


def estimate(name: str, rng: np.random.Generator, dtype: str, count: int) -> Call:
    size = shape(rng)
    inputs = [drawing.values(rng, size, dtype) for _ in range(count)]
    if rng.integers(2):
        inputs = [-abs(rng.normal(size=size)) * 10.0 ** rng.integers(-3, 4) for _ in range(count)]
        inputs = [drawing.rounded(x, dtype) for x in inputs]
    if rng.integers(5) == 0:
        inputs = [inputs[0].copy() for _ in inputs]
    return Call(name, dtype, inputs, options(rng, reduction=REDUCTIONS), drawing.mask(rng, size))


@drawn
def kl_estimate(rng: np.random.Generator, dtype: str) -> Call:
    call = estimate("kl_estimate", rng, dtype, 2)
    call.options |= options(rng, estimator=["k1", "k2", "k3"])
    return call


@drawn
def entropy_estimate(rng: np.random.Generator, dtype: str) -> Call:
    call = estimate("entropy_estimate", rng, dtype, 1)
    call.options |= options(rng, mode=["penalty", "bonus"])
    return call


def divergence(name: str, rng: np.random.Generator, dtype: str, count: int, *, classes: bool = False) -> Call:
    size = shape(rng, 1)
    while classes and not size[-1]:
        size = shape(rng, 1)
    chosen = options(rng, reduction=REDUCTIONS, logits=[True, False])
    extreme = False
    if rng.integers(3) == 0:
        chosen["temperature"], extreme = sized(rng, dtype)
    if chosen.get("logits") or chosen.get("temperature", 1.0) != 1.0:
        inputs = [drawing.values(rng, size, dtype) for _ in range(count)]
    else:
        inputs = [drawing.logprobs(rng, size, dtype) for _ in range(count)]
    if rng.integers(5) == 0:
        inputs = [inputs[0].copy() for _ in inputs]
    return Call(name, dtype, inputs, chosen, drawing.mask(rng, size[:-1]), extreme)


@drawn
def kl_divergence(rng: np.random.Generator, dtype: str) -> Call:
    call = divergence("kl_divergence", rng, dtype, 2)
    call.options |= options(rng, direction=["forward", "reverse"], symmetric=[True, False], floor=[-1.0, -20.0, -1e4])
    return call


@drawn
def js_divergence(rng: np.random.Generator, dtype: str) -> Call:
    call = divergence("js_divergence", rng, dtype, 2)
    call.options |= options(rng, base=[2, 10.0, 1.5, 1e300], sqrt=[True, False])
    if not call.options.get("sqrt") and rng.integers(4) == 0:
        call.options["base"] = 0.5
    return call


@drawn
def entropy(rng: np.random.Generator, dtype: str) -> Call:
    call = divergence("entropy", rng, dtype, 1)
    call.options |= options(rng, mode=["penalty", "bonus"], normalize=[True, False])
    return call


@drawn
def cross_entropy(rng: np.random.Generator, dtype: str) -> Call:
    call = divergence("cross_entropy", rng, dtype, 1, classes=True)
    (x,) = call.inputs
    call.options["targets"] = rng.integers(0, x.shape[-1], x.shape[:-1])
    call.options["targets"] = np.where(rng.random(x.shape[:-1]) < 0.2, -100, call.options["targets"])
    return call


@drawn
def target_logprobs(rng: np.random.Generator, dtype: str) -> Call:
    call = divergence("target_logprobs", rng, dtype, 1, classes=True)
    (x,) = call.inputs
    call.mask = None
    call.options.pop("reduction", None)
    call.options["targets"] = rng.integers(0, x.shape[-1], (*x.shape[:-1], *[2] * int(rng.integers(2))))
    return call


@drawn
def consistency(rng: np.random.Generator, dtype: str) -> Call:
    chosen = options(rng, metric=["mse", "l1", "cosine", "kl"], reduction=REDUCTIONS)
    masked = bool(rng.integers(2))
    size = shape(rng, 1 if masked or chosen.get("metric") == "kl" else 0)
    draw = drawing.logprobs if chosen.get("metric") == "kl" else drawing.values
    inputs = [draw(rng, size, dtype) for _ in range(2)]
    if rng.integers(5) == 0:
        inputs[1] = inputs[0].copy()
    if rng.integers(8) == 0:
        inputs[1] = np.zeros(size)
    return Call("consistency", dtype, inputs, chosen, drawing.mask(rng, size[:-1]) if masked else None)


@drawn
def orthogonality(rng: np.random.Generator, dtype: str) -> Call:
    chosen = options(
        rng,
        mode=["soft", "hard"],
        normalize=[True, False],
        axis=["rows", "sequence", "vocabulary"],
        reduction=["sum", "mean"],
        sample_size=[2, 3],
        seed=[0, 7],
    )
    return Call("orthogonality", dtype, [drawing.values(rng, shape(rng, 1), dtype)], chosen)


@drawn
def output_magnitude(rng: np.random.Generator, dtype: str) -> Call:
    call = Call("output_magnitude", dtype, [drawing.values(rng, shape(rng), dtype)])
    call.options |= options(rng, reduction=["sum", "mean"])
    if rng.integers(2):
        call.options["target"], call.extreme = sized(rng, dtype)
    return call


@drawn
def precomputed(rng: np.random.Generator, dtype: str) -> Call:
    return Call("precomputed", dtype, [drawing.values(rng, (), dtype)])


@drawn
def renormalize(rng: np.random.Generator, dtype: str) -> Call:
    return Call("renormalize", dtype, [drawing.values(rng, shape(rng, 1), dtype)])


@drawn
def safe_log(rng: np.random.Generator, dtype: str) -> Call:
    return Call("safe_log", dtype, [abs(drawing.values(rng, shape(rng), dtype))])


@drawn
def replace_nonfinite(rng: np.random.Generator, dtype: str) -> Call:
    call = Call("replace_nonfinite", dtype, [drawing.values(rng, shape(rng), dtype)])
    call.options |= options(rng, nan=[0.0, -3.5, 1e38], inf=[1e10, 1.0, 3e38, 1e-30])
    return call


@drawn
def gradient_penalty(rng: np.random.Generator, dtype: str) -> Call:
    dtype = drawing.wide(dtype)  # the critic computes in the dtype of its input
    scale = 10.0 ** rng.integers(-6, 7)
    x = drawing.rounded(rng.normal(size=shape(rng, 1)) * scale * rng.integers(0, 2), dtype)
    return Call("gradient_penalty", dtype, [x], options(rng, target_norm=[0.0, 1.0, 30.0]))


EXAMPLES = {name: facts for name, fn in BUILT_IN.items() if name not in DRAWS and (facts := facts_of(fn))}
"""Penalties whose formula is not written out: they are tried near the example that they declare."""


def test_every_function_is_tried() -> None:
    others = {"with_gradient_penalty", "valid_logprobs", "validate"}
    assert DRAWS.keys() | EXAMPLES.keys() | others == set(functional.__all__)


def expected(call: Call) -> tuple[Any, Callable[[], list[Any]]]:
    """The exact result of a call, and the exact gradients of its sum."""
    ends = drawing.limits(drawing.wide(call.dtype))
    Exact.precision, Exact.tiny = ends.precision, ends.tiny
    scalar = call.inputs[0].shape == ()
    inputs = [np.asarray(given(np.atleast_1d(x)), object) for x in call.inputs]
    weights = call.mask
    if call.name == "cross_entropy":
        known = call.options["targets"] != -100
        weights = known if weights is None else np.where(known, weights, 0)
    mask = None if weights is None else np.asarray(given(weights.astype(float)), object)
    mask = mask.reshape(1) if scalar and mask is not None else mask
    if mask is not None:
        shown = np.array([m.value != 0 for m in mask.reshape(-1)], bool).reshape(mask.shape)
        shown = shown if shown.ndim == inputs[0].ndim else shown[..., None]
        inputs = [choose(shown, x, 0) for x in inputs]
    formula = getattr(mathematics, call.name)(inputs, call.options)
    values = np.asarray(formula.values, object)
    facts = facts_of(getattr(pn, call.name))
    default = "none" if facts is None or call.name in WHOLE else facts.defaults.get("reduction", "none")
    reduction = default if call.name in WHOLE else call.options.get("reduction", default)
    if mask is not None and call.name == "consistency" and mask.ndim < values.ndim:
        # Elements count by the weight of their vector.
        mask = choose(np.ones(values.shape, bool), mask[..., None], 0)
    result, weights = mathematics.reduced(values, reduction, mask)
    result = np.asarray(result, object)
    if not scalar:
        return result, lambda: list(formula.pull(weights))
    return result.reshape(()), lambda: [np.asarray(g, object).reshape(()) for g in formula.pull(weights)]


WHOLE = ("orthogonality", "output_magnitude")
"""Functions whose `reduction` is a part of the formula."""


def called(library: Any, call: Call) -> tuple[Callable[..., Any], list[Any]]:
    """The call as a function of arrays of the library, and these."""
    chosen = {
        name: library.array(value, "int64") if isinstance(value, np.ndarray) else value
        for name, value in call.options.items()
    }
    if call.mask is not None:
        chosen["mask"] = library.array(call.mask, str(call.mask.dtype))
    arrays = [library.array(x, call.dtype) for x in call.inputs]
    function = getattr(pn, call.name)
    if call.name == "gradient_penalty":
        return lambda x: function(mathematics.cubes, x, **chosen), arrays
    if call.nest:
        return lambda x: function([x[:1], {"a": (x[1:3], x[3:])}], **chosen), arrays
    return lambda *xs: function(*xs, **chosen), arrays


def agree(found: Any, right: Any, dtype: str, what: str) -> None:
    """Every number is within the error that its computation may have."""
    ends = drawing.limits(dtype)
    assert found.shape == right.shape, f"{what}: shape {found.shape}; expected {right.shape}"
    for index in np.ndindex(right.shape):
        number, goal = float(found[index]), right[index]
        value = float(goal.value)
        if math.isnan(value):
            assert math.isnan(number), f"{what}{list(index)}: {number!r}; expected NaN"
            continue
        if goal.error == math.inf:
            continue
        if math.isinf(value):
            assert number == value, f"{what}{list(index)}: {number!r}; expected {value!r}"
            continue
        tolerance = SLACK * (goal.tolerance + Exact.tiny) + ends.precision * abs(value) + ends.least
        if abs(value) + tolerance >= ends.largest and math.isinf(number) and number * value > 0:
            continue
        if abs(value) < ends.largest <= goal.peak and not math.isfinite(number):
            continue  # out of range on the way
        near = number == value or abs(number - value) <= tolerance
        assert near, f"{what}{list(index)}: {number!r}; expected {value!r} ± {tolerance:.2g}"


def beyond(result: Any, dtype: str) -> bool:
    return any(x.size >= drawing.limits(dtype).largest for x in result.reshape(-1))


def check(library: Any, name: str, rng: np.random.Generator) -> None:
    dtype = str(rng.choice(list(drawing.DTYPES)))
    call = DRAWS[name](rng, dtype)
    if library is JAX:
        # Whatever XLA runs on may take denormal numbers for 0.
        tiny = drawing.limits(drawing.wide(call.dtype)).tiny
        call.inputs = [np.where(abs(x) < tiny, 0.0, x) for x in call.inputs]
    function, arrays = called(library, call)
    try:
        found = function(*arrays)
    except pn.OptionError:
        assert call.extreme, str(call)
        return
    result, gradients = expected(call)
    out = drawing.wide(call.dtype)
    assert library.dtype(found) == out, f"{call}: {library.dtype(found)}; expected {out}"
    if call.name == "orthogonality" and beyond(result, out):
        return  # products of opposite signs may both be infinite
    agree(library.numpy(found), result, out, f"{library.name}: {call}")
    finite = all(np.isfinite(float(x.value)) for x in result.reshape(-1))
    if not library.differentiates or not finite or not all(np.isfinite(library.numpy(found)).reshape(-1)):
        return
    slopes = library.raw_gradients(lambda *xs: function(*xs).sum(), *arrays)
    for index, (slope, right) in enumerate(zip(slopes, gradients(), strict=True)):
        assert library.dtype(slope) == call.dtype
        agree(library.numpy(slope), right, call.dtype, f"{library.name}: gradient {index} of {call}")


# JAX compiles every operation for every shape and dtype.
BACKENDS = [pytest.param(one, marks=pytest.mark.slow if one is JAX else (), id=one.name) for one in LIBRARIES]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", DRAWS)
def test_against_fifty_digits(backend: Any, name: str) -> None:
    if backend is NUMPY and name == "gradient_penalty":
        pytest.skip("needs gradients")
    with np.errstate(all="ignore"):
        try_cases(5 if backend is JAX else 15, lambda rng: check(backend, name, rng))


def check_near_example(library: Any, name: str, rng: np.random.Generator) -> None:
    """Value and gradients are those in float64, on the numbers that the dtype has."""
    facts, case = EXAMPLES[name], declared(name, EXAMPLES[name])
    dtype = str(rng.choice(list(drawing.DTYPES)))
    # A function that it is given computes in the dtype of its input.
    dtype = drawing.wide(dtype) if facts.needs_gradient else dtype
    inputs = [drawing.rounded(x * rng.uniform(0.5, 2.0, x.shape), dtype) for x in case.make(rng)]
    reference = TORCH if facts.needs_gradient else NUMPY
    right = reference.numpy(case.on(reference)(*[reference.array(x, "float64") for x in inputs]))
    function, arrays = case.on(library), [library.array(x, dtype) for x in inputs]
    found = function(*arrays)
    assert library.dtype(found) == drawing.wide(dtype)
    tolerance = 1e3 * drawing.limits(drawing.wide(dtype)).precision
    np.testing.assert_allclose(library.numpy(found), right, rtol=tolerance, atol=tolerance)
    if library.differentiates:
        slopes = TORCH.gradients(case.on(TORCH), *[TORCH.array(x, "float64") for x in inputs])
        for slope, goal in zip(library.raw_gradients(function, *arrays), slopes, strict=True):
            assert library.dtype(slope) == dtype
            limit = (tolerance + drawing.limits(dtype).precision) * float(np.abs(goal).max())
            np.testing.assert_allclose(library.numpy(slope), goal, rtol=0, atol=limit)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_near_its_example(backend: Any, name: str) -> None:
    if EXAMPLES[name].needs_gradient and not backend.differentiates:
        pytest.skip("needs gradients")
    try_cases(5 if backend is JAX else 15, lambda rng: check_near_example(backend, name, rng))
