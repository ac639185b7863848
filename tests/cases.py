"""One row per function and option. Every generic test (gradients, parity, compilers, low precision) runs on each.

A penalty without a row here is tested on the example that it declares.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import penalties as pn
from penalties import functional
from penalties.functional.penalty import Facts, facts_of


@dataclass(frozen=True)
class Case:
    """A call: `make(rng)` gives the arrays to differentiate, `options` the rest; arrays there become the library's."""

    name: str
    make: Callable[[np.random.Generator], Sequence[np.ndarray]]
    options: dict[str, Any] = field(default_factory=dict)
    apply: Callable[..., Any] | None = None
    """How to call it, where `pn.name(*arrays, **options)` is not it."""
    needs_gradient: bool = False
    order: int = 2
    size: Callable[..., float] | None = None
    """Σ|summand| of the call, to which rounding is relative; the absolute value where it is None."""

    @property
    def id(self) -> str:
        shown = [f"{k}={'array' if isinstance(v, np.ndarray) else v}" for k, v in self.options.items()]
        return "-".join([self.label, *shown])

    @property
    def label(self) -> str:
        return self.name if self.apply is None else f"{self.name}:{self.apply.__name__}"

    def on(self, library: Any) -> Callable[..., Any]:
        """The call as a function of the library's arrays alone."""
        options = {
            key: library.array(value, str(value.dtype)) if isinstance(value, np.ndarray) else value
            for key, value in self.options.items()
        }
        if self.apply is not None:
            return lambda *arrays: self.apply(*arrays, **options)
        return lambda *arrays: getattr(pn, self.name)(*arrays, **options)

    def scale(self, value: Any, *inputs: np.ndarray) -> float:
        """What errors of the value are relative to."""
        if self.size is not None:
            return self.size(*inputs, **self.options)
        return float(np.sum(np.abs(value)))


def values(*shape: int) -> Callable[[np.random.Generator], list[np.ndarray]]:
    return lambda rng: [rng.normal(size=shape)]


def around(matrix: np.ndarray) -> Callable[[np.random.Generator], list[np.ndarray]]:
    return lambda rng: [matrix + 0.1 * rng.normal(size=matrix.shape)]


def pair(*shape: int) -> Callable[[np.random.Generator], list[np.ndarray]]:
    return lambda rng: [rng.normal(size=shape), rng.normal(size=shape)]


def log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def logprobs(*shape: int) -> Callable[[np.random.Generator], list[np.ndarray]]:
    return lambda rng: [log_softmax(2 * rng.normal(size=shape))]


def two_logprobs(*shape: int) -> Callable[[np.random.Generator], list[np.ndarray]]:
    return lambda rng: [log_softmax(2 * rng.normal(size=shape)), log_softmax(2 * rng.normal(size=shape))]


def tokens(*shape: int) -> Callable[[np.random.Generator], list[np.ndarray]]:
    return lambda rng: [-np.abs(rng.normal(size=shape)) - 0.1, -np.abs(rng.normal(size=shape)) - 0.1]


def magnitude(*inputs: np.ndarray, **options: Any) -> float:
    """Σ of the absolute terms p·log p, p·log q and their mirror images, as large as any divergence's summands."""
    total = 0.0
    for a in inputs:
        for b in inputs:
            temperature = options.get("temperature", 1.0)
            if options.get("logits") or temperature != 1.0:
                a, b = (log_softmax(x / temperature) for x in (a, b))
            total += float(np.sum(np.exp(a) * np.abs(b)))
    return total


def distance(y: np.ndarray, **options: Any) -> float:
    """The squares that (length − target)² is made of."""
    return float(np.sum(y * y)) + 1.0


def as_list(x: Any, y: Any, *, fn: str, **options: Any) -> Any:
    return getattr(pn, fn)([x, {"y": (y,)}], **options)


def token_lists(x: Any, y: Any, **options: Any) -> Any:
    return pn.kl_estimate([x, 2 * x], [y, y], **options)


def cubes(z: Any, w: Any) -> Any:
    return ((z @ w) ** 3).sum(-1)


