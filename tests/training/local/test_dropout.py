"""Dropout and other things that a model does in training only: on in passes for a gradient, off in all others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from penalties.errors import OptionError
from penalties.training import forward_backward_custom
from penalties.training.local import LocalTrainingClient, loading
from penalties.training.local.tiny import tiny_model
from penalties.training.references import initial
from penalties.training.types import ModelInput, SamplingParams
from tests.training.local.cases import (
    WAIT,
    array,
    assert_close,
    assert_same,
    clear,
    data,
    gradients,
    logprobs,
    normal,
    plain_gradients,
    plain_logprobs,
    stir,
    tiny,
    weights,
)
from tests.training.local.test_checkpoint import train
from tests.training.local.test_model import saved


def dropping(folder: Path) -> Path:
    """A model with dropout of its own, by modules and by functions."""
    return saved(folder, "gpt2", n_positions=64, resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)


def seeded(client: LocalTrainingClient, seed: int = 0) -> None:
    """Train mode, and the random numbers of the first training pass of a client with this seed."""
    client.model.train()
    torch.manual_seed(int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(seed))))


@pytest.mark.parametrize("own", [False, True])
def test_a_step_has_the_gradient_of_what_its_forward_computed(tmp_path: Path, own: bool) -> None:
    (datum,) = batch = data(9, weights=normal)
    with LocalTrainingClient(dropping(tmp_path), device="cpu") if own else tiny(lora_dropout=0.5) as client:
        stir(client)
        output = client.forward_backward(batch, "cross_entropy").result(WAIT)
        assert not client.model.training
        with torch.random.fork_rng():
            seeded(client)
            expected = plain_logprobs(client, datum)
            client.model.eval()
        assert_close(logprobs(output), [expected])
        assert_close(gradients(client), plain_gradients(client, (-expected * array(datum, "weights")).sum()), 1e-5)


def test_only_passes_for_a_gradient_drop() -> None:
    batch = data(9, 4)
    with tiny(lora_dropout=0.5) as client, tiny() as plain:
        expected = logprobs(plain.forward(batch).result(WAIT))
        for _ in range(2):
            assert_same(logprobs(client.forward(batch).result(WAIT)), expected)
            evaluated = client.forward_with_graph(batch, evaluate=True).result(WAIT)
            assert_close([one.numpy() for one in evaluated.logprobs], expected)
            dropped = client.forward_with_graph(batch).result(WAIT).output
            assert np.abs(logprobs(dropped)[0] - expected[0]).max() > 1e-3
        first, second = (client.forward_backward(batch, "cross_entropy").result(WAIT).metrics for _ in range(2))
        assert first != second
        same = [one.forward_initial(batch).result(WAIT) for one in (client, plain)]
        assert_same(logprobs(same[0]), logprobs(same[1]))
        params = SamplingParams(max_tokens=4, temperature=0.0)
        drawn = [one.sample(ModelInput.from_ints([1]), 1, params).result(WAIT) for one in (client, plain)]
        assert drawn[0] == drawn[1]


def test_references_and_evaluations_of_a_step_do_not_drop() -> None:
    batch = data(9)
    with tiny(lora_dropout=0.5) as client:
        expected = logprobs(client.forward_initial(batch).result(WAIT))
        seen: list[Any] = []

        def watch(logprobs: Any, initial: Any) -> Any:
            seen.append(initial[0].numpy())
            return sum(one.sum() for one in logprobs)

        terms = [pn.Term(watch)]
        forward_backward_custom(client, batch, None, regularizers=terms, references={"initial": initial()}).result(WAIT)
        assert_same(seen, expected)


def test_equal_seeds_drop_the_same_and_leave_torchs_generator_alone() -> None:
    batch, found = data(9, weights=normal), list[Any]()
    for disturbed in (False, True):
        with tiny(lora_dropout=0.3, seed=3) as client:
            if disturbed:
                torch.rand(3)
            before = torch.get_rng_state()
            train(client, 0, 1)
            client.forward_backward(batch, "cross_entropy").result(WAIT)
            assert torch.equal(before, torch.get_rng_state())
            found.append((weights(client), gradients(client)))
    assert_same(found[0][0], found[1][0])
    assert_same(found[0][1], found[1][1])


def test_resuming_with_dropout_is_the_same_to_the_bit(tmp_path: Path) -> None:
    with tiny(lora_dropout=0.3, checkpoints=tmp_path) as client:
        train(client, 0, 1)
        path = client.save_state("two").result(WAIT).path
        expected = train(client, 2, 3)
        final = weights(client)
    for steps in ((), (7,)):
        with tiny(lora_dropout=0.3) as client:
            train(client, *steps)
            client.load_state_with_optimizer(path).result(WAIT)
            assert train(client, 2, 3) == expected
            assert_same(weights(client), final)


def test_a_model_without_dropout_draws_nothing() -> None:
    """Samples without a seed come from the same generator, and do not depend on how often a model is trained."""
    params = SamplingParams(max_tokens=6)
    with tiny() as client, tiny() as other:
        client.forward_backward(data(5), "cross_entropy").result(WAIT)
        assert client.sample(ModelInput.from_ints([1]), 1, params).result(WAIT) == other.sample(
            ModelInput.from_ints([1]), 1, params
        ).result(WAIT)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_graph_is_pulled_with_the_numbers_of_its_forward(checkpointing: bool) -> None:
    """Other passes come between the forward and its backward, which computes layers again under checkpointing."""
    batch, found = data(7, 4), list[Any]()
    for between in (False, True):
        with tiny(lora_dropout=0.4, checkpointing=checkpointing) as client:
            graph = client.forward_with_graph(batch, reads=("hidden.1",)).result(WAIT)
            slopes = {"logprobs": [torch.ones_like(one) for one in graph.logprobs]}
            if between:
                client.forward_initial(batch).result(WAIT)
                client.sample(ModelInput.from_ints([1]), 1, SamplingParams(max_tokens=2, seed=1)).result(WAIT)
                measured = graph.pulled(slopes)
            graph.backward(slopes)
            found.append(gradients(client))
    assert_same(found[0], found[1])
    assert_same({name: one for name, one in measured.items() if one is not None}, found[0])


@pytest.mark.parametrize("adapter", ["lora", "none"])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_checkpointing_changes_no_gradient(adapter: Any, dropout: float) -> None:
    batch, found, kept = data(9, 3, 6, weights=normal), list[Any](), list[int]()
    options = {} if adapter == "none" else {"lora_dropout": dropout}
    for checkpointing in (False, True):
        with tiny(adapter=adapter, checkpointing=checkpointing, **options) as client:
            sizes: list[int] = []

            def pack(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
                sizes.append(tensor.numel())
                return tensor

            named = client.forward_backward(batch, "cross_entropy").result(WAIT)
            of_named = gradients(client)
            clear(client)
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                client.model.train()
                client.model(input_ids=torch.arange(8)[None], use_cache=False)
                client.model.eval()
            graph = client.forward_with_graph(batch, reads=("logits", "hidden.1")).result(WAIT)
            graph.backward({"logits": [one.detach() for one in graph.inputs["logits"]]})
            found.append((named.metrics["loss:sum"], of_named, gradients(client)))
            kept.append(sum(sizes))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-6)
    for at in (1, 2):
        assert_close(found[1][at], found[0][at], 1e-5)
    # It does keep less.
    assert kept[1] < kept[0] / 2


@pytest.mark.parametrize("limit", [{"batch_size": 1}, {"micro_batch_tokens": 8}])
def test_parts_that_are_computed_again_drop_the_same(limit: dict[str, Any]) -> None:
    with tiny(lora_dropout=0.5, **limit) as client:
        dropping = next(module for module in client.model.modules() if getattr(module, "p", 0.0) == 0.5)
        seen: list[Any] = []

        def look(module: Any, given: Any, output: Any) -> None:
            if module.training:
                seen.append(output == 0)

        dropping.register_forward_hook(look)
        graph = client.forward_with_graph(data(6, 4)).result(WAIT)
        graph.backward({"logprobs": [torch.ones_like(one) for one in graph.logprobs]})
    first, second, *again = seen
    assert bool(first.any())
    for before, after in zip((first, second), again, strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize("dropout", [1.0, -0.1, "some", True])
def test_a_dropout_must_be_a_probability_below_1(dropout: Any) -> None:
    with pytest.raises(OptionError, match="lora_dropout=.*; expected a number from 0 to below 1"):
        LocalTrainingClient("tiny", lora_dropout=dropout)


# Batch normalisation.


class Normed(torch.nn.Module):
    """Batch normalisation of hidden states."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.batch = torch.nn.BatchNorm1d(width)

    def forward(self, states: Any) -> Any:
        return self.batch(states.transpose(1, 2)).transpose(1, 2)


