"""Terms as values: immutable, compared and pickled by what they hold."""

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest

import penalties as pn

from .test_term import Length, collecting, scaled, total


class TestValues:
    def test_frozen(self) -> None:
        term = pn.Term(pn.l1, options={"reduction": "mean"})
        with pytest.raises(dataclasses.FrozenInstanceError):
            term.weight = 2.0  # type: ignore[misc]
        with pytest.raises(TypeError):
            term.options["reduction"] = "sum"  # type: ignore[index]
        with pytest.raises(TypeError):
            term.inputs["x"] = "y"  # type: ignore[index]

    def test_its_options_do_not_follow_the_dict_they_came_from(self) -> None:
        options = {"reduction": "mean"}
        term = pn.Term(pn.l1, options=options)
        options["reduction"] = "none"
        assert total(term, np.array([1.0, 3.0])) == 2.0

    @pytest.mark.parametrize(
        "term",
        [
            pn.Term(pn.l1),
            pn.Term("kl_divergence", 0.1, "kl", ("s", "t"), {"direction": "reverse"}, every=3, timeout=2.0),
            pn.Term(scaled, options={"factor": np.float64(2.0)}, chunk=None, runs="process", on_error="skip"),
            pn.Term(Length(), idempotent=True, enabled=False, differentiable=False),
            pn.Term(collecting, inputs=("a", "b")),
        ],
    )
    def test_equality_and_pickling(self, term: pn.Term) -> None:
        copy = pickle.loads(pickle.dumps(term))
        if not isinstance(term.fn, Length):
            assert copy == term
            assert hash(copy) == hash(term)
        assert copy.name == term.name
        assert copy != term.replace(weight=7.0)
        assert term != "term"

    def test_arrays_in_options_compare_by_their_elements(self) -> None:
        term = pn.Term(pn.kl_estimate, options={"mask": np.array([1.0, 0.0])})
        assert term == pn.Term(pn.kl_estimate, options={"mask": np.array([1.0, 0.0])})
        assert term != pn.Term(pn.kl_estimate, options={"mask": np.array([1.0, 1.0])})
        assert term != pn.Term(pn.kl_estimate, options={"mask": [1.0, 0.0]})

    def test_repr_shows_what_differs_from_the_defaults(self) -> None:
        assert repr(pn.Term(pn.l1)) == "Term(l1, weight=1.0)"
        term = pn.Term(pn.l2, 0.5, "decay", "params", {"clip": 1.0}, every=2)
        assert (
            repr(term) == "Term(l2, name='decay', weight=0.5, inputs={'x': 'params'}, options={'clip': 1.0}, every=2)"
        )

    def test_replace(self) -> None:
        term = pn.Term("l1", weight=0.5).replace(name="sparse", weight=2)
        assert (term.name, term.weight, term.path) == ("sparse", 2, "l1")

    def test_asynchronous_functions_are_known(self) -> None:
        async def later(x: Any) -> Any:
            return x.sum()

        class Later:
            async def __call__(self, x: Any) -> Any:
                return x.sum()

        assert pn.Term(later).asynchronous
        assert pn.Term(Later()).asynchronous
        assert not pn.Term(pn.l1).asynchronous