def per_sample(x: Any, w: Any, **options: Any) -> Any:
    return pn.gradient_penalty(lambda z: cubes(z, w), x, **options)


def per_sample_column(x: Any, w: Any, **options: Any) -> Any:
    return pn.gradient_penalty(lambda z: cubes(z, w)[:, None], x, **options)


def joint(x: Any, w: Any, **options: Any) -> Any:
    return pn.gradient_penalty(lambda z: cubes(z, w).sum(), x, **options)


def one_sample(x: Any, w: Any, **options: Any) -> Any:
    return pn.gradient_penalty(lambda z: cubes(z, w), x[0], **options)


def interpolated(x: Any, r: Any, w: Any, **options: Any) -> Any:
    return pn.interpolated_gradient_penalty(lambda z: cubes(z, w), x, r, **options)


def value_plus_penalty(x: Any, w: Any, **options: Any) -> Any:
    value, penalty = pn.with_gradient_penalty(lambda z: cubes(z, w), x, **options)
    return value.sum() + penalty


def data_and_weights(rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.normal(size=(3, 4)), rng.normal(size=(4, 2))]


def two_data_and_weights(rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.normal(size=(3, 4)), rng.normal(size=(3, 4)), rng.normal(size=(4, 2))]


MASK = np.array([[1.0, 0.0, 1.0], [0.5, 1.0, 0.0]])
FLAGS = np.array([[True, False, True], [True, True, False]])
TARGETS = np.array([[4, -100, 0], [1, 1, 3]])
FEW = np.array([[[4, 0], [2, 2], [1, 3]], [[1, 0], [0, 0], [3, 4]]])
TOKEN_MASK = np.array([[1.0, 0.0, 2.0, 1.0], [0.5, 1.0, 0.0, 1.0]])
EPSILON = np.array([0.2, 0.7, 0.5])
ROWS = np.array([3, 0, 4])


def _norms() -> list[Case]:
    cases = []
    for reduction in ("sum", "mean", "none"):
        cases += [
            Case("l1", values(3, 4), {"reduction": reduction}),
            Case("l2", values(3, 4), {"reduction": reduction}),
            Case("l2", values(3, 4), {"reduction": reduction, "center": "mean"}),
            Case("l2", values(3, 4), {"reduction": reduction, "center": 0.5, "clip": 0.8}),
            Case("l2", values(3, 4), {"reduction": reduction, "center": "mean", "clip": 0.8}),
            Case("elastic_net", values(3, 4), {"reduction": reduction, "l1_ratio": 0.3}),
            Case("smooth_l1", values(3, 4), {"reduction": reduction}),
        ]
    for reduction in ("sum", "mean"):
        for fn, options in (
            ("l1", {}),
            ("l2", {"center": "mean"}),
            ("l2", {"center": 0.5}),
            ("elastic_net", {}),
            ("smooth_l1", {}),
        ):
            cases.append(Case(fn, pair(5), {"fn": fn, "reduction": reduction, **options}, as_list))
    return [
        *cases,
        Case("l2", values(3, 4), {"clip": 0.8}),
        Case("elastic_net", values(3, 4), {"l1_ratio": 0.0}),
        Case("elastic_net", values(3, 4), {"l1_ratio": 1.0}),
        Case("smooth_l1", values(3, 4), {"delta": 0.3}),
    ]