@pytest.fixture
def normed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The built-in model with a batch normalisation at its end."""

    def made(dtype: Any = None) -> Any:
        model = tiny_model(dtype)
        model.model.norm = Normed(64)
        return model

    monkeypatch.setattr(loading, "tiny_model", made)


@pytest.mark.usefixtures("normed")
class TestBatchNormalisation:
    @pytest.mark.parametrize("limit", [{"batch_size": 2}, {"micro_batch_tokens": 8}, {"micro_batch_tokens": "auto"}])
    def test_it_cannot_be_trained_in_parts(self, limit: dict[str, Any]) -> None:
        expected = "None: the model has batch normalisation, model.norm.batch, which computes something else"
        with pytest.raises(OptionError, match=f"{next(iter(limit))}=.*; expected {expected}"):
            LocalTrainingClient("tiny", adapter="none", device="cpu", **limit)

    def test_a_whole_batch_is_trained_with_its_own_statistics(self, tmp_path: Path) -> None:
        batch = data(5, 5, weights=normal)
        with LocalTrainingClient("tiny", adapter="none", device="cpu", checkpoints=tmp_path) as client:
            norm = client.model.model.norm.batch
            assert int(norm.num_batches_tracked) == 0
            client.forward_backward(batch, "cross_entropy").result(WAIT)
            assert int(norm.num_batches_tracked) == 1
            client.forward(batch).result(WAIT)
            assert int(norm.num_batches_tracked) == 1
            train(client, 0, 1)
            path = client.save_state("three").result(WAIT).path
            expected, final = train(client, 2), logprobs(client.forward(batch).result(WAIT))
        with LocalTrainingClient("tiny", adapter="none", device="cpu") as client:
            client.load_state_with_optimizer(path).result(WAIT)
            assert train(client, 2) == expected
            assert_same(logprobs(client.forward(batch).result(WAIT)), final)

    def test_under_an_adapter_it_is_frozen_with_the_model_and_parts_are_exact(self) -> None:
        batch, found = data(6, 3, 4, weights=normal), list[Any]()
        for limit in (None, 6):
            with tiny(micro_batch_tokens=limit) as client:
                client.forward_backward(batch, "cross_entropy").result(WAIT)
                found.append(gradients(client))
                norm = client.model.get_base_model().model.norm.batch
                assert int(norm.num_batches_tracked) == 0
        assert_close(found[1], found[0], 1e-5)
