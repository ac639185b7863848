"""Hostile terms among healthy ones, inline: each is named, or well, and the others have their numbers."""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from penalties.errors import said
from tests.fuzz.cases import try_cases
from tests.fuzz.hostile import HOSTILE, Hostile
from tests.libraries import JAX, LIBRARIES
from tests.slow.faults import HEALTHY

X = np.array([0.5, -1.5, 2.0])


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    with restored():
        yield


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Whatever a term changes around it is as before."""
    dtype, grad, errors = torch.get_default_dtype(), torch.is_grad_enabled(), np.geterr()
    with warnings.catch_warnings():
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            torch.set_grad_enabled(grad)
            np.seterr(**errors)


def among_others(one: Hostile, rng: np.random.Generator, **options: Any) -> tuple[pn.Pipeline, dict[str, float]]:
    """The hostile term among healthy ones, and the weights of all."""
    healthy = [fn for fn in HEALTHY if rng.integers(2)]
    terms = [pn.Term(fn, float(rng.choice([1.0, 0.25]))) for fn in healthy]
    terms.insert(int(rng.integers(len(terms) + 1)), pn.Term(one.fn, 0.5, "hostile", **options))
    return pn.Pipeline(terms), {term.name: float(term.weight) for term in terms}  # type: ignore[arg-type]


def run(library: Any, pipeline: pn.Pipeline, rng: np.random.Generator, gradients: bool) -> pn.LossOutput:
    x = library.array(X, "float64")
    if not gradients:
        return pipeline(x=x)
    return pipeline.value_and_grad(x=x, wrt="x", keep=bool(rng.integers(2)), cosines=bool(rng.integers(2)))


def compare(library: Any, out: pn.LossOutput, weights: dict[str, float], *, well: bool, gradients: bool) -> None:
    """Healthy terms have their numbers, and the total is theirs, with the hostile one where it is well."""
    known = {fn.__name__: numbers(X) for fn, numbers in HEALTHY.items()}
    known["hostile"] = known["squares"]
    counted = [name for name in weights if name != "hostile" or well]
    for name in counted:
        np.testing.assert_allclose(library.numpy(out[name].value), known[name][0].sum(), err_msg=name)
    total = sum(weights[name] * known[name][0].sum() for name in counted)
    np.testing.assert_allclose(library.numpy(out.total), total, err_msg="total")
    if gradients:
        gradient = sum(weights[name] * known[name][1] for name in counted)
        np.testing.assert_allclose(library.numpy(out.gradient["x"]), gradient + 0 * X, err_msg="gradient")


def check(library: Any, one: Hostile, rng: np.random.Generator) -> None:
    gradients = bool(rng.integers(2)) or one.gradient
    skipped, weights = among_others(one, rng, on_error="skip")
    raising = pn.Pipeline([term.replace(on_error="raise") for term in skipped])
    if one.outcome is None:
        compare(library, run(library, raising, rng, gradients), weights, well=True, gradients=gradients)
        return
    with pytest.raises(one.outcome) as caught:
        run(library, raising, rng, gradients)
    if one.outcome is not pn.TermError:
        return
    assert isinstance(caught.value, pn.TermError)
    assert caught.value.term == "hostile"
    assert one.says in str(caught.value)
    out = run(library, skipped, rng, gradients)
    assert isinstance(out["hostile"].error, pn.TermError)
    assert out["hostile"].value is None
    compare(library, out, weights, well=False, gradients=gradients)
    out.to_dict(), out.metrics()


@pytest.mark.parametrize("one", HOSTILE, ids=lambda one: one.name)
def test_hostile_terms(library: Any, one: Hostile) -> None:
    if library.name not in one.libraries:
        pytest.skip("for another library")

    def check_restored(rng: np.random.Generator) -> None:
        with restored():
            try:
                check(library, one, rng)
            except Exception as error:
                # Not as it is: pytest cannot show every one of these.
                raise AssertionError(said(error)) from None

    try_cases(1 if library is JAX else 2, check_restored)


def test_every_library_is_tried() -> None:
    assert {name for one in HOSTILE for name in one.libraries} >= {library.name for library in LIBRARIES}
