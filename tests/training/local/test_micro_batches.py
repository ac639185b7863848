"""The local client in micro-batches: the results and gradients of the whole batch, with one graph at a time."""

import gc
import math
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import penalties as pn
from penalties.errors import GradientError
from penalties.training import forward_backward_custom
from penalties.training.local import LocalTrainingClient
from penalties.training.local.batch import Row, batches
from penalties.training.types import AdamParams
from tests.training.local.cases import WAIT, assert_close, data, gradients, logprobs, normal, tiny

READS = ("logits", "hidden.0", "hidden.1", "hidden.2")


def spread(flat_logprobs: Any) -> Any:
    """Of the whole batch: no sum over its parts."""
    return flat_logprobs.std() + flat_logprobs[0] * flat_logprobs[-1]


def rows(*lengths: int) -> list[Row]:
    return [Row(torch.zeros(n).numpy(), torch.zeros(n).numpy(), {}) for n in lengths]


@pytest.mark.parametrize(
    ("size", "tokens", "lengths", "expected"),
    [
        (None, None, (3, 4, 5), [[3, 4, 5]]),
        (2, None, (3, 4, 5), [[3, 4], [5]]),
        (None, 10, (3, 4, 5), [[3, 4], [5]]),
        (None, 8, (5, 3, 4, 4), [[5], [3, 4], [4]]),
        (None, 4, (9, 1, 1), [[9], [1, 1]]),
        (1, 100, (3, 4), [[3], [4]]),
        (None, 1, (2,), [[2]]),
    ],
)
def test_batches_have_at_most_so_many_tokens_with_padding(
    size: int | None, tokens: int | None, lengths: tuple[int, ...], expected: list[list[int]]
) -> None:
    assert [batch.lengths for batch in batches(rows(*lengths), size, tokens)] == expected


def passed(limits: Mapping[str, int], batch: Any, lazy: bool) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """The tensors of a graph, and the gradients that fixed gradients there become."""
    with tiny(**limits) as client:
        graph = client.forward_with_graph(batch, reads=READS, lazy=lazy).result(WAIT)
        lists = {**{name: graph.inputs[name] for name in READS}, "logprobs": graph.logprobs}
        found = {
            name: [(one.hidden if isinstance(one, pn.Logits) else one).detach().clone() for one in parts]
            for name, parts in lists.items()
        }
        rng = torch.Generator().manual_seed(2)
        slopes = {name: [torch.randn(one.shape, generator=rng) for one in parts] for name, parts in found.items()}
        pulled = graph.pulled(slopes)
        output = graph.backward(slopes)
        trained = gradients(client)
        assert_close({name: one for name, one in pulled.items() if one is not None}, trained)
        return found, trained, output


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("limits", [{"micro_batch_tokens": 9}, {"micro_batch_tokens": 1}, {"batch_size": 2}])
def test_a_graph_in_parts_is_that_of_the_whole_batch(limits: dict[str, int], lazy: bool) -> None:
    batch = [*data(6, 2, 5), *data(4, 3, width=2, seed=3)]
    whole, parts = passed({}, batch, lazy), passed(limits, batch, lazy)
    for name in whole[0]:
        assert_close(parts[0][name], whole[0][name])
    assert_close(parts[1], whole[1])
    assert_close(logprobs(parts[2]), logprobs(whole[2]))


TERMS = [
    pn.Term(spread, weight=0.3),
    pn.Term(pn.entropy, weight=0.5, inputs="flat_logits", options={"logits": True, "mode": "bonus"}),
    pn.Term(pn.l2, weight=0.1, inputs="params"),
    pn.Term(pn.l2, name="size", weight=0.01, inputs="flat_hidden.1"),
]


def custom(limits: Mapping[str, int], **options: Any) -> tuple[dict[str, float], dict[str, Any]]:
    """The metrics and gradients of a custom loss, after a step of training."""
    with tiny(**limits) as client:
        batch = data(6, 2, 5, 3, weights=normal)
        client.forward_backward(batch, "cross_entropy").result(WAIT)
        client.optim_step(AdamParams(1e-2)).result(WAIT)
        output = forward_backward_custom(client, batch, "cross_entropy", regularizers=TERMS, **options).result(WAIT)
        return output.metrics, gradients(client)


@pytest.mark.parametrize(
    "options", [{}, {"track_grad_norms": True}, {"track_grad_norms": "parameters", "cosines": True}]
)
def test_a_custom_loss_over_the_whole_batch_trains_the_same(options: dict[str, Any]) -> None:
    whole, parts = custom({}, **options), custom({"micro_batch_tokens": 7}, **options)
    assert parts[0] == pytest.approx(whole[0], rel=1e-4, abs=1e-5)
    assert_close(parts[1], whole[1])


def watch(client: LocalTrainingClient, seen: list[int], most: float = math.inf) -> None:
    """Record how many tokens go through the model at once; more than `most` do not fit into its memory."""

    def hook(module: Any, args: Any) -> None:
        seen.append(args[0].numel())
        if seen[-1] > most:
            raise torch.OutOfMemoryError("no memory left")

    client.model.get_base_model().get_input_embeddings().register_forward_pre_hook(hook)


def test_only_one_part_goes_through_the_model_at_a_time() -> None:
    seen: list[int] = []
    with tiny(micro_batch_tokens=8) as client:
        batch = data(6, 2, 5, 3)
        client.forward(batch).result(WAIT)  # the first pass finds out about the output layer
        watch(client, seen)
        forward_backward_custom(client, batch, "cross_entropy", regularizers=TERMS).result(WAIT)
    assert seen == [6, 2, 5, 3] * 2


