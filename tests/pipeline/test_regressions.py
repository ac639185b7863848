"""Cases that were once wrong."""

import copy
import gc
import weakref
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from penalties import telemetry
from penalties.pipeline.output.reading import as_numbers
from tests.libraries import DEVICE, JAX, LIBRARIES, TORCH, close

needs_torch = pytest.mark.skipif(TORCH not in LIBRARIES, reason="PyTorch was not chosen")
needs_jax = pytest.mark.skipif(JAX not in LIBRARIES, reason="JAX was not chosen")
NORMS = pn.Pipeline(["l1", "l2"])


@needs_jax
def test_a_pipeline_itself_can_be_compiled() -> None:
    import jax

    assert jax.jit(NORMS)(JAX.array([1.0, -2.0])).metrics()["total"] == 8.0
    assert float(jax.checkpoint(NORMS.total)(JAX.array([1.0, -2.0]))) == 8.0
    assert weakref.ref(NORMS)() is NORMS
    assert weakref.ref(NORMS["l1"])() is NORMS["l1"]


@needs_torch
class TestHalfPrecision:
    @pytest.mark.parametrize(
        ("x", "weight", "scale"), [(1.0, 1e-4, 65536.0), (40000.0, 1e-3, 1.0), (0.1, 1e-3, 1024.0)]
    )
    def test_backward_of_the_total_is_that_of_a_plain_call(self, x: float, weight: float, scale: float) -> None:
        pipeline = pn.Pipeline([pn.Term(pn.l2, weight=weight)])
        tracked, plain = (torch.full((4,), x, device=DEVICE).half().requires_grad_() for _ in range(2))
        out = pipeline.value_and_grad(tracked)
        (out.total * scale).backward()
        (pipeline.total(plain) * scale).backward()
        torch.testing.assert_close(tracked.grad, plain.grad)
        (expected,) = torch.autograd.grad(pipeline.total(plain), plain)
        torch.testing.assert_close(out.gradient, expected)

    def test_a_tensor_as_weight(self) -> None:
        x = torch.full((4,), 1e-3, device=DEVICE).half().requires_grad_()
        out = pn.Pipeline(["l2"]).value_and_grad(x, weights={"l2": torch.tensor(1e5, device=DEVICE)})
        torch.testing.assert_close(out.gradient, torch.full_like(out.gradient, 200.0), rtol=1e-2, atol=0.0)

    def test_a_brought_gradient_survives_a_loss_scale(self) -> None:
        x = torch.ones(2, device=DEVICE).half().requires_grad_()
        term = pn.Term(lambda x: pn.Evaluation(x.float().sum() * 1e-4, gradient={"x": 0 * x + 1e-4}), name="own")
        (pn.Pipeline([term]).total(x) * 65536.0).backward()
        torch.testing.assert_close(x.grad, torch.full_like(x, 6.5536), rtol=1e-2, atol=0.0)


@needs_jax
def test_half_precision_in_jax_does_not_overflow_before_its_weight() -> None:
    out = pn.Pipeline([pn.Term(pn.l2, weight=1e-3)]).value_and_grad(JAX.array([40000.0], "float16"))
    assert float(out.gradient[0]) == 80.0


@needs_torch
class TestLearnedWeights:
    def test_one_that_was_computed_from_something_else(self) -> None:
        s = torch.zeros((), requires_grad=True, device=DEVICE)
        x = torch.tensor([1.0, 2.0], device=DEVICE)
        out = NORMS.value_and_grad(x, wrt="input", weights={"l1": torch.exp(-s)})
        assert out.gradient.tolist() == [3.0, 5.0]
        weight = torch.exp(-s)
        with torch.no_grad():
            assert NORMS.value_and_grad(x, wrt="input", weights={"l1": weight}).gradient.tolist() == [3.0, 5.0]
        compiled = torch.compile(
            lambda x, w: NORMS.value_and_grad(x, wrt="input", weights={"l1": w * 1}).gradient,
            fullgraph=True,
            backend="aot_eager",
        )
        assert compiled(x, torch.ones((), requires_grad=True, device=DEVICE)).tolist() == [3.0, 5.0]

    def test_the_weight_of_a_constant_depends_on_the_input(self) -> None:
        x = torch.tensor([1.0, 2.0], requires_grad=True, device=DEVICE)
        terms = [pn.Term(lambda x: x.abs().sum(), name="c", differentiable=False), pn.Term(pn.l2)]
        out = pn.Pipeline(terms).value_and_grad(x, weights={"c": x.sum()})
        assert out.gradient.tolist() == [5.0, 7.0]
        out.total.backward()
        assert x.grad.tolist() == [5.0, 7.0]

    def test_a_weight_that_is_an_input_too(self) -> None:
        x = torch.tensor([1.0, 2.0], requires_grad=True, device=DEVICE)
        w = torch.tensor(2.0, requires_grad=True, device=DEVICE)
        out = pn.Pipeline(["l2"]).value_and_grad([x, w], weights={"l2": w})
        out.total.backward()
        torch.testing.assert_close(out.gradient[1], w.grad)
        torch.testing.assert_close(out.gradient[0], x.grad)


