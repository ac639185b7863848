"""Random terms of every kind over a few inputs, each with the plain function that it stands for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import penalties as pn
from tests.libraries import NUMPY

SHAPES = {
    "x": (4, 3),
    "y": (4, 3),
    "p": (4, 3),
    "q": (4, 3),
    "rows": (4,),
    "tokens": (5,),
    "reference": (5,),
    "nest.first.part": (4, 3),
    "nest.second.0": (4, 3),
    "nest.second.1": (2,),
}
"""The leaves of the inputs, by path."""
MATRICES = ["x", "y", "p", "nest.first.part", "nest.second.0"]
WHOLES = ["x", "y", "p", "q", "rows", "tokens", "reference", "nest"]


def inputs_of(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a call around these leaves."""
    plain = {path: leaf for path, leaf in leaves.items() if "." not in path}
    second = [leaves["nest.second.0"], leaves["nest.second.1"]]
    return {**plain, "nest": {"first.part": leaves["nest.first.part"], "second": second}}


def leaves_in(name: str) -> list[str]:
    return [path for path in SHAPES if path == name or path.startswith(f"{name}.")]


def draw_leaves(rng: np.random.Generator) -> dict[str, np.ndarray]:
    leaves = {path: rng.normal(size=shape) for path, shape in SHAPES.items()}
    for path in ("p", "q"):
        leaves[path] = pn.renormalize(leaves[path])
    leaves["rows"] = rng.integers(0, 3, 4).astype(float)
    if rng.integers(3) == 0:
        leaves["nest.second.0"] = leaves["x"]
    return leaves


# Terms of users.


def squares(x: Any) -> Any:
    """Brings its gradient, which NumPy needs."""
    return pn.Evaluation((x * x).sum(), gradient={"x": 2 * x})


def product(x: Any, y: Any) -> Any:
    return (x * y).sum(), {"size": 12, "largest": x.max()}


def constant(x: Any) -> float:
    return float(x.shape[0])


def counted(x: Any, *, state: Any = None) -> pn.Evaluation:
    """Worth more at each call."""
    calls = 1.0 if state is None else state["calls"] + 1.0
    return pn.Evaluation(calls * (x * x).sum(), state={"calls": calls})


def raising(x: Any) -> Any:
    raise ArithmeticError("on purpose")


@dataclass
class Drawn:
    """A term, and what it is worth as a plain function of tensors at its call number `calls`."""

    term: pn.Term
    reads: list[str]
    value: Callable[[Mapping[str, Any], int], Any] | None
    """None for a term that fails."""
    smooth: tuple[str, float] | None = None
    calls: int = 0
    before: float | None = None


def read(leaves: Mapping[str, Any], path: str) -> Any:
    return inputs_of(leaves)["nest"] if path == "nest" else leaves[path]


def draw_term(rng: np.random.Generator, name: str, library: Any, elsewhere: bool) -> Drawn:
    """A term of any kind; `elsewhere` lets it run in a thread."""
    kinds = [norm, norm, divergence, estimate, own, brings, state, fails, fixed]
    if library is NUMPY:
        kinds = [brings, brings, fails, fixed]
    fn, reads, options, value, more = kinds[rng.integers(len(kinds))](rng)
    parameters = more.pop("parameters", None)
    weight: Any = float(rng.choice([0.0, 1.0, 0.3, 1e-3, 20.0]))
    if rng.integers(4) == 0:
        weight = pn.schedules.linear(weight, 1.0, 5)
    term = pn.Term(
        fn,
        weight,
        name,
        reads if parameters is None else dict(zip(parameters, reads, strict=True)),
        options,
        enabled=bool(rng.integers(6)),
        every=int(rng.choice([1, 1, 1, 2, 3])),
        runs="thread" if elsewhere and rng.integers(2) else "inline",
        **more,
    )
    drawn = Drawn(term, reads, value)
    if rng.integers(5) == 0 and value is not None and fn is not constant:
        wrap, decay = rng.choice(["ema", "normalized"]), float(rng.choice([0.0, 0.5, 0.9]))
        drawn.term = (pn.EMA if wrap == "ema" else pn.Normalized)(term, decay)
        drawn.smooth = (str(wrap), decay)
    return drawn


Recipe = tuple[Any, list[str], dict[str, Any], Callable[[Mapping[str, Any], int], Any] | None, dict[str, Any]]


def pick(rng: np.random.Generator, paths: Sequence[str]) -> str:
    return str(rng.choice(list(paths)))


def chunk(rng: np.random.Generator) -> dict[str, Any]:
    return {"chunk": int(rng.integers(1, 6))} if rng.integers(3) == 0 else {}


def norm(rng: np.random.Generator) -> Recipe:
    fn = getattr(pn, rng.choice(["l1", "l2", "elastic_net", "smooth_l1"]))
    path = pick(rng, [*MATRICES, "nest", "nest.second.1"])
    options = {"reduction": pick(rng, ["sum", "mean"])}
    more = chunk(rng) if path != "nest" else {}
    return fn, [path], options, lambda leaves, _: fn(read(leaves, path), **options), more


def divergence(rng: np.random.Generator) -> Recipe:
    fn = getattr(pn, rng.choice(["kl_divergence", "js_divergence", "entropy", "consistency"]))
    paths = [pick(rng, ["p", "q"])] if fn is pn.entropy else ["p", "q"]
    parameters = ["a", "b"] if fn is pn.consistency else ["p", "q"][: len(paths)]
    options = {"reduction": pick(rng, ["sum", "mean"])}
    reads = list(paths)
    if rng.integers(2):
        parameters, reads = [*parameters, "mask"], [*paths, "rows"]

    def value(leaves: Mapping[str, Any], _: int) -> Any:
        return fn(**{key: leaves[path] for key, path in zip(parameters, reads, strict=True)}, **options)

    return fn, reads, options, value, {"parameters": parameters, **chunk(rng)}


def estimate(rng: np.random.Generator) -> Recipe:
    options = {"estimator": pick(rng, ["k1", "k2", "k3"]), "reduction": pick(rng, ["sum", "mean"])}
    reads = ["tokens", "reference"]
    return pn.kl_estimate, reads, options, lambda a, _: pn.kl_estimate(a["tokens"], a["reference"], **options), {}


def own(rng: np.random.Generator) -> Recipe:
    reads = [pick(rng, MATRICES), pick(rng, MATRICES)]
    return product, reads, {}, lambda a, _: (a[reads[0]] * a[reads[1]]).sum(), {"parameters": ["x", "y"]}


def brings(rng: np.random.Generator) -> Recipe:
    path = pick(rng, [*MATRICES, "nest.second.1", "tokens"])
    return squares, [path], {}, lambda a, _: (a[path] * a[path]).sum(), {}


def state(rng: np.random.Generator) -> Recipe:
    path = pick(rng, MATRICES)
    return counted, [path], {}, lambda a, calls: (calls + 1) * (a[path] * a[path]).sum(), {}


def fixed(rng: np.random.Generator) -> Recipe:
    path = pick(rng, MATRICES)
    return constant, [path], {}, lambda a, _: torch.tensor(4.0, dtype=torch.float64), {"differentiable": False}


def fails(rng: np.random.Generator) -> Recipe:
    return raising, [pick(rng, MATRICES)], {}, None, {"on_error": "skip"}