def test_auto_halves_the_parts_until_they_fit() -> None:
    expected = custom({})
    seen: list[int] = []
    with tiny(micro_batch_tokens="auto") as client:
        batch = data(6, 2, 5, 3, weights=normal)
        client.forward(batch[:1]).result(WAIT)
        watch(client, seen, most=12)
        client.forward_backward(batch, "cross_entropy").result(WAIT)
        client.optim_step(AdamParams(1e-2)).result(WAIT)
        output = forward_backward_custom(client, batch, "cross_entropy", regularizers=TERMS).result(WAIT)
        assert output.metrics == pytest.approx(expected[0], rel=1e-4, abs=1e-5)
        assert_close(gradients(client), expected[1])
    assert seen[0] == 24
    assert max(seen[2:]) <= 12


def run_out_once(client: LocalTrainingClient) -> list[bool]:
    """Let memory run out in the next backward; returns a list that is empty once it did."""
    full = [True]

    def fail(gradient: Any) -> None:
        if full:
            full.clear()
            raise torch.OutOfMemoryError("no memory left")

    next(iter(client.parameters().values())).register_hook(fail)
    return full


@pytest.mark.parametrize("measured", [False, True])
def test_a_backward_that_does_not_fit_is_computed_in_parts(measured: bool) -> None:
    batch = data(4, 4, 3)
    with tiny() as client:
        graph = client.forward_with_graph(batch).result(WAIT)
        slopes = {"logprobs": [torch.ones_like(one) for one in graph.logprobs]}
        graph.backward(slopes)
        expected = gradients(client)
    with tiny(micro_batch_tokens="auto") as client:
        graph = client.forward_with_graph(batch).result(WAIT)
        full = run_out_once(client)
        if measured:
            assert_close({name: one for name, one in graph.pulled(slopes).items() if one is not None}, expected)
            assert not full
        graph.backward(slopes)
        assert not full
        assert_close(gradients(client), expected)


def test_a_graph_that_does_not_fit_is_freed() -> None:
    with tiny(micro_batch_tokens="auto") as client:
        kept: list[Any] = []
        layer = client.model.get_base_model().get_input_embeddings()
        hook = layer.register_forward_hook(lambda module, args, output: kept.append(weakref.ref(output)))
        graph = client.forward_with_graph(data(4, 4), reads=("hidden.1",)).result(WAIT)
        hook.remove()
        run_out_once(client)
        graph.pulled({"logprobs": [torch.ones_like(one) for one in graph.logprobs]})
        gc.collect()
        assert kept
        assert not any(one() is not None for one in kept)


@pytest.mark.parametrize("limit", [None, 100])
def test_memory_that_runs_out_is_an_error_without_auto(limit: int | None) -> None:
    with tiny(micro_batch_tokens=limit) as client:
        watch(client, [], most=5)
        with pytest.raises(torch.OutOfMemoryError, match="no memory left"):
            client.forward(data(4, 4)).result(WAIT)


def test_one_datum_that_does_not_fit_is_an_error_with_auto() -> None:
    with tiny(micro_batch_tokens="auto") as client:
        watch(client, [], most=5)
        with pytest.raises(torch.OutOfMemoryError, match="no memory left"):
            client.forward(data(4, 7)).result(WAIT)


def test_a_checkpoint_remembers_what_fitted(tmp_path: Path) -> None:
    batch = data(4, 4, 4)
    with tiny(micro_batch_tokens="auto", checkpoints=tmp_path) as client:
        watch(client, [], most=8)
        client.forward(batch).result(WAIT)
        path = client.save_state("after").result(WAIT).path
    seen: list[int] = []
    with tiny(micro_batch_tokens="auto") as client:
        client.load_state_with_optimizer(path).result(WAIT)
        client.forward(batch).result(WAIT)
        watch(client, seen)
        client.forward(batch).result(WAIT)
    assert max(seen) <= 8


def test_evaluation_in_parts_keeps_nothing() -> None:
    with tiny(micro_batch_tokens=4) as client:
        graph = client.forward_with_graph(data(4, 3), evaluate=True).result(WAIT)
        assert not any(one.requires_grad for one in graph.logprobs)


def test_a_graph_in_parts_is_of_one_state_of_the_parameters() -> None:
    batch = data(4, 3)
    with tiny(micro_batch_tokens=4) as client:
        graph = client.forward_with_graph(batch).result(WAIT)
        client.forward_backward(batch, "cross_entropy").result(WAIT)
        client.optim_step(AdamParams(1e-2)).result(WAIT)
        slopes = {"logprobs": [torch.ones_like(one) for one in graph.logprobs]}
        for method in (graph.pulled, graph.backward):
            with pytest.raises(GradientError, match="the parameters changed after the forward"):
                method(slopes)


@pytest.mark.parametrize("limit", [0, 1.5, "all", True])
def test_a_limit_must_be_a_count(limit: Any) -> None:
    with pytest.raises(pn.OptionError, match=r"micro_batch_tokens=.*; expected .*a whole number of at least 1"):
        LocalTrainingClient("tiny", micro_batch_tokens=limit)


@pytest.mark.parametrize("adapter", ["lora", "none"])
def test_a_second_pass_computes_logits_once(monkeypatch: pytest.MonkeyPatch, adapter: str) -> None:
    computed: list[int] = []
    materialize = pn.Logits.materialize

    def counted(logits: pn.Logits) -> Any:
        computed.append(len(logits.hidden))
        return materialize(logits)

    with tiny(micro_batch_tokens=6, adapter=adapter) as client:
        graph = client.forward_with_graph(data(6, 5, 4)).result(WAIT)
        monkeypatch.setattr(pn.Logits, "materialize", counted)
        graph.backward({"logprobs": [torch.ones_like(one) for one in graph.logprobs]})
        assert computed == [6, 5, 4]
