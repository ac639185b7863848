"""The local client: passes, gradients, and the order of operations."""

import asyncio
import threading
from typing import Any

import numpy as np
import pytest
import tinker
import torch

from penalties.training.local import LocalTrainingClient
from penalties.training.types import AdamParams, Datum, ModelInput, SamplingParams
from tests.training.local.cases import (
    WAIT,
    array,
    assert_close,
    assert_same,
    clear,
    data,
    gradients,
    logprobs,
    negative,
    normal,
    plain_gradients,
    plain_logprobs,
    tiny,
    weights,
)


@pytest.fixture(scope="module")
def client() -> Any:
    """For tests that change no parameters."""
    with tiny() as made:
        yield made


@pytest.fixture(autouse=True)
def _no_gradients(request: pytest.FixtureRequest) -> None:
    if "client" in request.fixturenames:
        clear(request.getfixturevalue("client"))


def test_forward_returns_the_log_probability_of_every_target(client: LocalTrainingClient) -> None:
    batch = data(7, 3, 12)
    output = client.forward(batch, "cross_entropy").result(WAIT)
    assert_close(logprobs(output), [plain_logprobs(client, one) for one in batch])
    assert gradients(client) == {}


@pytest.mark.parametrize("width", [None, 4])
def test_cross_entropy_sums_weighted_log_probabilities(client: LocalTrainingClient, width: int | None) -> None:
    batch = data(5, 9, 2, width=width, weights=normal)
    output = client.forward_backward(batch, "cross_entropy").result(WAIT)
    parts = [-plain_logprobs(client, one) * array(one, "weights") for one in batch]
    loss = torch.cat(parts).sum()
    assert output.metrics == {"loss:sum": pytest.approx(loss.item(), rel=1e-6)}
    assert_close([one["elementwise_loss"].to_numpy() for one in output.loss_fn_outputs], parts)
    assert_close(gradients(client), plain_gradients(client, loss))


def test_targets_without_weights_count_fully(client: LocalTrainingClient) -> None:
    batch = data(4)
    output = client.forward(batch).result(WAIT)
    assert output.metrics["loss:sum"] == pytest.approx(-float(logprobs(output)[0].sum()), rel=1e-6)


@pytest.mark.parametrize("width", [None, 3])
def test_importance_sampling_weighs_advantages_by_the_ratio(client: LocalTrainingClient, width: int | None) -> None:
    batch = data(5, 9, 2, width=width, logprobs=negative, advantages=normal)
    output = client.forward_backward(batch, "importance_sampling").result(WAIT)
    parts = [-(plain_logprobs(client, one) - array(one, "logprobs")).exp() * array(one, "advantages") for one in batch]
    loss = torch.cat(parts).sum()
    assert output.metrics == {"loss:sum": pytest.approx(loss.item(), rel=1e-5)}
    assert_close([one["elementwise_loss"].to_numpy() for one in output.loss_fn_outputs], parts, 1e-5)
    assert_close(gradients(client), plain_gradients(client, loss), 1e-5)


def test_one_batch_may_mix_numbers_of_targets(client: LocalTrainingClient) -> None:
    batch = [*data(5, weights=normal), *data(6, width=3, seed=1, weights=normal), *data(2, width=1, weights=normal)]
    output = client.forward_backward(batch, "cross_entropy").result(WAIT)
    assert [one.shape for one in logprobs(output)] == [(5,), (6, 3), (2, 1)]
    assert_close(logprobs(output), [plain_logprobs(client, one) for one in batch])
    loss = sum((-plain_logprobs(client, one) * array(one, "weights")).sum() for one in batch)
    assert_close(gradients(client), plain_gradients(client, loss))


def test_padding_changes_neither_log_probabilities_nor_gradients(client: LocalTrainingClient) -> None:
    ragged = data(3, 40, 1, 17, weights=normal)
    together = logprobs(client.forward_backward(ragged, "cross_entropy").result(WAIT))
    summed = gradients(client)
    clear(client)
    alone = [logprobs(client.forward_backward([one], "cross_entropy").result(WAIT))[0] for one in ragged]
    assert_close(together, alone)
    assert_close(summed, gradients(client))


