"""`Logits` as data, and penalties called with them: the numbers of the array that they stand for."""

import pickle
from typing import Any

import jax
import numpy as np
import pytest
import torch

import penalties as pn
from penalties.arrays import Logits
from tests.heads import arrays, tensors, use_small_blocks
from tests.libraries import JAX, LIBRARIES, close


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_blocks(monkeypatch)


class TestData:
    def test_stands_for_an_array(self, library: Any) -> None:
        hidden, weight, bias = (library.array(x) for x in arrays((2, 3, 4), (7, 4), (7,)))
        logits = Logits(hidden, weight, bias, softcap=2.0)
        assert logits.shape == (2, 3, 7)
        assert logits.ndim == 3
        assert logits.dtype == hidden.dtype
        whole = library.numpy(logits.materialize())
        plain = library.numpy(hidden) @ library.numpy(weight).T + library.numpy(bias)
        close(whole, 2 * np.tanh(plain / 2))

    @pytest.mark.parametrize(
        ("given", "error", "message"),
        [
            ({"hidden": [1.0], "weight": np.ones((2, 1))}, pn.BackendError, "hidden is a list; expected a NumPy array"),
            ({"hidden": np.ones(2), "weight": torch.ones(3, 2)}, pn.BackendError, "different libraries"),
            (
                {"hidden": np.ones((3, 2)), "weight": np.ones((2, 5))},
                pn.ShapeError,
                r"\(3, 2\) and weight \(2, 5\); expected",
            ),
            (
                {"hidden": np.ones(2), "weight": np.ones((5, 2)), "bias": np.ones(2)},
                pn.ShapeError,
                r"bias has shape \(2,\)",
            ),
            (
                {"hidden": np.ones(2), "weight": np.ones((5, 2)), "softcap": 0},
                pn.OptionError,
                "softcap=0; expected None or",
            ),
            ({"hidden": np.ones(2), "weight": np.ones((5, 2)), "softcap": "x"}, pn.OptionError, "softcap='?\"?x"),
            ({"hidden": np.ones(2), "weight": np.ones((5, 2)), "softcap": True}, pn.OptionError, "softcap=True"),
            (
                {"hidden": torch.ones(2), "weight": torch.ones(5, 2, device="meta")},
                pn.BackendError,
                "hidden is on cpu and weight on meta; move one of them",
            ),
            ({"hidden": np.ones(2, int), "weight": np.ones((5, 2))}, pn.BackendError, "hidden has dtype int64"),
            (
                {"hidden": torch.ones(2), "weight": torch.ones(5, 2, dtype=torch.int32)},
                pn.BackendError,
                "weight has dtype torch.int32; expected floats",
            ),
        ],
    )
    def test_what_does_not_fit(self, given: Any, error: Any, message: str) -> None:
        with pytest.raises(error, match=message):
            Logits(**given)

    def test_a_layer_stored_in_more_precision(self) -> None:
        hidden, weight, bias = tensors((3, 4), (7, 4), (7,), dtype=torch.float32)
        logits = Logits(hidden.bfloat16(), weight, bias)
        assert logits.materialize().dtype == torch.bfloat16
        small = [x.bfloat16() for x in (hidden, weight, bias)]
        torch.testing.assert_close(logits.materialize(), Logits(*small).materialize())

    def test_travels_as_bytes(self) -> None:
        logits = Logits(*arrays((3, 4), (7, 4)), softcap=2.0)
        again = pickle.loads(pickle.dumps(logits))
        close(again.materialize(), logits.materialize())

    @pytest.mark.skipif(JAX not in LIBRARIES, reason="JAX was not chosen")
    def test_a_pytree(self) -> None:
        logits = Logits(*map(jax.numpy.asarray, arrays((3, 4), (7, 4))), softcap=2.0)
        doubled = jax.tree_util.tree_map(lambda x: 2 * x, logits)
        assert doubled.softcap == 2.0
        close(JAX.numpy(doubled.hidden), 2 * JAX.numpy(logits.hidden))


