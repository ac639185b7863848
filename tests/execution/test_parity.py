"""A term gives the same wherever it runs: value, gradient, metrics, state."""

import asyncio
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor

import penalties as pn
from penalties.backends import double_precision
from penalties.pipeline.catalogue import BUILT_IN

from .parity import arguments, check_jax, check_torch, logprobs
from .terms import ELSEWHERE


@pytest.mark.parametrize("where", ELSEWHERE)
@pytest.mark.parametrize("name", BUILT_IN)
def test_penalties_on_torch(executor: pn.Executor, name: str, where: Any) -> None:
    check_torch(executor, name, where)


@pytest.mark.parametrize(
    ("name", "where"),
    # JAX compiles every operation of each.
    [
        pytest.param(name, where, marks=() if name == "l2" or where == "thread" else pytest.mark.slow)
        for name in BUILT_IN
        for where in ELSEWHERE
    ],
)
def test_penalties_on_jax(executor: pn.Executor, name: str, where: Any) -> None:
    check_jax(executor, name, where)


@pytest.mark.parametrize("where", ELSEWHERE)
@pytest.mark.parametrize("name", BUILT_IN)
def test_norms_and_cosines(executor: pn.Executor, name: str, where: Any) -> None:
    floats, others = arguments(name, torch.tensor)
    inputs = {**{key: torch.tensor(x) for key, x in floats.items()}, **others}
    wrt = next(iter(floats))

    def two(where: Any) -> pn.Pipeline:
        return pn.Pipeline([pn.Term(name, 0.3, runs=where), pn.Term("l2", 0.1, name="other", inputs=wrt)])

    expected = two("inline").value_and_grad(**inputs, wrt=wrt, cosines=True)
    out = executor.run(two(where), inputs, wrt=wrt, cosines=True)
    assert out.metrics() == pytest.approx(expected.metrics(), rel=1e-6, abs=1e-9)
    torch.testing.assert_close(out.gradient[wrt], expected.gradient[wrt])
    torch.testing.assert_close(out.cosines, expected.cosines)


@pytest.mark.parametrize("where", [*ELSEWHERE, "inline"])
def test_large_arrays(executor: pn.Executor, where: Any) -> None:
    x = torch.randn(300, 1000, generator=torch.Generator().manual_seed(0), requires_grad=True)
    pipeline = pn.Pipeline([pn.Term("l2", 0.5, runs=where), pn.Term("entropy", runs=where)])
    for _ in range(3):
        out = executor.run(pipeline, x, wrt="input")
        expected = pipeline.replace("l2", pn.Term("l2", 0.5)).replace("entropy", "entropy").value_and_grad(x)
        torch.testing.assert_close(out.gradient, expected.gradient)
        torch.testing.assert_close(out.total, expected.total)


def own_gradient(x: Any) -> pn.Evaluation:
    plain = np.asarray(x.detach() if isinstance(x, Tensor) else x)
    return pn.Evaluation(np.float64((plain**2).sum()), gradient={"x": 2 * plain}, metrics={"size": plain.size})


@pytest.mark.parametrize("where", ELSEWHERE)
def test_a_numpy_term_brings_its_gradient_to_torch(executor: pn.Executor, where: Any) -> None:
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    out = executor.run(pn.Pipeline([pn.Term(own_gradient, 0.5, runs=where)]), x)
    out.total.backward()
    assert out.metrics()["own_gradient/size"] == 2.0
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, -2.0]


@pytest.mark.parametrize("where", ELSEWHERE)
def test_a_numpy_term_brings_its_gradient_to_jax(executor: pn.Executor, where: Any) -> None:
    pipeline = pn.Pipeline([pn.Term(own_gradient, 0.5, runs=where)])
    gradient = jax.grad(lambda x: executor.run(pipeline, x).total)(jnp.array([1.0, -2.0]))
    assert gradient.tolist() == [1.0, -2.0]
    out = executor.run(pipeline, jnp.array([1.0, -2.0]), wrt="input")
    assert out.gradient.tolist() == [1.0, -2.0]


