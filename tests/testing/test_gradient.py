"""check_term: the gradient against finite differences."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import penalties as pn
from penalties.testing import check_term
from tests.testing.cases import (
    X,
    Y,
    failure,
    hinge,
    lambda_named,
    needs_torch,
    own_gradient,
    squares,
    status,
    wrong_gradient,
)


def test_a_wrong_gradient_fails_with_the_element_and_both_numbers(library: Any) -> None:
    x = np.array([1.0, -2.0, 0.5])
    said = failure("gradient", wrong_gradient, library.array(x, "float64"))
    assert said.startswith("x[1]: gradient -6, finite difference -4; wrong in 4 of 4 directions: 3 elements of x and")
    assert status("gradient", own_gradient, library.array(x))[0] == "passed"


def test_numpy_without_an_own_gradient_is_skipped() -> None:
    found, said = status("gradient", squares, X)
    assert found == "skipped"
    assert said.startswith("NumPy has no autograd")
    assert status("edge zeros", squares, X, edges=["zeros"]) == ("passed", "value 0")


def test_a_constant_and_an_empty_wrt_are_skipped(autodiff: Any) -> None:
    constant = lambda_named(lambda x: float((x**2).sum()), differentiable=False)
    assert status("gradient", constant, autodiff.array(X), edges=["zeros"])[1].startswith("differentiable=False")
    assert status("gradient", squares, autodiff.array(X), wrt=()) == ("skipped", "wrt is empty")


def test_no_path_to_the_input_fails(autodiff: Any) -> None:
    stop = {"torch": lambda x: x.detach(), "jax": jax.lax.stop_gradient}[autodiff.name]
    said = failure("gradient", lambda_named(lambda x: (stop(x) ** 2).sum()), autodiff.array(X))
    assert said.startswith("there is none: its value does not depend on x by operations that")


def test_no_floats_at_all_fails(autodiff: Any) -> None:
    tokens = lambda_named(lambda tokens: (1.0 * tokens).sum())
    said = failure("gradient", tokens, autodiff.array([1, 2], "int32"), edges=["zeros"])
    assert said.startswith("no input holds floats; set differentiable=False")


@needs_torch
def test_a_detached_input_fails_until_it_is_left_out_of_wrt() -> None:
    term = lambda_named(lambda student, teacher: ((student - teacher.detach()) ** 2).sum())
    inputs = {"student": torch.tensor(X), "teacher": torch.tensor(Y)}
    said = failure("gradient", term, inputs)
    assert "no gradient, finite difference" in said
    assert 'leave "teacher" out of wrt' in said
    assert status("gradient", term, inputs, wrt="student", edges=["zeros"])[0] == "passed"
    inputs["student"].requires_grad_()
    assert "elements of student and" in status("gradient", term, inputs)[1]
    both = {"student": torch.tensor(X), "teacher": torch.tensor(Y)}
    assert check_term(term, both, edges=["zeros"], compile=False, raises=False).failed == ("gradient",)


def test_a_kink_is_named_and_can_be_accepted(autodiff: Any) -> None:
    x = autodiff.array([1.0, 0.0, -1.0])
    said = failure("gradient", hinge, x)
    assert said.startswith("x[1]: gradient 0, finite difference 0.5 (a kink: slope 0 on the left and 1 on the right)")
    assert "; 2 at kinks, " in status("gradient", hinge, x, kinks=True)[1]
    outside = lambda_named(lambda x: pn.Evaluation(hinge(x), gradient={"x": 0 * x + 5.0}))
    assert "; wrong in 4 of 4 directions" in failure("gradient", outside, x, kinks=True)


def test_a_smaller_step_stays_on_one_side(autodiff: Any) -> None:
    x = autodiff.array([3e-6, 1.0])
    assert "(a kink: slope" in failure("gradient", "l1", x)
    assert status("gradient", "l1", x, step=1e-7)[0] == "passed"


def test_the_tolerance_can_be_widened() -> None:
    sloppy = lambda_named(lambda x: pn.Evaluation((x**2).sum(), gradient={"x": 2.002 * x}))
    assert failure("gradient", sloppy, X)
    assert status("gradient", sloppy, X, tolerance=1e-2)[0] == "passed"


def test_the_random_direction_sees_what_the_sample_misses() -> None:
    def nearly(x):
        slope = 2 * x
        slope[-1] = 0.0
        return pn.Evaluation((x**2).sum(), gradient={"x": slope})

    said = failure("gradient", nearly, np.linspace(0.5, 1.0, 400))
    assert said.startswith("a random direction: gradient")
    assert "wrong in 1 of 31 directions: 30 elements of x and a random direction, float64" in said


def test_a_step_that_leaves_the_domain_fails(autodiff: Any) -> None:
    root = {"torch": torch.sqrt, "jax": jnp.sqrt}[autodiff.name]
    said = failure("gradient", lambda_named(lambda x: root(x).sum()), autodiff.array([1e-7]))
    assert "finite difference nan" in said


@needs_torch
def test_a_term_that_computes_in_float32_gets_a_longer_step() -> None:
    single = lambda_named(lambda x: (x.float() ** 2).sum())
    assert status("gradient", single, torch.tensor(X)) == (
        "passed",
        "12 elements of x and a random direction, float32",
    )
    matrix = torch.tensor(Y.T, dtype=torch.float32)
    captures = lambda_named(lambda x: ((x @ matrix) ** 2).sum())
    said = status("gradient", captures, torch.tensor(X, dtype=torch.float32))[1]
    assert "random direction, float32; in float64 it fails: term: raised RuntimeError" in said


@needs_torch
def test_a_backward_that_raises_fails() -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sum()

        @staticmethod
        def backward(ctx, upstream):
            raise ZeroDivisionError("by nothing")

    said = failure("gradient", lambda_named(lambda x: Broken.apply(x)), torch.tensor(X))
    assert said == "term: its gradient raised ZeroDivisionError: by nothing"


def test_infinite_and_missing_elements_are_skipped(autodiff: Any) -> None:
    p = np.log(np.array([[0.5, 0.5, 1.0], [0.2, 0.8, 1.0]]))
    p[:, 2] = -np.inf
    inputs = {"p": autodiff.array(p), "q": autodiff.array(np.log(np.full((2, 3), 1 / 3)))}
    assert status("gradient", "kl_divergence", inputs)[1].startswith("10 elements of p, q")
    assert status("gradient", "l1", autodiff.array(np.zeros((0, 3))))[1].startswith("0 elements")
    assert status("gradient", "l1", autodiff.array(2.0))[1].startswith("1 element of x and")
    said = failure("gradient", wrong_gradient, autodiff.array(2.0))
    assert said.startswith("x: gradient 6, finite difference 4")
