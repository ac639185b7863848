"""Straight-through: the term sees discrete inputs, and its gradient passes."""

import math
from typing import Any

import numpy as np
import pytest

import penalties as pn
from tests.libraries import JAX, LIBRARIES, TORCH, close

from .functions import shifted, with_gradient


def seen_by(library: Any, discretize: Any, x: Any) -> Any:
    """What a term reads of an input."""
    kept: list[Any] = []

    def look(x: Any) -> Any:
        kept.append(x)
        return x.sum()

    pn.Pipeline([pn.StraightThrough(pn.Term(look), discretize)])(library.array(x))
    return library.numpy(kept[0])


class TestValue:
    def test_by_name(self, library: Any) -> None:
        close(seen_by(library, "round", [0.5, 1.5, -0.7]), [0.0, 2.0, -1.0])
        close(seen_by(library, "sign", [0.5, 0.0, -0.7]), [1.0, 1.0, -1.0])
        close(seen_by(library, "argmax", [[0.1, 0.7, 0.7], [3.0, 1.0, -math.inf]]), [[0, 1, 0], [1, 0, 0]])

    def test_own_function_or_its_path(self, library: Any) -> None:
        close(seen_by(library, shifted, [1.0]), [0.5])
        close(seen_by(library, "tests.pipeline.wrappers.functions:shifted", [1.0]), [0.5])

    @pytest.mark.parametrize("name", ["round", "sign", "argmax"])
    def test_nan_is_not_hidden(self, library: Any, name: str) -> None:
        term = pn.StraightThrough(pn.Term(pn.l2), name)
        assert np.isnan(float(pn.Pipeline([term])(library.array([0.5, np.nan, 0.2])).read().total))

    def test_is_exact_in_low_precision(self) -> None:
        if TORCH not in LIBRARIES:
            pytest.skip("needs PyTorch")
        kept: list[Any] = []

        def look(x: Any) -> Any:
            kept.append(x)
            return x.sum()

        pn.Pipeline([pn.StraightThrough(pn.Term(look), "sign")])(TORCH.array([300.1, -0.3], "float16"))
        assert kept[0].tolist() == [1.0, -1.0]


class TestGradient:
    def test_passes_as_if_there_were_no_steps(self, autodiff: Any) -> None:
        pipeline = pn.Pipeline([pn.StraightThrough(pn.Term(pn.l2), "round")])
        out = pipeline.value_and_grad(autodiff.array([0.4, 1.6]), wrt="input")
        close(out.read().total, 4.0)
        close(autodiff.numpy(out.gradient), [0.0, 4.0])

    def test_that_the_term_returned_passes_too(self, library: Any) -> None:
        pipeline = pn.Pipeline([pn.StraightThrough(pn.Term(with_gradient), "round")])
        out = pipeline.value_and_grad(library.array([0.4, 1.6]), wrt="input")
        close(library.numpy(out.gradient), [0.0, 4.0])

    def test_masked_logits_have_none(self, autodiff: Any) -> None:
        pipeline = pn.Pipeline([pn.StraightThrough(pn.Term(lambda x: (x * x).sum(), name="sum"), "argmax")])
        out = pipeline.value_and_grad(autodiff.array([0.4, 1.6, -math.inf]), wrt="input")
        close(autodiff.numpy(out.gradient), [0.0, 2.0, 0.0])

    def test_inside_jit(self) -> None:
        if JAX not in LIBRARIES:
            pytest.skip("needs JAX")
        import jax

        pipeline = pn.Pipeline([pn.StraightThrough(pn.Term(pn.l2), "sign")])
        gradient = jax.jit(jax.grad(lambda x: pipeline(x).total))
        close(JAX.numpy(gradient(JAX.array([0.3, -0.2]))), [2.0, -2.0])

    def test_only_the_named_inputs_are_discrete(self, library: Any) -> None:
        def product(a: Any, b: Any) -> Any:
            return (a * b).sum()

        pipeline = pn.Pipeline([pn.StraightThrough(pn.Term(product, inputs=("p", "q")), "round", wrt="q")])
        close(pipeline(p=library.array([0.5]), q=library.array([1.6])).read().total, 1.0)

    def test_whole_numbers_stay(self, library: Any) -> None:
        pipeline = pn.Pipeline([pn.StraightThrough(pn.Term(lambda x: 1.0 * x.sum(), name="sum"), shifted)])
        close(pipeline(library.array([1, 2], "int64")).read().total, 3.0)


class TestWrong:
    def test_shape(self, library: Any) -> None:
        pipeline = pn.Pipeline([pn.StraightThrough(pn.Term(pn.l2), lambda x: x[:1])])
        with pytest.raises(pn.TermError, match=r'shape \(1,\) for "x"; expected a .* array of shape \(2,\)'):
            pipeline(library.array([1.0, 2.0]))

    def test_kind(self) -> None:
        pipeline = pn.Pipeline([pn.StraightThrough(pn.Term(pn.l2), lambda x: 3)])
        with pytest.raises(pn.TermError, match='discretize returned int for "x"; expected a NumPy array'):
            pipeline(np.ones(2))

    @pytest.mark.parametrize("given", ["floor", 3, None])
    def test_name(self, given: Any) -> None:
        with pytest.raises(pn.OptionError, match='expected "round", "sign", "argmax", a function of an array'):
            pn.StraightThrough(pn.Term(pn.l2), given)