@pytest.mark.parametrize("term", [pn.Term(pn.kl_divergence, chunk=2), pn.Term(pn.entropy, inputs="p", chunk=2)])
def test_one_distribution_has_no_rows(library: Any, term: pn.Term) -> None:
    x = library.array(np.log([0.1, 0.2, 0.3, 0.4]))
    with pytest.raises(pn.TermError, match=r"chunk= cuts rows; its input of shape \(4,\) has one axis only"):
        pn.Pipeline([term])(p=x, q=x)


def test_a_step_of_numpy(library: Any) -> None:
    pipeline = pn.Pipeline([pn.Term(pn.l1, every=2), "l2"])
    x = library.array([1.0, 2.0])
    assert ["l1" in pipeline(x, step=step).metrics() for step in np.arange(3)] == [True, False, True]
    for wrong in (np.arange(2), np.float64(1.0), library.array([1.0, 2.0])):
        with pytest.raises(pn.OptionError, match="step=.*a whole number of at least 0"):
            pipeline(x, step=wrong)


@needs_jax
class TestTracedSteps:
    def test_a_gradient_that_does_not_exist_while_resting(self) -> None:
        import jax
        import jax.numpy as jnp

        pipeline = pn.Pipeline([pn.Term(lambda x: jnp.log(x).sum(), name="log", every=2), "l2"])
        out = jax.jit(lambda x, step: pipeline.value_and_grad(x, step=step))(JAX.array([0.0, 0.0]), 1)
        assert out.gradient.tolist() == [0.0, 0.0]

    @pytest.mark.parametrize("wrap", [lambda term: term, pn.EMA])
    def test_a_gradient_that_does_not_exist_while_resting_under_grad(self, wrap: Any) -> None:
        import jax
        import jax.numpy as jnp

        log = pn.Term(lambda nest: jnp.log(nest["x"]).sum(), name="log", inputs="nest", every=2)
        pipeline = pn.Pipeline([wrap(log), pn.Term("l1", inputs="nest.x")])

        def total(x: Any, step: Any) -> Any:
            return pipeline(nest={"x": x, "key": jax.random.key(0), "index": jnp.arange(2)}, step=step).total

        gradient = jax.jit(jax.grad(total))
        assert gradient(JAX.array([0.0, 2.0]), 1).tolist() == [0.0, 1.0]
        # Where it is due, its gradient is as it is.
        assert gradient(JAX.array([0.0, 2.0]), 2)[0] == float("inf")

    def test_a_gradient_that_does_not_exist_at_a_part_of_an_object(self) -> None:
        import jax
        import jax.numpy as jnp

        pipeline = pn.Pipeline([pn.Term(lambda x: jnp.log(x).sum(), name="log", inputs="o.x", every=2)])
        gradient = jax.jit(jax.grad(lambda x, step: pipeline(o=SimpleNamespace(x=x), step=step).total))
        assert gradient(JAX.array([0.0, 2.0]), 1).tolist() == [0.0, 0.0]

    @pytest.mark.parametrize("wrap", [pn.EMA, pn.Normalized])
    def test_state_begins_at_the_first_value_that_counts(self, wrap: Any) -> None:
        import jax

        pipeline = pn.Pipeline([wrap(pn.Term(pn.l2, every=2))])
        traced = jax.jit(lambda x, step, state: pipeline(x, step=step, state=state))
        found: dict[str, list[float]] = {"plain": [], "traced": []}
        states: dict[str, Any] = {"plain": None, "traced": None}
        for step in range(1, 6):
            x = JAX.array([1.0 * step])
            outs = {"plain": pipeline(x, step=step, state=states["plain"]), "traced": traced(x, step, states["traced"])}
            for way, out in outs.items():
                states[way] = out.state
                found[way].append(float(out.total))
        close(found["traced"], found["plain"])


