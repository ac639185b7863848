"""Gradients, failures and checks that once were wrong without a word."""

import functools
import pickle
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from tests.libraries import DEVICE, JAX, LIBRARIES

needs_jax = pytest.mark.skipif(JAX not in LIBRARIES, reason="JAX was not chosen")


def test_wrt_of_a_positional_input_is_its_one_name(autodiff: Any) -> None:
    with pytest.raises(pn.InputError, match='no input is named "x"; a positional input is named "input"'):
        pn.Pipeline(["l1"]).value_and_grad(autodiff.array([1.0, 2.0]), wrt="x")


@pytest.mark.parametrize("argument", [{"weighting": None}])
def test_arguments_that_a_call_does_not_take_are_not_inputs(argument: dict[str, Any]) -> None:
    with pytest.raises(pn.InputError, match=f'"{next(iter(argument))}" cannot name an input'):
        pn.Pipeline(["l1"]).value_and_grad(x=torch.ones(2), wrt="x", **argument)
    with pytest.raises(pn.InputError, match='"keep" cannot name an input'):
        pn.Pipeline(["l1"])(x=torch.ones(2), keep=True)


def test_a_skipped_term_leaves_nothing_in_the_gradient_of_a_large_tensor() -> None:
    x = torch.full((500_000,), 1e25, device=DEVICE, requires_grad=True)
    pipeline = pn.Pipeline(["l1", pn.Term("l2", weight=0.5, on_error="skip")])
    with pn.Executor() as executor:
        out = executor.run(pipeline, {"x": x}, wrt="x")
    assert isinstance(out["l2"].error, pn.NonFiniteError)
    assert out.gradient["x"].unique().tolist() == [1.0]


