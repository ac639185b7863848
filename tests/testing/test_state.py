"""check_term: terms with state, at their second and third call too."""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import penalties as pn
from penalties.testing import check_term
from tests.testing.cases import X, failure, result, squares, status


def running(x, state=None):
    total = (x**2).sum() + (0.0 if state is None else state["total"])
    kept = total.detach() if isinstance(total, torch.Tensor) else total
    return pn.Evaluation(total, state={"total": kept, "calls": 1 if state is None else state["calls"] + 1})


def remembers_an_object(x, state=None):
    return pn.Evaluation((x**2).sum(), state={"seen": {1, 2}})


def forgets(x, state=None):
    return pn.Evaluation((x**2).sum())


def changes_its_state(x, state=None):
    seen = [] if state is None else state
    seen.append(1.0)
    return pn.Evaluation((x**2).sum() * len(seen), state=seen)


def trusts_a_tuple_type(x, state=None):
    doubled = isinstance(state, Count)
    return pn.Evaluation((x**2).sum() * (2 if doubled else 1), state=Count(1))


class Count(NamedTuple):
    count: int


def test_state_is_taken_returned_and_saved(library: Any) -> None:
    assert status("state", running, library.array(X)) == ("passed", "accepted, returned, saved and loaded")
    assert status("state", squares, library.array(X)) == ("skipped", "it takes no state")


@pytest.mark.parametrize(
    ("term", "said"),
    [
        (remembers_an_object, "holds a set"),
        (forgets, "it takes state but returns none"),
        (changes_its_state, "modifies the state"),
        (trusts_a_tuple_type, "with saved and loaded state the value is"),
    ],
)
def test_state_that_does_not_work_fails(term: Callable[..., Any], said: str) -> None:
    assert said in failure("state", term, X)


def raises_at_the_second_call(x, state=None):
    if state is not None:
        raise RuntimeError("second")
    return pn.Evaluation((x**2).sum(), state=1.0)


def has_no_gradient_from_the_second_call(x, state=None):
    value = (x**2).sum()
    return pn.Evaluation(value if state is None else value.detach() + state, state=value.detach())


def is_nan_from_the_second_call(x, state=None):
    return pn.Evaluation((x**2).sum() * (1.0 if state is None else float("nan")), state=1.0)


def is_infinite_from_the_second_call(x, state=None):
    return pn.Evaluation((x**2).sum() * (1.0 if state is None else float("inf")), state=1.0)


def explodes_at_the_third_call(x, state=None):
    count = 1.0 if state is None else state + 1.0
    value = (x**2).sum()
    return pn.Evaluation(value * float("inf") if count > 2 else value, state=count)


def forgets_at_the_second_call(x, state=None):
    return pn.Evaluation((x**2).sum(), state=1.0 if state is None else None)


@pytest.mark.parametrize(
    ("term", "call", "said"),
    [
        (raises_at_the_second_call, "second call", "RuntimeError: second"),
        (has_no_gradient_from_the_second_call, "second call", "gradient"),
        (is_nan_from_the_second_call, "second call", "value: it is nan"),
        (is_infinite_from_the_second_call, "second call", "value: it is inf"),
        (explodes_at_the_third_call, "third call", "value: it is inf"),
        (forgets_at_the_second_call, "third call", "the second call returned no state"),
    ],
)
def test_a_mistake_that_only_a_later_call_shows_fails(term: Callable[..., Any], call: str, said: str) -> None:
    verdict = check_term(term, torch.tensor(X), edges=(), compile=False, raises=False)
    assert call == verdict.failed[0]
    assert said in result(verdict, call).detail


def test_state_that_holds_a_graph_fails() -> None:
    def attached(x, state=None):
        value = (x**2).sum()
        return pn.Evaluation(value, state=value)

    assert "detach it" in failure("state", attached, torch.tensor(X))


def test_later_calls_pass_with_the_state_passed_on(library: Any) -> None:
    for call in ("second call", "third call"):
        found, said = status(call, running, library.array(X))
        assert found == "passed"
        assert said.startswith("value")


def test_state_is_not_saved_without_safetensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    found, said = status("state", running, X)
    assert found == "passed"
    assert said.startswith("accepted and returned; not saved")