class TestNests:
    @needs_torch
    @pytest.mark.parametrize(
        "nest",
        [
            lambda x: {"a": x}.values(),
            lambda x: torch.nn.ParameterList([x]),
            lambda x: torch.nn.ParameterDict({"a": x}),
        ],
    )
    def test_gradients_at_what_a_plain_call_accepts(self, nest: Any) -> None:
        x = torch.nn.Parameter(torch.tensor([1.0, -2.0], device=DEVICE))
        out = pn.Pipeline(["l2"]).value_and_grad(nest(x))
        out.total.backward()
        assert x.grad.tolist() == [2.0, -4.0]

    def test_names_that_lie_in_one_another(self, autodiff: Any) -> None:
        pipeline = pn.Pipeline([pn.Term(pn.l2, inputs="h.a")])
        with pytest.raises(pn.InputError, match='wrt names "h.a" and also an input that contains it'):
            pipeline.value_and_grad(h={"a": autodiff.array([1.0])}, wrt=("h", "h.a"))


@needs_torch
class TestTransforms:
    def test_chunks_under_torch_func_and_compile(self) -> None:
        pipeline = pn.Pipeline([pn.Term(pn.l2, chunk=2)])
        x = TORCH.array([[1.0], [2.0], [3.0]])
        torch.testing.assert_close(torch.func.grad(pipeline.total)(x), 2 * x)
        compiled = torch.compile(
            lambda x: pipeline.value_and_grad(x, wrt="input").gradient, fullgraph=True, backend="aot_eager"
        )
        torch.testing.assert_close(compiled(x), 2 * x)
        assert pipeline(x).metrics()["total"] == 14.0

    def test_second_order_under_torch_func(self) -> None:
        pipeline = pn.Pipeline([pn.Term(pn.l2, 0.5)])
        found = torch.func.grad(lambda x: pipeline.value_and_grad(x, wrt="input").total_grad_norm)(
            TORCH.array([3.0, 4.0])
        )
        close(TORCH.numpy(found), [0.6, 0.8])

    def test_brought_gradients_under_vmap(self) -> None:
        term = pn.Term(lambda x: pn.Evaluation((x**2).sum(), gradient={"x": 2 * x}), name="own")
        rows = TORCH.array([[1.0, 2.0], [3.0, 4.0]])
        totals = torch.func.vmap(pn.Pipeline([term]).total)(rows)
        close(TORCH.numpy(totals), [5.0, 25.0])

    def test_events_are_quiet_inside(self) -> None:
        heard: list[Any] = []
        handler = telemetry.attach(lambda *event: heard.append(event))
        try:
            torch.func.vmap(NORMS.total)(TORCH.array([[1.0], [2.0]]))
        finally:
            telemetry.detach(handler)
        assert heard == []


def test_a_skipped_base_says_why(library: Any) -> None:
    base = pn.Term(lambda x: 1 / 0, name="b", on_error="skip")
    out = pn.Pipeline(["l1"], base=base)(library.array([1.0]))
    assert out.to_dict()["base_loss"]["error"].startswith("TermError: base_loss: raised ZeroDivisionError")


@pytest.mark.parametrize("wrap", [lambda t: t, pn.EMA, pn.Normalized])
def test_brought_gradients_pass_through_wrappers_in_numpy(wrap: Any) -> None:
    def own(x: Any) -> Any:
        return pn.Evaluation((x["a"] ** 2).sum(), gradient={"x": {"a": 2 * x["a"], "b": [None]}})

    pipeline = pn.Pipeline([wrap(pn.Term(own))])
    given = {"a": np.array([3.0]), "b": [np.array([1.0])]}
    first = pipeline.value_and_grad(x=given)
    second = pipeline.value_and_grad(x=given, state=first.state)
    expected = {pn.EMA: (6.0, 0.6), pn.Normalized: (6.0 / 9.0, 6.0 / 9.0)}.get(wrap, (6.0, 6.0))
    close([first.gradient["x"]["a"][0], second.gradient["x"]["a"][0]], expected)