def test_a_datum_gets_its_own_gradient_whatever_it_is_padded_with(client: LocalTrainingClient) -> None:
    alone = data(3, weights=normal)
    client.forward_backward(alone, "cross_entropy").result(WAIT)
    expected = gradients(client)
    clear(client)
    silent = data(50, seed=9, weights=lambda rng, shape: np.zeros(shape))
    client.forward_backward([*silent, *alone], "cross_entropy").result(WAIT)
    assert_close(gradients(client), expected)


def test_the_order_of_data_does_not_matter(client: LocalTrainingClient) -> None:
    batch = data(8, 3, 5, weights=normal)
    first = logprobs(client.forward_backward(batch, "cross_entropy").result(WAIT))
    expected = gradients(client)
    clear(client)
    second = logprobs(client.forward_backward(batch[::-1], "cross_entropy").result(WAIT))
    assert_close(second[::-1], first)
    assert_close(gradients(client), expected)


def test_gradients_add_up(client: LocalTrainingClient) -> None:
    first, second = data(6, weights=normal), data(4, seed=1, weights=normal)
    client.forward_backward(first, "cross_entropy").result(WAIT)
    client.forward_backward(second, "cross_entropy").result(WAIT)
    added = gradients(client)
    clear(client)
    client.forward_backward([*first, *second], "cross_entropy").result(WAIT)
    assert_close(added, gradients(client))


def test_batches_change_nothing_but_memory() -> None:
    batch = data(8, 3, 5, 1, 9, weights=normal)
    outputs, found = [], []
    for size in (None, 2, 1):
        with tiny(batch_size=size) as client:
            outputs.append(client.forward_backward(batch, "cross_entropy").result(WAIT))
            found.append(gradients(client))
            assert_close(logprobs(client.forward_initial(batch).result(WAIT)), logprobs(tiny_initial(batch)))
    for output, one in zip(outputs[1:], found[1:], strict=True):
        assert_close(logprobs(output), logprobs(outputs[0]))
        assert output.metrics["loss:sum"] == pytest.approx(outputs[0].metrics["loss:sum"], rel=1e-6)
        assert_close(one, found[0])


def tiny_initial(batch: Any) -> Any:
    with LocalTrainingClient("tiny", device="cpu") as client:
        return client.forward(batch).result(WAIT)


def test_a_pass_that_fails_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from penalties.training.local import passing as module

    batch = data(4, 4)
    with tiny(batch_size=1) as client:
        client.forward_backward(batch, "cross_entropy").result(WAIT)
        before = gradients(client)
        real, calls = module.run, []

        def failing(*args: Any) -> Any:
            calls.append(args)
            if len(calls) == 2:
                raise MemoryError("full")
            return real(*args)

        monkeypatch.setattr(module, "run", failing)
        with pytest.raises(MemoryError):
            client.forward_backward(batch, "cross_entropy").result(WAIT)
        assert_same(gradients(client), before)


def test_forward_initial_is_the_model_before_training() -> None:
    batch = data(6, 3)
    with LocalTrainingClient("tiny", device="cpu") as client:
        before = logprobs(client.forward(batch).result(WAIT))
        for _ in range(2):
            client.forward_backward(batch, "cross_entropy").result(WAIT)
            client.optim_step(AdamParams(1e-2)).result(WAIT)
        after = logprobs(client.forward(batch).result(WAIT))
        initial = client.forward_initial(batch).result(WAIT)
        assert_close(logprobs(initial), before)
        assert set(initial.loss_fn_outputs[0]) == {"logprobs"}
        assert np.abs(after[0] - before[0]).max() > 0.1
        # The adapter is on again, and trains.
        assert_close(logprobs(client.forward(batch).result(WAIT)), after)
        client.forward_backward(batch, "cross_entropy").result(WAIT)
        assert len(gradients(client)) == len(client.parameters()) > 0


