"""Held-out data: means over batches, and a model that stays as it was."""

from pathlib import Path
from typing import Any

import pytest
import torch

import penalties as pn
from penalties import LossOutput, TermOutput
from penalties.app.runs.references import References
from penalties.app.train.evaluation import averaged, evaluate, every_term
from penalties.training import LocalTrainingClient, forward_backward_custom, references

from ..stand_ins import Client


def data(client: Any, *texts: str) -> list[Any]:
    from penalties.training import Datum, ModelInput

    return [
        Datum(ModelInput.from_ints(list(text.encode()[:-1])), {"target_tokens": list(text.encode()[1:])})
        for text in texts
    ]


@pytest.fixture(scope="module")
def local() -> Any:
    with LocalTrainingClient("tiny", rank=2) as client:
        yield client


@pytest.fixture(params=["remote", "local"])
def client(request: pytest.FixtureRequest) -> Any:
    return Client() if request.param == "remote" else request.getfixturevalue("local")


def evaluated(client: Any, batches: list[list[Any]], pipeline: pn.Pipeline, **options: Any) -> LossOutput | None:
    with pn.Executor() as executor:
        return evaluate(
            client,
            batches,
            "cross_entropy",
            pipeline,
            References(options.pop("references", {}), Path("nowhere")),
            executor=executor,
            step=options.pop("step", 1),
            state=options.pop("state", {}),
            server="tinker",
        )


def test_one_batch_is_what_a_step_would_say(client: Any) -> None:
    batch = data(client, "hello", "world!")
    pipeline = pn.Pipeline([pn.Term("entropy_estimate", weight=0.5, inputs="logprobs")])
    out = evaluated(client, [batch], pipeline)
    assert out is not None
    step = forward_backward_custom(client, batch, "cross_entropy", regularizers=pipeline)
    assert out.metrics() == pytest.approx(step.result().custom_loss.metrics())


def test_no_gradient_reaches_the_model(client: Any) -> None:
    parameters = [client.table] if isinstance(client, Client) else list(client.parameters().values())
    for one in parameters:
        one.grad = None
    before = [one.detach().clone() for one in parameters]
    evaluated(client, [data(client, "hello")], pn.Pipeline([pn.Term("l2", inputs="logprobs")]))
    assert all(one.grad is None for one in parameters)
    assert all(torch.equal(one, other) for one, other in zip(parameters, before, strict=True))


def test_terms_of_the_model_itself_are_evaluated_too(local: Any) -> None:
    pipeline = pn.Pipeline([pn.Term("l2", name="size", inputs="params"), pn.Term("l2", name="logits", inputs="logits")])
    out = evaluated(local, [data(local, "hello")], pipeline)
    assert out is not None
    assert float(out["size"].value) > 0
    assert float(out["logits"].value) > 0


def test_references_are_made_for_them(client: Any) -> None:
    pipeline = pn.Pipeline([pn.Term("kl_estimate", inputs=("logprobs", "first"))])
    out = evaluated(client, [data(client, "hello")], pipeline, references={"first": references.initial()})
    assert out is not None
    assert float(out["kl_estimate"].value) == pytest.approx(0.0, abs=1e-6)


def test_without_data_there_is_nothing(client: Any) -> None:
    assert evaluated(client, [], pn.Pipeline([])) is None


def test_a_term_that_rests_is_there_all_the_same() -> None:
    pipeline = pn.Pipeline([pn.Term("l2", inputs="logprobs", every=2), pn.Term("l1", inputs="logprobs")])
    out = evaluated(Client(), [data(None, "hello")], every_term(pipeline), step=3)
    assert out is not None
    assert set(out.terms) == {"l2", "l1"}
    assert every_term(pipeline)["l1"] is pipeline["l1"]


class TestMeans:
    def test_batches_count_by_their_data(self) -> None:
        first = LossOutput.of(
            [TermOutput("l1", 1.0, 0.5, metrics={"a": 1.0}, duration=0.1)], base=TermOutput("base_loss", 2.0)
        )
        second = LossOutput.of(
            [TermOutput("l1", 4.0, 0.5, metrics={"a": 4.0, "b": 3.0})], base=TermOutput("base_loss", 5.0)
        )
        out = averaged([(first, 2), (second, 1)])
        assert out["l1"].value == pytest.approx(2.0)
        assert out["l1"].metrics == {"a": pytest.approx(2.0), "b": 3.0}
        assert out["l1"].duration == 0.1
        assert out["base_loss"].value == pytest.approx(3.0)
        assert out.total == pytest.approx(4.0)

    def test_a_term_that_was_skipped_in_a_batch_is_that_of_the_others(self) -> None:
        error = RuntimeError("no")
        first = LossOutput.of([TermOutput("l1", None, error=error)])
        second = LossOutput.of([TermOutput("l1", 4.0)])
        out = averaged([(first, 2), (second, 1)])
        assert out["l1"].value == 4.0
        assert out["l1"].error is error
        assert averaged([(first, 1), (first, 1)])["l1"].value is None
        assert out.base is None