def test_large_tensors_inside_a_transform() -> None:
    x = torch.randn(500_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pipeline = pn.Pipeline(["l2"])
    found = torch.func.grad(lambda x: pipeline.value_and_grad(x=x, wrt="x")["l2"].grad_norm)(x)
    torch.testing.assert_close(found, 2 * x / x.norm())


def test_one_array_as_two_inputs_counts_once_each() -> None:
    y = torch.ones(2, device=DEVICE, requires_grad=True)
    terms = [pn.Term("l1", inputs="params", runs="thread"), pn.Term("l2", inputs="head", runs="thread")]
    with pn.Executor() as executor:
        out = executor.run(pn.Pipeline(terms), {"params": [y], "head": y}, cosines=True)
    out.total.backward()
    assert y.grad.tolist() == [3.0, 3.0]
    assert out.gradient["head"].tolist() == [2.0, 2.0]


@needs_jax
def test_a_term_that_starts_early_has_its_gradient() -> None:
    late: Future[Any] = Future()
    late.set_result(JAX.array([1.0]))
    terms = [pn.Term("l2", inputs="a", runs="thread"), pn.Term("l1", inputs="b")]
    with pn.Executor() as executor:
        out = executor.run(pn.Pipeline(terms), {"a": JAX.array([1.0]), "b": late}, cosines=True)
    assert float(out.gradient["a"][0]) == 2.0


# The gradients are 7e-4; 6e-9, which float16 cannot hold; and 60 000 beside 0.1.
@pytest.mark.parametrize("elements", [[0.37] * 1000, [6e-4] * 200_000, [60_000.0, 0.1]])
@pytest.mark.parametrize("weight", [1e-8, 1e3])
def test_norms_at_float16_do_not_depend_on_the_weight(autodiff: Any, weight: float, elements: list[float]) -> None:
    x = autodiff.array(elements, "float16")
    out = pn.Pipeline([pn.Term(pn.l2, weight, options={"reduction": "mean"})]).value_and_grad(x, wrt="input")
    expected = 2 * np.sqrt((autodiff.numpy(x) ** 2).sum()) / len(elements)
    assert float(autodiff.numpy(out["l2"].grad_norm)) == pytest.approx(expected, rel=5e-3, abs=0.0)


def test_small_gradients_at_bfloat16_do_not_vanish() -> None:
    terms = [pn.Term("l1", name=f"l1_{i}", weight=0.001) for i in range(49)]
    x = torch.ones(3, dtype=torch.bfloat16, device=DEVICE)
    out = pn.Pipeline([pn.Term("l1"), *terms]).value_and_grad(x, wrt="input")
    assert out.gradient.dtype == torch.bfloat16
    assert out.gradient[0].item() == pytest.approx(1.049, rel=4e-3)


def test_float16_in_a_thread_is_as_inline() -> None:
    def cube(x: torch.Tensor) -> torch.Tensor:
        return (x.float() ** 3).sum()

    x = torch.full((2,), 300.0, device=DEVICE).half()
    with pn.Executor() as executor:
        out = executor.run(pn.Pipeline([pn.Term(cube, weight=1e-3, runs="thread")]), {"x": x}, wrt="x")
    assert out.gradient["x"].tolist() == [270.0, 270.0]


def test_a_circle_of_causes_ends() -> None:
    def broken(x: Any) -> Any:
        one, other = ValueError("one"), ValueError("other")
        one.__cause__, other.__cause__ = other, one
        raise one

    out = pn.Pipeline([pn.Term(broken, on_error="skip"), pn.Term("l1")])(np.ones(2))
    assert out["broken"].error is not None


def test_an_inline_term_that_is_skipped_as_nan_is_announced_as_failed() -> None:
    heard: list[str] = []
    handler = pn.telemetry.attach(lambda event, *_: heard.append(event), ["term.stop", "term.exception"])
    try:
        with pn.Executor() as executor:
            executor.run(pn.Pipeline([pn.Term("l1", on_error="skip")]), torch.tensor([float("nan")]))
    finally:
        pn.telemetry.detach(handler)
    assert heard == ["term.exception"]


@needs_jax
def test_pickled_outputs_keep_their_durations() -> None:
    out = pn.Pipeline(["l1"])(JAX.array([1.0]))
    assert pickle.loads(pickle.dumps(out))["l1"].duration == out["l1"].duration is not None


@needs_jax
def test_no_term_due_has_an_empty_gram_matrix() -> None:
    out = pn.Pipeline([pn.Term("l1", every=2)]).value_and_grad(x=JAX.array([1.0]), wrt="x", step=1, keep=True)
    assert out.gram.shape == (0, 0)


def test_resting_terms_need_no_inputs(autodiff: Any) -> None:
    pipeline = pn.Pipeline([pn.Term("l1", inputs="x"), pn.Term("entropy", inputs="q", every=2)])
    x = autodiff.array([1.0])
    with pn.debug():
        out = pipeline.value_and_grad(x=x, wrt="x", step=1)
    assert float(out.gradient["x"][0]) == 1.0


def test_kept_gradients_do_not_share_memory() -> None:
    def both(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a + b).sum()

    a, b = torch.ones(2), torch.ones(2)
    out = pn.Pipeline([both]).value_and_grad(a=a, b=b, wrt=("a", "b"), keep=True)
    out["both"].gradient["a"].mul_(5)
    assert out["both"].gradient["b"].tolist() == [1.0, 1.0]


def test_equal_pipelines_are_not_one_run() -> None:
    first, second = (pn.Pipeline([pn.EMA(pn.Term("l1", name="twin"))]) for _ in range(2))
    with pn.debug():
        first(np.ones(2))
        second(np.ones(2))


def test_checks_of_empty_and_infinite_rows(library: Any) -> None:
    masked = pn.Pipeline([pn.Term(pn.entropy, inputs={"p": "p", "mask": "mask"})])
    rows = library.array([[np.log(0.5), np.log(0.5)], [np.inf, 0.0]])
    with pn.debug():
        masked(p=rows, mask=library.array([1.0, 0.0]))
        pn.Pipeline([pn.entropy])(p=library.array(np.zeros((0, 5)))).check()


def test_a_failing_pipeline_inside_a_term_is_that_terms_failure() -> None:
    inner = pn.Pipeline([pn.Term(lambda x: x, name="inner")])
    with pytest.raises(pn.TermError, match="outer: raised .*inner") as caught:
        pn.Pipeline([pn.Term(lambda x: inner.total(x), name="outer")])(np.ones(2))
    assert caught.value.term == "outer"


def test_state_in_any_memory_order(tmp_path: Any) -> None:
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    pn.save_state({"l1": {"before": array}}, tmp_path / "state.safetensors")
    assert pn.load_state(tmp_path / "state.safetensors")["l1"]["before"].tolist() == array.tolist()


def test_a_returned_gradient_under_a_path_reaches_the_nest_that_wrt_names(library: Any) -> None:
    def squares(x: Any) -> pn.Evaluation:
        return pn.Evaluation((x**2).sum(), gradient={"x": 2 * x})

    pipeline = pn.Pipeline([pn.Term(squares, inputs="params.w")])
    params = {"w": library.array([1.0, 2.0]), "b": library.array([3.0])}
    gradient = pipeline.value_and_grad(params=params, wrt="params").gradient["params"]
    assert [gradient[key].tolist() for key in ("w", "b")] == [[2.0, 4.0], [0.0]]


def test_a_misspelt_term_is_answered_with_the_nearest() -> None:
    with pytest.raises(pn.InputError, match=r'weights: no term is named "entropi".*; did you mean entropy\?'):
        pn.Pipeline(["entropy"])(np.zeros((1, 1)), weights={"entropi": 1.0})


@pytest.mark.parametrize("runs", ["inline", "thread"])
def test_one_array_at_several_parts_of_a_nest_keeps_each_gradient_apart(runs: Any) -> None:
    def own(x: Any) -> pn.Evaluation:
        value = x["a"].sum() + 3 * x["b"][1].sum()
        return pn.Evaluation(value, gradient={"x": {"a": torch.ones(2), "b": [None, torch.full((2,), 3.0)]}})

    shared = torch.ones(2)
    with pn.Executor() as executor:
        inputs = {"x": {"a": shared, "b": [shared, shared]}}
        gradient = executor.run(pn.Pipeline([pn.Term(own, runs=runs)]), inputs, wrt="x").gradient["x"]
    assert [part.tolist() for part in (gradient["a"], *gradient["b"])] == [[1, 1], [0, 0], [3, 3]]


@pytest.mark.parametrize("size", [3, 500_000])
@pytest.mark.parametrize("element", [1e-25, 1e19])
def test_norms_whose_squares_are_out_of_range(autodiff: Any, element: float, size: int) -> None:
    x = autodiff.array(np.full(size, element), "float32")
    out = pn.Pipeline(["l2", pn.Term("l1", weight=0)]).value_and_grad(x, wrt="input")
    assert float(out["l2"].grad_norm) == pytest.approx(2 * element * size**0.5, rel=1e-5, abs=0)
    assert float(out.total_grad_norm) == pytest.approx(2 * element * size**0.5, rel=1e-5, abs=0)


def test_a_million_equal_values_lose_no_digits(autodiff: Any) -> None:
    x = autodiff.array(np.full(1_000_000, 0.1), "float32")
    out = pn.Pipeline(["l1", "l2"]).value_and_grad(x, wrt="input")
    element = float(np.float32(0.1))
    assert float(out["l1"].value) == pytest.approx(1e6 * element, rel=1e-6)
    assert float(out["l2"].value) == pytest.approx(1e6 * element**2, rel=1e-6)
    assert float(out["l2"].grad_norm) == pytest.approx(2e3 * element, rel=1e-6)


def test_what_one_term_does_to_its_input_does_not_reach_the_next() -> None:
    def hooked(x: Any) -> Any:
        x.register_hook(lambda gradient: gradient * 10)
        return (x**2).sum()

    def detached(x: Any) -> Any:
        return x.requires_grad_(False).sum()

    def emptied(nest: Any) -> Any:
        return nest.pop("a").sum()

    x = torch.tensor([1.0, 2.0], device=DEVICE)
    out = pn.Pipeline([hooked, "l1", detached, "l2"]).value_and_grad(x=x, wrt="x", keep=True)
    assert [out[name].gradient["x"].tolist() for name in ("l1", "l2")] == [[1.0, 1.0], [2.0, 4.0]]
    pipeline = pn.Pipeline([emptied, pn.Term("l1", inputs="nest"), pn.Term("l2", inputs="nest")])
    out = pipeline.value_and_grad(nest={"a": x, "b": 2 * x}, wrt="nest")
    assert [out.read()[name].value for name in ("emptied", "l1", "l2")] == [3.0, 9.0, 25.0]


def test_features_that_terms_share_through_a_cache() -> None:
    @functools.lru_cache
    def features(x: Any) -> Any:
        return x.exp()

    def first(x: Any) -> Any:
        return features(x).sum()

    def second(x: Any) -> Any:
        return (features(x) ** 2).sum()

    x = torch.tensor([0.0, 1.0], device=DEVICE)
    out = pn.Pipeline([first, second]).value_and_grad(x=x, wrt="x")
    torch.testing.assert_close(out.gradient["x"], x.exp() + 2 * (2 * x).exp())


def test_two_parameters_that_read_one_input_add_their_gradients(library: Any) -> None:
    def both(a: Any, b: Any) -> pn.Evaluation:
        return pn.Evaluation((a * 2).sum() + (b * 3).sum(), gradient={"a": 0 * a + 2, "b": 0 * b + 3})

    pipeline = pn.Pipeline([pn.Term(both, inputs={"a": "x", "b": "x"})])
    out = pipeline.value_and_grad(x=library.array([1.0, 2.0]), wrt="x")
    assert library.numpy(out.gradient["x"]).tolist() == [5.0, 5.0]


@needs_jax
def test_the_derivative_of_a_norm_whose_squares_are_out_of_range() -> None:
    import jax

    from penalties.backends import owner

    def norm(x: Any) -> Any:
        ops = owner(x)
        assert ops is not None
        return ops.norm([2 * x])

    x = np.array([1.0, -2.0, 0.5], np.float32)
    expected = 2 * x / np.sqrt((x * x).sum())
    for scale in (1e20, 1e-20):
        np.testing.assert_allclose(jax.grad(norm)(jax.numpy.asarray(x * np.float32(scale))), expected, rtol=1e-5)


class TestMisspeltArguments:
    """An argument of the call that is almost one would be an input that nobody reads, and would do nothing."""

    @pytest.mark.parametrize(
        ("name", "given", "meant"),
        [
            ("acumulate", True, "accumulate"),
            ("cosine", True, "cosines"),
            ("weight", {"l1": 0.5}, "weights"),
            ("steps", 3, "step"),
            ("states", {}, "state"),
        ],
    )
    def test_are_errors_that_name_what_was_meant(self, name: str, given: Any, meant: str) -> None:
        pipeline = pn.Pipeline([pn.Term(pn.l1, inputs="x")])
        x = torch.ones(3, requires_grad=True)
        with pytest.raises(pn.InputError, match=f'no term reads the input "{name}".*did you mean {meant}'):
            pipeline.value_and_grad(x=x, **{name: given})

    def test_arrays_are_inputs_whatever_their_name(self) -> None:
        x = torch.ones(3, requires_grad=True)
        assert pn.Pipeline([pn.Term(pn.l1, inputs="x")])(x=x, weight=torch.ones(2)).total == 3

    def test_a_term_may_read_an_input_of_such_a_name(self) -> None:
        term = pn.Term(lambda x, steps: steps * x.sum(), name="counted")
        assert pn.Pipeline([term])(x=torch.ones(3), steps=2).total == 6
