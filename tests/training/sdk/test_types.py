"""Our types with the SDK's client, and the SDK's types with ours."""

import asyncio
import copy
from typing import Any

import numpy as np
import pytest
import torch
from tinker import types

import penalties as pn
from penalties.training import (
    AdamParams,
    Datum,
    LocalTrainingClient,
    ModelInput,
    TensorData,
    TinkerTrainingClient,
    forward_backward_custom,
    references,
)
from penalties.training.sdk import adam_for, data_for
from tests.servers.sdk import LIMIT
from tests.training.sdk.cases import assert_alike, batch, logprobs, pairwise

pytestmark = pytest.mark.timeout(120)


def ours(data: list[types.Datum]) -> list[Datum]:
    return [Datum(ModelInput.from_ints(one.model_input.to_ints()), one.loss_fn_inputs) for one in data]


@pytest.mark.parametrize("candidates", [None, 3])
def test_our_data_train_through_the_sdks_client_as_its_own_do(
    client: Any, local: LocalTrainingClient, candidates: int | None
) -> None:
    data = batch(candidates=candidates)
    seen: list[Any] = []

    def loss(data: Any, logprobs: Any) -> Any:
        seen.append(data[0])
        return pairwise(data, logprobs)

    forward_backward_custom(client, ours(data), loss).result(LIMIT)
    client.optim_step(types.AdamParams(learning_rate=3e-3)).result(LIMIT)
    forward_backward_custom(local, data, loss).result(LIMIT)
    local.optim_step(types.AdamParams(learning_rate=3e-3)).result(LIMIT)
    assert_alike(logprobs(client, data), logprobs(local, data))
    # Terms get what was passed.
    assert [type(one) for one in seen] == [Datum, types.Datum]


@pytest.mark.parametrize("kind", ["initial", "perturbed", "client"])
def test_references_from_the_sdks_client_take_our_data(client: Any, local: LocalTrainingClient, kind: str) -> None:
    data = ours(batch())
    found: list[float] = []
    for student, teacher in ((client, client), (local, local)):
        made = {
            "initial": references.initial,
            "perturbed": lambda: references.perturbed(token_dropout=0.3),
            "client": lambda teacher=teacher: references.client(teacher),
        }[kind]()
        passed = forward_backward_custom(
            student,
            data,
            "cross_entropy",
            regularizers=[pn.Term("kl_estimate", inputs=("logprobs", "other"), name="kl")],
            references={"other": made},
            step=0,
        )
        found.append(passed.result(LIMIT).metrics["kl"])
    assert found[0] == pytest.approx(found[1], rel=1e-4, abs=1e-6)


class TestTinkerTrainingClient:
    def test_takes_our_types_and_returns_the_sdks(self, client: Any, local: LocalTrainingClient) -> None:
        wrapped, data = TinkerTrainingClient(client), ours(batch())
        for one in (wrapped, local):
            forward = one.forward(data, "cross_entropy").result(LIMIT)
            passed = one.forward_backward(data, "cross_entropy").result(LIMIT)
            assert forward.metrics == pytest.approx(passed.metrics)
            one.optim_step(AdamParams(learning_rate=3e-3)).result(LIMIT)
        assert isinstance(wrapped.forward(data, "cross_entropy").result(LIMIT), types.ForwardBackwardOutput)
        assert_alike(logprobs(wrapped, data), logprobs(local, data))

    def test_takes_them_where_it_is_awaited_too(self, client: Any, local: LocalTrainingClient) -> None:
        data = ours(batch())

        async def step(one: Any) -> None:
            await (await one.forward_async(data, "cross_entropy"))
            await (await one.forward_backward_async(data, "cross_entropy"))
            await (await one.optim_step_async(AdamParams(learning_rate=3e-3)))

        for one in (TinkerTrainingClient(client), local):
            asyncio.run(step(one))
        assert_alike(logprobs(client, batch()), logprobs(local, data))

    def test_is_the_sdks_client_otherwise(self, client: Any) -> None:
        wrapped = TinkerTrainingClient(client)
        assert wrapped.model_id == client.model_id
        assert wrapped.save_state("here").result(LIMIT).path.endswith("/here")
        assert copy.copy(wrapped).sdk is client
        with pytest.raises(AttributeError, match="forward_with_graph"):
            _ = wrapped.forward_with_graph

    def test_other_clients_need_none(self, local: LocalTrainingClient) -> None:
        with pytest.raises(pn.OptionError, match=r"client=.*; expected a tinker\.TrainingClient"):
            TinkerTrainingClient(local)


class TestConversion:
    def test_what_is_the_sdks_stays_as_it_is(self, client: Any) -> None:
        data, adam, other = batch(), types.AdamParams(), types.DimuonParams(learning_rate=1e-3)
        assert all(one is two for one, two in zip(data_for(client, data), data, strict=True))
        assert adam_for(client, adam) is adam
        assert adam_for(client, other) is other

    def test_a_datum_of_the_sdk_may_hold_our_tokens(self, client: Any, local: LocalTrainingClient) -> None:
        data = [types.Datum(ModelInput.from_ints([1, 2]), {"target_tokens": [2, 3], "weights": [1.0, 1.0]})]
        assert_alike(logprobs(TinkerTrainingClient(client), data), logprobs(local, data), 1e-6)

    def test_other_clients_get_what_they_are_given(self, local: LocalTrainingClient) -> None:
        data, adam = ours(batch()), AdamParams()
        assert data_for(local, data) == data
        assert adam_for(local, adam) is adam

    def test_an_error_names_the_datum(self, client: Any) -> None:
        with pytest.raises(pn.InputError, match="datum 1: got int; expected a datum"):
            TinkerTrainingClient(client).forward([*ours(batch()[:1]), 3], "cross_entropy")


class TestTheSdksTypesWithOurs:
    def test_a_step_of_the_local_client(self, local: LocalTrainingClient) -> None:
        with LocalTrainingClient("tiny", rank=4, seed=0) as other:
            for one, data, adam in (
                (local, batch(), types.AdamParams(learning_rate=3e-3)),
                (other, ours(batch()), AdamParams(learning_rate=3e-3)),
            ):
                one.forward_backward(data, "cross_entropy").result(LIMIT)
                one.optim_step(adam).result(LIMIT)
            assert_alike(logprobs(local, batch()), logprobs(other, batch()), 0.0)

    def test_parts_in_our_datum(self) -> None:
        array = types.TensorData.from_torch_sparse(torch.eye(8, dtype=torch.int64))
        assert array.sparse_crow_indices is not None
        made = Datum(types.ModelInput.from_ints([1] * 8), {"target_tokens": array, "weights": np.ones((8, 8))})
        assert made.loss_fn_inputs["target_tokens"] == TensorData(np.eye(8, dtype=np.int64))
        assert made.model_input.to_ints() == [1] * 8

    def test_samples_of_the_local_client(self, local: LocalTrainingClient) -> None:
        drawn = [
            local.sample(kind.from_ints([5, 6]), 2, params(max_tokens=4, seed=1)).result(LIMIT).sequences
            for kind, params in (
                (types.ModelInput, types.SamplingParams),
                (ModelInput, pn.training.SamplingParams),
            )
        ]
        assert drawn[0] == drawn[1]
