"""One evaluation of a pipeline with faults in it, and everything that has to be right after it."""

import contextlib
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import penalties as pn
from tests.libraries import JAX, NUMPY, TORCH

from .faults import EVERYWHERE, HEALTHY, Fault, Surrounding, awaited, squares

__all__ = ["LARGE", "LIBRARIES", "SMALL", "TIMEOUT", "Part", "Trial", "attempt", "probe", "term"]

TIMEOUT = 10.0
"""Seconds that a term may take which has no timeout of its own."""

LIBRARIES = {library.name: library for library in (NUMPY, TORCH, JAX)}
SMALL, LARGE = 6, 20_000
"""Elements; the large ones are 160 kB, which go to processes through shared memory."""


@dataclass(frozen=True)
class Part:
    """One term of a trial."""

    fn: Any
    """A function of `HEALTHY`, or a `Fault`."""
    where: str
    on_error: str = "raise"
    weight: float = 1.0
    idempotent: bool = False


@dataclass(frozen=True)
class Trial:
    """A pipeline to be, and how it is called."""

    parts: tuple[Part, ...]
    library: str = "torch"
    gradient: str = "none"
    """`none`, `wrt`, or `backward` from the total (PyTorch's)."""
    size: int = SMALL
    seed: int = 0
    surrounding: Surrounding | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of its terms, the same in every trial: a term keeps what it has under its name."""
        return tuple(f"term {index}" for index in range(len(self.parts)))

    @property
    def faults(self) -> list[tuple[str, str]]:
        """What is wrong, and where."""
        found = [(part.fn.name, part.where) for part in self.parts if isinstance(part.fn, Fault)]
        return found if self.surrounding is None else [*found, (self.surrounding.name, "system")]

    @property
    def timeout(self) -> float:
        """The longest that one of its terms may take."""
        return max(_timeout(part) or TIMEOUT for part in self.parts)

    def __str__(self) -> str:
        said = ", ".join(f"{_function(part).__name__} ({part.where}, {part.on_error})" for part in self.parts)
        while_ = "" if self.surrounding is None else f" while {self.surrounding.name}"
        return f"[{said}]{while_}, {self.library}, {self.gradient}, {self.size}, seed {self.seed}"

    def pipeline(self) -> pn.Pipeline:
        """The pipeline."""
        terms: list[pn.Term] = []
        for name, part in zip(self.names, self.parts, strict=True):
            fn = _function(part)
            runs = part.where
            if part.where == "async":
                fn, runs = awaited(fn), "inline" if len(terms) % 2 else "async"
            about: Any = {"runs": runs, "on_error": part.on_error, "timeout": _timeout(part)}
            about["idempotent"] = part.idempotent
            terms.append(pn.Term(fn, part.weight, name=name, inputs="x", **about))
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
    pipeline = trial.pipeline()
    with contextlib.nullcontext() if trial.surrounding is None else trial.surrounding.happen():
        try:
            out = executor.run(pipeline, {"x": x}, wrt=wrt, step=3)
        except (pn.TermError, pn.NonFiniteError) as error:
            raised, out = error, error.output

    assert np.array_equal(library.numpy(x), plain), "the caller's own input has changed"
    assert out is not None, f"no output came with {raised!r}"
    assert list(out.terms) == list(trial.names)
    total, slope, first = 0.0, np.zeros(trial.size), None
    for name, part in zip(trial.names, trial.parts, strict=True):
        found = out[name]
        if _is_to_fail(trial, part, found):
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


def _is_to_fail(trial: Trial, part: Part, found: pn.TermOutput) -> bool:
    """Whether the term has failed as it was to, or as it may."""
    if isinstance(part.fn, Fault) and part.fn.outcome is not None:
        _check_failed(found, part.fn)
        return True
    may_fail = () if trial.surrounding is None else trial.surrounding.may_fail
    return part.where in may_fail and isinstance(found.error, pn.TermError)


def term(fn: Callable[..., Any], where: str, **more: Any) -> pn.Term:
    """A term that runs there, by whatever it takes."""
    return (
        pn.Term(awaited(fn), name=f"{fn.__name__}_async", **more)
        if where == "async"
        else pn.Term(fn, name=f"{fn.__name__}_{where}", runs=where, **more)
    )


def probe(executor: pn.Executor, seed: int = 0, ways: Sequence[str] = EVERYWHERE, *, idempotent: bool = False) -> None:
    """Right after anything, a call gives the right number wherever its terms run."""
    parts = tuple(Part(squares, where, weight=0.5, idempotent=idempotent) for where in ways)
    attempt(executor, Trial(parts, "torch", "backward", random.Random(seed).choice((SMALL, LARGE)), seed))


def _function(part: Part) -> Any:
    return part.fn.fn if isinstance(part.fn, Fault) else part.fn


def _timeout(part: Part) -> float | None:
    return part.fn.timeout if isinstance(part.fn, Fault) else None


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
