"""What a pipeline announces."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penalties as pn
from penalties import telemetry
from tests.libraries import JAX, LIBRARIES, TORCH


@pytest.fixture
def heard() -> Iterator[list[tuple[str, Any, Any]]]:
    """Every event of the test."""
    events: list[tuple[str, Any, Any]] = []
    handler = telemetry.attach(lambda *event: events.append(event))
    yield events
    telemetry.detach(handler)


PIPELINE = pn.Pipeline([pn.Term(pn.l1, 0.5), pn.Term(pn.l2, enabled=False)], base=lambda x: x.sum(), name="objective")


def test_start_and_stop(library: Any, heard: list[Any]) -> None:
    out = PIPELINE(library.array([1.0, 2.0]), step=4)
    names = [event for event, _, _ in heard]
    assert names == ["pipeline.start", "term.start", "term.stop", "term.start", "term.stop", "pipeline.stop"]
    (_, started, start), (_, _, base), _, (_, _, term), (_, measured, _), (_, stopped, stop) = heard
    assert {"call", "pipeline", "term_count", "step", "track_grad_norms"} == set(start)
    assert (start["pipeline"], start["term_count"], start["step"], start["track_grad_norms"]) == (
        "objective",
        1,
        4,
        False,
    )
    assert set(started) == {"time", "monotonic_time"}
    assert {data["call"] for _, _, data in heard} == {start["call"]}
    assert (base["name"], term["name"]) == ("base_loss", "l1")
    assert term == {
        "call": start["call"],
        "name": "l1",
        "weight": 0.5,
        "runs": "inline",
        "async": False,
        "step": 4,
    }
    assert float(measured["value"]) == 3.0
    assert float(measured["contribution"]) == 1.5
    assert measured["grad_norm"] is None
    assert measured["duration"] >= 0.0
    assert stop["output"] is out
    assert stopped["loss_total"] is out.total
    assert stopped["regularizer_total"] is out.regularizer_total
    assert stopped["total_grad_norm"] is None
    assert stopped["duration"] >= measured["duration"]


def test_gradients(autodiff: Any, heard: list[Any]) -> None:
    out = PIPELINE.value_and_grad(autodiff.array([1.0, 2.0]), wrt="input")
    stops = {data.get("name"): measured for event, measured, data in heard if event.endswith("stop")}
    assert stops["l1"]["grad_norm"] is not None
    assert stops[None]["total_grad_norm"] is out.total_grad_norm
    assert heard[0][2]["track_grad_norms"] is True


def test_calls_are_distinguished(heard: list[Any]) -> None:
    PIPELINE(np.ones(1))
    PIPELINE(np.ones(1))
    assert len({data["call"] for _, _, data in heard}) == 2


def test_a_failing_term(library: Any, heard: list[Any]) -> None:
    with pytest.raises(pn.TermError):
        pn.Pipeline([pn.Term(lambda x: 1 / 0, name="bad"), "l1"])(library.array([1.0]))
    assert [event for event, _, _ in heard] == ["pipeline.start", "term.start", "term.exception", "pipeline.exception"]
    (_, measured, term), (_, _, whole) = heard[2:]
    assert (term["name"], term["phase"]) == ("bad", "value")
    assert isinstance(term["error"], pn.TermError)
    assert measured["duration"] >= 0
    assert (whole["term"], whole["error"]) == ("bad", term["error"])


def test_a_term_that_runs_elsewhere(heard: list[Any]) -> None:
    with pytest.raises(pn.TermError):
        pn.Pipeline([pn.Term(pn.l1, runs="thread")])(np.ones(1))
    assert heard[-1][0] == "pipeline.exception"
    assert heard[-1][2]["term"] == "l1"


def test_a_resting_term_with_an_array_as_step_reports_zero(heard: list[Any]) -> None:
    if TORCH not in LIBRARIES:
        pytest.skip("needs PyTorch")
    import torch

    pipeline = pn.Pipeline([pn.Term(pn.l1, every=2, inputs="x"), pn.Term(pn.l2, every=2, inputs="y")])
    x = TORCH.array([1.0, 1.0])
    out = pipeline.value_and_grad(x=x, y=x, step=torch.tensor(1), wrt=("x", "y")).metrics()
    assert {key: number for key, number in out.items() if number} == {}
    stopped = [measured for event, measured, _ in heard if event == "term.stop"]
    assert [float(measured["value"].detach()) for measured in stopped] == [0.0, 0.0]


def test_a_skipped_term(library: Any, heard: list[Any]) -> None:
    pn.Pipeline([pn.Term(lambda x: 1 / 0, name="bad", on_error="skip"), "l1"])(library.array([1.0]))
    names = [event for event, _, _ in heard]
    assert names == ["pipeline.start", "term.start", "term.exception", "term.start", "term.stop", "pipeline.stop"]


def test_a_gradient_that_fails(heard: list[Any]) -> None:
    with pytest.raises(pn.GradientError):
        pn.Pipeline(["l1"]).value_and_grad(np.ones(2))
    assert [data["phase"] for event, _, data in heard if event == "term.exception"] == ["gradient"]


def test_an_error_that_no_term_is_to_blame_for(heard: list[Any]) -> None:
    with pytest.raises(pn.InputError):
        PIPELINE.value_and_grad(x=np.ones(2), wrt="y")
    assert [event for event, _, _ in heard] == ["pipeline.start", "pipeline.exception"]
    assert heard[-1][2]["term"] is None


def test_nothing_inside_a_compiler(heard: list[Any]) -> None:
    if TORCH in LIBRARIES:
        import torch

        torch.compile(PIPELINE.total, fullgraph=True, backend="aot_eager")(TORCH.array([1.0]))
    if JAX in LIBRARIES:
        import jax

        jax.jit(PIPELINE.total)(JAX.array([1.0]))
        jax.jit(lambda x: PIPELINE.value_and_grad(x).total)(JAX.array([1.0]))
        closed_over = JAX.array([1.0])
        jax.jit(lambda w: PIPELINE(closed_over, weights={"l1": w}).total)(2.0)
    assert heard == []


def test_a_sink_writes_the_output(library: Any, tmp_path: Any) -> None:
    import json

    with telemetry.JSONLines(tmp_path / "metrics.jsonl"):
        for step in range(3):
            PIPELINE(library.array([1.0 * step]), step=step)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert lines[2]["output"]["regularizers"]["l1"]["contribution"] == 1.0
