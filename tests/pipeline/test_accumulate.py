"""`accumulate=True` adds the gradient to `.grad`, as a backward would."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import penalties as pn
from penalties.errors import GradientError, OptionError

TERMS = pn.Pipeline([pn.Term(pn.l1, weight=0.1), pn.Term(lambda x: (x * x * x).sum(), name="cubes", weight=0.5)])


def parameter() -> torch.Tensor:
    return torch.tensor([1.0, -2.0, 3.0], requires_grad=True)


@pytest.mark.parametrize("before", [None, torch.tensor([1.0, 2.0, 3.0])])
def test_as_a_backward_would(before: torch.Tensor | None) -> None:
    x, y = parameter(), parameter()
    for leaf in (x, y):
        leaf.grad = None if before is None else before.clone()
    out = TERMS.value_and_grad(x, accumulate=True)
    total = TERMS(y).total
    total.backward()
    torch.testing.assert_close(x.grad, y.grad)
    torch.testing.assert_close(out.total, total.detach())
    assert out.gradient is None
    assert out["l1"].grad_norm is not None
    torch.testing.assert_close(out.total_grad_norm, TERMS.value_and_grad(parameter()).total_grad_norm)


def test_twice_adds_twice() -> None:
    x = parameter()
    TERMS.value_and_grad(x, accumulate=True)
    assert x.grad is not None
    once = x.grad.clone()
    TERMS.value_and_grad(x, accumulate=True)
    torch.testing.assert_close(x.grad, 2 * once)


def test_the_parameters_of_a_model() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    pipeline = pn.Pipeline([pn.Term(pn.l2, weight=0.5, inputs="parameters")])
    pipeline.value_and_grad(parameters=model.parameters(), accumulate=True)
    for one in model.parameters():
        torch.testing.assert_close(one.grad, one.detach())


def test_total_cannot_be_differentiated_again() -> None:
    out = TERMS.value_and_grad(parameter(), accumulate=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        out.total.backward()


@pytest.mark.parametrize("x", [parameter() * 2, torch.ones(3)], ids=["computed", "plain"])
def test_only_leaves_have_a_grad(x: torch.Tensor) -> None:
    with pytest.raises(GradientError, match="requires_grad_"):
        TERMS.value_and_grad(x, wrt="input", accumulate=True)


@pytest.mark.parametrize("x", [np.ones(3), jnp.ones(3)], ids=["NumPy", "JAX"])
def test_other_libraries(x: object) -> None:
    with pytest.raises(OptionError, match=r"out\.gradient"):
        pn.Pipeline(["l1"]).value_and_grad(x, wrt="input", accumulate=True)


def test_what_terms_take_from_elsewhere() -> None:
    outside = parameter()
    pipeline = pn.Pipeline([pn.Term(lambda x: (x * outside).sum(), name="own")])
    with pytest.raises(GradientError, match="other tensors"):
        pipeline.value_and_grad(parameter(), accumulate=True)
    weight = torch.tensor(0.5, requires_grad=True)
    with pytest.raises(GradientError, match="a weight"):
        TERMS.value_and_grad(parameter(), weights={"l1": weight}, accumulate=True)
    assert outside.grad is None


def test_half_precision() -> None:
    model = torch.nn.Linear(3, 2).bfloat16()
    pipeline = pn.Pipeline([pn.Term(pn.l2, weight=0.5, inputs="parameters")])
    out = pipeline.value_and_grad(parameters=model.parameters(), accumulate=True)
    assert not out.total.requires_grad
    for one in model.parameters():
        torch.testing.assert_close(one.grad, one.detach())


def test_a_sparse_grad() -> None:
    x = torch.ones(3, 2, requires_grad=True)
    x.grad = torch.sparse_coo_tensor([[1]], [[2.0, 2.0]], (3, 2), check_invariants=True)
    pn.Pipeline(["l1"]).value_and_grad(x, accumulate=True)
    assert x.grad.to_dense().tolist() == [[1.0, 1.0], [3.0, 3.0], [1.0, 1.0]]


@pytest.mark.parametrize("option", ["cosines", "keep"])
def test_gradients_of_each_term_are_not_kept(option: str) -> None:
    with pytest.raises(OptionError, match="cosines=True or keep=True"):
        TERMS.value_and_grad(parameter(), accumulate=True, **{option: True})


@pytest.mark.parametrize("before", [None, 3.0])
def test_a_tensor_that_is_large_enough_for_a_kernel(before: float | None) -> None:
    x = torch.randn(400_000, generator=torch.Generator().manual_seed(0)).requires_grad_()
    pipeline = pn.Pipeline(["l1", "l2"])
    expected = pipeline.value_and_grad(x)
    x.grad = None if before is None else torch.full_like(x, before)
    out = pipeline.value_and_grad(x, accumulate=True)
    torch.testing.assert_close(x.grad, expected.gradient + (before or 0.0))
    torch.testing.assert_close(out.total_grad_norm, expected.total_grad_norm)


def test_the_norm_of_nothing_beside_what_was_there() -> None:
    x = torch.zeros(400_000, requires_grad=True)
    x.grad = torch.ones_like(x)
    out = pn.Pipeline(["l1", "l2"]).value_and_grad(x, accumulate=True)
    assert out.total_grad_norm.item() == 0.0
    assert x.grad.unique().tolist() == [1.0]
