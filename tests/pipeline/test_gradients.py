"""Gradients of terms: against plain autodiff, at every kind of input, and where there is none."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from penalties.pipeline.evaluate import evaluate_term as evaluate
from tests.libraries import JAX, LIBRARIES, TORCH, close

needs_torch = pytest.mark.skipif(TORCH not in LIBRARIES, reason="PyTorch was not chosen")
needs_jax = pytest.mark.skipif(JAX not in LIBRARIES, reason="JAX was not chosen")


def spread(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


PIPELINE = pn.Pipeline(
    [
        pn.Term(pn.l1, weight=0.1, inputs="student"),
        pn.Term(pn.kl_divergence, weight=0.5, inputs=("student", "teacher"), options={"logits": True}),
        pn.Term(pn.entropy, weight=0.2, inputs="student", options={"logits": True, "mode": "bonus"}),
        pn.Term(pn.l2, weight=0.01, inputs="params"),
    ],
    base=lambda student: student.mean(),
)


def inputs(library: Any) -> dict[str, Any]:
    return {
        "student": library.array(spread(4, 5)),
        "teacher": library.array(spread(4, 5, seed=1)),
        "params": {"w": library.array(spread(3, 2, seed=2)), "b": [library.array(spread(2, seed=3))]},
    }


class TestAgainstPlainAutodiff:
    @pytest.mark.parametrize("cosines", [False, True])
    def test_every_input_and_norm(self, autodiff: Any, cosines: bool) -> None:
        given = inputs(autodiff)
        out = PIPELINE.value_and_grad(**given, wrt=("student", "teacher", "params"), cosines=cosines)

        def flat(pipeline: pn.Pipeline) -> list[Any]:
            def total(s: Any, t: Any, w: Any, b: Any) -> Any:
                return pipeline.total(student=s, teacher=t, params={"w": w, "b": [b]})

            leaves = given["student"], given["teacher"], given["params"]["w"], given["params"]["b"][0]
            return autodiff.gradients(total, *leaves)

        gradient = out.gradient
        found = [gradient["student"], gradient["teacher"], gradient["params"]["w"], gradient["params"]["b"][0]]
        for ours, plain in zip(found, flat(PIPELINE), strict=True):
            close(autodiff.numpy(ours), plain)
        vectors = {}
        for name in ("base_loss", *PIPELINE.names):
            alone = PIPELINE.disable(*PIPELINE.names)
            alone = alone if name == "base_loss" else alone.with_base(None).enable(name).with_weights({name: 1.0})
            vectors[name] = np.concatenate([g.reshape(-1) for g in flat(alone)])
            close(float(out.read()[name].grad_norm), np.linalg.norm(vectors[name]))
        close(
            float(out.read().total_grad_norm), np.linalg.norm(np.concatenate([g.reshape(-1) for g in flat(PIPELINE)]))
        )
        if cosines:
            units = np.stack([v / np.linalg.norm(v) for v in vectors.values()])
            close(autodiff.numpy(out.cosines), units @ units.T)
            assert out.names == tuple(vectors)

    def test_norms_of_each_input(self, autodiff: Any) -> None:
        out = PIPELINE.value_and_grad(**inputs(autodiff), wrt=("student", "teacher")).read()
        kl = out["kl_divergence"]
        close(kl.grad_norm, math.hypot(kl.grad_norms["student"], kl.grad_norms["teacher"]))
        assert list(out["l1"].grad_norms) in (["student"], ["student", "teacher"])
        assert out.metrics()["kl_divergence_grad_norm/student"] == kl.grad_norms["student"]
        assert out.metrics("slash")["grad_norm/kl_divergence/student"] == kl.grad_norms["student"]

    def test_each_term_is_evaluated_once(self, autodiff: Any) -> None:
        calls: list[int] = []

        def counted(x: Any) -> Any:
            calls.append(1)
            return (x**2).sum()

        pipeline = pn.Pipeline([pn.Term(counted), pn.Term(pn.l1)])
        pipeline.value_and_grad(autodiff.array([1.0, 2.0]), wrt="input", cosines=True).metrics()
        assert len(calls) == 1

    def test_half_precision_gradients_come_back_in_half(self, autodiff: Any) -> None:
        out = pn.Pipeline(["l1", "l2"]).value_and_grad(autodiff.array([1.0, 2.0], "float16"), wrt="input", cosines=True)
        assert autodiff.dtype(out.gradient) == "float16"
        assert autodiff.dtype(out["l2"].grad_norm) == "float32"


class TestWithRespectTo:
    @needs_torch
    def test_default_is_what_requires_grad(self) -> None:
        given = inputs(TORCH)
        given["student"].requires_grad_()
        given["params"]["w"].requires_grad_()
        out = PIPELINE.value_and_grad(**given)
        assert set(out.gradient) == {"student", "params"}
        assert out.gradient["params"]["b"] == [None]
        out.total.backward()
        close(TORCH.numpy(out.gradient["student"]), TORCH.numpy(given["student"].grad))
        close(TORCH.numpy(out.gradient["params"]["w"]), TORCH.numpy(given["params"]["w"].grad))

    @needs_jax
    def test_default_is_every_floating_input(self) -> None:
        given = inputs(JAX)
        pipeline = PIPELINE.add(pn.Term(lambda labels: labels.sum(), name="count", differentiable=False))
        out = pipeline.value_and_grad(**given, labels=JAX.array([1, 2], "int32"))
        assert set(out.gradient) == {"student", "teacher", "params"}

    @needs_torch
    def test_nothing_requires_grad(self) -> None:
        with pytest.raises(pn.GradientError, match=r"no input requires a gradient; name some by wrt=.*given: student"):
            PIPELINE.value_and_grad(**inputs(TORCH))
        with pytest.raises(pn.GradientError, match="no inputs were given"):
            pn.Pipeline().value_and_grad()

    @pytest.mark.parametrize("wrt", [(), 3, ("student", 3), [None]])
    def test_wrong(self, wrt: Any) -> None:
        with pytest.raises((pn.OptionError, TypeError)):
            PIPELINE.value_and_grad(**inputs(JAX), wrt=wrt)

    def test_unknown(self, autodiff: Any) -> None:
        with pytest.raises(pn.InputError, match='no input is named "studnet"'):
            PIPELINE.value_and_grad(**inputs(autodiff), wrt="studnet")

    def test_integers(self, autodiff: Any) -> None:
        with pytest.raises(pn.GradientError, match=r"the input input has dtype .*int32; expected floats"):
            pn.Pipeline(["l1"]).value_and_grad(autodiff.array([1, 2], "int32"), wrt="input")

    def test_two_libraries(self) -> None:
        if len(LIBRARIES) < 3:
            pytest.skip("needs all libraries")
        pipeline = pn.Pipeline([pn.Term(pn.l1, inputs="a"), pn.Term(pn.l2, inputs="b")])
        with pytest.raises(pn.BackendError, match=r"wrt names a PyTorch input \(a\) and a JAX input \(b\)"):
            pipeline.value_and_grad(a=TORCH.array([1.0]), b=JAX.array([1.0]), wrt=("a", "b"))

    def test_paths(self, autodiff: Any) -> None:
        class Output:
            """As a model of some library returns it."""

            def __init__(self, logits: Any) -> None:
                self.logits = logits

        logits = autodiff.array([1.0, -2.0])
        pipeline = pn.Pipeline([pn.Term(pn.l2, inputs="o.logits")])
        for output in (Output(logits), {"logits": logits, "count": 3}):
            found = pipeline.value_and_grad(o=output, wrt="o.logits")
            close(autodiff.numpy(found.gradient["o.logits"]), [2.0, -4.0])
        if autodiff is TORCH:
            logits.requires_grad_()
        close(autodiff.numpy(pipeline.value_and_grad(o=Output(logits)).gradient["o.logits"]), [2.0, -4.0])

    def test_a_whole_input_and_a_part_of_it(self, autodiff: Any) -> None:
        x = {"a": autodiff.array([1.0, 2.0]), "b": autodiff.array([3.0])}
        pipeline = pn.Pipeline([pn.Term(pn.l2, inputs="x"), pn.Term(pn.l1, inputs="x.a")])
        if autodiff is TORCH:
            x["a"].requires_grad_()
            x["b"].requires_grad_()
        for out in (pipeline.value_and_grad(x=x), pipeline.value_and_grad(x=x, wrt="x")):
            close(autodiff.numpy(out.gradient["x"]["a"]), [3.0, 5.0])
            close(autodiff.numpy(out.gradient["x"]["b"]), [6.0])
        with pytest.raises(pn.InputError, match='l2: reads all of "x"'):
            pipeline.value_and_grad(x=x, wrt="x.a")

    def test_numpy_says_plainly_that_it_cannot(self) -> None:
        with pytest.raises(pn.GradientError, match="l1: NumPy has no automatic differentiation"):
            pn.Pipeline(["l1"]).value_and_grad(np.ones(2))
        with pytest.raises(pn.GradientError, match="NumPy has no automatic differentiation"):
            pn.gradients.norm(lambda x: x.sum(), np.ones(2))


class TestNoPath:
    @pytest.mark.parametrize(
        "fn",
        [
            lambda x: x.argmax() * 1.0,
            lambda x: (x > 0).sum() * 1.0,
            lambda x: pn.backends.owner(x).stop_gradient(x).sum(),
        ],
        ids=["argmax", "count", "detached"],
    )
    def test_says_why_and_is_never_zero(self, autodiff: Any, fn: Any) -> None:
        out = pn.Pipeline([pn.Term(fn, name="stuck"), "l1"]).value_and_grad(
            autodiff.array([1.0, 2.0]), wrt="input", cosines=True
        )
        assert out["stuck"].grad_norm is None
        assert "does not depend on input by operations that" in str(out["stuck"].grad_error)
        assert out.metrics()["stuck_grad_norm_error"] == 1.0
        close(autodiff.numpy(out.gradient), [1.0, 1.0])
        assert np.isnan(autodiff.numpy(out.cosines)[0]).all()

    def test_a_term_that_reads_something_else(self, autodiff: Any) -> None:
        pipeline = pn.Pipeline([pn.Term(pn.l1, inputs="a"), pn.Term(pn.l2, inputs="b")])
        out = pipeline.value_and_grad(a=autodiff.array([1.0]), b=autodiff.array([2.0]), wrt="a")
        assert out["l2"].grad_error == "it does not read a"
        assert out.metrics()["total"] == 5.0

    def test_no_term_has_one(self, autodiff: Any) -> None:
        out = pn.Pipeline([pn.Term(lambda x: (x > 0).sum(), name="n")]).value_and_grad(
            autodiff.array([1.0, 2.0]), wrt="input"
        )
        close(autodiff.numpy(out.gradient), [0.0, 0.0])
        assert out.metrics()["total_grad_norm"] == 0.0

    def test_no_cosines_without_gradients(self, autodiff: Any) -> None:
        out = pn.Pipeline([pn.Term(lambda x: (x > 0).sum(), name="n")]).value_and_grad(
            autodiff.array([1.0]), wrt="input", cosines=True
        )
        assert np.isnan(out.read().cosines[0][0])

    def test_norm_of_no_float(self, autodiff: Any) -> None:
        with pytest.raises(pn.GradientError, match="gradients.norm: fn returned"):
            pn.gradients.norm(lambda x: x.argmax(), autodiff.array([1.0, 2.0]))
        with pytest.raises(pn.GradientError, match="gradients.norm: fn returned"):
            pn.gradients.norm(lambda x: x, autodiff.array([1.0, 2.0]))
        with pytest.raises(pn.GradientError, match="expected floats"):
            pn.gradients.norm(lambda x: x.sum() * 1.0, autodiff.array([1, 2], "int32"))

    def test_norm_of_a_nest(self, autodiff: Any) -> None:
        x = {"a": autodiff.array([1.0]), "b": autodiff.array([2.0])}
        assert pn.gradients.norm(lambda x: 3 * x["a"].sum() + 4 * x["b"].sum(), x) == 5.0


class TestOwnGradients:
    def test_is_used_by_every_way(self, autodiff: Any) -> None:
        def rounded(x: Any) -> Any:
            return pn.Evaluation(x.round().sum(), gradient={"x": x * 0 + 1}, metrics={"n": len(x)})

        pipeline = pn.Pipeline([pn.Term(rounded, weight=2.0), "l2"])
        x = autodiff.array([1.2, 2.6])
        out = pipeline.value_and_grad(x, wrt="input")
        close(autodiff.numpy(out.gradient), [4.4, 7.2])
        (plain,) = autodiff.gradients(pipeline.total, x)
        close(plain, [4.4, 7.2])
        assert out.metrics()["rounded/n"] == 2.0

    def test_numbers_and_numpy_arrays_are_converted(self, library: Any) -> None:
        def solved(x: Any) -> Any:
            numbers = library.numpy(x)
            return pn.Evaluation(float((numbers**2).sum()), gradient={"x": 2 * numbers})

        if library is JAX:
            import jax

            def solved(x: Any) -> Any:
                x = jax.lax.stop_gradient(x)
                return pn.Evaluation((x**2).sum(), gradient={"x": 2 * x})

        out = pn.Pipeline([pn.Term(solved, weight=0.5)]).value_and_grad(library.array([1.0, 3.0]), wrt="input")
        close(library.numpy(out.gradient), [1.0, 3.0])
        close(out.read().total, 5.0)

    def test_nests_pair_by_key(self, library: Any) -> None:
        def own(x: Any) -> Any:
            value = x["a"].sum() + 3 * x["b"][1].sum()
            return pn.Evaluation(value, gradient={"x": {"b": [None, 3 + 0 * x["b"][1]], "a": 1 + 0 * x["a"]}})

        one = library.array([1.0])
        out = evaluate(pn.Term(own), {"x": {"a": one, "b": [one, one]}}, ("x",))
        assert float(library.numpy(out.gradient["x"]["a"])[0]) == 1.0
        assert float(library.numpy(out.gradient["x"]["b"][1])[0]) == 3.0
        assert out.gradient["x"]["b"][0] is None or not library.numpy(out.gradient["x"]["b"][0]).any()

    def test_by_the_name_of_the_parameter_or_of_the_input(self, library: Any) -> None:
        for key in ("x", "params"):
            term = pn.Term(
                lambda x, key=key: pn.Evaluation(x.sum(), gradient={key: 0 * x + 5}), name="own", inputs={"x": "params"}
            )
            out = pn.Pipeline([term]).value_and_grad(params=library.array([1.0]), wrt="params")
            close(library.numpy(out.gradient["params"]), [5.0])

    @pytest.mark.parametrize(
        ("gradient", "message"),
        [
            (lambda x: {"y": x}, 'returned a gradient for "y"; expected its inputs: x'),
            (
                lambda x: {"x": x[:1]},
                r'returned a gradient of shape \(1,\) for "x"; expected that of the input, \(2,\)',
            ),
        ],
    )
    def test_wrong(self, library: Any, gradient: Any, message: str) -> None:
        term = pn.Term(lambda x: pn.Evaluation(x.sum(), gradient=gradient(x)), name="own")
        with pytest.raises(pn.TermError, match=f"own: {message}"):
            pn.Pipeline([term])(x=library.array([1.0, 2.0]))

    @pytest.mark.parametrize("brought", [{"b": 1}, [1], [1, 2, 3]])
    def test_of_another_structure(self, library: Any, brought: Any) -> None:
        one = library.array([1.0])
        nest = {"a": one} if isinstance(brought, dict) else [one, one]
        term = pn.Term(lambda x: pn.Evaluation(one.sum(), gradient={"x": brought}), name="own")
        with pytest.raises(pn.TermError, match='own: returned a gradient for "x" of another structure'):
            pn.Pipeline([term])(x=nest)

    def test_cosines(self, library: Any) -> None:
        def own(x: Any, slope: Any = None) -> Any:
            return pn.Evaluation(x.sum(), gradient={"x": library.array(slope)})

        terms = [
            pn.Term(own, name=str(slope), options={"slope": slope}) for slope in ([3.0, 4.0], [4.0, -3.0], [6.0, 8.0])
        ]
        out = pn.Pipeline(terms).value_and_grad(library.array([1.0, 2.0]), wrt="input", cosines=True)
        close(library.numpy(out.cosines), [[1, 0, 1], [0, 1, 0], [1, 0, 1]])

    def test_cosines_of_terms_at_different_inputs(self, library: Any) -> None:
        def own(x: Any) -> Any:
            return pn.Evaluation(x.sum(), gradient={"x": 0 * x + 2})

        terms = [pn.Term(own, name=name, inputs={"x": name}) for name in ("a", "b")]
        given = {"a": library.array([1.0]), "b": library.array([1.0])}
        out = pn.Pipeline(terms).value_and_grad(**given, wrt=("a", "b"), cosines=True)
        close(library.numpy(out.cosines), [[1, 0], [0, 1]])

    @needs_jax
    def test_registered_classes(self) -> None:
        import jax

        @jax.tree_util.register_pytree_node_class
        class Weights:
            def __init__(self, a: Any, b: Any) -> None:
                self.a, self.b = a, b

            def tree_flatten(self) -> Any:
                return (self.a, self.b), None

            @classmethod
            def tree_unflatten(cls, _: Any, parts: Any) -> Any:
                return cls(*parts)

        def own(w: Any) -> Any:
            return pn.Evaluation(w.a.sum() + w.b.sum(), gradient={"w": Weights(5 + 0 * w.a, 7 + 0 * w.b)})

        given = Weights(JAX.array([1.0]), JAX.array([2.0]))
        named = pn.Pipeline([pn.Term(lambda w: w.a.sum(), name="first")])
        assert named(w=Weights(JAX.array([1.0]), "a label")).metrics()["total"] == 1.0
        out = pn.Pipeline([pn.Term(own), pn.Term(pn.l1, inputs="w")]).value_and_grad(w=given)
        close([out.gradient["w"].a[0], out.gradient["w"].b[0]], [6.0, 8.0])
        wrong = pn.Term(lambda w: pn.Evaluation(w.a.sum(), gradient={"w": (1.0,)}), name="wrong")
        with pytest.raises(pn.TermError, match="of another structure"):
            pn.Pipeline([wrong])(w=given)

    @needs_torch
    def test_first_order_only(self) -> None:
        x = TORCH.array([1.0, 2.0]).requires_grad_()
        term = pn.Term(lambda x: pn.Evaluation((x**2).sum(), gradient={"x": 2 * x}), name="own")
        (gradient,) = torch.autograd.grad(pn.Pipeline([term]).total(x), x, create_graph=True)
        with pytest.raises(RuntimeError):
            torch.autograd.grad(gradient.sum(), x)