def test_training_lowers_the_loss() -> None:
    texts = ["the quick brown fox", "pack my box with five dozen jugs", "sphinx of black quartz"]
    with LocalTrainingClient("tiny", device="cpu") as client:
        batch = []
        for text in texts:
            tokens = client.get_tokenizer().encode(text)
            batch.append(Datum(ModelInput.from_ints(tokens[:-1]), {"target_tokens": tokens[1:]}))
        steps = []
        for _ in range(30):
            steps.append(client.forward_backward(batch, "cross_entropy"))
            client.optim_step(AdamParams(learning_rate=5e-3))
        losses = [step.result(WAIT).metrics["loss:sum"] for step in steps]
    assert losses[-1] < 2 / 3 * losses[0]


def test_importance_sampling_raises_what_has_an_advantage() -> None:
    with LocalTrainingClient("tiny", device="cpu") as client:
        batch = data(6)
        before = logprobs(client.forward(batch).result(WAIT))[0]
        advantages = np.array([1, -1, 1, -1, 1, -1], np.float32)
        given = {**batch[0].loss_fn_inputs, "logprobs": before, "advantages": advantages}
        for _ in range(3):
            client.forward_backward([Datum(batch[0].model_input, given)], "importance_sampling").result(WAIT)
            client.optim_step(AdamParams(1e-2)).result(WAIT)
        change = logprobs(client.forward(batch).result(WAIT))[0] - before
    assert float((change * advantages).sum()) > 1.0


def _trained(seed: int) -> tuple[dict[str, torch.Tensor], list[float]]:
    with LocalTrainingClient("tiny", seed=seed, device="cpu") as client:
        losses = []
        for step in range(3):
            output = client.forward_backward(data(9, 4, seed=step, weights=normal), "cross_entropy").result(WAIT)
            losses.append(output.metrics["loss:sum"])
            client.optim_step(AdamParams(1e-2)).result(WAIT)
        return weights(client), losses