@pytest.mark.parametrize("where", ELSEWHERE)
def test_a_numpy_term_brings_its_gradient_to_numpy(executor: pn.Executor, where: Any) -> None:
    pipeline = pn.Pipeline([pn.Term(own_gradient, 0.5, runs=where)])
    out = executor.run(pipeline, np.array([1.0, -2.0]), wrt="input")
    assert out.gradient.tolist() == [1.0, -2.0]
    assert float(out.total) == 2.5


@pytest.mark.parametrize("where", ELSEWHERE)
def test_a_term_without_a_gradient_is_a_constant_and_says_so(executor: pn.Executor, where: Any) -> None:
    def constant(x: Tensor) -> Tensor:
        return x.detach().sum()

    x = torch.ones(3, requires_grad=True)
    pipeline = pn.Pipeline([pn.Term(constant, runs=where), "l1"])
    out = executor.run(pipeline, x)
    out.total.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 1.0, 1.0]
    assert "does not depend on" in str(out["constant"].grad_error)
    asked = executor.run(pipeline, x, wrt="input")
    assert asked["constant"].grad_norm is None
    assert asked["constant"].grad_error == out["constant"].grad_error


@pytest.mark.parametrize("where", ELSEWHERE)
def test_an_untraceable_jax_term_is_a_constant_and_says_so(executor: pn.Executor, where: Any) -> None:
    def counted(x: Any) -> Any:
        return jnp.asarray(float(np.count_nonzero(np.asarray(x))))

    out = executor.run(pn.Pipeline([pn.Term(counted, runs=where)]), jnp.array([1.0, 0.0]), wrt="input")
    assert float(out.total) == 1.0
    assert out["counted"].grad_error == "JAX could not trace it, and it brought no gradient"


@pytest.mark.parametrize("where", ELSEWHERE)
def test_numpy_without_a_gradient_is_a_constant_and_says_so(executor: pn.Executor, where: Any) -> None:
    x = np.array([1.0, -2.0])
    pipeline = pn.Pipeline([pn.Term(own_gradient, runs=where), pn.Term("l1", runs=where)])
    out = executor.run(pipeline, x, wrt="input")
    assert out.gradient.tolist() == [2.0, -4.0]
    assert "NumPy" in str(out["l1"].grad_error)


@pytest.mark.parametrize("where", ELSEWHERE)
def test_terms_that_are_not_differentiable_are_numbers(executor: pn.Executor, where: Any) -> None:
    x = torch.ones(3, requires_grad=True)
    out = executor.run(
        pn.Pipeline([pn.Term(len, name="length", differentiable=False, runs=where, inputs="x"), "l1"]), {"x": x}
    )
    out.total.backward()
    assert out.metrics()["length"] == 3.0
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("where", ELSEWHERE)
def test_nests_and_paths(executor: pn.Executor, where: Any) -> None:
    layer = torch.nn.Linear(3, 2)
    layer.bias.requires_grad_(False)
    frozen = [parameter.detach().clone() for parameter in layer.parameters()]
    pipeline = pn.Pipeline(
        [pn.Term("l2", 0.5, inputs="params", runs=where), pn.Term("l1", inputs="heads.value", runs=where)]
    )
    heads = {"value": torch.ones(2, requires_grad=True), "other": torch.zeros(1)}
    out = executor.run(pipeline, {"params": layer.parameters(), "heads": heads})
    out.total.backward()
    torch.testing.assert_close(layer.weight.grad, frozen[0])
    assert layer.bias.grad is None
    assert heads["value"].grad.tolist() == [1.0, 1.0]
    asked = executor.run(pipeline, {"params": list(layer.parameters()), "heads": heads}, wrt=["params", "heads.value"])
    torch.testing.assert_close(asked.gradient["params"][0], frozen[0])
    assert set(asked["l2"].grad_norms) == {"params"}


