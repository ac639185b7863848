"""What becomes of a step where the service fails: it happens once or raises, never twice, and never hangs."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tinker
import torch
from tinker import types
from torch import Tensor

import penalties as pn
from penalties.training import LocalTrainingClient, forward_backward_custom, references
from tests.servers.protocol_server import ProtocolServer
from tests.servers.sdk import LIMIT, Connected, connected

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ADAM = types.AdamParams(learning_rate=3e-3)
SUBMITTED = ("forward", "forward_backward", "optim_step")
RETRIEVED = ("retrieve Forward", "retrieve ForwardBackward", "retrieve OptimStep")
EVERYWHERE = (*SUBMITTED, *RETRIEVED)


def batch() -> list[types.Datum]:
    random = np.random.default_rng(0)
    rows = [random.integers(1, 60, length + 1).tolist() for length in (4, 7)]
    return [
        types.Datum(types.ModelInput.from_ints(row[:-1]), {"target_tokens": row[1:], "weights": [1.0] * (len(row) - 1)})
        for row in rows
    ]


def loss(data: Any, logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
    means = torch.stack([one.mean() for one in logprobs])
    return torch.nn.functional.softplus(means[1] - means[0]) + (means**2).sum(), {}


TERMS = [pn.Term("entropy_estimate", weight=0.1, inputs="logprobs", name="entropy")]


def ours(client: Any) -> Any:
    return forward_backward_custom(client, batch(), loss, regularizers=TERMS)


def step(client: Any, call: Callable[[Any], Any] = ours) -> float:
    """One step, its parts in flight together; gives the loss."""
    passed = call(client)
    stepped = client.optim_step(ADAM)
    stepped.result(LIMIT)
    return passed.result(LIMIT).metrics["loss:sum"]


def logprobs(client: Any) -> np.ndarray[Any, Any]:
    output = client.forward(batch(), "cross_entropy").result(LIMIT)
    return np.concatenate([one["logprobs"].to_numpy() for one in output.loss_fn_outputs])


def operations(server: ProtocolServer) -> list[str]:
    return [done.operation for done in server.executed]


@pytest.fixture(scope="module")
def sdk() -> Iterator[Connected]:
    with connected() as made:
        yield made


@pytest.fixture
def client(sdk: Connected) -> Iterator[tinker.TrainingClient]:
    made = sdk.service.create_lora_training_client("tiny", rank=4, seed=0)
    sdk.server.executed.clear()
    yield made
    assert not len(sdk.server.faults)


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    """Five steps of the same model on which nothing went wrong: losses, and log-probabilities after the first."""
    local = LocalTrainingClient("tiny", rank=4, seed=0)
    losses = [step(local)]
    after = logprobs(local)
    return {"losses": losses + [step(local) for _ in range(4)], "logprobs": after}


FAULTS: dict[str, Callable[[ProtocolServer, str], None]] = {
    "500, not carried out": lambda server, on: server.fail(on),
    "500, carried out": lambda server, on: server.fail(on, after=True),
    "503 three times": lambda server, on: server.fail(on, 503, times=3),
    "429": lambda server, on: server.fail(on, 429),
    "dropped, not carried out": lambda server, on: server.drop(on),
    "dropped, carried out": lambda server, on: server.drop(on, after=True),
    "late": lambda server, on: server.wait(on, 0.3, after=True),
}


class TestOnce:
    """The SDK tries again, and the step is the one that would have been."""

    @pytest.mark.parametrize("fault", FAULTS)
    def test_the_step_happens_once(self, sdk: Connected, client: Any, undisturbed: Any, fault: str) -> None:
        for on in EVERYWHERE:
            FAULTS[fault](sdk.server, on)
        found = step(client)
        assert operations(sdk.server) == list(SUBMITTED)
        assert found == pytest.approx(undisturbed["losses"][0], abs=1e-5)
        np.testing.assert_allclose(logprobs(client), undisturbed["logprobs"], atol=1e-5)

    def test_the_step_of_the_sdks_own_call_happens_once(self, sdk: Connected, client: Any) -> None:
        for on in EVERYWHERE:
            sdk.server.fail(on, after=True)
        step(client, lambda one: one.forward_backward_custom(batch(), loss))
        assert operations(sdk.server) == list(SUBMITTED)

    @pytest.mark.parametrize("fault", ["500, carried out", "dropped, carried out"])
    def test_chunks_and_another_transport(self, fault: str) -> None:
        with connected(config={"fwdbwd_max_chunk_len": 1, "use_pyqwest_transport": False}) as sdk:
            for on in EVERYWHERE:
                FAULTS[fault](sdk.server, on)
            step(sdk.client)
            assert operations(sdk.server) == ["forward"] * 2 + ["forward_backward"] * 2 + ["optim_step"]
            assert [done.seq_id for done in sdk.server.executed] == [1, 2, 3, 4, 5]

    def test_what_the_sdk_does_not_wait_for_is_not_done_again(self) -> None:
        with connected() as sdk:
            # The SDK waits a minute; connections that are made later wait as long as this says.
            sdk.client.holder._constructor_kwargs["timeout"] = 0.5
            sdk.client.holder._client_pools.clear()
            for on in ("forward_backward", "optim_step"):
                sdk.server.wait(on, 1.0, after=True)
            step(sdk.client)
            assert sdk.server.received["forward_backward"] == sdk.server.received["optim_step"] == 2
            assert operations(sdk.server) == list(SUBMITTED)

    def test_what_is_created_or_saved_is_so_once(self) -> None:
        with connected() as sdk:
            sdk.server.fail("create_model", after=True)
            sdk.server.fail("save_weights", after=True)
            client = sdk.service.create_lora_training_client("tiny", rank=4, seed=0)
            client.save_state("once").result(LIMIT)
            assert len(sdk.server.service.models) == 2
            assert operations(sdk.server) == ["save_weights"]
            assert sdk.server.received["create_model"] == 3

    def test_a_server_that_dies_and_comes_back_costs_nothing_but_time(
        self, sdk: Connected, client: Any, undisturbed: Any
    ) -> None:
        deaths = [("forward", False), ("forward_backward", True), ("optim_step", True), ("retrieve Forward", False)]
        losses = [step(client)]
        for on, after in deaths:
            sdk.server.die_on(on, 0.2, after=after)
            losses.append(step(client))
        assert operations(sdk.server) == list(SUBMITTED) * 5
        assert losses == pytest.approx(undisturbed["losses"], abs=1e-4)

    def test_a_server_that_dies_while_terms_run_is_found_again(self, sdk: Connected, client: Any) -> None:
        def deadly(data: Any, logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
            sdk.server.die(0.2)
            return loss(data, logprobs)

        step(client, lambda one: forward_backward_custom(one, batch(), deadly))
        assert operations(sdk.server) == list(SUBMITTED)


class TestRaises:
    """Nothing is done twice, and nobody waits for ever."""

    @pytest.mark.parametrize(
        ("on", "after"),
        [
            ("forward", True),
            ("retrieve Forward", False),
            ("forward_backward", False),
            ("retrieve ForwardBackward", False),
            ("optim_step", True),
        ],
    )
    def test_a_server_that_comes_back_without_its_state_is_an_error(self, on: str, after: bool) -> None:
        with connected() as sdk:
            sdk.server.die_on(on, 0.1, after=after, lost=True)
            began = time.monotonic()
            with pytest.raises(Exception, match="404") as caught:
                step(sdk.client)
            assert isinstance(caught.value, tinker.NotFoundError | ValueError)
            with pytest.raises(tinker.NotFoundError, match="no model"):
                sdk.client.optim_step(ADAM).result(LIMIT)
            assert time.monotonic() - began < LIMIT
            assert all(sdk.server.count(operation) <= 1 for operation in SUBMITTED)

    @pytest.mark.parametrize("on", EVERYWHERE)
    def test_an_answer_that_cannot_be_read_is_an_error(self, sdk: Connected, client: Any, on: str) -> None:
        sdk.server.garble(on)
        with pytest.raises((tinker.APIError, ValueError)):
            step(client)
        assert all(sdk.server.count(operation) <= 1 for operation in SUBMITTED)
        end = time.monotonic() + LIMIT
        while on in SUBMITTED and not sdk.server.count(on):
            # What was submitted is carried out although its answer was lost, in its own time.
            assert time.monotonic() < end, f"{on} was never carried out"
            time.sleep(0.01)
        sdk.server.executed.clear()
        step(client)
        assert operations(sdk.server) == list(SUBMITTED)

    def test_a_rejected_backward_raises_and_so_does_the_next_step(self, sdk: Connected, client: Any) -> None:
        before = logprobs(client)
        sdk.server.executed.clear()
        sdk.server.fail("forward_backward", 422)
        passed = ours(client)
        stepped = client.optim_step(ADAM)
        with pytest.raises(tinker.UnprocessableEntityError):
            passed.result(LIMIT)
        with pytest.raises(tinker.RequestFailedError, match="which never came"):
            stepped.result(LIMIT)
        assert operations(sdk.server) == ["forward"]
        behind = sdk.server.service.models[client.model_id].client
        np.testing.assert_array_equal(logprobs(behind), before)

    def test_nothing_is_sent_where_a_term_fails(self, sdk: Connected, client: Any, undisturbed: Any) -> None:
        def broken(data: Any, logprobs: Sequence[Tensor]) -> Tensor:
            raise RuntimeError("as the test wants it")

        with pytest.raises(pn.TermError, match="broken"):
            forward_backward_custom(client, batch(), loss, regularizers=[pn.Term(broken)])
        assert operations(sdk.server) == ["forward"]
        assert step(client) == pytest.approx(undisturbed["losses"][0], abs=1e-5)

    def test_nothing_is_sent_where_a_reference_cannot_be_had(self, sdk: Connected, client: Any) -> None:
        terms = [pn.Term("kl_estimate", inputs=("logprobs", "teacher"))]
        with connected() as other:
            beside = {"teacher": references.client(other.client)}
            other.server.service.models.clear()
            with pytest.raises(Exception, match="no model"):
                forward_backward_custom(client, batch(), loss, regularizers=terms, references=beside)
        assert operations(sdk.server) == ["forward"]

    def test_an_error_is_raised_with_telemetry_too(self) -> None:
        with connected(telemetry=True) as sdk:
            sdk.server.fail("forward", 422)
            began = time.monotonic()
            with pytest.raises(tinker.UnprocessableEntityError):
                ours(sdk.client)
            assert time.monotonic() - began < 10.0
            assert sdk.server.received["telemetry"] > 0

    def test_the_sdk_recovers_from_a_rejected_chunk_only_if_chunks_are_sent_one_by_one(self) -> None:
        for parallel in (True, False):
            config = {"fwdbwd_max_chunk_len": 1, "parallel_fwdbwd_chunks": parallel}
            with connected(config=config, gap_s=0.3) as sdk:
                sdk.server.fail("forward", 422)
                with pytest.raises(tinker.UnprocessableEntityError):
                    ours(sdk.client)
                later = sdk.client.optim_step(ADAM)
                with pytest.raises(TimeoutError if parallel else tinker.RequestFailedError):
                    later.result(1.5)
                later.future().cancel()
