"""Regularizers in every form, and the events of a call."""

import json
import time
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from penalties.training import forward_backward_custom
from tests.training.clients import RemoteClient, batch
from tests.training.custom_loss.cases import assert_trained_alike, squared


class TestRegularizers:
    def test_as_dicts(self) -> None:
        client, data = RemoteClient(), batch(2, 3)

        def step(weight: float) -> float:
            config = [{"fn": "l1", "weight": weight, "inputs": "logprobs"}, {"fn": "l2", "inputs": ["logprobs"]}]
            return forward_backward_custom(client, data, None, regularizers=config).result(60).metrics["l1_weighted"]

        assert step(0.2) == pytest.approx(2 * step(0.1))
        assert step(0.2) == pytest.approx(2 * step(0.1))

    def test_a_term_over_packed_arrays_has_the_same_repr(self) -> None:
        def ends(logprobs: Any) -> Any:
            return logprobs[0][-1]

        made = pn.training.objective.objective_of(None, [pn.Term(ends, 0.5)], {}, None, candidates=None, local=False)
        assert repr(made.pipeline["ends"]) == "Term(ends, weight=0.5)"

    def test_dicts_with_objects_in_them_are_the_same_as_long_as_these_are(self) -> None:
        client, data = RemoteClient(), batch(2, 3)
        weight = torch.tensor(0.5, requires_grad=True)
        for _ in range(2):
            config = [{"fn": "l1", "weight": weight, "inputs": "logprobs"}]
            forward_backward_custom(client, data, None, regularizers=config).result(60)
        found = sum(float(client.model.logprobs(one).detach().abs().sum()) for one in data)
        assert float(weight.grad) == pytest.approx(2 * found, rel=1e-5)

    def test_functions_of_other_numbers_of_parameters_have_to_name_inputs(self) -> None:
        with pytest.raises(pn.InputError, match='alone: no input is named "y"'):
            forward_backward_custom(RemoteClient(), batch(2), None, regularizers=[pn.Term(lambda y: y, name="alone")])

    def test_as_dicts_whose_values_change(self) -> None:
        client, data = RemoteClient(), batch(2, 3)
        found: list[float] = []
        for number in range(1, 5):
            config = [MappingProxyType({"fn": "l1", "weight": np.float32(number), "inputs": ["logprobs"]})]
            out = forward_backward_custom(client, data, None, regularizers=config).result(60)
            found.append(out.custom_loss["l1"].weight)
        assert found == [1.0, 2.0, 3.0, 4.0]

    def test_options_beside_the_three_parameters(self) -> None:
        seen: list[Any] = []

        def own(d: Any, lp: Any, opts: Any, alpha: float = 0.5) -> Any:
            seen.append((opts, alpha))
            return lp[0].sum()

        terms = [pn.Term(own, options={"alpha": 9.0}), pn.Term(own, name="b", options={"opts": {"a": 1}})]
        forward_backward_custom(RemoteClient(), batch(2), None, regularizers=terms).result(60)
        assert seen == [({}, 9.0), ({"a": 1}, 0.5)]

    def test_functions_of_c(self) -> None:
        terms = [pn.Term(torch.sum, name="sum", inputs="flat_logprobs")]
        client, data = RemoteClient(), batch(2)
        forward_backward_custom(client, data, None, regularizers=terms).result(60)
        assert_trained_alike(client, data, lambda lp: torch.cat(lp).sum())

    def test_mixed_with_terms(self) -> None:
        config = [{"fn": "l1", "inputs": "logprobs"}, pn.Term("l2", inputs="logprobs")]
        out = forward_backward_custom(RemoteClient(), batch(2), None, regularizers=config).result(60)
        assert out.custom_loss.names == ("l1", "l2")

    def test_as_a_pipeline_with_other_weights(self) -> None:
        pipeline = pn.Pipeline([pn.Term("l1", inputs="logprobs")])
        client, data = RemoteClient(), batch(2)
        out = forward_backward_custom(client, data, None, regularizers=pipeline, weights={"l1": 0.25}).result(60)
        assert out.metrics["l1_weighted"] == pytest.approx(0.25 * out.metrics["l1"])

    def test_a_timeout_for_those_that_have_none(self) -> None:
        def slow(data: Any) -> Any:
            time.sleep(5.0)
            return torch.tensor(0.0)

        terms = [pn.Term(slow, runs="thread"), pn.Term("l1", inputs="logprobs", timeout=20.0)]
        with pytest.raises(pn.TermTimeoutError, match="slow: took more than 0.1 s") as caught:
            forward_backward_custom(RemoteClient(), batch(2), squared, regularizers=terms, timeout=0.1)
        assert caught.value.output["l1"].value is not None

    @pytest.mark.parametrize(
        ("regularizers", "message"),
        [
            ("l1", "a Pipeline, a list of terms, or a list of dicts"),
            (pn.Pipeline([], base="l1"), "a pipeline without a base: the base is loss_fn"),
            ([{"fn": "l1", "base": True}], "no base among them"),
            (
                [pn.Term("l1", inputs="teacher")],
                'l1: no input is named "teacher"; there is data, lengths, logprobs, mask$',
            ),
            ([pn.Term("l1", inputs="params")], 'l1: reads "params", which is inside the model'),
            (
                [pn.Term("l1", inputs="params.base")],
                'l1: reads "params.base"; expected "params", a dict of all parameters',
            ),
            ([pn.Term("l1", inputs="hidden.1")], 'l1: reads "hidden.1", which is inside the model'),
        ],
    )
    def test_wrong_ones(self, regularizers: Any, message: str) -> None:
        client = RemoteClient()
        with pytest.raises(pn.PenaltiesError, match=message):
            forward_backward_custom(client, batch(2), squared, regularizers=regularizers)
        assert client.calls == []

    @pytest.mark.parametrize("track_grad_norms", [False, True])
    def test_a_parameter_in_a_term_over_data_alone_is_trained_by_one_evaluation(self, track_grad_norms: bool) -> None:
        scale, calls = torch.nn.Parameter(torch.tensor(2.0)), []

        def held(data: Any) -> Any:
            calls.append(data)
            return scale**2 * len(data)

        arguments: Any = {"regularizers": [pn.Term(held, 0.5)], "track_grad_norms": track_grad_norms}
        forward_backward_custom(RemoteClient(), batch(3, 2), squared, **arguments).result(60)
        assert len(calls) == 1
        assert scale.grad == 4.0

    @pytest.mark.parametrize("reads", ["data", "logprobs"])
    def test_a_term_that_raises_an_input_error_itself_is_skipped(self, reads: str) -> None:
        def picky(x: Any) -> Any:
            raise pn.InputError("nothing to look at")

        term = pn.Term(picky, inputs=reads, on_error="skip")
        out = forward_backward_custom(RemoteClient(), batch(3, 2), squared, regularizers=[term]).result(60)
        assert "nothing to look at" in str(out.custom_loss["picky"].error)
        assert "picky" not in out.metrics


