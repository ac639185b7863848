"""A gradient of an earlier step: how long it lasts, and what it may be reused for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penalties as pn
from tests.libraries import JAX, LIBRARIES, TORCH, close

from . import functions
from .functions import squares, with_gradient


@pytest.fixture(autouse=True)
def _no_calls_yet() -> None:
    functions.calls.clear()


def pipeline(steps: int = 2) -> pn.Pipeline:
    return pn.Pipeline([pn.Stale(pn.Term(squares, weight=0.5), steps=steps, wrt="params")])


def parameters(library: Any, *values: float) -> Any:
    return {f"p{index}": library.array([value, 1.0]) for index, value in enumerate(values)}


class TestReuse:
    def test_for_so_many_steps(self, autodiff: Any) -> None:
        state, ages, gradients = None, [], []
        for step in range(7):
            params = parameters(autodiff, 1.0 + step)
            out = pipeline().value_and_grad(params=params, wrt="params", step=step, state=state)
            state = out.state
            ages.append(out.metrics()["squares/age"])
            gradients.append(float(out.gradient["params"]["p0"][0]))
        assert ages == [0, 1, 2, 0, 1, 2, 0]
        assert gradients == [1.0, 1.0, 1.0, 4.0, 4.0, 4.0, 7.0]
        assert len(functions.calls) == 3

    def test_value_and_metrics_are_those_of_the_gradient(self, autodiff: Any) -> None:
        def measured(x: Any) -> Any:
            return (x**2).sum(), {"first": x[0]}

        made = pn.Pipeline([pn.Stale(pn.Term(measured), steps=3, wrt="x")])
        first = made.value_and_grad(x=autodiff.array([2.0]), wrt="x", step=0)
        second = made.value_and_grad(x=autodiff.array([5.0]), wrt="x", step=1, state=first.state)
        assert second.metrics()["measured"] == 4.0
        assert second.metrics()["measured/first"] == 2.0

    def test_gradient_that_the_term_returned(self) -> None:
        made = pn.Pipeline([pn.Stale(pn.Term(with_gradient), steps=1, wrt="x")])
        first = made.value_and_grad(np.array([2.0]), step=0)
        first.gradient[0] = 99.0
        second = made.value_and_grad(np.array([5.0]), step=1, state=first.state)
        close(second.gradient, [4.0])
        second.gradient[0] = 99.0
        close(made.value_and_grad(np.array([5.0]), step=1, state=second.state).gradient, [4.0])

    def test_going_back_computes_again(self) -> None:
        made = pn.Pipeline([pn.Stale(pn.Term(with_gradient), steps=5, wrt="x")])
        state = made.value_and_grad(np.array([2.0]), step=10).state
        assert made.value_and_grad(np.array([3.0]), step=9, state=state).metrics()["with_gradient/age"] == 0.0

    def test_data_may_change(self) -> None:
        if TORCH not in LIBRARIES:
            pytest.skip("needs PyTorch")

        def misfit(w: Any, data: Any) -> Any:
            return ((data @ w) ** 2).mean()

        made = pn.Pipeline([pn.Stale(pn.Term(misfit), steps=1, wrt="w")])
        w = TORCH.array([1.0, 2.0]).requires_grad_()
        first = made.value_and_grad(w=w, data=TORCH.array(np.ones((4, 2))), step=0)
        second = made.value_and_grad(w=w, data=TORCH.array(np.zeros((3, 2))), step=1, state=first.state)
        close(TORCH.numpy(second.gradient["w"]), TORCH.numpy(first.gradient["w"]))

    def test_gradient_is_not_reused_for_a_parameter_that_was_frozen(self) -> None:
        if TORCH not in LIBRARIES:
            pytest.skip("needs PyTorch")
        params = {"p0": TORCH.array([3.0]).requires_grad_(), "p1": TORCH.array([5.0])}
        state = pipeline().value_and_grad(params=params, step=0).state
        params["p1"].requires_grad_()
        out = pipeline().value_and_grad(params=params, step=1, state=state)
        close(TORCH.numpy(out.gradient["params"]["p1"]), [5.0])
        params["p0"].requires_grad_(False)
        again = pipeline().value_and_grad(params=params, step=2, state=out.state)
        assert again.metrics()["squares/age"] == 1.0

    @pytest.mark.parametrize("bad", ["value", "gradient"])
    def test_what_is_not_finite_is_not_reused(self, bad: str) -> None:
        def once(x: Any, *, step: int) -> Any:
            wrong = np.inf if step == 0 else 1.0
            return pn.Evaluation(
                (x**2).sum() * (wrong if bad == "value" else 1.0),
                gradient={"x": 2 * x * (wrong if bad == "gradient" else 1.0)},
            )

        made = pn.Pipeline([pn.Stale(pn.Term(once), steps=9, wrt="x")])
        state = made.value_and_grad(np.array([2.0]), step=0).state
        out = made.value_and_grad(np.array([3.0]), step=1, state=state)
        close(out.gradient, [6.0])
        assert made.value_and_grad(np.array([3.0]), step=2, state=out.state).metrics()["once/age"] == 1.0

    def test_state_may_come_from_another_device_or_library(self, tmp_path: Path) -> None:
        if TORCH not in LIBRARIES:
            pytest.skip("needs PyTorch")
        import torch

        state = pipeline().value_and_grad(params=parameters(TORCH, 1.0), wrt="params", step=0).state
        there = {"p0": torch.empty(2, device="meta", requires_grad=True)}
        out = pipeline().value_and_grad(params=there, step=1, state=state)
        assert out["squares"].value.device.type == "meta"
        pn.save_state(state, tmp_path / "state")
        loaded = pn.load_state(tmp_path / "state", library="numpy")
        with torch.no_grad():
            assert float(pipeline()(params=parameters(TORCH, 7.0), step=1, state=loaded).total) == 1.0

    def test_value_without_a_gradient_is_not_reused_for_training(self) -> None:
        if TORCH not in LIBRARIES:
            pytest.skip("needs PyTorch")
        import torch

        params = {"p0": TORCH.array([3.0]).requires_grad_()}
        with torch.no_grad():
            state = pipeline()(params=params, step=0).state
        out = pipeline()(params=params, step=1, state=state)
        out.total.backward()
        close(TORCH.numpy(params["p0"].grad), [3.0])
        assert out.metrics()["squares/age"] == 0.0


@pytest.mark.skipif(TORCH not in LIBRARIES, reason="needs PyTorch")
class TestEveryWay:
    def trained(self) -> Any:
        return {"p0": TORCH.array([3.0]).requires_grad_(), "p1": TORCH.array([4.0])}

    def test_plain_call_and_backward(self) -> None:
        params = self.trained()
        state = pipeline()(params=params, step=0).state
        params["p0"].data.fill_(100.0)
        pipeline()(params=params, step=1, state=state).total.backward()
        close(TORCH.numpy(params["p0"].grad), [3.0])
        assert params["p1"].grad is None

    def test_state_survives_saving(self, tmp_path: Path) -> None:
        params = self.trained()
        state = pipeline().value_and_grad(params=params, step=4).state
        pn.save_state(state, tmp_path / "state")
        restored = pn.load_state(tmp_path / "state")
        going, resumed = (pipeline().value_and_grad(params=params, step=5, state=one) for one in (state, restored))
        close(TORCH.numpy(resumed.gradient["params"]["p0"]), TORCH.numpy(going.gradient["params"]["p0"]))
        assert resumed.metrics() == going.metrics()
        assert resumed.metrics()["squares/age"] == 1.0

    def test_executor(self) -> None:
        params = self.trained()
        made = pn.Pipeline([pn.Stale(pn.Term(squares, weight=0.5, runs="thread"), steps=2, wrt="params")])
        with pn.Executor() as executor:
            first = executor.run(made, {"params": params}, step=0)
            second = executor.run(made, {"params": params}, step=1, state=first.state, wrt="params")
        assert second.metrics()["squares/age"] == 1.0
        close(TORCH.numpy(second.gradient["params"]["p0"]), [3.0])
        first.total.backward()
        close(TORCH.numpy(params["p0"].grad), [3.0])

    def test_gradient_of_jax(self) -> None:
        if JAX not in LIBRARIES:
            pytest.skip("needs JAX")
        import jax

        made = pipeline()
        params = parameters(JAX, 3.0)
        state = made.value_and_grad(params=params, wrt="params", step=0).state

        def total(params: Any) -> Any:
            return made(params=params, step=1, state=state).total

        close(JAX.numpy(jax.grad(total)(parameters(JAX, 50.0))["p0"]), [3.0, 1.0])


@pytest.mark.skipif(TORCH not in LIBRARIES, reason="needs PyTorch")
class TestWrong:
    def test_activations(self) -> None:
        weight = TORCH.array([2.0]).requires_grad_()
        made = pn.Pipeline([pn.Stale(pn.Term(pn.l2), steps=2, wrt="x")])
        for call in (made, made.value_and_grad):
            with pytest.raises(pn.TermError, match='its input "x" is computed anew at each step, as activations are'):
                call(x=weight * 3.0, step=0)
            with pytest.raises(pn.TermError, match="as activations are"):
                call(x=weight.reshape(1, 1).relu(), step=0)

    def test_view_of_a_parameter_is_the_parameter(self) -> None:
        weight = TORCH.array([2.0, 3.0]).requires_grad_()
        made = pn.Pipeline([pn.Stale(pn.Term(pn.l2), steps=2, wrt="x")])
        made(x=weight.reshape(2, 1), step=0).total.backward()
        close(TORCH.numpy(weight.grad), [4.0, 6.0])

    def test_another_input_that_requires_a_gradient(self) -> None:
        def product(a: Any, b: Any) -> Any:
            return (a * b).sum()

        made = pn.Pipeline([pn.Stale(pn.Term(product), steps=2, wrt="a")])
        a, b = (TORCH.array([2.0]).requires_grad_() for _ in range(2))
        with pytest.raises(pn.TermError, match=r"\"b\" requires a gradient and is not in wrt=\('a',\)"):
            made(a=a, b=b, step=0)

    def test_other_shapes(self) -> None:
        state = pipeline().value_and_grad(params=parameters(TORCH, 1.0), wrt="params", step=0).state
        for changed in (parameters(TORCH, 1.0, 2.0), {"p0": TORCH.array([1.0])}):
            with pytest.raises(pn.TermError, match=r"its gradient of step 0 is for params: \['p0'\] \(2,\), and the"):
                pipeline().value_and_grad(params=changed, wrt="params", step=1, state=state)
        # Too old to be reused: it is computed for what there is now.
        pipeline().value_and_grad(params=changed, wrt="params", step=9, state=state)

    def test_without_a_gradient(self) -> None:
        made = pn.Pipeline([pn.Stale(pn.Term(lambda x: x.detach().sum(), name="cut"), steps=2, wrt="x")])
        with pytest.raises(pn.TermError, match="has no gradient to reuse: its value does not depend on x"):
            made(TORCH.array([1.0]).requires_grad_(), step=0)

    def test_inside_jit(self) -> None:
        jax = pytest.importorskip("jax")
        with pytest.raises(pn.TermError, match="Stale: called inside a compiler or vmap"):
            jax.jit(lambda x: pipeline()(params={"p0": x}, step=0).total)(jax.numpy.ones(1))

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: pn.Stale(pn.Term(pn.l2), steps=0, wrt="x"), "steps=0; expected a whole number of at least 1"),
            (lambda: pn.Stale(pn.Term(pn.l2), steps=2, wrt=None), "wrt=None; expected the names of the inputs that"),
            (lambda: pn.Stale(pn.Term(pn.l2, differentiable=False), steps=2, wrt="x"), "expected a term with a grad"),
        ],
    )
    def test_options(self, make: Any, message: str) -> None:
        with pytest.raises(pn.OptionError, match=f"Stale: .*{message}"):
            make()

    def test_input_in_wrt_that_the_term_does_not_read_any_more(self) -> None:
        def masked(x: Any, mask: Any = None) -> Any:
            return x.sum()

        term = pn.Stale(pn.Term(masked, inputs={"x": "x", "mask": "m"}), steps=2, wrt=("x", "m"))
        with pytest.raises(pn.OptionError, match="Stale: wrt=.*; expected parameters that read an input: x"):
            term.replace(inputs={"x": "x"})
