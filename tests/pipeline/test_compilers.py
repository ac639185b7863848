"""Pipelines inside torch.compile and jax.jit: no graph break, and nothing compiled again when weights change."""

from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from tests.libraries import DEVICE, JAX, LIBRARIES, TORCH, close

PIPELINE = pn.Pipeline(
    [
        pn.Term(pn.l1, 0.1, inputs="x"),
        pn.Term(pn.kl_divergence, 0.5, inputs={"p": "x", "q": "y", "mask": "mask"}, options={"logits": True}),
        pn.EMA(pn.Term(pn.l2, 0.2, inputs="x"), decay=0.5),
        pn.Term(lambda x: (x.mean(), {"largest": x.max()}), name="metered", inputs="x"),
        pn.Term(lambda x: x.sum(), name="constant", differentiable=False, inputs="x"),
        pn.Term(pn.smooth_l1, 0.3, inputs="nest.0"),
        pn.Term(pn.elastic_net, 0.3, inputs="nest", every=2),
    ],
    base=lambda x, y: ((x - y) ** 2).mean(),
)


def given(library: Any) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    x, y, z = (library.array(generator.normal(size=(3, 4))) for _ in range(3))
    return {"x": x, "y": y, "nest": [z, {"a": x}], "mask": library.array([1.0, 0.0, 1.0])}


@pytest.mark.skipif(TORCH not in LIBRARIES, reason="PyTorch was not chosen")
class TestTorch:
    @pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
    def test_the_whole_output(self, backend: str) -> None:
        inputs = given(TORCH)
        inputs["x"].requires_grad_()
        compiled = torch.compile(lambda **named: PIPELINE(**named, step=0), fullgraph=True, backend=backend)
        out, plain = compiled(**inputs), PIPELINE(**inputs, step=0)
        assert out.metrics() == pytest.approx(plain.metrics())
        assert out.read().state.keys() == plain.read().state.keys()
        (found,) = torch.autograd.grad(out.total, inputs["x"])
        (expected,) = torch.autograd.grad(plain.total, inputs["x"])
        torch.testing.assert_close(found, expected)
        assert all(term.duration is None for term in out)

    @pytest.mark.slow
    def test_state_and_total(self) -> None:
        inputs = given(TORCH)
        compiled = torch.compile(PIPELINE.total, fullgraph=True, backend="aot_eager")
        state = PIPELINE(**inputs, step=0).state
        close(
            TORCH.numpy(compiled(**inputs, step=1, state=state)),
            TORCH.numpy(PIPELINE.total(**inputs, step=1, state=state)),
        )

    def test_value_and_grad(self) -> None:
        inputs = given(TORCH)
        compiled = torch.compile(
            lambda **named: PIPELINE.value_and_grad(**named, step=0, wrt=("x", "nest"), cosines=True),
            fullgraph=True,
            backend="aot_eager",
        )
        out, plain = compiled(**inputs), PIPELINE.value_and_grad(**inputs, step=0, wrt=("x", "nest"), cosines=True)
        torch.testing.assert_close(out.gradient["x"], plain.gradient["x"])
        torch.testing.assert_close(out.gradient["nest"][0], plain.gradient["nest"][0])
        torch.testing.assert_close(out.cosines, plain.cosines, equal_nan=True)
        assert out["l1"].grad_norm.item() == pytest.approx(plain["l1"].grad_norm.item())

    def test_weights_change_without_another_graph(self) -> None:
        graphs: list[int] = []

        def counting(graph: Any, examples: Any) -> Any:
            graphs.append(1)
            return graph.forward

        pipeline = pn.Pipeline([pn.Term(pn.l1, 0.1), pn.Term(pn.l2, 0.2)])
        compiled = torch.compile(lambda x, w: pipeline(x, weights=w).total, fullgraph=True, backend=counting)
        x = TORCH.array([1.0, -2.0])
        for weight in (0.1, 0.2, 0.3, 0.0, 1.0):
            found = compiled(x, {"l1": torch.tensor(weight, dtype=x.dtype, device=DEVICE)})
            close(float(found), 3 * weight + 1.0)
        assert len(graphs) == 1
        # A number of Python's is part of the first graph, and an argument of the second, which serves all others.
        for weight in (0.1, 0.2, 0.3, 0.4, 0.5):
            close(float(compiled(x, {"l1": weight})), 3 * weight + 1.0)
        assert len(graphs) <= 3

    @pytest.mark.slow
    def test_a_step_that_counts(self) -> None:
        pipeline = pn.Pipeline([pn.Term(pn.l1), pn.Term(pn.l2, every=2)])
        compiled = torch.compile(lambda x, s: pipeline.total(x, step=s), fullgraph=True, backend="aot_eager")
        x = TORCH.array([2.0])
        assert [float(compiled(x, step)) for step in range(5)] == [6.0, 2.0, 6.0, 2.0, 6.0]

    def test_inputs_that_are_no_tensors(self) -> None:
        table = np.ones(4)
        pipeline = pn.Pipeline(
            [pn.Term(pn.gradient_penalty), pn.Term(lambda table, x: (x * len(table)).sum(), name="scaled")]
        )
        compiled = torch.compile(
            lambda x: pipeline.total(table=table, fn=lambda z: (z**3).sum(-1), x=x), fullgraph=True, backend="aot_eager"
        )
        x = TORCH.array([[1.0, 2.0]])
        close(TORCH.numpy(compiled(x)), TORCH.numpy(pipeline.total(table=table, fn=lambda z: (z**3).sum(-1), x=x)))

    def test_schedules(self) -> None:
        schedule = pn.schedules.chain((pn.schedules.warmup(1.0, 4), 4), pn.schedules.cosine(1.0, 0.0, 5))
        compiled = torch.compile(schedule, fullgraph=True, backend="aot_eager")
        for step in range(10):
            close(float(compiled(torch.tensor(step))), schedule(step), "float32")

    @pytest.mark.slow
    def test_parameters_of_a_module(self) -> None:
        layer = torch.nn.Linear(2, 2).to(DEVICE)
        compiled = torch.compile(
            lambda: pn.Pipeline(["l1", "l2"]).total(layer.parameters()), fullgraph=True, backend="aot_eager"
        )
        torch.testing.assert_close(compiled(), pn.Pipeline(["l1", "l2"]).total(layer.parameters()))