@needs_torch
class TestMemory:
    def test_a_skipped_term_does_not_keep_its_inputs(self) -> None:
        x = TORCH.array([1.0, 2.0])
        seen = weakref.ref(x)
        out = pn.Pipeline([pn.Term(lambda x: 1 / 0, name="bad", on_error="skip")])(x)
        del x
        gc.collect()
        assert seen() is None
        assert "ZeroDivisionError" in str(out["bad"].error)

    def test_gradients_can_be_written_to_one_without_the_others(self) -> None:
        a, b = (torch.tensor([1.0, 2.0], requires_grad=True, device=DEVICE) for _ in range(2))
        term = pn.Term(lambda a, b: ((a + b) ** 2).sum(), name="both")
        out = pn.Pipeline([term]).value_and_grad(a=a, b=b)
        out.gradient["a"].zero_()
        assert out.gradient["b"].tolist() == [4.0, 8.0]
        pn.Pipeline([pn.Term(lambda x: x.sum(), name="sum")]).value_and_grad(a).gradient.zero_()

    def test_a_copy_keeps_the_graph(self) -> None:
        out = NORMS(torch.ones(2, requires_grad=True, device=DEVICE))
        assert copy.copy(out).total.requires_grad
        assert copy.copy(out["l1"]) is out["l1"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NORMS(np.ones(1), state=3), "state=3; expected None, or the state of an output"),
        (lambda: NORMS.with_weights([1.0]), "with_weights: weights="),
        (lambda: NORMS.with_options([1.0]), "with_options: options="),
        (lambda: NORMS.value_and_grad(np.ones(1), wrt=np.ones(1)), 'wrt="an array"; expected the name of an input'),
        (lambda: pn.explain(3), 'explain: out="int"; expected the output of a pipeline'),
        (lambda: pn.gradients.track(3, at=3), 'track: out="int"'),
        (
            lambda: pn.Term(pn.Executor),
            'fn="Executor"; expected a function or an object; this is a class: pass an instance',
        ),
        (lambda: pn.Term(NORMS, name="n"), "a pipeline cannot be a term: add its terms instead"),
    ],
)
def test_errors_that_were_raw(make: Any, message: str) -> None:
    with pytest.raises(pn.OptionError, match=message):
        make()


@needs_torch
def test_a_base_of_track_that_is_not_a_tensor_is_an_error() -> None:
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(pn.OptionError, match="track: base=3.0; expected a scalar tensor"):
        pn.gradients.track(NORMS(x), at=x, base=3.0)


def test_an_input_named_self(library: Any) -> None:
    assert pn.Pipeline([pn.Term(pn.l1, inputs="self")])(self=library.array([1.0])).metrics()["total"] == 1.0


def test_a_missing_step_inside_a_wrapper_is_not_the_terms_fault() -> None:
    term = pn.EMA(pn.Term(lambda x, step: x.sum() * step, name="stepped", on_error="skip"))
    with pytest.raises(pn.InputError, match="stepped: takes the step"):
        pn.Pipeline([term])(np.ones(1))


def test_metrics_of_a_constant_from_data_beside_tensors() -> None:
    words = pn.Term(len, name="words", inputs="texts", differentiable=False)
    out = pn.Pipeline([pn.Term("l1", inputs="x"), words])(texts=["a", "b"], x=torch.ones(3))
    assert out.metrics() == {"l1": 3.0, "l1_weighted": 3.0, "words": 2.0, "words_weighted": 2.0, "total": 5.0}


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def test_an_exception_that_cannot_speak_is_named() -> None:
    def bad(x: Any) -> Any:
        raise Speechless

    with pytest.raises(pn.TermError, match="^bad: raised Speechless$"):
        pn.Pipeline([bad])(np.ones(1))


def test_a_gradient_without_the_name_of_its_input_is_an_error() -> None:
    def alone(x: Any) -> pn.Evaluation:
        return pn.Evaluation(1.0, gradient=x)

    with pytest.raises(pn.TermError, match=r"alone: returned .* as gradient; expected a mapping"):
        pn.Pipeline([alone])(np.ones(2))


def test_a_promise_without_an_executor_is_an_error() -> None:
    def promised(x: Any) -> Any:
        return Future()

    with pytest.raises(pn.TermError, match='promised: returned an awaitable; give it runs="async"'):
        pn.Pipeline([promised])(np.ones(2))


def test_numbers_of_one_type_that_are_no_arrays() -> None:
    assert as_numbers([1, 2]) == [1, 2]
