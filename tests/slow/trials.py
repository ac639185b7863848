"""One evaluation of a pipeline with faults in it, and everything that has to be right after it."""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import penalties as pn
from tests.libraries import JAX, NUMPY, TORCH

from .faults import HEALTHY, Fault, awaited, squares

__all__ = ["LIBRARIES", "Part", "Trial", "attempt", "attempt_all", "probe", "tally", "term"]

LIBRARIES = {library.name: library for library in (NUMPY, TORCH, JAX)}
SMALL, LARGE = 6, 20_000
"""Elements; the large ones are 160 kB, which go to processes through shared memory."""

tally: Counter[str] = Counter()
"""Terms that were evaluated: all, and those that misbehaved."""


@dataclass(frozen=True)
class Part:
    """One term of a trial."""

    fn: Any
    """A function of `HEALTHY`, or a `Fault`."""
    where: str
    on_error: str = "raise"
    weight: float = 1.0


@dataclass(frozen=True)
class Trial:
    """A pipeline to be, and how it is called."""

    parts: tuple[Part, ...]
    library: str = "torch"
    gradient: str = "none"
    """`none`, `wrt`, or `backward` from the total (PyTorch's)."""
    size: int = SMALL
    seed: int = 0
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        names = tuple(f"{_function(part).__name__}_{where}" for where, part in enumerate(self.parts))
        object.__setattr__(self, "names", names)

    def __str__(self) -> str:
        said = ", ".join(
            f"{name} ({part.where}, {part.on_error})" for name, part in zip(self.names, self.parts, strict=True)
        )
        return f"[{said}] {self.library} {self.gradient} {self.size} seed {self.seed}"

    def pipeline(self) -> pn.Pipeline:
        """The pipeline."""
        terms: list[pn.Term] = []
        for name, part in zip(self.names, self.parts, strict=True):
            fn = _function(part)
            timeout = part.fn.timeout if isinstance(part.fn, Fault) else None
            runs = part.where
            if part.where == "async":
                fn, runs = awaited(fn), "inline" if len(name) % 2 else "async"
            terms.append(
                pn.Term(fn, part.weight, name=name, inputs="x", runs=runs, on_error=part.on_error, timeout=timeout)
            )
        return pn.Pipeline(terms)


def attempt(executor: pn.Executor, trial: Trial) -> None:
    """Run it, and check all that can be: totals and gradients of who is well, names and kinds of who is not."""
    plain = np.random.default_rng(trial.seed).standard_normal(trial.size)
    library = LIBRARIES[trial.library]
    x = library.array(plain)
    if trial.gradient == "backward":
        x.requires_grad_()
    wrt = "x" if trial.gradient == "wrt" else None
    raised: Any = None
    try:
        out = executor.run(trial.pipeline(), {"x": x}, wrt=wrt, step=3)
    except (pn.TermError, pn.NonFiniteError) as error:
        raised, out = error, error.output
    tally["evaluated"] += len(trial.parts)

    assert np.array_equal(library.numpy(x), plain), "the caller's own input has changed"
    assert out is not None, f"no output came with {raised!r}"
    assert list(out.terms) == list(trial.names)
    total, slope, first = 0.0, np.zeros(trial.size), None
    for name, part in zip(trial.names, trial.parts, strict=True):
        outcome = part.fn.outcome if isinstance(part.fn, Fault) else None
        tally["misbehaved"] += isinstance(part.fn, Fault)
        found = out[name]
        if outcome is not None:
            _check_failed(found, part.fn)
            if first is None and part.on_error == "raise":
                first = name
            continue
        assert found.error is None, f"{name} is well, and has {found.error!r}"
        summands, gradient = HEALTHY[_well(part)](plain)
        _close(float(library.numpy(found.value)), math.fsum(summands))
        total += part.weight * math.fsum(summands)
        slope += part.weight * gradient
        if isinstance(part.fn, Fault) and part.fn.state:
            state = out.state[name]
            assert len(state["bytes"]) == 10_000_000
            assert (state["array"] == 0.5).all()
    _close(float(library.numpy(out.total)), total)
    _check_raised(raised, first)
    _check_gradient(trial, out, x, slope, raised)


def attempt_all(executor: pn.Executor, trials: Iterable[Trial]) -> None:
    """Each of them, with a probe after it; what went wrong is said of all together."""
    wrong: list[str] = []
    check: Any
    for trial in trials:
        for check, given in ((attempt, trial), (probe, trial.seed)):
            try:
                check(executor, given)
            except Exception as error:
                wrong.append(f"{trial}: {type(error).__name__}: {error}"[:1000])
    assert not wrong, "\n".join([f"{len(wrong)} went wrong:", *wrong[:20]])


def term(fn: Callable[..., Any], where: str, **more: Any) -> pn.Term:
    """A term that runs there, by whatever it takes."""
    return (
        pn.Term(awaited(fn), name=f"{fn.__name__}_async", **more)
        if where == "async"
        else pn.Term(fn, name=f"{fn.__name__}_{where}", runs=where, **more)
    )


def probe(executor: pn.Executor, seed: int = 0) -> None:
    """Right after anything, a call gives the right number wherever its terms run."""
    parts = tuple(Part(squares, where, weight=0.5) for where in ("inline", "thread", "process", "async"))
    attempt(executor, Trial(parts, "torch", "backward", random.Random(seed).choice((SMALL, LARGE)), seed))


def _function(part: Part) -> Any:
    return part.fn.fn if isinstance(part.fn, Fault) else part.fn


def _well(part: Part) -> Any:
    return squares if isinstance(part.fn, Fault) else part.fn


def _check_failed(found: pn.TermOutput, fault: Fault) -> None:
    assert found.value is None, f"{found.name} was to fail with {fault.outcome}, and has the value {found.value}"
    error: Any = found.error
    assert type(error) is fault.outcome, f"{found.name}: {error!r}"
    assert error.term == found.name, f"{found.name}: the error names {error.term}"
    assert str(error).startswith(found.name)
    assert fault.says in str(error), f"{found.name}: {error}"


def _check_raised(raised: Any, first: str | None) -> None:
    assert (raised is None) == (first is None), f"raised {raised!r}, and {first} is the first that is to"
    if first is not None:
        assert raised.term == first


def _check_gradient(trial: Trial, out: Any, x: Any, slope: Any, raised: Any) -> None:
    library = LIBRARIES[trial.library]
    if trial.gradient == "wrt":
        # One that is not finite is in the sum of the gradients when that is found out: then there is none.
        spoiled = any(
            part.on_error == "raise" and part.fn.outcome is pn.NonFiniteError
            for part in trial.parts
            if isinstance(part.fn, Fault)
        )
        if not spoiled:
            _close(library.numpy(out.gradient["x"]), slope)
    elif trial.gradient == "backward":
        out.total.backward()
        _close(library.numpy(x.grad), slope)


def _close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