class TestEvents:
    def test_start_stop_and_exception(self) -> None:
        heard: list[Any] = []
        handler = pn.telemetry.attach(lambda *event: heard.append(event))
        try:
            terms = [pn.Term("l1", 0.1, inputs="logprobs")]
            forward_backward_custom(
                RemoteClient(), batch(3, 2), squared, regularizers=terms, track_grad_norms=True, step=4
            )
            with pytest.raises(pn.TermError):
                forward_backward_custom(RemoteClient(), batch(3), lambda d, lp: 1 / 0)
        finally:
            pn.telemetry.detach(handler)
        ours = [(name, *rest) for name, *rest in heard if name.startswith("custom_loss")]
        assert [name for name, _, _ in ours] == [
            "custom_loss.start",
            "custom_loss.stop",
            "custom_loss.start",
            "custom_loss.exception",
        ]
        about = {"model_id": "fake", "data_count": 2, "regularizer_count": 1, "track_grad_norms": True, "step": 4}
        start, stop = ours[0], ours[1]
        assert set(start[1]) == {"time", "monotonic_time"}
        assert {name: start[2][name] for name in about} == about
        assert set(stop[1]) == {"duration", "loss_total", "regularizer_total", "total_grad_norm"}
        assert float(stop[1]["total_grad_norm"]) > 0
        assert stop[2]["output"].names == ("base_loss", "l1")
        # One number for the whole and for the pipeline inside it, another for the next.
        assert len({metadata["call"] for _, _, metadata in heard}) == 2
        assert "ZeroDivisionError" in str(ours[3][2]["error"])

    def test_a_sink_counts_each_call_once(self, tmp_path: Any) -> None:
        path = tmp_path / "events.jsonl"
        with pn.telemetry.JSONLines(path):
            for _ in range(2):
                forward_backward_custom(RemoteClient(), batch(3, 2), squared).result(60)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        stops = [(line["event"], line["step"]) for line in lines if line["event"].endswith("stop")]
        assert stops == [("pipeline.stop", 0), ("custom_loss.stop", 0), ("pipeline.stop", 1), ("custom_loss.stop", 1)]

    def test_a_pipeline_inside_a_term_has_a_number_of_its_own(self) -> None:
        def nested(flat_logprobs: Any) -> Any:
            return pn.Pipeline(["l2"])(flat_logprobs).total

        calls: list[Any] = []
        handler = pn.telemetry.attach(lambda event, measured, about: calls.append(about["call"]), "pipeline.stop")
        try:
            forward_backward_custom(RemoteClient(), batch(3, 2), squared, regularizers=[nested])
        finally:
            pn.telemetry.detach(handler)
        assert len(set(calls)) == 2
