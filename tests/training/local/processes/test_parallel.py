"""Two processes do what one does."""

import os
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import penalties as pn
from penalties import trees
from penalties.errors import GradientError, InputError, OptionError, PenaltiesError
from penalties.training.local import LocalTrainingClient, loading
from penalties.training.local.client import LocalTrainingClient as Plain
from penalties.training.local.model import LocalModel
from penalties.training.local.processes import LostError, ParallelTrainingClient, current, join, member, serve
from penalties.training.local.processes.group import FailedError, Group
from penalties.training.local.processes.sharding import shard_layers
from penalties.training.local.tiny import tiny_model
from penalties.training.types import AdamParams, Datum, ModelInput, SamplingParams

from ....integrations.distributed.together import together
from ..cases import data, negative, normal

pytestmark = pytest.mark.slow

RATE = AdamParams(learning_rate=1e-2, grad_clip_norm=1.0)


def in_two(rank: int, work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """What `work(group, …)` returns in the first process, with the help of the other."""
    group = join()
    try:
        if group.leads:
            return work(group, *arguments)
        serve(group)
        return {}
    finally:
        group.end()


def two(work: Callable[..., Any], *arguments: Any) -> Any:
    return together(in_two, work, arguments)[0]


def gradients_of(client: Any) -> list[Any]:
    return [one.grad.clone() for one in client.parameters().values()]


def arrays_of(output: Any) -> list[Any]:
    return [torch.tensor(one.to_numpy()) for row in output.loss_fn_outputs for one in row.values()]


def slopes_of(tensors: Any) -> Any:
    """A gradient of any loss: numbers like the tensors."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(one.shape, generator=generator) for one in tensors]


def worked(client: Any, folder: str) -> dict[str, Any]:
    """Everything that a client does, as tensors."""
    found: dict[str, Any] = {}
    some = data(5, 9, 2, 4, weights=normal)
    # Two passes that add up, and a step, after which the adapter does something.
    passed = [client.forward_backward(one, "cross_entropy").result() for one in (some[:3], some[3:])]
    found["losses"] = torch.tensor([one.metrics["loss:sum"] for one in passed])
    found["outputs"] = [one for output in passed for one in arrays_of(output)]
    found["added up"] = gradients_of(client)
    found["norm"] = torch.tensor(list(client.optim_step(RATE).result().metrics.values()))
    # Your own loss over everything that a graph has, with a gradient of each parameter.
    reads = ["logits", "hidden.0", "hidden.2"]
    graph = client.forward_with_graph(some, reads).result()
    given = {name: slopes_of(graph.inputs[name]) for name in reads} | {"logprobs": slopes_of(graph.logprobs)}
    given["params"] = {name: torch.full_like(one, 0.1) for name, one in client.parameters().items()}
    found["graph"] = {name: torch.cat(list(graph.inputs[name])).detach() for name in reads}
    found["pulled"] = graph.pulled(given)
    graph.backward(given)
    found["propagated"] = gradients_of(client)
    client.save_state(f"{folder}/saved", overwrite=True).result()
    client.optim_step(RATE).result()
    # Lazy logits, of data with one and with two targets per position.
    mixed = [*data(3, 6), *data(4, width=2)]
    graph = client.forward_with_graph(mixed, ["logits"], lazy=True).result()
    found["mixed"] = [one.detach() for one in graph.logprobs]
    certain = pn.Pipeline([pn.Term(pn.entropy, inputs="logits", options={"logits": True})])
    slope = certain.value_and_grad(logits=graph.packed["logits"], wrt="logits").gradient["logits"]
    graph.backward({"logprobs": slopes_of(graph.logprobs), "logits": slope})
    found["of mixed"] = gradients_of(client)
    client.optim_step(RATE).result()
    # Fewer data than processes; the model before training; nothing kept.
    one = data(7, logprobs=negative, advantages=normal)
    found["one"] = arrays_of(client.forward_backward(one, "importance_sampling").result())
    found["of one"] = gradients_of(client)
    found["initial"] = arrays_of(client.forward_initial(some).result())
    graph = client.forward_with_graph(some, ["logits"], initial=True).result()
    found["initial logits"] = graph.packed["logits"]
    # Back to the checkpoint, with its gradient.
    client.load_state_with_optimizer(f"{folder}/saved").result()
    found["loaded"] = gradients_of(client)
    client.optim_step(RATE).result()
    found["forward"] = arrays_of(client.forward(some).result())
    prompt = ModelInput.from_ints([5, 6, 7])
    drawn = [client.sample(prompt, 2, SamplingParams(max_tokens=4, seed=seed)).result() for seed in (None, 4)]
    found["drawn"] = torch.tensor([list(one.tokens) for response in drawn for one in response.sequences])
    return found


def led(group: Group, folder: str, options: dict[str, Any]) -> dict[str, Any]:
    with ParallelTrainingClient(group, "tiny", **options) as client:
        return worked(client, folder)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with LocalTrainingClient("tiny", device="cpu") as client:
        return worked(client, str(tmp_path_factory.mktemp("alone")))


@pytest.mark.parametrize(
    ("shard", "parts"),
    [
        pytest.param(False, None, id="copies"),
        pytest.param(False, 10, id="copies in parts"),
        pytest.param(True, None, id="sharded"),
        pytest.param(True, 10, id="sharded in parts"),
    ],
)
def test_two_processes_do_what_one_does(alone: dict[str, Any], tmp_path: Path, shard: bool, parts: int | None) -> None:
    assert_same_work(two(led, str(tmp_path), {"shard": shard, "micro_batch_tokens": parts, "device": "cpu"}), alone)


@pytest.mark.parametrize(
    ("shard", "options"),
    [
        pytest.param(False, {"adapter": "none", "keep_initial": True}, id="all weights"),
        pytest.param(False, {"packing": True, "micro_batch_tokens": 10}, id="packed"),
        pytest.param(False, {"compile": "eager", "checkpointing": True}, id="compiled"),
        pytest.param(True, {"checkpointing": True, "rslora": True, "modules_to_save": ["lm_head"]}, id="sharded"),
    ],
)
def test_options_of_the_model_are_those_of_each_process(tmp_path: Path, shard: bool, options: dict[str, Any]) -> None:
    with LocalTrainingClient("tiny", device="cpu", **options) as client:
        expected = worked(client, str(tmp_path / "alone"))
    assert_same_work(two(led, str(tmp_path / "both"), {"shard": shard, "device": "cpu", **options}), expected)


def assert_same_work(found: dict[str, Any], alone: dict[str, Any]) -> None:
    assert found.keys() == alone.keys()
    for name, expected in alone.items():
        pairs = zip(trees.arrays(found[name]), trees.arrays(expected), strict=True)
        for mine, other in pairs:
            assert mine.shape == other.shape, name
            # Of the size of the numbers: the gradient of a random loss has entries near 0.
            assert (mine - other).abs().max() <= 1e-5 * max(1.0, other.abs().max()), name


# Several things in one start of two processes, which takes seconds.


def several(group: Group) -> dict[str, Any]:
    return {
        "turns": in_order(group),
        "refused": refused(group),
        "alone": alone_in_step(group),
        "dropped": dropping(group),
        "devices": devices(group),
    }


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return two(several)


def in_order(group: Group) -> dict[str, Any]:
    """A student and a teacher, whose threads both want all processes; and a graph that nobody propagates."""
    with (
        ParallelTrainingClient(group, "tiny", device="cpu") as student,
        ParallelTrainingClient(group, "tiny", seed=1, device="cpu") as teacher,
    ):
        some = data(4, 5, 6)
        asked = [one.forward(some) for one in (student, teacher) * 5]
        dropped = student.forward_with_graph(some).result()
        assert student._kept
        del dropped
        kept = [arrays_of(one.result()) for one in asked]
        student.forward(some).result()
        assert not student._kept
        return {"student": kept[::2], "teacher": kept[1::2]}


def test_two_clients_take_turns(results: dict[str, Any]) -> None:
    for name, seed in (("student", 0), ("teacher", 1)):
        with LocalTrainingClient("tiny", seed=seed, device="cpu") as client:
            expected = arrays_of(client.forward(data(4, 5, 6)).result())
        for one in results["turns"][name]:
            torch.testing.assert_close(one, expected)


def refused(group: Group) -> list[Any]:
    untrained_is_gone(group)
    with ParallelTrainingClient(group, "tiny", device="cpu") as client:
        wrong = [*data(3, 3, 3), Datum(ModelInput.from_ints([999]), {"target_tokens": [1]})]
        for call in (client.forward, client.forward_initial, client.forward_with_graph):
            with pytest.raises(InputError, match="datum 3: its model_input: found 999"):
                call(wrong)
        with pytest.raises(OptionError, match="hidden.9"):
            client.forward_with_graph(data(3), ["hidden.9"])
        with pytest.raises(OptionError, match="learning_rate"):
            client.optim_step(AdamParams(learning_rate=-1.0))
        assert client.sweep(data(3, 3)) is None
        with pytest.raises(InputError, match="does not exist"):
            client.load_state("nowhere").result()
        graph = client.forward_with_graph(data(3, 4)).result()
        client.forward_backward(data(3, 4), "cross_entropy")
        client.optim_step(RATE).result()
        with pytest.raises(GradientError, match="the parameters changed"):
            graph.backward({"logprobs": slopes_of(graph.logprobs)})
        # It goes on as if nothing had happened.
        return arrays_of(client.forward(data(3, 4)).result())


def test_what_is_wrong_raises_and_stops_nobody(results: dict[str, Any]) -> None:
    assert [len(one) for one in results["refused"][::2]] == [3, 4]


def untrained_is_gone(group: Group) -> None:
    with ParallelTrainingClient(group, "tiny", adapter="none", device="cpu") as client:
        for call in (client.forward_initial, partial(client.forward_with_graph, initial=True)):
            with pytest.raises(OptionError, match="keep_initial=False; expected True"):
                call(data(3))


def dropping(group: Group) -> list[Any]:
    """The same data in both processes, twice in each of two equal clients; then a backward that repeats the forward."""
    found: list[Any] = []
    for _ in range(2):
        with ParallelTrainingClient(
            group, "tiny", lora_dropout=0.5, seed=2, device="cpu", micro_batch_tokens=6
        ) as client:
            same = data(6) * 4
            client.forward_backward(same, "cross_entropy").result()
            client.optim_step(AdamParams(learning_rate=0.1)).result()
            graphs = [client.forward_with_graph(same).result() for _ in range(2)]
            slopes = {"logprobs": slopes_of(graphs[0].logprobs)}
            pulled = [graphs[0].pulled(slopes) for _ in range(2)]
            passed = [[one.detach() for one in graph.logprobs] for graph in graphs]
            found.append({"passed": passed, "pulled": pulled, "evaluated": arrays_of(client.forward(same).result())})
    return found


def test_each_process_drops_at_random_and_equal_seeds_drop_the_same(results: dict[str, Any]) -> None:
    first, again = results["dropped"]
    torch.testing.assert_close(first, again, atol=0, rtol=0)
    drawn = [one for passed in first["passed"] for one in passed]
    assert len({tuple(one.tolist()) for one in drawn}) == 8
    torch.testing.assert_close(*first["pulled"], atol=0, rtol=0)
    torch.testing.assert_close(first["evaluated"][2], first["evaluated"][0])


def alone_in_step(group: Group) -> list[Any]:
    with ParallelTrainingClient(group, "tiny", shard=True, device="cpu") as client:
        with pytest.raises(PenaltiesError, match="a sharded model runs in all processes"):
            client.model(input_ids=torch.zeros((1, 2), dtype=torch.long))
        with pytest.raises(OptionError, match="max_tokens"):
            client.sample(ModelInput.from_ints([1]), 1, SamplingParams(max_tokens=0))
        return arrays_of(client.forward(data(3)).result())


def test_a_sharded_model_that_runs_alone_raises_instead_of_waiting(results: dict[str, Any]) -> None:
    assert len(results["alone"]) == 2


def devices(group: Group) -> list[Any]:
    assert current() is group
    assert group.device("cpu") == "cpu"
    with pytest.raises(OptionError, match='device="cuda:0"; expected "cuda", "cpu" or None with 2 processes'):
        group.device("cuda:0")
    os.environ["LOCAL_RANK"] = "99"
    with pytest.raises(PenaltiesError, match="there are more processes than GPUs"):
        group.device("cuda")
    return []


def test_each_process_takes_a_gpu_of_its_own(results: dict[str, Any]) -> None:
    assert results["devices"] == []
    # The tests run in a process that is alone.
    assert current() is None


# A process in which things go wrong.


def troubled(rank: int) -> Any:
    """In the second process memory runs out in a forward, and a backward fails."""
    group = join()
    try:
        if not group.leads:
            Plain.forward, Plain.forward_backward = _limited, _raising  # pyright: ignore[reportAttributeAccessIssue]
            serve(group)
            return {}
        with ParallelTrainingClient(group, "tiny", micro_batch_tokens="auto", device="cpu") as client:
            client.forward(data(8, 8, 8, 8)).result()
            limit = client._limits.tokens
            client.forward_backward(data(3), "cross_entropy").result()
            before = gradients_of(client)
            seeds: list[int] = []
            for _ in range(2):
                with pytest.raises(FailedError, match=r"process 1 of 2: RuntimeError: seed \d+") as caught:
                    client.forward_backward(data(3, 3), "cross_entropy").result()
                seeds.append(int(str(caught.value).split()[-1]) - zlib.crc32(client._generator.get_state().numpy()))
                client.sample(ModelInput.from_ints([1])).result()
            after = gradients_of(client)
            return {"before": before, "after": after, "limit": torch.tensor(limit), "seeds": torch.tensor(seeds)}
    finally:
        group.end()


_real: Any = Plain.forward


def _limited(self: Any, *arguments: Any) -> Any:
    self._limits.tokens = 8
    return _real(self, *arguments)


def _raising(self: Any, *arguments: Any) -> Any:
    raise RuntimeError(f"seed {self._generator.initial_seed()}")


@pytest.fixture(scope="module")
def trouble() -> Any:
    return together(troubled)[0]


def test_a_limit_that_one_process_found_is_that_of_all(trouble: Any) -> None:
    assert trouble["limit"] == 8


def test_a_failure_of_another_process_is_raised_here_and_adds_nothing(trouble: Any) -> None:
    torch.testing.assert_close(trouble["after"], trouble["before"], atol=0, rtol=0)


def test_what_another_process_draws_depends_on_the_generator_of_the_first(trouble: Any) -> None:
    assert trouble["seeds"].tolist() == [1, 1]


class Normed(torch.nn.Module):
    """Batch normalisation of hidden states."""

    def __init__(self) -> None:
        super().__init__()
        self.batch = torch.nn.BatchNorm1d(64)

    def forward(self, states: Any) -> Any:
        return self.batch(states.transpose(1, 2)).transpose(1, 2)


def normed(dtype: Any = None) -> Any:
    model = tiny_model(dtype)
    model.model.norm = Normed()
    return model


def differing(rank: int) -> Any:
    group = join()
    loading.tiny_model = normed
    try:
        if not group.leads:
            LocalModel.fingerprint = "another"  # pyright: ignore[reportAttributeAccessIssue]
            serve(group)
            return {}
        with pytest.raises(FailedError, match='process 1 of 2: "tiny" has different weights there than in process 0'):
            ParallelTrainingClient(group, "tiny", device="cpu")
        for shard in (False, True):
            with pytest.raises(OptionError, match="model"):
                ParallelTrainingClient(group, "/nowhere", shard=shard, device="cpu")
        with pytest.raises(OptionError, match=r'micro_batch_tokens="auto"; expected a number or None with shard=True'):
            ParallelTrainingClient(group, "tiny", shard=True, micro_batch_tokens="auto", device="cpu")
        for name, given in {"adapter": "none", "quantize": "4bit", "compile": True, "packing": True}.items():
            with pytest.raises(OptionError, match=f"{name}=.*; expected .* with shard=True: "):
                ParallelTrainingClient(group, "tiny", shard=True, device="cpu", **{name: given})
        with pytest.raises(
            OptionError, match=r"without batch normalisation that is trained: that of model\.norm\.batch"
        ):
            ParallelTrainingClient(group, "tiny", adapter="none", device="cpu")
        return {}
    finally:
        group.end()


def test_models_that_cannot_be_loaded_are_errors_of_the_first_process() -> None:
    together(differing)


def loading_in_turn(rank: int) -> Any:
    """When each process loads a model and spreads it."""
    times: list[float] = []

    def slowly(dtype: Any = None) -> Any:
        times.append(time.monotonic())
        time.sleep(0.5)
        return tiny_model(dtype)

    def spread(model: Any, mesh: Any) -> None:
        shard_layers(model, mesh)
        times.append(time.monotonic())

    loading.tiny_model, member.shard_layers = slowly, spread
    in_two(rank, loading_alone, ())
    return torch.tensor(times, dtype=torch.float64)


def loading_alone(group: Group) -> None:
    ParallelTrainingClient(group, "tiny", shard=True, device="cpu").close()


def test_processes_load_a_model_to_be_sharded_one_after_another() -> None:
    (began, ended), (began_next, _) = together(loading_in_turn)
    assert began < ended <= began_next


def leaving(rank: int) -> Any:
    """The second process ends in the middle."""
    group = join()
    if not group.leads:
        group.next_order()
        torch.distributed.destroy_process_group()
        return {}
    with pytest.raises(LostError, match="one of the 2 processes ended or does not answer"):
        ParallelTrainingClient(group, "tiny", device="cpu")
    with pytest.raises(LostError, match="one of the 2 processes is gone"), group.ordering([None, None]):
        pass
    # At once, rather than after a timeout.
    group.end()
    return {}


def test_a_process_that_ends_is_an_error_at_once() -> None:
    together(leaving)


def out_of_step(rank: int) -> Any:
    """The first process fails in the middle of an operation, of which the other does not hear."""
    group = join()
    if not group.leads:
        with pytest.raises(LostError):
            serve(group)
        group.end()
        return {}
    client = ParallelTrainingClient(group, "tiny", device="cpu")
    client.publish = _failing  # pyright: ignore[reportAttributeAccessIssue]
    client.forward_backward(data(3), "cross_entropy").result()
    with pytest.raises(MemoryError, match="here"):
        client.optim_step(RATE).result()
    # Orders would not be understood any more.
    with pytest.raises(LostError, match="is gone"):
        client.forward(data(3)).result()
    client.close()
    group.end()
    return {}


def _failing() -> None:
    raise MemoryError("here")


def test_processes_that_are_out_of_step_end() -> None:
    together(out_of_step)


@pytest.mark.parametrize(
    ("count", "trained", "message"),
    [(3, False, "a model with a list of layers, or False"), (2, True, "a model with frozen weights and an adapter")],
)
def test_models_that_cannot_be_sharded_are_errors(count: int, trained: bool, message: str) -> None:
    base: Any = torch.nn.Module()
    base.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(2)]).requires_grad_(trained)
    base.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(num_hidden_layers=count))
    base.get_base_model = lambda: base
    with pytest.raises(OptionError, match=f"shard=True; expected {message}"):
        shard_layers(base, None)


def test_an_environment_without_an_address_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(LostError, match="could not connect to the other processes: .*MASTER_ADDR"):
        join()
