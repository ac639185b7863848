"""Steps of several micro-batches: terms that are skipped in some, what is kept of them, and their events."""

import gc
import json
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import penalties as pn
from penalties import telemetry
from penalties.integrations.accumulation import Accumulation
from penalties.integrations.scope import MicroBatch
from tests.libraries import LIBRARIES, TORCH

from .test_accumulation import DECAY, SPREAD, batches, network, stepper

pytestmark = pytest.mark.skipif(TORCH not in LIBRARIES, reason="PyTorch was not chosen")


def picky(x: Any, state: Any = None) -> pn.Evaluation:
    """Fails at negative numbers."""
    if x < 0:
        raise ValueError("below 0")
    return pn.Evaluation(np.float64(x), state=float(x))


def skipping(scope: Any, *values: float, ranks: int = 1, average: Any = None, state: Any = None) -> Any:
    term = pn.Term(picky, scope=scope, on_error="skip", inputs="x")
    accumulation = Accumulation(pn.Pipeline([term]))
    accumulation.state = {} if state is None else {"picky": state}
    for value in values:
        part = MicroBatch(len(values), ranks=ranks, part=abs(value) / 10 if scope == "mean" else None)
        accumulation.add({"x": value}, part)
    return accumulation.finish(base=np.float64(0.0), average=average)


class TestSkippedTerms:
    @pytest.mark.parametrize(("scope", "expected"), [("mean", (1 + 9) / 4), ("sum", 4.0)])
    def test_the_others_make_up_the_term(self, scope: Any, expected: float) -> None:
        out = skipping(scope, 1.0, -6.0, 3.0)
        assert out["picky"].value == pytest.approx(expected)
        assert out["picky"].error is None
        # Numbers in the state are averaged in either case, by parts or equally.
        assert out.state["picky"] == pytest.approx((1 + 9) / 4 if scope == "mean" else 2.0)

    def test_one_that_was_skipped_throughout_keeps_its_error_and_its_state(self) -> None:
        out = skipping("mean", -1.0, -2.0, state=7.0)
        assert out["picky"].value is None
        assert "below 0" in str(out["picky"].error)
        assert out.state["picky"] == 7.0
        assert out.total == 0.0

    def test_a_training_step_goes_on(self) -> None:
        calls: list[Any] = []

        def flaky(prediction: Any) -> Any:
            calls.append(prediction)
            if len(calls) % 2:
                raise ValueError("odd")
            return prediction.square().mean()

        step = stepper(network(), pn.Term(flaky, on_error="skip", scope="mean"))
        metrics = step.accumulate(batches(4, 0))
        expected = [calls[i].square().mean().item() for i in (1, 3)]
        assert metrics["flaky"] == pytest.approx(sum(expected) / 2)

    @pytest.mark.parametrize("scope", ["mean", "sum"])
    def test_ranks_agree_on_what_there_is(self, scope: Any) -> None:
        """Each rank is run to the next average in turn, and all must come to the same ones."""
        given = [(1.0, -3.0), (-2.0, -1.0), (2.0, 1.0)]
        answers: list[float] = []
        while True:
            asked: list[float] = []
            outputs: list[Any] = []
            for mine in given:
                seen = iter(answers)

                def average(x: Any, seen: Any = seen) -> Any:
                    found = next(seen, None)
                    if found is None:
                        raise Waiting(float(x))
                    return found

                try:
                    outputs.append(skipping(scope, *mine, ranks=3, average=average, state=5.0))
                except Waiting as waiting:
                    asked.append(waiting.number)
            if not asked:
                break
            assert len(asked) == len(given)
            answers.append(sum(asked) / len(asked))
        values = [out["picky"].value for out in outputs]
        assert sum(values) / 3 == pytest.approx((1 + 4 + 1) / 4 if scope == "mean" else 4.0)
        # One rank has no new state.
        assert [out.state["picky"] for out in outputs] == [5.0] * 3


