"""The protocol server behaves like the service."""

from typing import Any

import numpy as np
import pytest
import tinker
import torch
from tinker import types
from tinker.lib.client_connection_pool_type import ClientConnectionPoolType

from penalties.training import (
    forward_backward_custom,
)
from tests.servers.sdk import LIMIT, Connected, connected
from tests.training.sdk.cases import assert_alike, batch, logprobs, pairwise

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ADAM = types.AdamParams(learning_rate=3e-3)


class TestTheServerIsRight:
    """The SDK's own calls."""

    @pytest.mark.parametrize("candidates", [None, 3, 40])
    def test_logprobs_are_those_of_the_local_client(self, client: Any, local: Any, candidates: int | None) -> None:
        data = batch(candidates=candidates)
        assert_alike(logprobs(client, data), logprobs(local, data), 1e-6)

    def test_sparse_targets_come_out_dense(self, client: Any, local: Any) -> None:
        targets = torch.zeros(6, 20, dtype=torch.int64)
        targets[2, 3], targets[5, 0], targets[5, 19] = 7, 8, 9
        weights = torch.zeros(6, 20)
        weights[2, 3] = 2.5
        datum = types.Datum(
            types.ModelInput.from_ints([1, 2, 3, 4, 5, 6]), {"target_tokens": targets, "weights": weights}
        )
        assert datum.loss_fn_inputs["target_tokens"].sparse_crow_indices is not None
        found = client.forward([datum], "cross_entropy").result(LIMIT)
        (expected,) = logprobs(local, [datum])
        assert_alike([found.loss_fn_outputs[0]["logprobs"].to_numpy()], [expected], 1e-6)
        assert found.metrics["loss:sum"] == pytest.approx(-2.5 * expected[2, 3], rel=1e-5)

    @pytest.mark.parametrize(
        "config",
        [{"use_pyqwest_transport": False}, {"proto_compress_fwdbwd": True}, {"fwdbwd_max_chunk_len": 1}],
        ids=lambda config: next(iter(config)),
    )
    def test_logprobs_do_not_depend_on_the_way(self, local: Any, config: dict[str, Any]) -> None:
        data = batch((5, 9, 3, 4))
        with connected(config=config, inline_bytes=30) as sdk:
            assert_alike(logprobs(sdk.client, data), logprobs(local, data), 1e-6)

    @pytest.mark.parametrize("loss_fn", ["cross_entropy", "importance_sampling"])
    def test_a_step_is_that_of_the_local_client(self, client: Any, local: Any, loss_fn: str) -> None:
        data = batch()
        if loss_fn == "importance_sampling":
            old = logprobs(local, data)
            data = [
                types.Datum(
                    datum.model_input,
                    {
                        "target_tokens": datum.loss_fn_inputs["target_tokens"],
                        "logprobs": one - 0.1,
                        "advantages": np.linspace(-1, 2, len(one), dtype=np.float32),
                    },
                )
                for datum, one in zip(data, old, strict=True)
            ]
        passed = client.forward_backward(data, loss_fn)
        stepped = client.optim_step(ADAM)
        expected = local.forward_backward(data, loss_fn).result(LIMIT)
        expected_step = local.optim_step(ADAM).result(LIMIT)
        assert passed.result(LIMIT).metrics == pytest.approx(expected.metrics, rel=1e-6)
        assert stepped.result(LIMIT).metrics == pytest.approx(expected_step.metrics, rel=1e-5)
        assert_alike(logprobs(client, batch(seed=1)), logprobs(local, batch(seed=1)))

    def test_gradients_accumulate_until_the_step(self, client: Any, local: Any) -> None:
        before = logprobs(client, batch())
        for seed in (0, 1):
            client.forward_backward(batch(seed=seed), "cross_entropy").result(LIMIT)
        assert_alike(logprobs(client, batch()), before, 0.0)
        client.optim_step(ADAM).result(LIMIT)
        local.forward_backward(batch() + batch(seed=1), "cross_entropy").result(LIMIT)
        local.optim_step(ADAM).result(LIMIT)
        assert_alike(logprobs(client, batch()), logprobs(local, batch()))
        assert not np.allclose(logprobs(client, batch())[0], before[0], atol=1e-4)

    def test_the_sdks_own_custom_loss_trains(self, client: Any, local: Any) -> None:
        given = client.forward_backward_custom(batch(), pairwise).result(LIMIT)
        client.optim_step(ADAM).result(LIMIT)
        ours = forward_backward_custom(local, batch(), pairwise).result(LIMIT)
        local.optim_step(ADAM).result(LIMIT)
        assert given.metrics["loss:sum"] == pytest.approx(ours.metrics["loss:sum"], rel=1e-5)
        assert_alike(logprobs(client, batch()), logprobs(local, batch()))

    @pytest.mark.parametrize("config", [{}, {"create_model_via_load_weights": True}], ids=["created", "loaded"])
    def test_training_resumes_from_a_checkpoint(self, config: dict[str, Any]) -> None:
        def step(client: Any, seed: int = 1) -> None:
            client.forward_backward(batch(seed=seed), "cross_entropy").result(LIMIT)
            client.optim_step(ADAM).result(LIMIT)

        with connected(config=config) as sdk:
            step(sdk.client, seed=0)
            path = sdk.client.save_state("one").result(LIMIT).path
            at_one = logprobs(sdk.client, batch())
            step(sdk.client)
            at_two = logprobs(sdk.client, batch())
            on = sdk.service.create_training_client_from_state_with_optimizer(path)
            assert_alike(logprobs(on, batch()), at_one, 1e-6)
            step(on)
            assert_alike(logprobs(on, batch()), at_two, 1e-6)
            afresh = sdk.service.create_training_client_from_state(path)
            step(afresh)
            assert not np.allclose(logprobs(afresh, batch())[0], at_two[0], atol=1e-6)
            with pytest.warns(FutureWarning, match="deprecated"):
                sdk.client.load_state_with_optimizer(path).result(LIMIT)
            assert_alike(logprobs(sdk.client, batch()), at_one, 1e-6)

    def test_a_sampler_keeps_the_weights_it_was_made_with(self, client: Any) -> None:
        sampler = client.save_weights_and_get_sampling_client()
        prompt = types.ModelInput.from_ints([5, 6, 7, 8])
        before = sampler.compute_logprobs(prompt).result(LIMIT)
        client.forward_backward(batch(), "cross_entropy").result(LIMIT)
        client.optim_step(ADAM).result(LIMIT)
        assert sampler.compute_logprobs(prompt).result(LIMIT) == before
        drawn = sampler.sample(prompt, 2, types.SamplingParams(max_tokens=3, seed=1)).result(LIMIT)
        assert [len(one.tokens) for one in drawn.sequences] == [3, 3]

    def test_invalid_data_raise_a_user_error(self, client: Any) -> None:
        datum = types.Datum(types.ModelInput.from_ints([1, 2]), {"target_tokens": [1, 10**6], "weights": [1.0, 1.0]})
        with pytest.raises(tinker.RequestFailedError, match="datum 0") as caught:
            client.forward([datum], "cross_entropy").result(LIMIT)
        assert caught.value.category == types.RequestErrorCategory.User
        assert len(logprobs(client, batch())) == 3

    def test_a_session_beats_until_it_is_finished(self) -> None:
        with connected() as sdk:
            holder = sdk.client.holder

            async def beat() -> None:
                with holder.aclient(ClientConnectionPoolType.SESSION) as client:
                    await client.service.session_heartbeat(session_id=holder.get_session_id(), max_retries=0)

            holder.run_coroutine_threadsafe(beat()).result(LIMIT)
            assert sdk.server.service.beats == 1
            sdk.server.service.finish(holder.get_session_id())
            with pytest.raises(tinker.APIStatusError, match="has finished") as caught:
                holder.run_coroutine_threadsafe(beat()).result(LIMIT)
            assert caught.value.status_code == 410
            with pytest.raises(tinker.APIStatusError, match="has finished"):
                sdk.client.optim_step(ADAM).result(LIMIT)

    def test_a_wrong_key_raises(self, sdk: Connected) -> None:
        with pytest.raises(tinker.AuthenticationError):
            tinker.ServiceClient(base_url=sdk.server.url, api_key="tml-other").create_lora_training_client("tiny")


class TestRequestsOfTheServer:
    """Order, and once."""

    def test_chunks_are_carried_out_in_order_though_the_first_comes_last(self) -> None:
        with connected(config={"fwdbwd_max_chunk_len": 1}) as sdk:
            logprobs(sdk.client, batch((3, 4, 5, 6, 7)))
            assert [done.seq_id for done in sdk.server.executed] == [1, 2, 3, 4, 5]

    def test_a_slow_answer_is_requested_again(self, local: Any) -> None:
        with connected(poll_s=0.1) as sdk:
            sdk.server.service.models[sdk.client.model_id].slow["forward"] = 0.5
            assert_alike(logprobs(sdk.client, batch()), logprobs(local, batch()), 1e-6)
            assert sdk.server.received["retrieve Forward"] > 1
            assert sdk.server.count("forward") == 1
