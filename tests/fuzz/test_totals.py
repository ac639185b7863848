"""Random pipelines against sums that are written out: totals, values, norms, gradients, cosines, state."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import penalties as pn
from tests.fuzz import drawing
from tests.fuzz.cases import try_cases
from tests.fuzz.terms import SHAPES, WHOLES, Drawn, draw_leaves, draw_term, inputs_of, leaves_in
from tests.libraries import JAX, LIBRARIES, TORCH


@dataclass
class Expected:
    """What one term is worth in one call."""

    value: float
    weight: float
    gradient: dict[str, np.ndarray]
    """At each leaf, where it reads that."""


def expect(drawn: Drawn, leaves: Mapping[str, np.ndarray], weight: float) -> Expected | None:
    """The value and the gradient of a term, from its function alone; it counts as a call."""
    if drawn.value is None:
        return None
    tensors = {path: torch.tensor(leaf, requires_grad=True) for path, leaf in leaves.items()}
    value: Any = drawn.value(tensors, drawn.calls)
    drawn.calls += 1
    if drawn.smooth is not None:
        kind, decay = drawn.smooth
        current, before = float(value.detach()), drawn.before
        if kind == "ema":
            value = value if before is None else decay * before + (1 - decay) * value
            drawn.before = float(value.detach())
        else:
            scale = abs(current) if before is None else decay * before + (1 - decay) * abs(current)
            value = value / (scale or 1.0)
            drawn.before = scale
    gradient: dict[str, np.ndarray] = {}
    if drawn.term.differentiable:
        paths = [path for name in drawn.reads for path in leaves_in(name)]
        found = torch.autograd.grad(value, [tensors[path] for path in paths], allow_unused=True, materialize_grads=True)
        gradient = {path: one.numpy() for path, one in zip(paths, found, strict=True)}
    return Expected(float(value.detach()), weight, gradient)


def weight_of(drawn: Drawn, overrides: Mapping[str, float], step: int) -> float:
    weight = overrides.get(drawn.term.name, drawn.term.weight)
    return float(weight(step)) if callable(weight) else float(weight)


class Close:
    """How close numbers have to be, of which `mixed` were computed in half precision here and there."""

    mixed: ClassVar[bool] = False


def close(found: Any, right: Any, what: str) -> None:
    # Half precision has two digits, and some are lost in sums.
    size = np.nanmax(np.abs(right), initial=0.0)
    digits = {"rtol": 0.05, "atol": 0.05 * max(size, 1.0)} if Close.mixed else {"rtol": 1e-9, "atol": 1e-9}
    np.testing.assert_allclose(found, right, **digits, err_msg=what)


def draw_wrt(rng: np.random.Generator, terms: Sequence[Drawn]) -> list[str]:
    """Whole inputs, or parts of the nest where no term reads all of it; at least one that a term reads."""
    read_names = {name for drawn in terms for name in drawn.reads}
    chosen = [name for name in WHOLES if rng.integers(2)]
    if "nest" in chosen and "nest" not in read_names and rng.integers(2):
        chosen.remove("nest")
        chosen += [path for path in leaves_in("nest") if rng.integers(2)]
    return chosen or ["x"]


@pytest.fixture(scope="module")
def executor() -> Iterator[pn.Executor]:
    with pn.Executor(max_workers=2) as executor:
        yield executor


BACKENDS = [pytest.param(one, marks=pytest.mark.slow if one is JAX else (), id=one.name) for one in LIBRARIES]


@pytest.mark.parametrize("backend", BACKENDS)
def test_against_sums_written_out(backend: Any, executor: pn.Executor) -> None:
    try_cases(10 if backend is JAX else 40, lambda rng: check(backend, executor, rng))


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_positional_input(backend: Any) -> None:
    def check_alone(rng: np.random.Generator) -> None:
        x = rng.normal(size=(4, 3))
        names = ["l1", "l2", "elastic_net", "smooth_l1", "output_magnitude"]
        weights = {str(name): float(rng.random()) for name in rng.choice(names, 3, replace=False)}
        pipeline = pn.Pipeline([pn.Term(name, weight) for name, weight in weights.items()])
        tensor = torch.tensor(x, requires_grad=True)
        values = {name: getattr(pn, name)(tensor) for name in weights}
        total: Any = sum(weights[name] * value for name, value in values.items())
        (gradient,) = torch.autograd.grad(total, tensor)
        array = backend.array(x, "float64")
        out = pipeline.value_and_grad(array, wrt="input") if backend.differentiates else pipeline(array)
        close(backend.numpy(out.total), total.item(), "total")
        if backend.differentiates:
            close(backend.numpy(out.gradient), gradient.numpy(), "gradient")

    Close.mixed = False
    try_cases(3 if backend is JAX else 10, check_alone)


@pytest.mark.slow
@pytest.mark.skipif(JAX not in LIBRARIES, reason="JAX was not chosen")
def test_a_traced_step_counts_as_a_plain_one() -> None:
    import jax

    def check_traced(rng: np.random.Generator) -> None:
        drawn = [draw_term(rng, f"t{index}", JAX, False) for index in range(rng.integers(1, 4))]
        pipeline = pn.Pipeline([one.term for one in drawn if one.value is not None])
        wrt = draw_wrt(rng, drawn)
        inputs = inputs_of({path: JAX.array(leaf, "float64") for path, leaf in draw_leaves(rng).items()})

        def run(step: Any, inputs: Any) -> tuple[Any, Any, Any]:
            out = pipeline.value_and_grad(**inputs, step=step, wrt=wrt)
            return out.total, out.gradient, out.total_grad_norm

        traced = jax.jit(run)
        for step in (0, 1, 2, 3):
            for found, right in zip(
                jax.tree.leaves(traced(step, inputs)), jax.tree.leaves(run(step, inputs)), strict=True
            ):
                close(found, right, f"at step {step} of {pipeline}")

    Close.mixed = False
    try_cases(4, check_traced)


def check(library: Any, executor: pn.Executor, rng: np.random.Generator) -> None:
    elsewhere = bool(rng.integers(2))
    Close.mixed = library is TORCH and bool(rng.integers(4) == 0)
    drawn = [draw_term(rng, f"t{index}", library, elsewhere) for index in range(rng.integers(1, 6))]
    base = draw_term(rng, "b", library, elsewhere) if rng.integers(3) == 0 else None
    if base is not None:
        base.term = base.term.replace(weight=1.0, every=1, enabled=True)
    pipeline = pn.Pipeline([one.term for one in drawn], base=None if base is None else base.term)
    everyone = drawn if base is None else [base, *drawn]
    wrt, state = draw_wrt(rng, everyone), None
    for step in sorted(rng.choice(8, 2, replace=False).tolist()):
        leaves, dtypes = draw_leaves(rng), draw_dtypes(rng)
        shared = leaves["nest.second.0"] is leaves["x"]
        if shared:
            dtypes["nest.second.0"] = dtypes["x"]
        leaves = {path: drawing.rounded(leaf, dtypes[path]) for path, leaf in leaves.items()}
        made = {path: library.array(leaf, dtypes[path]) for path, leaf in leaves.items()}
        if shared:
            made["nest.second.0"] = made["x"]
        trained = draw_trained(rng, made) if library is TORCH else []
        overrides = {one.term.name: float(rng.choice([0.0, 2.5])) for one in drawn if rng.integers(5) == 0}
        given = {name: library.array(w, "float64") if rng.integers(2) else w for name, w in overrides.items()}
        arguments: dict[str, Any] = {"weights": given, "step": step, "state": state}
        asked = dict(zip(("cosines", "keep"), (rng.integers(3, size=2) == 0).tolist(), strict=True))
        due = [one for one in everyone if one.term.enabled and step % one.term.every == 0]
        graded = bool(rng.integers(4))
        targets = chosen_leaves(wrt, trained)
        if graded and trained and not elsewhere and rng.integers(2):
            targets = chosen_leaves(read_by(due, trained), trained)
            arguments |= asked
            graded = bool(targets)
        elif graded:
            arguments |= {"wrt": wrt, **asked}
        if elsewhere:
            out = executor.run(pipeline, inputs_of(made), **arguments)
        else:
            run = pipeline.value_and_grad if graded else pipeline
            if not graded:
                arguments = {key: arguments[key] for key in ("weights", "step", "state")}
            out = run(**inputs_of(made), **arguments)
        right = {
            "base_loss" if one is base else one.term.name: expect(
                one, leaves, 1.0 if one is base else weight_of(one, overrides, step)
            )
            for one in due
        }
        compare(library, out, right)
        if graded:
            compare_gradients(library, out, right, targets, **asked)
        if trained:
            compare_backward(out, right, made, trained)
        state = out.state


def draw_dtypes(rng: np.random.Generator) -> dict[str, str]:
    """The dtype of each leaf."""
    return {path: str(rng.choice(list(drawing.DTYPES))) if Close.mixed else "float64" for path in SHAPES}


def draw_trained(rng: np.random.Generator, made: Mapping[str, Any]) -> list[str]:
    """Tensors that require a gradient."""
    for tensor in made.values():
        if rng.integers(3) == 0:
            tensor.requires_grad_()
    return [path for path, tensor in made.items() if tensor.requires_grad]


def read_by(terms: Sequence[Drawn], trained: Sequence[str]) -> list[str]:
    """The inputs that gradients are taken at without `wrt`: those that terms read and that require one."""
    names = list(dict.fromkeys(name for one in terms for name in one.reads))
    outer = [name for name in names if not any(name != other and name in leaves_in(other) for other in names)]
    return [name for name in outer if any(path in trained for path in leaves_in(name))]


def chosen_leaves(names: Sequence[str], trained: Sequence[str]) -> dict[str, list[str]]:
    """By input, the leaves that gradients are taken at: where some of them require one, only those."""
    parts = {name: leaves_in(name) for name in names}
    return {name: [path for path in paths if path in trained] or paths for name, paths in parts.items()}


def compare(library: Any, out: pn.LossOutput, right: Mapping[str, Expected | None]) -> None:
    """Values and weights, and what they add up to."""
    worth = {name: one for name, one in right.items() if one is not None}
    close(library.numpy(out.total), sum(one.weight * one.value for one in worth.values()), "total")
    assert set(out.names) == set(right)
    for name, one in right.items():
        if one is None:
            assert out[name].value is None, name
            assert isinstance(out[name].error, pn.TermError), name
        else:
            close(library.numpy(out[name].value), one.value, f"value of {name}")
            assert float(out[name].weight) == one.weight


def compare_gradients(
    library: Any,
    out: pn.LossOutput,
    right: Mapping[str, Expected | None],
    targets: Mapping[str, Sequence[str]],
    *,
    cosines: bool,
    keep: bool,
) -> None:
    """Gradients of each term and of the total, their norms and products."""
    paths = [path for leaves in targets.values() for path in leaves]
    rows: list[np.ndarray] = []
    sums = {path: np.zeros(SHAPES[path]) for path in paths}
    for name, one in right.items():
        gradient = {} if one is None else {path: part for path, part in one.gradient.items() if path in paths}
        rows.append(np.concatenate([gradient.get(path, np.zeros(SHAPES[path])).reshape(-1) for path in paths]))
        for path, part in gradient.items():
            sums[path] += one.weight * part  # type: ignore[union-attr]
        if not gradient:
            assert out[name].grad_norm is None, name
            continue
        close(library.numpy(out[name].grad_norm), np.sqrt((rows[-1] ** 2).sum()), f"norm of {name}")
        if keep:
            compare_parts(library, out[name].gradient, targets, gradient, f"gradient of {name}")
    assert set(out.gradient) == set(targets)
    compare_parts(library, out.gradient, targets, sums, "gradient")
    close(library.numpy(out.total_grad_norm), math.sqrt(sum((one**2).sum() for one in sums.values())), "norm")
    if cosines or keep:
        stacked = np.stack(rows) if rows else np.zeros((0, 0))
        gram = stacked @ stacked.T
        close(library.numpy(out.gram), gram, "gram")
    if cosines:
        lengths = np.sqrt(np.diagonal(gram))
        with np.errstate(invalid="ignore"):
            close(library.numpy(out.cosines), gram / np.outer(lengths, lengths), "cosines")


def compare_parts(
    library: Any,
    found: Mapping[str, Any],
    targets: Mapping[str, Sequence[str]],
    right: Mapping[str, np.ndarray],
    what: str,
) -> None:
    for name, chosen in targets.items():
        for path in leaves_in(name):
            part = found[name]
            if name == "nest":
                part = part["first.part"] if path == "nest.first.part" else part["second"][int(path[-1])]
            expected = right.get(path) if path in chosen else None
            if part is None:
                assert expected is None or not expected.any(), f"{what} at {path} is None"
            else:
                close(library.numpy(part), 0.0 if expected is None else expected, f"{what} at {path}")


def compare_backward(
    out: pn.LossOutput, right: Mapping[str, Expected | None], made: Mapping[str, Any], trained: Sequence[str]
) -> None:
    """The total is on the graph of whatever requires a gradient, target or not."""
    if out.total.requires_grad:
        out.total.backward()
    for tensor in {id(made[path]): made[path] for path in trained}.values():
        parts = [
            one.weight * one.gradient[path]
            for path in trained
            for one in right.values()
            if made[path] is tensor and one is not None and path in one.gradient
        ]
        found = 0.0 if tensor.grad is None else tensor.grad.double().numpy()
        close(found, sum(parts) if parts else 0.0, "backward")
