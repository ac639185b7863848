"""Which gradient goes where: by the path to an array, whichever array is there, wherever the term ran."""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch

import penalties as pn
from tests.libraries import DEVICE


@pytest.fixture(params=["inline", "thread"])
def runs(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module")
def executor() -> Iterator[pn.Executor]:
    with pn.Executor(max_workers=1) as executor:
        yield executor


def squares(x: Any) -> Any:
    """A gradient of its own, which NumPy needs."""
    return pn.Evaluation((x * x).sum(), gradient={"x": 2 * x})


def tensor() -> torch.Tensor:
    return torch.tensor([1.0, 2.0], device=DEVICE)


def test_a_path_into_a_nest_that_holds_one_array_twice(executor: pn.Executor, runs: Any, library: Any) -> None:
    x = library.array([1.0, 2.0])
    pipeline = pn.Pipeline([pn.Term(squares, inputs="heads.b.1", runs=runs)])
    gradient = executor.run(pipeline, {"heads": {"a": x, "b": [x, x]}}, wrt="heads").gradient["heads"]
    assert [part.tolist() for part in (gradient["a"], *gradient["b"])] == [[0, 0], [0, 0], [2, 4]]


def test_a_target_inside_what_a_term_reads(executor: pn.Executor) -> None:
    pipeline = pn.Pipeline([pn.Term("l2", inputs="heads", runs="thread")])
    x, y = tensor(), torch.ones(1)
    gradient = executor.run(pipeline, {"heads": [x, x, y, x]}, wrt=["heads.1", "heads.2"]).gradient
    assert {name: part.tolist() for name, part in gradient.items()} == {"heads.1": [2, 4], "heads.2": [2]}


def test_a_nest_and_a_part_of_it_in_one_term(executor: pn.Executor, runs: Any) -> None:
    def both(a: Any, b: Any) -> Any:
        return (a[0] ** 2).sum() + (a[1] * b).sum()

    pipeline = pn.Pipeline([pn.Term(both, inputs={"a": "heads", "b": "heads.1"}, runs=runs)])
    x = tensor()
    gradient = executor.run(pipeline, {"heads": [x, x]}, wrt="heads").gradient["heads"]
    assert [part.tolist() for part in gradient] == [[2, 4], [2, 4]]


def test_a_property_that_makes_a_tensor_at_each_look(executor: pn.Executor, runs: Any) -> None:
    class Batch:
        @property
        def x(self) -> Any:
            return tensor()

    pipeline = pn.Pipeline([pn.Term("l2", inputs="batch.x", runs=runs)])
    out = executor.run(pipeline, {"batch": Batch()}, wrt="batch.x")
    assert out.gradient["batch.x"].tolist() == [2, 4]
    assert float(out["l2"].grad_norm) == pytest.approx(20**0.5)


def test_a_tensor_that_is_a_target_under_another_name_has_its_gradient(executor: pn.Executor, runs: Any) -> None:
    x = tensor().requires_grad_()
    pipeline = pn.Pipeline([pn.Term("l2", inputs="x", runs=runs)])
    out = executor.run(pipeline, {"x": x, "nest": [x]}, wrt="nest")
    out.total.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 4]
    assert out.gradient["nest"][0].tolist() == [0, 0]


class Pair(NamedTuple):
    w: Any
    b: Any

    @property
    def joined(self) -> Any:
        return torch.cat([self.w, self.b])


def test_a_gradient_of_what_is_computed_from_the_target_is_not_lost(executor: pn.Executor) -> None:
    inputs = {"pair": Pair(tensor(), tensor())}
    inline = pn.Pipeline([pn.Term("l2", inputs="pair.joined")])
    assert executor.run(inline, inputs, wrt="pair").gradient["pair"].b.tolist() == [2, 4]
    elsewhere = pn.Pipeline([pn.Term("l2", inputs="pair.joined", runs="thread")])
    with pytest.raises(pn.TermError, match=r'"pair\.joined" is computed from "pair".*expected wrt="pair\.joined"'):
        executor.run(elsewhere, inputs, wrt="pair")
    assert executor.run(elsewhere, inputs, wrt="pair.joined").gradient["pair.joined"].tolist() == [2, 4, 2, 4]


def test_an_input_whose_name_has_a_dot_is_not_a_part_of_another(executor: pn.Executor, runs: Any) -> None:
    pipeline = pn.Pipeline([pn.Term("l2", inputs="a.b", runs=runs), pn.Term("l1", inputs="a", runs=runs)])
    gradient = executor.run(pipeline, {"a": tensor(), "a.b": 2 * tensor()}, wrt=["a", "a.b"]).gradient
    assert {name: part.tolist() for name, part in gradient.items()} == {"a": [1, 1], "a.b": [4, 8]}


def test_any_iterable_of_arrays_may_be_a_target() -> None:
    pipeline = pn.Pipeline([pn.Term("l2", inputs="arrays")])
    gradient = pipeline.value_and_grad(arrays=deque([tensor(), tensor()]), wrt="arrays").gradient["arrays"]
    assert [part.tolist() for part in gradient] == [[2, 4], [2, 4]]


def test_a_gradient_that_cannot_come_back_is_an_error(executor: pn.Executor) -> None:
    pipeline = pn.Pipeline([pn.Term("l2", inputs="arrays", runs="thread")])
    with pytest.raises(pn.TermError, match=r'its input "arrays" holds arrays in an iterable .* list or tuple'):
        executor.run(pipeline, {"arrays": deque([tensor()])}, wrt="arrays")


def test_changing_the_gradient_before_the_backward_is_an_error() -> None:
    x = tensor().requires_grad_()
    out = pn.Pipeline(["l2"]).value_and_grad(x)
    out.gradient.clamp_(-1, 1)
    with pytest.raises(pn.GradientError, match=r"out\.gradient or an input was changed in place since; change a copy"):
        out.total.backward()
    out = pn.Pipeline(["l2"]).value_and_grad(x)
    out.total.backward()
    with pytest.raises(RuntimeError, match="a second time"):
        out.total.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 4]
