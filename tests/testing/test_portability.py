"""check_term: pickling and compilation."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import penalties as pn
from tests.testing.cases import X, failure, lambda_named, needs_jax, needs_torch, squares, status


class Weighted:
    def __init__(self, power: float) -> None:
        self.power = power

    def __call__(self, x):
        return (x**self.power).sum()


class Equal(Weighted):
    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None


class Forgetful(Weighted):
    def __reduce__(self):
        return Forgetful, (1.0,)


class Broken(Weighted):
    def __reduce__(self):
        return Broken, ("nothing",)


class Stubborn(Weighted):
    def __reduce__(self):
        raise TypeError("cannot pickle a lock")


@pytest.mark.parametrize("runs", ["inline", "thread", "process", "ray"])
def test_a_lambda_is_pickled_by_value_if_it_runs_elsewhere(runs: Any) -> None:
    term = lambda_named(lambda x: (x**2).sum(), runs=runs)
    assert status("pickling", term, X)[0] == ("passed" if runs in ("process", "ray") else "note")


@pytest.mark.parametrize("runs", ["inline", "process"])
def test_an_unpicklable_term_fails_only_if_it_runs_elsewhere(runs: Any) -> None:
    term = pn.Term(Stubborn(2.0), runs=runs)
    if runs == "process":
        said = failure("pickling", term, X)
        assert said.startswith("it does not pickle; ")
        assert said.endswith("TypeError: cannot pickle a lock")
    else:
        assert status("pickling", term, X)[0] == "note"


def test_objects_are_judged_by_what_comes_back() -> None:
    x = np.array([2.0, 3.0])
    assert status("pickling", Weighted(2.0), x) == ("passed", "equal, with the same value")
    assert status("pickling", Equal(2.0), x)[0] == "note"
    assert failure("pickling", Forgetful(2.0), x) == "unpickled, its value is 5 instead of 13"
    assert failure("pickling", Broken(2.0), x).startswith("unpickled, it fails: Broken: raised")


def test_a_branch_on_values_cannot_be_traced(autodiff: Any) -> None:
    def branches(x):
        return (x**2).sum() if x.sum() > 0 else abs(x).sum()

    name = {"torch": "torch.compile", "jax": "jax.jit"}[autodiff.name]
    assert failure("compile", branches, autodiff.array(X), compile=True).startswith(f"{name} cannot trace it: ")
    assert status("compile", branches, autodiff.array(X)) == ("skipped", "compile=False")
    elsewhere = pn.Term(branches, runs="thread")
    assert status("compile", elsewhere, autodiff.array(X), compile=True)[0] == "skipped"


@needs_torch
@pytest.mark.slow
def test_another_value_or_gradient_when_compiled_fails() -> None:
    def factor() -> float:
        return 2.0 if torch.compiler.is_compiling() else 1.0

    x = torch.tensor([1.0, 2.0])
    value = lambda_named(lambda x: factor() * (x**2).sum())
    assert failure("compile", value, x, compile=True) == "torch.compile changes the value: 10 instead of 5"
    slope = lambda_named(lambda x: (x.detach() ** 2).sum() + factor() * (x - x.detach()).sum())
    said = "torch.compile changes the gradient at x: 2 instead of 1"
    assert failure("compile", slope, x, wrt="x", tolerance=1e3, compile=True) == said


@needs_jax
def test_a_constant_is_compiled_without_a_gradient() -> None:
    constant = lambda_named(lambda x: (x**2).sum(), differentiable=False)
    assert status("compile", constant, jnp.asarray(X), compile=True) == ("passed", "jax.jit: same value")


@needs_torch
def test_settings_for_training_do_not_matter_to_the_compiled_value() -> None:
    term = pn.Term(squares, weight=0.0, enabled=False, every=7, on_error="skip")
    assert status("compile", term, torch.tensor(X), compile=True)[0] == "passed"


@needs_torch
def test_a_long_message_is_truncated() -> None:
    def raises(x):
        if torch.compiler.is_compiling():
            raise RuntimeError("long " * 200)
        return (x**2).sum()

    said = failure("compile", raises, torch.tensor(X), compile=True)
    assert len(said) < 300
