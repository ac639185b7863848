"""The terms of the examples that run elsewhere: their numbers, their gradients, and how they fail."""

import importlib.util
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from penalties.terms import topology
from penalties.terms.knowledge import Database, Knowledge, Table
from penalties.testing import check_term


def example(name: str) -> ModuleType:
    """An example as a module that no worker can import: its terms travel by value, as those of a script do."""
    path = Path(__file__).parents[2] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def homology() -> ModuleType:
    return example("persistent_homology")


@pytest.fixture(scope="module")
def solver() -> ModuleType:
    return example("smt_solver")


@pytest.fixture(scope="module")
def service() -> ModuleType:
    return example("http_service")


@pytest.fixture(scope="module")
def knowledge() -> ModuleType:
    return example("knowledge_base")


def random_points(seed: int, count: int = 24) -> torch.Tensor:
    return torch.randn(count, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class TestHomology:
    @pytest.mark.slow
    def test_it_is_a_term_that_can_be_trained_with(self, homology: ModuleType) -> None:
        assert check_term(homology.PIPELINE["one_loop"], {"code": random_points(0)})

    def test_total_has_the_same_gradient_from_a_process(self, homology: ModuleType, executor: pn.Executor) -> None:
        code = random_points(1).requires_grad_()
        term = homology.PIPELINE["one_loop"]
        out = executor.run(pn.Pipeline([term]), {"code": code})
        out.total.backward()
        expected = topology.target_betti(code, **term.options)
        assert out["one_loop"].value.item() == pytest.approx(expected.value)
        np.testing.assert_allclose(code.grad, term.weight * expected.gradient["x"])


class TestSolver:
    def test_readings_that_satisfy_their_puzzle_cost_nothing(self, solver: ModuleType) -> None:
        scores = reading(4, 2, 3)
        found = solver.equations(scores, ["??+?=45"])
        assert (found.value, found.metrics["solved"]) == (0.0, 1)
        assert not found.gradient["scores"].any()

    def test_the_cheapest_repair_is_what_counts(self, solver: ModuleType) -> None:
        scores = reading(4, 2, 3)
        scores[1, 3] = 4.75  # reading the second digit as a 3 costs 0.25
        scores[2, 4] = 4.5  # the third as a 4 costs 0.5
        found = solver.equations(scores, ["??+?=46"])
        assert (found.value, found.metrics["solved"]) == (0.25, 0)
        expected = np.zeros((3, 10))
        expected[1, 2], expected[1, 3] = 1.0, -1.0
        np.testing.assert_array_equal(found.gradient["scores"], expected)

    def test_value_is_the_mean_over_puzzles_of_any_length(self, solver: ModuleType) -> None:
        scores = torch.cat([reading(4, 2, 3), reading(2, 3)])
        scores[4, 4] = 4.0
        found = solver.equations(scores, ["??+?=45", "?*?=8"])
        assert (found.value, found.metrics["solved"]) == (0.5, 1)

    @pytest.mark.parametrize("seed", range(3))
    def test_nearest_is_the_best_of_all_readings(self, solver: ModuleType, seed: int) -> None:
        scores = np.random.default_rng(seed).normal(size=(3, 10))
        fitting = [(a, b, c) for a, b, c in itertools.product(range(10), repeat=3) if 10 * a + b + c == 57]
        best = max(fitting, key=lambda digits: scores[range(3), digits].sum())
        assert tuple(solver.nearest(scores, "??+?=57")) == best

    @pytest.mark.slow
    def test_it_is_a_term_that_can_be_trained_with(self, solver: ModuleType) -> None:
        generator = torch.Generator().manual_seed(0)
        scores = torch.randn(6, 10, dtype=torch.float64, generator=generator).log_softmax(-1)
        inputs = {"scores": scores, "puzzles": ["??+?=57", "?+??=40"]}
        assert check_term(solver.PIPELINE["equations"], inputs, wrt="scores", edges=["zeros", "large", "half"])

    def test_a_puzzle_that_takes_forever_is_skipped_and_the_next_one_is_solved(
        self, solver: ModuleType, executor: pn.Executor
    ) -> None:
        pipeline = pn.Pipeline([pn.Term(solver.equations, runs="process", timeout=1.5, on_error="skip")], base=base)
        scores = torch.zeros(12, 10, requires_grad=True)
        late = executor.run(pipeline, {"scores": scores, "puzzles": [solver.HARD]})
        fine = executor.run(pipeline, {"scores": scores, "puzzles": ["??+?=45"] * 4})
        assert executor.abandoned == 0
        error = late["equations"].error
        assert isinstance(error, pn.TermTimeoutError)
        assert (error.term, error.abandoned) == ("equations", False)
        assert "killed" in str(error)
        assert late["equations"].value is None
        assert late.total.item() == 120.0
        late.total.backward()
        assert (scores.grad == 1).all()
        assert fine["equations"].error is None

    def test_a_puzzle_without_solution_is_named(self, solver: ModuleType) -> None:
        with pytest.raises(pn.TermError, match=r"^equations: raised ValueError: \?\?\+\?=500 is unsat$"):
            pn.Pipeline([solver.equations])(scores=reading(4, 2, 3), puzzles=["??+?=500"])


def base(scores: Any) -> Any:
    return (scores + 1).sum()


def reading(*digits: int) -> torch.Tensor:
    """Scores by which a network reads these digits, each by far."""
    scores = torch.zeros(len(digits), 10, dtype=torch.float64)
    scores[range(len(digits)), digits] = 5.0
    return scores


MESSAGES = {
    "status 500": "raised RuntimeError: the service answered with status 500",
    "no JSON": "raised JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    "no gradient": "raised KeyError: 'gradient'",
    "another shape": 'returned a gradient of shape (3,) for "drafts"; expected that of the input, (8, 3)',
    "not a number": "the value is nan",
    "late": "took more than 1.5 s, and was cancelled",
    "no answer": "took more than 1.5 s, and was cancelled",
}
CAUSES = {"no JSON": json.JSONDecodeError, "no gradient": KeyError, "status 500": RuntimeError}


def judges(service: ModuleType, address: str, *, patience: dict[str, float], on_error: Any = "skip") -> pn.Pipeline:
    """The example's terms, whose patience is short where it is to run out."""
    terms = []
    for judge in service.JUDGES:
        about = {"options": {"url": f"{address}/{judge}"}, "timeout": patience.get(judge, 60.0), "on_error": on_error}
        terms.append(pn.Term(service.judged, name=judge, **about))
    return pn.Pipeline(terms)


class TestService:
    def test_every_failure_is_named_and_the_others_train(
        self, service: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failing = {judge: kind for (judge, _), kind in service.FAILURES.items()}
        assert set(failing.values()) == set(MESSAGES)
        monkeypatch.setattr(service, "FAILURES", {(judge, 0): kind for judge, kind in failing.items()})
        drafts = torch.zeros(8, 3, dtype=torch.float64, requires_grad=True)
        with service.serving() as address, pn.Executor() as executor:
            patience = {judge: 1.5 for judge, kind in failing.items() if MESSAGES[kind].startswith("took")}
            out = executor.run(judges(service, address, patience=patience), {"drafts": drafts})
            again = executor.run(judges(service, address, patience={}), {"drafts": drafts})
            assert executor.abandoned == 0
        healthy = [judge for judge in service.JUDGES if judge not in failing]
        assert {name: str(out[name].error) for name in failing} == {
            name: f"{name}: {MESSAGES[kind]}" for name, kind in failing.items()
        }
        for name, kind in failing.items():
            assert out[name].error.term == name
            assert isinstance(out[name].error.__cause__, CAUSES.get(kind, object))
            assert isinstance(out[name].error, TimeoutError) == (kind in ("late", "no answer"))
        assert [term.name for term in out if term.error is None] == healthy
        assert all(term.error is None for term in again)
        out.total.backward()
        wished = sum(service.WISHES[judge] for judge in healthy)
        np.testing.assert_allclose(drafts.grad, -wished / drafts.numel())

    def test_raising_tells_the_term_and_keeps_the_others(
        self, service: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(service, "FAILURES", {("judge_b", 0): "no JSON"})
        with service.serving() as address, pn.Executor() as executor:
            pipeline = judges(service, address, patience={}, on_error="raise")
            with pytest.raises(pn.TermError, match=r"^judge_b: raised JSONDecodeError") as caught:
                executor.run(pipeline, {"drafts": torch.zeros(8, 3)})
        assert [term.name for term in caught.value.output if term.value is None] == ["judge_b"]

    def test_judges_are_waited_for_at_the_same_time(self, service: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(service, "FAILURES", {})
        with service.serving() as address, pn.Executor() as executor:
            pipeline = judges(service, address, patience={})
            began = time.perf_counter()
            out = executor.run(pipeline, {"drafts": torch.zeros(8, 3, dtype=torch.float64)})
            took = time.perf_counter() - began
        assert sum(term.duration for term in out) > 3 * took


class TestKnowledge:
    @pytest.fixture
    def term(self, knowledge: ModuleType, tmp_path: Path) -> Iterator[Knowledge]:
        path = tmp_path / "facts.db"
        knowledge.write_facts(path)
        with Database(f"sqlite:///{path}", {"part of": Table("part_of", "part", "whole")}) as base:
            yield Knowledge(base, rules=[knowledge.RULE], reduction="mean")

    @pytest.fixture
    def answers(self, knowledge: ModuleType) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Linear(24, knowledge.CITIES + knowledge.COUNTRIES).double()
        return knowledge.answers(model, torch.randn(knowledge.BATCH, 24, dtype=torch.float64))

    def test_value_is_the_probability_of_what_the_facts_contradict(
        self, knowledge: ModuleType, term: Knowledge, answers: dict[str, torch.Tensor]
    ) -> None:
        value, metrics = term(answers["p"], knowledge.FACTS)
        city, country = answers["city"].softmax(-1), answers["country"].softmax(-1)
        # City n lies in country n % 8.
        agree = sum(city[:, n] * country[:, n % knowledge.COUNTRIES] for n in range(knowledge.CITIES))
        assert value.item() == pytest.approx(1 - agree.mean().item())
        assert metrics["checked"] == knowledge.BATCH * knowledge.CITIES

    @pytest.mark.parametrize("runs", ["thread", "process"])
    def test_gradient_is_the_same_as_inline(
        self,
        knowledge: ModuleType,
        term: Knowledge,
        answers: dict[str, torch.Tensor],
        executor: pn.Executor,
        runs: Any,
    ) -> None:
        p = answers["p"].detach().requires_grad_()
        gradients = []
        for where in ("inline", runs):
            pipeline = pn.Pipeline([pn.Term(term, runs=where)])
            total = executor.run(pipeline, {"p": p, "facts": knowledge.FACTS}).total
            gradients.append(torch.autograd.grad(total, p)[0])
        assert gradients[0].abs().sum() > 0
        torch.testing.assert_close(gradients[1], gradients[0])