class TestDirectly:
    @pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
    @pytest.mark.parametrize("masked", [False, True])
    def test_values(self, library: Any, reduction: Any, masked: bool) -> None:
        hidden, weight, bias, q = (library.array(x) for x in arrays((2, 3, 4), (7, 4), (7,), (2, 3, 7)))
        logits = Logits(hidden, weight, bias, softcap=2.0)
        mask = library.array([[1.0, 0.0, 0.5], [1.0, 1.0, 0.0]]) if masked else None
        given: Any = {"reduction": reduction, "mask": mask, "logits": True}
        for found, right in (
            (pn.kl_divergence(logits, q, **given), pn.kl_divergence(logits.materialize(), q, **given)),
            (
                pn.js_divergence(q, logits, sqrt=True, **given),
                pn.js_divergence(q, logits.materialize(), sqrt=True, **given),
            ),
            (pn.entropy(logits, **given), pn.entropy(p=logits.materialize(), **given)),
        ):
            assert found.shape == right.shape
            close(library.numpy(found), library.numpy(right))

    def test_gradients(self, autodiff: Any) -> None:
        given = [autodiff.array(x) for x in arrays((5, 4), (7, 4), (7,), (5, 7))]

        def value(lazy: bool) -> Any:
            def of(hidden: Any, weight: Any, bias: Any, q: Any) -> Any:
                logits = Logits(hidden, weight, bias, softcap=2.0)
                return pn.kl_divergence(logits if lazy else logits.materialize(), q, temperature=2.0)

            return autodiff.compiled(lambda *xs: autodiff.raw_gradients(of, *xs))(*given)

        for found, right in zip(value(True), value(False), strict=True):
            close(autodiff.numpy(found), autodiff.numpy(right))

    def test_one_position_without_an_axis(self, library: Any) -> None:
        logits = Logits(*(library.array(x) for x in arrays((4,), (7, 4))))
        for reduction in ("mean", "none"):
            found = pn.entropy(logits, logits=True, reduction=reduction)
            assert found.shape == ()
            close(library.numpy(found), library.numpy(pn.entropy(logits.materialize(), logits=True)))

    def test_no_rows(self, library: Any) -> None:
        logits = Logits(library.array(np.zeros((0, 4))), library.array(np.ones((7, 4))))
        assert float(pn.entropy(logits, logits=True)) == 0.0
        assert pn.entropy(logits, logits=True, reduction="none").shape == (0,)

    def test_a_penalty_that_needs_the_array_gets_it(self, library: Any) -> None:
        logits = Logits(*(library.array(x) for x in arrays((3, 4), (7, 4))))
        close(library.numpy(pn.l2(logits)), library.numpy(pn.l2(logits.materialize())))
        close(library.numpy(pn.l2({"a": [logits]})), library.numpy(pn.l2(logits)))
        close(library.numpy(pn.consistency(a=logits, b=logits.materialize(), metric="cosine")), 0.0)

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({}, pn.OptionError, "logits=False; expected True: Logits are unnormalised"),
            ({"logits": True, "reduction": "avg"}, pn.OptionError, 'reduction="avg"'),
            ({"logits": True, "mask": np.ones(2)}, pn.ShapeError, r"mask has shape \(2,\); expected \(3,\)"),
            ({"logits": True, "mask": torch.ones(3)}, pn.BackendError, "one library"),
        ],
    )
    def test_what_is_no_distribution(self, options: Any, error: Any, message: str) -> None:
        with pytest.raises(error, match=message):
            pn.entropy(Logits(*arrays((3, 4), (7, 4))), **options)

    def test_targets(self, library: Any) -> None:
        hidden, weight = (library.array(x) for x in arrays((2, 3, 4), (7, 4)))
        targets = library.array([[1, 0, -100], [6, 6, 2]], "int64")
        logits = Logits(hidden, weight)
        mask = library.array([[1.0, 1.0, 1.0], [0.0, 0.5, 1.0]])
        for reduction in ("mean", "sum", "none"):
            for given in ({}, {"mask": mask}):
                found = pn.cross_entropy(logits, targets, logits=True, reduction=reduction, **given)
                right = pn.cross_entropy(logits.materialize(), targets, logits=True, reduction=reduction, **given)
                close(library.numpy(found), library.numpy(right))
        targets = library.array([[[1, 2]] * 3] * 2, "int64")
        found = pn.target_logprobs(logits, targets, temperature=2.0)
        assert found.shape == (2, 3, 2)
        close(library.numpy(found), library.numpy(pn.target_logprobs(logits.materialize(), targets, temperature=2.0)))
        with pytest.raises(pn.OptionError, match="Logits are unnormalised"):
            pn.target_logprobs(logits, targets)
        with pytest.raises(pn.ShapeError, match="targets has shape"):
            pn.cross_entropy(logits, targets[0], logits=True)
        with pytest.raises(pn.ShapeError, match="target_logprobs: targets has shape"):
            pn.target_logprobs(logits, targets[0], logits=True)
        with pytest.raises(pn.BackendError, match="cross_entropy: targets is a Logits; expected a NumPy array"):
            pn.cross_entropy(logits, logits, logits=True, reduction="sum")

    def test_two_shapes(self) -> None:
        logits = Logits(*arrays((3, 4), (7, 4)))
        with pytest.raises(pn.ShapeError, match="expected equal shapes"):
            pn.kl_divergence(logits, np.zeros((2, 7)), logits=True)