class Waiting(BaseException):
    """A rank came to an average that the others have not come to yet."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number


def test_states_are_averaged_in_the_same_order_on_every_rank():
    names = [f"term{i}" for i in range(8)]
    terms = [pn.Term(picky, name=name, scope="mean", inputs=name) for name in names]
    accumulation = Accumulation(pn.Pipeline(terms))
    for _ in range(2):
        accumulation.add({name: float(i) for i, name in enumerate(names)}, MicroBatch(2, ranks=2))
    asked: list[float] = []
    accumulation.finish(average=lambda number: asked.append(number) or number)
    assert asked == [float(i) for i in range(8)]


def test_own_metrics_are_averaged_over_the_micro_batches_that_have_them():
    def measured(x: Any) -> Any:
        return np.float64(x), {"large": x} if x > 1 else {}

    accumulation = Accumulation(pn.Pipeline([pn.Term(measured, scope="mean", inputs="x")]))
    for x in (1.0, 2.0, 4.0):
        accumulation.add({"x": x}, MicroBatch(3))
    assert accumulation.finish()["measured"].metrics == {"large": 3.0}


@pytest.mark.parametrize("count", [1, 2])
def test_nothing_of_the_graph_is_kept(count: int):
    alive: list[Any] = []

    class Watched(nn.Linear):
        def forward(self, x: Any) -> Any:
            hidden = torch.relu(x * 2)
            alive.append(weakref.ref(hidden))
            return super().forward(hidden)

    model = Watched(3, 1).to(torch.float64)
    step = stepper(model, SPREAD)
    x, y = (part.cpu() for part in batches(1, 0)[0])
    step.accumulate([(x, y)] * count)
    gc.collect()
    assert [one() for one in alive] == [None] * count
    for part in (step.output.total, step.output.regularizer_total, step.output["spread"].value, step.output.base.value):
        assert not part.requires_grad


class Kept(telemetry.sink.MetricsSink):
    """What a sink logs."""

    def __init__(self) -> None:
        super().__init__("memory")
        self.rows: list[tuple[int | None, Mapping[str, float]]] = []

    def log(self, metrics: Mapping[str, float], step: int | None) -> None:
        self.rows.append((step, metrics))


class TestEvents:
    @pytest.mark.parametrize("count", [1, 3])
    def test_a_step_is_one_call_to_sinks(self, tmp_path: Path, count: int) -> None:
        step = stepper(network(), DECAY, SPREAD, max_norm=0.1)
        path = tmp_path / "log.jsonl"
        with Kept() as sink, telemetry.JSONLines(path):
            found = [step.accumulate(batches(count, i)) for i in range(2)]
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [(line["event"], line["step"]) for line in lines] == [("pipeline.stop", 0), ("pipeline.stop", 1)]
        assert lines[0]["call"] != lines[1]["call"]
        assert [step for step, _ in sink.rows] == [0, 1]
        for metrics, line, (_, row) in zip(found, lines, sink.rows, strict=True):
            assert line["loss_total"] == row["loss/total"] == pytest.approx(metrics["loss"])
            assert row["weight/spread"] == SPREAD.weight
            assert line["output"]["regularizers"]["decay"]["contribution"] == pytest.approx(metrics["decay_weighted"])
        drawn = {line.get_label(): list(line.get_ydata()) for line in pn.plot(path).axes[0].lines}
        assert drawn["total"] == pytest.approx([metrics["loss"] for metrics in found])

    def test_terms_are_announced_with_their_values_in_the_step(self) -> None:
        seen: list[tuple[str, Any, Any]] = []

        def listen(event: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
            seen.append((event, metadata.get("name"), measurements.get("value")))

        handler = telemetry.attach(listen)
        try:
            metrics = stepper(network(), DECAY).accumulate(batches(2, 0))
        finally:
            telemetry.detach(handler)
        names = ["base_loss", "decay"]
        middle = [(f"term.{moment}", name) for name in names for moment in ("start", "stop")]
        assert [one[:2] for one in seen] == [("pipeline.start", None), *middle, ("pipeline.stop", None)]
        assert [float(one[2]) for one in seen if one[0] == "term.stop"] == pytest.approx([metrics[n] for n in names])

    def test_a_failure_in_a_micro_batch_is_announced_once(self) -> None:
        seen: list[tuple[str, Any]] = []
        term = pn.Term(lambda prediction: 1 / 0, name="broken", scope="mean")
        handler = telemetry.attach(lambda event, _, metadata: seen.append((event, metadata.get("term"))))
        try:
            with pytest.raises(pn.TermError):
                stepper(network(), term).accumulate(batches(2, 0))
        finally:
            telemetry.detach(handler)
        assert seen == [("pipeline.start", None), ("pipeline.exception", "broken")]
        with Kept() as sink:
            stepper(network(), DECAY)(*batches(1, 0)[0])
        assert len(sink.rows) == 1

    @pytest.mark.parametrize("count", [1, 2])
    def test_of_a_closure_the_first_evaluation_is_announced(self, count: int) -> None:
        model = network()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
        step = stepper(model, DECAY, optimizer=optimizer, closure=True)
        with Kept() as sink:
            metrics = step.accumulate(batches(count, 0))
        assert [(number, row["loss/total"]) for number, row in sink.rows] == [(0, pytest.approx(metrics["loss"]))]

    def test_where_the_trainer_brings_the_base_the_total_has_it(self) -> None:
        accumulation = Accumulation(pn.Pipeline([pn.Term(pn.l1, inputs="x")]))
        with Kept() as sink:
            accumulation.add({"x": np.ones(2)}, MicroBatch(), step=4)
            accumulation.announce(accumulation.finish(base=np.float64(3.0)))
        ((number, row),) = sink.rows
        assert (number, row["loss/total"], row["loss/base_loss"]) == (4, 5.0, 3.0)