def test_equal_seeds_make_equal_runs() -> None:
    state = torch.get_rng_state()
    first, losses = _trained(3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(7)
    second, again = _trained(3)
    assert losses == again
    assert_same(second, first)
    assert _trained(4)[1] != losses


def test_bfloat16_trains_with_float32_log_probabilities() -> None:
    batch = data(5, 9, weights=normal)
    with tiny() as exact, tiny(dtype="bfloat16") as half:
        assert half.model.get_base_model().lm_head.weight.dtype is torch.bfloat16
        assert {one.dtype for one in half.parameters().values()} == {torch.float32}
        expected = exact.forward_backward(batch, "cross_entropy").result(WAIT)
        output = half.forward_backward(batch, "cross_entropy").result(WAIT)
        assert {one.dtype for one in logprobs(output)} == {np.dtype(np.float32)}
        assert_close(logprobs(output), logprobs(expected), 0.02)
        assert_close(gradients(half), gradients(exact), 0.05)
        # More digits than a bfloat16 has.
        found = torch.as_tensor(logprobs(output)[0])
        assert not torch.equal(found, found.bfloat16().float())
        before = output.metrics["loss:sum"]
        half.optim_step(AdamParams(1e-3)).result(WAIT)
        assert half.forward(batch).result(WAIT).metrics["loss:sum"] < before


def test_it_takes_the_types_of_the_sdk(client: LocalTrainingClient) -> None:
    batch = data(5, 3, weights=normal)
    theirs = [
        tinker.Datum(
            model_input=tinker.ModelInput.from_ints(one.model_input.to_ints()),
            loss_fn_inputs={
                "target_tokens": tinker.TensorData.from_numpy(one.loss_fn_inputs["target_tokens"].to_numpy()),
                "weights": tinker.TensorData.from_numpy(one.loss_fn_inputs["weights"].to_numpy()),
            },
        )
        for one in batch
    ]
    expected = client.forward(batch).result(WAIT)
    output = client.forward(theirs).result(WAIT)
    assert output.metrics == expected.metrics
    assert_close(logprobs(output), logprobs(expected))
    with tiny() as mine:
        mine.forward_backward(theirs, "cross_entropy").result(WAIT)
        assert mine.optim_step(tinker.AdamParams(learning_rate=1e-3)).result(WAIT).metrics
        params = tinker.SamplingParams(max_tokens=3, seed=1)
        assert len(mine.sample(tinker.ModelInput.from_ints([1, 2]), 2, params).result(WAIT).sequences) == 2


def test_the_asynchronous_twins_do_the_same(tmp_path: Any) -> None:
    batch = data(4, 2)

    async def main() -> None:
        with LocalTrainingClient("tiny", device="cpu", checkpoints=tmp_path) as client:
            forward = await client.forward_async(batch, "cross_entropy")
            expected = client.forward(batch).result(WAIT)
            assert (await forward).metrics == expected.metrics
            assert (await (await client.forward_initial_async(batch))).loss_fn_outputs
            graph = await (await client.forward_with_graph_async(batch))
            assert len(graph.logprobs) == 2
            done = await client.forward_backward_async(batch, "cross_entropy")
            assert (await done.result_async(WAIT)).metrics == expected.metrics
            await (await client.optim_step_async(AdamParams(1e-2)))
            trained = client.forward(batch).result(WAIT).metrics
            assert trained != expected.metrics
            saved = await (await client.save_state_async("one"))
            client.forward_backward(batch, "cross_entropy").result(WAIT)
            client.optim_step(AdamParams(1e-2)).result(WAIT)
            await (await client.load_state_async(saved.path))
            assert client.forward(batch).result(WAIT).metrics == trained
            await (await client.load_state_with_optimizer_async(saved.path))
            response = await client.sample_async(ModelInput.from_ints([1]), 2, SamplingParams(max_tokens=2))
            assert len(response.sequences) == 2

    asyncio.run(main())


def test_operations_run_in_the_order_of_submission() -> None:
    batch = data(6)
    with tiny() as client, tiny() as other:
        futures = []
        for _ in range(4):
            futures.append(client.forward_backward(batch, "cross_entropy"))
            client.optim_step(AdamParams(1e-3))
        one_by_one = []
        for _ in range(4):
            one_by_one.append(other.forward_backward(batch, "cross_entropy").result(WAIT).metrics)
            other.optim_step(AdamParams(1e-3)).result(WAIT)
        assert [future.result(WAIT).metrics for future in futures] == one_by_one


def test_threads_may_share_a_client(client: LocalTrainingClient) -> None:
    batch = data(6, weights=normal)
    threads = [threading.Thread(target=client.forward_backward, args=(batch, "cross_entropy")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.forward(batch).result(WAIT)
    four = gradients(client)
    clear(client)
    client.forward_backward(batch, "cross_entropy").result(WAIT)
    assert_close(four, {name: 4 * one for name, one in gradients(client).items()})


def test_no_grad_of_the_caller_does_not_reach_the_thread(client: LocalTrainingClient) -> None:
    with torch.no_grad():
        client.forward_backward(data(3), "cross_entropy").result(WAIT)
    assert gradients(client)


def test_what_a_client_shows(client: LocalTrainingClient) -> None:
    assert client.model_id == "tiny"
    assert client.device == torch.device("cpu")
    assert client.get_tokenizer() is client.tokenizer
    assert type(client.model).__name__ == "PeftModelForCausalLM"
    names = {name.split(".")[-4] for name in client.parameters()}
    assert names == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert len(client.parameters()) == 2 * 2 * 7


def test_closing_finishes_submitted_work() -> None:
    client = tiny()
    future = client.forward(data(3))
    client.close()
    client.close()
    assert future.done()
    with pytest.raises(RuntimeError, match="this LocalTrainingClient is closed"):
        client.forward(data(3))