def _divergences() -> list[Case]:
    kl = [
        *({"reduction": reduction} for reduction in ("sum", "mean", "none")),
        {"direction": "reverse"},
        {"symmetric": True},
        {"floor": -1.5},
        {"floor": -1.5, "symmetric": True},
        {"temperature": 2.0},
        {"temperature": 0.5, "logits": True, "mask": MASK, "direction": "reverse"},
        {"mask": MASK},
        {"mask": FLAGS, "reduction": "sum"},
        {"mask": MASK, "reduction": "none", "direction": "reverse"},
        {"logits": True},
        {"logits": True, "mask": MASK, "symmetric": True},
    ]
    js = [
        *({"reduction": reduction} for reduction in ("sum", "mean", "none")),
        {"base": 2},
        {"sqrt": True},
        {"sqrt": True, "base": 2, "mask": MASK, "reduction": "none"},
        {"temperature": 2.0, "sqrt": True, "logits": True},
        {"mask": MASK},
        {"mask": FLAGS, "reduction": "none"},
        {"logits": True},
        {"logits": True, "mask": MASK, "base": 10.0},
    ]
    entropy = [
        *({"reduction": reduction} for reduction in ("sum", "mean", "none")),
        {"mode": "bonus"},
        {"normalize": True},
        {"temperature": 0.5},
        {"temperature": 2.0, "logits": True, "normalize": True},
        {"logits": True},
        {"mask": MASK},
        {"mask": FLAGS, "temperature": 2.0, "mode": "bonus", "reduction": "sum"},
    ]
    cross_entropy = [
        *({"reduction": reduction} for reduction in ("sum", "mean", "none")),
        {"logits": True},
        {"logits": True, "temperature": 2.0, "mask": MASK},
        {"logits": True, "temperature": 0.5, "mask": FLAGS, "reduction": "none"},
        {"ignore_index": 1, "mask": FLAGS},
    ]
    targets = [{"logits": True}, {}]
    return [
        *(Case("cross_entropy", logprobs(2, 3, 5), {"targets": TARGETS, **options}) for options in cross_entropy),
        *(Case("target_logprobs", logprobs(2, 3, 5), {"targets": FEW, **options}) for options in targets),
        Case("target_logprobs", logprobs(2, 3, 5), {"targets": FEW[..., 0], "logits": True}),
        *(Case("kl_divergence", two_logprobs(2, 3, 5), options, size=magnitude) for options in kl),
        *(Case("js_divergence", two_logprobs(2, 3, 5), options, size=magnitude) for options in js),
        *(Case("entropy", logprobs(2, 3, 5), options, size=magnitude) for options in entropy),
        Case("renormalize", values(2, 5)),
        Case("safe_log", lambda rng: [rng.random((2, 5)) + 0.1]),
        Case("replace_nonfinite", values(3, 4), {"inf": 0.8}),
    ]


def _estimators() -> list[Case]:
    one = lambda rng: tokens(2, 4)(rng)[:1]
    return [
        *(Case("kl_estimate", tokens(2, 4), {"estimator": e, "reduction": "sum"}) for e in ("k1", "k2", "k3")),
        *(Case("kl_estimate", tokens(2, 4), {"estimator": e, "mask": TOKEN_MASK}) for e in ("k1", "k2", "k3")),
        Case("kl_estimate", tokens(2, 4), {"mask": TOKEN_MASK > 0, "reduction": "none"}),
        Case("kl_estimate", tokens(2, 4), {}, token_lists),
        *(Case("entropy_estimate", one, {"mode": mode}) for mode in ("penalty", "bonus")),
        *(Case("entropy_estimate", one, {"mask": TOKEN_MASK, "reduction": r}) for r in ("sum", "mean", "none")),
    ]