@pytest.mark.skipif(JAX not in LIBRARIES, reason="JAX was not chosen")
class TestJax:
    def test_the_whole_output(self) -> None:
        import jax

        inputs = given(JAX)
        out = jax.jit(lambda named: PIPELINE(**named, step=0))(inputs)
        plain = PIPELINE(**inputs, step=0)
        assert out.metrics() == pytest.approx(plain.metrics())
        assert out.names == plain.names
        assert list(out.terms) == list(plain.terms)
        assert out["l1"].weight == 0.1
        assert all(term.duration is None for term in out)

    def test_as_the_auxiliary_output_of_a_gradient(self) -> None:
        import jax

        inputs = given(JAX)

        def loss(x: Any) -> Any:
            out = PIPELINE(**{**inputs, "x": x}, step=0)
            return out.total, out

        (total, out), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(inputs["x"])
        close(float(total), out.metrics()["total"])
        plain = PIPELINE.value_and_grad(**inputs, step=0, wrt="x")
        close(gradient, plain.gradient["x"])

    def test_value_and_grad(self) -> None:
        import jax

        inputs = given(JAX)
        out = jax.jit(lambda named: PIPELINE.value_and_grad(**named, step=0, cosines=True))(inputs)
        plain = PIPELINE.value_and_grad(**inputs, step=0, cosines=True)
        close(out.gradient["y"], plain.gradient["y"])
        close(out.cosines, plain.cosines)
        assert out["constant"].grad_norm is None

    def test_weights_change_without_another_trace(self) -> None:
        import jax

        traces: list[int] = []
        pipeline = pn.Pipeline([pn.Term(pn.l1, 0.1), pn.Term(pn.l2, 0.2)])

        @jax.jit
        def run(x: Any, weights: Any) -> Any:
            traces.append(1)
            return pipeline.value_and_grad(x, weights=weights)

        x = JAX.array([1.0, -2.0])
        for weight in (0.1, 0.2, 0.0, 1.0):
            out = run(x, {"l1": weight})
            close(float(out.total), 3 * weight + 1.0)
            assert out.metrics()["l1_weighted"] == pytest.approx(3 * weight)
        assert len(traces) == 1

    def test_an_output_as_an_argument_is_traced_once(self) -> None:
        import jax

        traces: list[int] = []

        @jax.jit
        def read(out: pn.LossOutput) -> Any:
            traces.append(1)
            return out.total + out["l1"].value

        pipeline = pn.Pipeline(["l1"])
        assert [float(read(pipeline(JAX.array([x])))) for x in (1.0, 2.0, 3.0)] == [2.0, 4.0, 6.0]
        assert len(traces) == 1

    def test_numbers_cannot_be_read_inside(self) -> None:
        import jax

        shown: list[str] = []

        @jax.jit
        def peek(x: Any) -> Any:
            out = pn.Pipeline(["l1"])(x)
            shown.append(repr(out) + repr(out["l1"]))
            with pytest.raises(pn.BackendError, match=r"values cannot be read inside jax\.jit"):
                out.metrics()
            return out.total

        assert float(peek(JAX.array([1.0]))) == 1.0
        assert "l1" in shown[0]

    def test_many_calls_at_once_are_read_one_by_one(self) -> None:
        import jax

        batch = jax.vmap(lambda x: pn.Pipeline(["l1", "l2"])(x))(JAX.array([[1.0], [2.0]]))
        assert "l1" in repr(batch)
        assert "value" in repr(batch["l1"])
        for read in (batch.metrics, batch.to_dict, batch.check):
            with pytest.raises(pn.ShapeError, match=r"holds many calls: its total has shape \(2,\)"):
                read()
        assert jax.tree.map(lambda part: part[1], batch).metrics()["total"] == 6.0

    def test_schedules_of_a_traced_step(self) -> None:
        import jax

        schedule = pn.schedules.product(
            pn.schedules.chain((pn.schedules.warmup(1.0, 4), 4), pn.schedules.cosine(1.0, 0.0, 5)),
            pn.schedules.piecewise({0: 1.0, 6: 0.5}),
            pn.schedules.exponential(1.0, 0.9),
            pn.schedules.linear(0.0, 1.0, 8),
        )
        run = jax.jit(schedule)
        for step in range(10):
            close(float(run(step)), schedule(step), "float32")

    def test_state_in_a_scan(self) -> None:
        import jax

        pipeline = pn.Pipeline([pn.EMA(pn.Term(pn.l1), decay=0.5)])
        xs = JAX.array([[4.0], [8.0], [8.0]])
        first = pipeline(xs[0])

        def step(state: Any, x: Any) -> Any:
            out = pipeline(x, state=state)
            return out.state, out.total

        _, totals = jax.lax.scan(step, first.state, xs[1:])
        assert totals.tolist() == [6.0, 7.0]