@pytest.mark.parametrize("where", ELSEWHERE)
def test_an_input_beside_those_asked_for_is_trained_too(executor: pn.Executor, where: Any) -> None:
    inputs = {name: torch.tensor(logprobs(seed, 4), requires_grad=True) for seed, name in enumerate("ab")}
    out = executor.run(pn.Pipeline([pn.Term("consistency", runs=where)]), inputs, wrt="a")
    out.total.backward()
    a, b = inputs["a"], inputs["b"]
    torch.testing.assert_close(a.grad, out.gradient["a"])
    torch.testing.assert_close(b.grad, -out.gradient["a"])


@pytest.mark.parametrize("where", [*ELSEWHERE, "inline"])
def test_state_and_step_come_and_go(executor: pn.Executor, where: Any) -> None:
    def counter(x: Any, state: Any = None, step: int = 0) -> pn.Evaluation:
        count = 0 if state is None else state["count"]
        return pn.Evaluation(x.sum(), metrics={"count": count, "step": step}, state={"count": count + 1})

    pipeline = pn.Pipeline([pn.Term(counter, runs=where), pn.EMA(pn.Term("l1", runs=where), decay=0.5)])
    state = None
    for step, x in enumerate((1.0, 2.0, 3.0)):
        out = executor.run(pipeline, np.array([x]), step=step, state=state)
        state = out.state
    metrics = out.metrics()
    assert (metrics["counter/count"], metrics["counter/step"]) == (2.0, 2.0)
    assert metrics["l1"] == pytest.approx(0.5 * (0.5 * 1.0 + 0.5 * 2.0) + 0.5 * 3.0)


@pytest.mark.parametrize("where", ELSEWHERE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes_survive(executor: pn.Executor, where: Any, dtype: torch.dtype) -> None:
    x = torch.linspace(-1, 1, 9).to(dtype).requires_grad_()
    out = executor.run(pn.Pipeline([pn.Term("l2", runs=where)]), x, wrt="input")
    expected = pn.Pipeline(["l2"]).value_and_grad(x)
    assert out.gradient.dtype == dtype
    torch.testing.assert_close(out.gradient, expected.gradient)
    torch.testing.assert_close(out.total, expected.total)


@pytest.mark.parametrize("where", ELSEWHERE)
def test_sixty_four_bits_of_jax_survive(executor: pn.Executor, where: Any) -> None:
    with double_precision(True):
        x = jnp.array([1.0 + 1e-12])
        assert x.dtype == jnp.float64
        out = executor.run(pn.Pipeline([pn.Term("l1", runs=where)]), x, wrt="input")
        assert float(out.total) == 1.0 + 1e-12
        assert out.gradient.dtype == jnp.float64


def test_all_ways_to_run_in_one_pipeline_sum_in_the_order_of_the_terms(executor: pn.Executor) -> None:
    values = (1e8, 1.0, -1e8, 3.0)

    def slow_then(value: float, seconds: float) -> Any:
        def term(x: Tensor) -> Tensor:
            import time

            time.sleep(seconds)
            return value * x

        return term

    async def last(x: Tensor) -> Tensor:
        await asyncio.sleep(0.02)
        return values[3] * x

    def pipeline(seconds: tuple[float, float]) -> pn.Pipeline:
        return pn.Pipeline(
            [
                pn.Term(slow_then(values[0], seconds[0]), name="a", runs="thread"),
                pn.Term(slow_then(values[1], 0.0), name="b"),
                pn.Term(slow_then(values[2], seconds[1]), name="c", runs="process"),
                pn.Term(last, name="d"),
            ]
        )

    x = torch.tensor(1.0)
    expected = sum(torch.tensor(values), start=torch.tensor(0.0))
    totals = [executor.run(pipeline(seconds), x).total for seconds in ((0.0, 0.1), (0.1, 0.0), (0.05, 0.05))]
    assert totals[0] == totals[1] == totals[2]
    assert abs(totals[0] - expected) <= 8.0
    out = executor.run(pipeline((0.0, 0.0)), x)
    assert out.names == ("a", "b", "c", "d")