def _structure() -> list[Case]:
    consistency = [
        *({"metric": m, "reduction": r} for m in ("mse", "l1", "cosine") for r in ("mean", "sum", "none")),
        *({"metric": m, "mask": MASK, "reduction": r} for m in ("mse", "cosine") for r in ("mean", "sum", "none")),
        {"metric": "l1", "mask": FLAGS},
    ]
    matrix = [
        *({"mode": mode, "normalize": n} for mode in ("soft", "hard") for n in (True, False)),
        *({"mode": mode, "reduction": "mean"} for mode in ("soft", "hard")),
        *({"mode": mode, "sample_size": 3} for mode in ("soft", "hard")),
        {"mode": "hard", "sample_size": 3, "seed": ROWS, "reduction": "mean"},
        {"mode": "soft", "sample_size": 3, "seed": ROWS, "normalize": False},
        {"mode": "spectral", "exact": True},
        {"mode": "spectral", "exact": True, "normalize": False},
    ]
    # The largest deviation stands well apart, so that a hundred iterations find it to rounding.
    square, tall, wide = np.diag([3.0, 2.0, 1.0]), np.ones((5, 3)) + np.eye(5, 3), np.eye(3, 5) * [[3], [2], [1]]
    return [
        *(Case("consistency", pair(2, 3, 4), options) for options in consistency),
        Case("consistency", two_logprobs(2, 3, 4), {"metric": "kl"}, size=magnitude),
        Case("consistency", two_logprobs(2, 3, 4), {"metric": "kl", "mask": MASK}, size=magnitude),
        *(Case("orthogonality", make, options) for make in (values(5, 3), values(5, 7)) for options in matrix),
        *(Case("orthogonality", values(2, 3, 4), {"axis": axis}) for axis in ("rows", "sequence", "vocabulary")),
        Case("orthogonality", around(tall), {"mode": "spectral"}, order=1),
        Case("orthogonality", around(wide), {"mode": "spectral", "normalize": False}, order=1),
        Case("orthogonality", around(square), {"mode": "spectral", "normalize": False, "iterations": 50}, order=1),
    ]


def _smoothness() -> list[Case]:
    return [
        *(
            Case("gradient_penalty", data_and_weights, options, how, needs_gradient=True)
            for how in (per_sample, per_sample_column, joint, one_sample)
            for options in ({}, {"target_norm": 0.0})
        ),
        Case("with_gradient_penalty", data_and_weights, {}, value_plus_penalty, needs_gradient=True),
        Case("interpolated_gradient_penalty", two_data_and_weights, {}, interpolated, needs_gradient=True),
        Case(
            "interpolated_gradient_penalty", two_data_and_weights, {"seed": EPSILON}, interpolated, needs_gradient=True
        ),
        *(Case("output_magnitude", values(2, 3), {"reduction": r}, size=distance) for r in ("mean", "sum")),
        Case("output_magnitude", values(2, 3), {"target": 0.0}),
    ]


def _declared(written: set[str]) -> list[Case]:
    """One case of every other penalty, by the example that it declares."""
    others = {name: facts_of(getattr(pn, name)) for name in functional.__all__ if name not in written}
    return [declared(name, facts) for name, facts in others.items() if facts is not None]


def declared(name: str, facts: Facts) -> Case:
    """The example of a penalty; labels, which have no gradient, are among the options."""
    example = dict(zip(inspect.signature(facts.function).parameters, facts.example(), strict=False))
    labels = {label: example.pop(label) for label in facts.labels}
    functions = {key: part for key, part in example.items() if callable(part)}
    arrays = {key: part for key, part in example.items() if key not in functions}

    def by_name(*given: Any, **options: Any) -> Any:
        return getattr(pn, name)(**functions, **dict(zip(arrays, given, strict=True)), **options)

    return Case(name, lambda rng: list(arrays.values()), labels, by_name, needs_gradient=facts.needs_gradient)


def sampled(cases: Sequence[Case]) -> list[Any]:
    """The cases as parameters: the first with each option of a penalty here, the others among the slow tests."""
    seen: dict[str, set[str]] = {}
    parameters = []
    for case in cases:
        options = set(case.options) - {"reduction"}
        known = case.label in seen and options <= seen[case.label]
        parameters.append(_parameter(case, slow=known))
        seen.setdefault(case.label, set()).update(options)
    return parameters


def one_of_each(cases: Sequence[Case]) -> list[Any]:
    """The same for tests that compile every case: the first of a penalty here, the others among the slow tests."""
    first = {case.name: case for case in reversed(cases)}
    return [_parameter(case, slow=case is not first[case.name]) for case in cases]


def _parameter(case: Case, *, slow: bool) -> Any:
    return pytest.param(case, id=case.id, marks=[pytest.mark.slow] if slow else [])


WRITTEN = [*_norms(), *_divergences(), *_estimators(), *_structure(), *_smoothness()]
CASES = [*WRITTEN, *_declared({case.name for case in WRITTEN})]
