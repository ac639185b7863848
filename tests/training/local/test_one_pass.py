"""Losses and terms that are sums or means over tokens or sequences: each part goes through the model once."""

import asyncio
import functools
import gc
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from penalties import telemetry
from penalties.errors import GradientError, OptionError, TermError
from penalties.training import adapters, forward_backward_custom, forward_backward_custom_async, losses, references
from penalties.training.local import LocalTrainingClient
from penalties.training.types import AdamParams
from tests.training.local.cases import WAIT, assert_close, clear, data, gradients, negative, normal, stir, tiny
from tests.training.local.test_micro_batches import run_out_once, watch

LENGTHS = (6, 2, 5, 3, 4, 7, 1, 3)


def flags(rng: Any, shape: Any) -> Any:
    """Of the second and third datum nothing counts: one part of the batch has no target at all."""
    return rng.integers(0, 2, shape) if shape[0] not in (2, 5) else np.zeros(shape)


def count_forwards(client: LocalTrainingClient) -> list[int]:
    seen: list[int] = []
    layer = client.model.get_base_model().get_input_embeddings()
    layer.register_forward_pre_hook(lambda module, args: seen.append(args[0].numel()))
    return seen


def trained(
    batch: Sequence[Any], loss: Any, terms: Sequence[Any] = (), *, limit: int | None = None, **options: Any
) -> tuple[Any, dict[str, torch.Tensor], int]:
    """The result of a call, the gradients, and how often the model ran."""
    with tiny(micro_batch_tokens=limit) as client:
        client.forward_backward(list(batch), "cross_entropy").result(WAIT)
        client.optim_step(AdamParams(1e-2)).result(WAIT)
        seen = count_forwards(client)
        found = forward_backward_custom(client, batch, loss, regularizers=list(terms), **options).result(WAIT)
        return found, gradients(client), len(seen)


def numbers(output: Any) -> dict[str, float]:
    return {name: one for name, one in output.metrics.items() if not name.startswith("time")}


def assert_one_pass(batch: Sequence[Any], loss: Any, terms: Sequence[Any] = (), limit: int = 8, **options: Any) -> None:
    """The results and gradients of the whole batch, with one forward for each part."""
    whole, expected, _ = trained(batch, loss, terms, **options)
    parts, found, forwards = trained(batch, loss, terms, limit=limit, **options)
    with tiny(micro_batch_tokens=limit) as client:
        sweep = client.sweep(batch)
        assert sweep is not None
        assert forwards <= len(sweep), "a part went through the model twice"
    assert numbers(parts) == pytest.approx(numbers(whole), rel=1e-4, abs=1e-5)
    assert_close(found, expected, 1e-5)
    assert_close(
        [one["logprobs"].to_numpy() for one in parts.loss_fn_outputs],
        [one["logprobs"].to_numpy() for one in whole.loss_fn_outputs],
        1e-5,
    )
    plain, split = whole.custom_loss, parts.custom_loss
    assert split.names == plain.names
    for name in plain.names:
        assert split[name].metrics == pytest.approx(plain[name].metrics, rel=1e-4, abs=1e-5)
        assert split[name].weight == plain[name].weight
        assert (split[name].grad_error is None) == (plain[name].grad_error is None)
        assert split[name].grad_norms == pytest.approx(plain[name].grad_norms, rel=1e-4, abs=1e-6)
    if plain.cosines is not None:
        np.testing.assert_allclose(split.cosines, plain.cosines, rtol=1e-3, atol=1e-4)
    if plain.gradient is not None:
        assert_close(split.gradient["flat_logprobs"], plain.gradient["flat_logprobs"], 1e-5)


MEASURED = [
    {},
    {"track_grad_norms": True},
    {"track_grad_norms": True, "cosines": True},
    {"track_grad_norms": "parameters", "cosines": True},
]


def reference(batch: Sequence[Any]) -> list[Any]:
    rng = np.random.default_rng(7)
    return [
        -rng.uniform(4, 7, one.loss_fn_inputs["target_tokens"].to_numpy().shape).astype(np.float32) for one in batch
    ]


@pytest.mark.parametrize("options", MEASURED)
@pytest.mark.parametrize("drawn", [normal, flags, lambda rng, shape: np.zeros(shape)])
def test_cross_entropy(drawn: Any, options: dict[str, Any]) -> None:
    if drawn not in (normal, flags):
        options = {}
    assert_one_pass(data(*LENGTHS, weights=drawn), "cross_entropy", **options)


@pytest.mark.parametrize("loss", [losses.cross_entropy, {"fn": "cross_entropy"}, pn.Term(losses.cross_entropy)])
def test_a_loss_of_the_library_is_known_in_every_form(loss: Any) -> None:
    assert_one_pass(data(*LENGTHS, weights=normal), loss)


def test_importance_sampling() -> None:
    batch = data(*LENGTHS, logprobs=negative, advantages=flags)
    with tiny(micro_batch_tokens=8) as client:
        assert forward_backward_custom(client, batch, "importance_sampling").result(WAIT).metrics["ratio_max"] > 0
    whole, parts = (_sampled(batch, limit) for limit in (None, 8))
    assert parts[0] == pytest.approx(whole[0], rel=1e-4, abs=1e-6)
    assert_close(parts[1], whole[1], 1e-5)
    assert parts[2] < 2 * len(LENGTHS)


def _sampled(batch: Sequence[Any], limit: int | None) -> tuple[dict[str, float], dict[str, Any], int]:
    with tiny(micro_batch_tokens=limit) as client:
        seen = count_forwards(client)
        found = forward_backward_custom(client, batch, "importance_sampling").result(WAIT)
        return found.metrics, gradients(client), len(seen)


@pytest.mark.parametrize("options", MEASURED)
def test_pairs_are_not_split(options: dict[str, Any]) -> None:
    batch = data(*LENGTHS, weights=flags)
    given = {"references": {"initial": reference(batch)}, **options}
    assert_one_pass(batch, {"fn": "dpo", "options": {"beta": 0.3}}, limit=14, **given)


def test_pairs_that_do_not_fit_take_the_second_forward() -> None:
    batch = data(6, 6, 6, 6)
    given: dict[str, Any] = {"references": {"initial": reference(batch)}}
    whole, expected, _ = trained(batch, "dpo", **given)
    parts, found, forwards = trained(batch, "dpo", limit=6, **given)
    assert forwards == 8
    assert parts.metrics == pytest.approx(whole.metrics, rel=1e-4)
    assert_close(found, expected, 1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("renormalize", [True, False])
def test_reverse_kl(reduction: str, renormalize: bool) -> None:
    def per_position(rng: Any, shape: Any) -> Any:
        return np.broadcast_to(flags(rng, shape[:1])[:, None], shape)

    batch = data(*LENGTHS, width=3, weights=per_position)
    loss = {"fn": "reverse_kl", "options": {"reduction": reduction, "renormalize": renormalize}}
    assert_one_pass(batch, loss, references={"teacher": reference(batch)})


OVER_LOGPROBS = [
    pn.Term(pn.l1, weight=0.1, inputs="logprobs"),
    pn.Term(pn.l2, weight=0.2, inputs="logprobs", options={"reduction": "mean", "center": -5.0}),
    pn.Term(pn.smooth_l1, weight=0.2, inputs="flat_logprobs", options={"reduction": "mean"}),
    pn.Term(pn.elastic_net, weight=0.02, inputs="logprobs"),
    pn.Term(pn.kl_estimate, weight=0.3, inputs=("logprobs", "teacher")),
    pn.Term(pn.entropy_estimate, weight=0.3, inputs="logprobs", options={"reduction": "sum"}),
    pn.Term(pn.consistency, weight=0.3, inputs=("logprobs", "teacher")),
]


@pytest.mark.parametrize("options", MEASURED)
def test_penalties_over_log_probabilities(options: dict[str, Any]) -> None:
    batch = data(*LENGTHS, weights=flags)
    terms = [*OVER_LOGPROBS, pn.Term(pn.l2, name="size", weight=0.1, inputs="params")]
    assert_one_pass(batch, "cross_entropy", terms, references={"teacher": reference(batch)}, **options)


LOGITS = {"logits": True}
OVER_LOGITS = [
    pn.Term(pn.entropy, weight=0.5, inputs={"p": "logits", "mask": "mask"}, options={**LOGITS, "mode": "bonus"}),
    pn.Term(pn.kl_divergence, weight=0.3, inputs={"p": "logits", "q": "first.logits", "mask": "mask"}, options=LOGITS),
    pn.Term(pn.js_divergence, weight=0.3, inputs=("flat_logits", "flat_first.logits"), options=LOGITS),
    pn.Term(pn.l2, name="small", weight=1e-3, inputs="hidden.1", options={"reduction": "mean"}),
    pn.Term(pn.l1, name="sparse", weight=1e-4, inputs="flat_hidden.0"),
    pn.Term(
        pn.consistency,
        name="alike",
        weight=0.1,
        inputs={"a": "hidden.1", "b": "hidden.0", "mask": "mask"},
        options={"metric": "cosine"},
    ),
]


@pytest.mark.parametrize("options", [{}, {"track_grad_norms": "parameters", "cosines": True}])
def test_penalties_over_logits_and_hidden_states(options: dict[str, Any]) -> None:
    batch = data(*LENGTHS, weights=flags)

    def run(limit: int | None) -> tuple[Any, dict[str, Any], int]:
        given = {"references": {"first": references.initial()}, **options}
        return trained(batch, "cross_entropy", OVER_LOGITS, limit=limit, **given)

    (whole, expected, _), (parts, found, forwards) = run(None), run(8)
    with tiny(micro_batch_tokens=8) as client:
        assert forwards == 2 * len(client.sweep(batch) or ()), "one for the model, and one for the reference"
    assert numbers(parts) == pytest.approx(numbers(whole), rel=1e-4, abs=1e-5)
    assert_close(found, expected, 1e-5)


def test_norms_at_logits_take_the_second_forward() -> None:
    terms = [OVER_LOGITS[0]]
    batch = data(*LENGTHS, weights=flags)
    whole, expected, _ = trained(batch, "cross_entropy", terms, track_grad_norms=True)
    parts, found, forwards = trained(batch, "cross_entropy", terms, limit=8, track_grad_norms=True)
    assert forwards >= 2 * 5
    assert numbers(parts) == pytest.approx(numbers(whole), rel=1e-4, abs=1e-5)
    assert_close(found, expected, 1e-5)


@pytest.mark.parametrize("width", [None, 3])
def test_candidates(width: int | None) -> None:
    batch = data(*LENGTHS, width=width or 3, weights=lambda rng, shape: np.ones(shape))
    terms = [
        pn.Term(pn.entropy, weight=0.3, inputs="logprobs"),
        pn.Term(pn.kl_divergence, weight=0.3, inputs=("logprobs", "teacher")),
        pn.Term(adapters.kl, name="kl", weight=0.2, inputs=("logprobs", "teacher")),
    ]
    assert_one_pass(batch, "cross_entropy", terms, references={"teacher": reference(batch)})


@pytest.mark.parametrize("options", MEASURED)
def test_adapters_and_their_metrics(options: dict[str, Any]) -> None:
    batch = data(*LENGTHS, weights=flags)
    terms = [
        pn.Term(adapters.kl, weight=0.1, inputs=("logprobs", "teacher")),
        pn.Term(adapters.entropy, weight=0.1, inputs="logprobs"),
        pn.Term(adapters.consistency, weight=0.1, inputs=("logprobs", "teacher")),
        pn.Term(adapters.l1, weight=0.01, inputs="logprobs"),
        pn.Term(adapters.l2, weight=0.01, inputs="logprobs", options={"reduction": "mean", "center": 1.0}),
        pn.Term(adapters.elastic_net, weight=0.01, inputs="logprobs", options={"reduction": "mean"}),
    ]
    assert_one_pass(batch, "cross_entropy", terms, references={"teacher": reference(batch)}, **options)


def squares(logprobs: Any) -> Any:
    return sum((one**2).sum() for one in logprobs)


def per_token(flat_logprobs: Any, flat_mask: Any) -> Any:
    return (flat_logprobs**2 * flat_mask).sum() / flat_mask.sum()


def tokens(logprobs: Any, mask: Any, *, reduction: str = "mean") -> Any:
    return (torch.cat(list(logprobs)) * torch.cat(list(mask))).sum() / torch.cat(list(mask)).sum()


def per_text(logprobs: Any, rewards: Any) -> Any:
    return torch.stack([one.exp().sum() * reward for one, reward in zip(logprobs, rewards, strict=True)]).mean()


@pytest.mark.parametrize("options", MEASURED)
def test_own_functions(options: dict[str, Any]) -> None:
    batch = data(*LENGTHS, weights=flags)
    terms = [
        pn.Term(squares, weight=0.01, scope="sum", separable=True),
        pn.Term(per_token, weight=0.1, scope="mean", separable=True),
        pn.Term(tokens, weight=0.1, separable="tokens"),
        pn.Term(per_text, weight=0.1, scope="mean", separable="sequences"),
    ]
    given = {"references": {"rewards": [float(one) for one in range(len(batch))]}, **options}
    assert_one_pass(batch, "cross_entropy", terms, **given)


def test_terms_alone_train_without_a_base_loss() -> None:
    batch = data(*LENGTHS, weights=flags)
    assert_one_pass(batch, None, OVER_LOGPROBS[:2])


def test_schedules_intervals_and_weights_of_the_call() -> None:
    batch = data(*LENGTHS, weights=flags)
    terms = [
        pn.Term(pn.l1, weight=pn.schedules.warmup(0.1, steps=10), inputs="logprobs"),
        pn.Term(pn.l2, weight=0.1, inputs="logprobs", every=2),
        pn.Term(pn.elastic_net, weight=0.1, inputs="logprobs"),
    ]
    for step in (4, 5):
        assert_one_pass(batch, "cross_entropy", terms, step=step, weights={"elastic_net": torch.tensor(0.5)})


def test_a_term_over_parameters_may_be_skipped() -> None:
    def fails(params: Any) -> Any:
        raise ValueError("always")

    terms = [pn.Term(fails, on_error="skip"), pn.Term(pn.l2, weight=0.1, inputs="params")]
    for options in MEASURED:
        assert_one_pass(data(*LENGTHS, weights=flags), "cross_entropy", terms, **options)
    found = trained(data(*LENGTHS), "cross_entropy", terms, limit=8)[0].custom_loss
    assert found["fails"].value is None
    assert "always" in str(found["fails"].error)


def test_disabled_terms_are_not_asked_for_anything() -> None:
    terms = [
        pn.Term(pn.l1, weight=pn.schedules.warmup(0.1, steps=10), inputs="logprobs", enabled=False),
        pn.Term(spread, enabled=False),
    ]
    assert_one_pass(data(*LENGTHS, weights=flags), "cross_entropy", terms)


def test_weights_may_be_learned() -> None:
    found: list[torch.Tensor] = []
    for limit in (None, 8):
        weight = torch.tensor(0.5, requires_grad=True)
        trained(data(*LENGTHS), "cross_entropy", OVER_LOGPROBS[:1], limit=limit, weights={"l1": weight})
        assert weight.grad is not None
        found.append(weight.grad)
    assert_close(found[1], found[0], 1e-5)


def test_terms_that_read_only_parameters_and_data_run_once_wherever_they_run_and_keep_state() -> None:
    batch = data(*LENGTHS, weights=flags)
    calls: list[int] = []

    def counted(params: Any) -> Any:
        calls.append(1)
        return sum(one.square().sum() for one in params.values())

    terms = [
        pn.EMA(pn.Term(counted, weight=0.1)),
        pn.Term(pn.l1, weight=0.01, inputs="params", runs="thread"),
        pn.Term(pn.l2, name="reward", inputs="rewards", runs="thread", differentiable=False),
    ]
    given: dict[str, Any] = {"references": {"rewards": [1.0] * len(batch)}}
    assert_one_pass(batch, "cross_entropy", terms, **given)
    assert len(calls) == 2
    state = trained(batch, "cross_entropy", terms, limit=8, **given)[0].custom_loss.state
    expected = trained(batch, "cross_entropy", terms, **given)[0].custom_loss.state
    assert state.keys() == expected.keys() == {"counted"}
    assert float(state["counted"]["before"]) == pytest.approx(float(expected["counted"]["before"]))
    assert_one_pass(batch, "cross_entropy", terms, state=state, **given)


def spread(flat_logprobs: Any) -> Any:
    return flat_logprobs.std()


async def waits(flat_logprobs: Any) -> Any:
    return flat_logprobs.square().sum()


WHOLE = [
    pn.Term(spread),
    pn.Term(pn.l1, inputs="logprobs", separable=False),
    pn.Term(pn.l1, inputs="logprobs", on_error="skip"),
    pn.Term(pn.l1, inputs="logprobs", runs="thread"),
    pn.Term(waits, scope="sum", separable=True),
    pn.EMA(pn.Term(pn.l1, inputs="logprobs")),
    pn.Normalized(pn.Term(pn.l1, inputs="logprobs")),
    pn.Term(pn.l2, inputs="logprobs", options={"center": "mean"}),
    pn.Term(functools.partial(pn.l2, center="mean"), inputs="logprobs"),
    pn.Term(pn.consistency, inputs=("logprobs", "teacher"), options={"metric": "cosine"}),
    pn.Term(pn.orthogonality, inputs="flat_hidden.1"),
    pn.Term(adapters.orthogonality, inputs="hidden.1"),
    pn.Term(adapters.l2, inputs="logprobs", options={"center": "mean"}),
    pn.Term(adapters.consistency, inputs=("logprobs", "teacher"), options={"metric": "cosine"}),
    pn.Term(pn.kl_estimate, inputs={"logprobs": "logprobs", "reference": "teacher", "mask": "teacher"}),
]


@pytest.mark.parametrize("term", WHOLE, ids=repr)
def test_what_needs_the_whole_batch_takes_the_second_forward(term: pn.Term) -> None:
    batch = data(*LENGTHS, weights=flags)
    terms = [term, pn.Term(pn.smooth_l1, weight=0.1, inputs="logprobs")]
    given: dict[str, Any] = {"references": {"teacher": reference(batch)}}
    whole, expected, _ = trained(batch, "cross_entropy", terms, **given)
    parts, found, forwards = trained(batch, "cross_entropy", terms, limit=8, **given)
    with tiny(micro_batch_tokens=8) as client:
        assert forwards == 2 * len(client.sweep(batch) or ())
    assert numbers(parts) == pytest.approx(numbers(whole), rel=1e-4, abs=1e-5)
    assert_close(found, expected, 1e-5)


def test_a_term_over_the_whole_batch_costs_nothing_in_steps_without_it() -> None:
    batch = data(*LENGTHS)
    terms = [pn.Term(spread, every=3)]
    assert (
        trained(batch, "cross_entropy", terms, limit=8, step=3)[2]
        == 2 * trained(batch, "cross_entropy", terms, limit=8, step=4)[2]
    )


def test_one_graph_exists_at_a_time() -> None:
    kept: list[Any] = []
    live: list[int] = []

    def look(module: Any, args: Any, output: Any) -> None:
        gc.collect()
        live.append(sum(one() is not None for one in kept))
        kept.append(weakref.ref(output))

    with tiny(micro_batch_tokens=8) as client:
        client.forward(data(3)).result(WAIT)  # the first pass finds out about the output layer
        client.model.get_base_model().get_input_embeddings().register_forward_hook(look)
        forward_backward_custom(client, data(*LENGTHS), "cross_entropy").result(WAIT)
        assert live == [0] * len(client.sweep(data(*LENGTHS)) or ())


def fails_late(flat_logprobs: Any) -> Any:
    if len(flat_logprobs) < 5:
        raise ValueError("too short")
    return flat_logprobs.sum()


@pytest.mark.parametrize(
    ("term", "error", "message"),
    [
        (pn.Term(fails_late, scope="sum", separable=True), TermError, "fails_late: raised ValueError: too short"),
        (
            pn.Term(
                lambda flat_logprobs: (flat_logprobs.sum(), {"size": 1.0}), name="own", scope="sum", separable=True
            ),
            TermError,
            "own: returned the metric size of a part of the batch; a separable term returns a value alone",
        ),
    ],
)
def test_a_failure_in_a_later_part_trains_nothing(term: pn.Term, error: type[Exception], message: str) -> None:
    with tiny(micro_batch_tokens=8) as client:
        with pytest.raises(error, match=message):
            forward_backward_custom(client, data(*LENGTHS), "cross_entropy", regularizers=[term])
        assert not gradients(client)
        forward_backward_custom(client, data(*LENGTHS), "cross_entropy").result(WAIT)


@pytest.mark.parametrize("limit", [None, 8])
def test_wrong_data_are_named_by_their_index_in_the_batch(limit: int | None) -> None:
    batch = data(*LENGTHS[:4], logprobs=negative, advantages=normal)
    del batch[3].loss_fn_inputs["advantages"]  # pyright: ignore[reportIndexIssue]
    with tiny(micro_batch_tokens=limit) as client, pytest.raises(TermError, match="datum 3: importance_sampling needs"):
        forward_backward_custom(client, batch, "importance_sampling")


@pytest.mark.parametrize("limit", [None, 8])
def test_a_gradient_that_is_not_finite_is_named_by_its_datum(limit: int | None) -> None:
    def root(logprobs: Any) -> Any:
        return sum((one - one.detach() + (len(one) != 7)).sqrt().sum() for one in logprobs)

    with tiny(micro_batch_tokens=limit) as client:
        with pytest.raises(pn.NonFiniteError, match="datum 5: the gradient of the loss is inf"):
            forward_backward_custom(
                client, data(*LENGTHS), None, regularizers=[pn.Term(root, scope="sum", separable=True)]
            )
        assert not gradients(client)


@pytest.mark.parametrize("limit", [None, 8])
def test_a_loss_without_a_gradient_raises(limit: int | None) -> None:
    term = pn.Term(
        lambda logprobs: sum(one.detach().sum() for one in logprobs), name="own", scope="sum", separable=True
    )
    with tiny(micro_batch_tokens=limit) as client, pytest.raises(GradientError, match="own: its value has no gradient"):
        forward_backward_custom(client, data(*LENGTHS), None, regularizers=[term])


def test_unknown_weights_raise() -> None:
    with tiny(micro_batch_tokens=8) as client, pytest.raises(pn.PenaltiesError, match="l3"):
        forward_backward_custom(client, data(*LENGTHS), "cross_entropy", weights={"l3": 1.0})


def test_a_mean_over_arrays_of_data_says_over_what() -> None:
    term = pn.Term(per_text, scope="mean", separable=True)
    with tiny() as client, pytest.raises(OptionError, match='separable=True; expected "tokens" or "sequences"'):
        forward_backward_custom(client, data(3), None, regularizers=[term], references={"rewards": [1.0]})


@pytest.mark.parametrize("limit", [None, 8])
def test_the_events_are_those_of_one_call(limit: int | None) -> None:
    heard: list[tuple[str, Mapping[str, Any]]] = []
    handler = telemetry.attach(lambda event, measurements, metadata: heard.append((event, measurements)))
    try:
        found = trained(data(*LENGTHS, weights=flags), "cross_entropy", OVER_LOGPROBS[:1], limit=limit)[0]
    finally:
        telemetry.detach(handler)
    names = [event for event, _ in heard]
    assert names.count("pipeline.stop") == names.count("custom_loss.stop") == 1
    assert names.count("term.stop") == 2
    (stop,) = [measured for event, measured in heard if event == "pipeline.stop"]
    assert float(stop["loss_total"].detach()) == pytest.approx(found.custom_loss.total, rel=1e-4)


def test_a_step_of_the_optimizer_in_between_raises() -> None:
    with tiny(micro_batch_tokens=8) as client:
        batch = data(*LENGTHS)

        def steps(flat_logprobs: Any) -> Any:
            if len(flat_logprobs) == 5:
                client.optim_step(AdamParams(1e-2)).result(WAIT)
            return flat_logprobs.sum()

        client.forward_backward(batch, "cross_entropy").result(WAIT)
        term = pn.Term(steps, scope="sum", separable=True)
        with pytest.raises(GradientError, match="the parameters changed after the forward"):
            forward_backward_custom(client, batch, None, regularizers=[term]).result(WAIT)
        assert not gradients(client)


def test_awaited() -> None:
    batch = data(*LENGTHS, weights=flags)
    _, expected, _ = trained(batch, "cross_entropy", OVER_LOGPROBS[:2])

    async def step(client: LocalTrainingClient) -> Any:
        return await (
            await forward_backward_custom_async(client, batch, "cross_entropy", regularizers=OVER_LOGPROBS[:2])
        )

    with tiny(micro_batch_tokens=8) as client:
        client.forward_backward(batch, "cross_entropy").result(WAIT)
        client.optim_step(AdamParams(1e-2)).result(WAIT)
        seen = count_forwards(client)
        asyncio.run(step(client))
        assert len(seen) == len(client.sweep(batch) or ())
        assert_close(gradients(client), expected, 1e-5)


def test_a_cancelled_task_sends_nothing() -> None:
    with tiny(micro_batch_tokens=8) as client:

        async def main() -> None:
            started, go_on = asyncio.Event(), asyncio.Event()
            loop = asyncio.get_running_loop()

            def slow(flat_logprobs: Any) -> Any:
                loop.call_soon_threadsafe(started.set)
                asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(WAIT)
                return flat_logprobs.sum()

            term = pn.Term(slow, scope="sum", separable=True)
            task = asyncio.create_task(forward_backward_custom_async(client, data(*LENGTHS), None, regularizers=[term]))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            go_on.set()

        asyncio.run(main())
        client.forward(data(3)).result(WAIT)
        assert not gradients(client)


def drop(client: LocalTrainingClient) -> None:
    """Dropout behind the embedding."""
    layer = client.model.get_base_model().get_input_embeddings()
    layer.register_forward_hook(lambda module, args, output: torch.nn.functional.dropout(output, 0.3, training=True))


def test_a_second_forward_draws_what_the_first_drew() -> None:
    batch = data(6, 2, 5)
    with LocalTrainingClient("tiny", device="cpu", micro_batch_tokens=6) as client:
        stir(client)
        client.forward(batch).result(WAIT)
        drop(client)
        torch.manual_seed(3)
        graph = client.forward_with_graph(batch).result(WAIT)
        after = torch.get_rng_state()
        slopes = {"logprobs": [torch.ones_like(one) for one in graph.logprobs]}
        graph.backward(slopes)
        assert torch.equal(torch.get_rng_state(), after), "the second forward drew numbers of its own"
        found = gradients(client)
    with tiny() as client:
        client.forward(batch).result(WAIT)
        drop(client)
        torch.manual_seed(3)
        for one, expected in zip(batch, graph.logprobs, strict=True):
            part = client.forward_with_graph([one]).result(WAIT)
            assert_close(part.logprobs[0], expected, 1e-5)
            part.backward({"logprobs": [torch.ones_like(part.logprobs[0])]})
        assert_close(found, gradients(client), 1e-5)


def test_a_forward_that_drew_is_not_repeated_in_other_parts() -> None:
    with tiny(micro_batch_tokens="auto") as client:
        client.forward(data(3)).result(WAIT)
        drop(client)
        graph = client.forward_with_graph(data(4, 4)).result(WAIT)
        run_out_once(client)
        with pytest.raises(
            OptionError, match=r'micro_batch_tokens="auto"; expected a number, such as 4: memory ran out'
        ):
            graph.backward({"logprobs": [torch.ones_like(one) for one in graph.logprobs]})


def test_auto_takes_one_pass_once_it_knows_what_fits() -> None:
    batch = data(*LENGTHS, weights=flags)
    with tiny() as client:
        forward_backward_custom(client, batch, "cross_entropy", regularizers=OVER_LOGPROBS[:2]).result(WAIT)
        expected = gradients(client)
    with tiny(micro_batch_tokens="auto") as client:
        client.forward(batch[:1]).result(WAIT)
        seen: list[int] = []
        watch(client, seen, most=20)
        for _ in range(2):
            clear(client)
            seen.clear()
            forward_backward_custom(client, batch, "cross_entropy", regularizers=OVER_LOGPROBS[:2]).result(WAIT)
            assert_close(gradients(client), expected, 1e-5)
        parts = len(client.sweep(batch) or ())
        assert parts > 1
        assert len(seen) == parts


def test_a_part_whose_backward_does_not_fit_is_computed_in_smaller_ones() -> None:
    batch = data(4, 4, 3, 2)
    with tiny() as client:
        forward_backward_custom(client, batch, "cross_entropy").result(WAIT)
        expected = gradients(client)
    with tiny(micro_batch_tokens="auto") as client:
        client._limits.tokens = 8  # pyright: ignore[reportPrivateUsage]
        assert len(client.sweep(batch) or ()) == 2
        full = run_out_once(client)
        forward_backward_custom(client, batch, "cross_entropy").result(WAIT)
        assert not full
        assert_close(gradients(client), expected, 1e-5)


def test_a_backward_that_fails_trains_nothing() -> None:
    with tiny(micro_batch_tokens=8) as client:
        run_out_once(client)
        with pytest.raises(torch.OutOfMemoryError):
            forward_backward_custom(client, data(4, 4, 3, 2), "cross_entropy").result(WAIT)
        assert not gradients(client)
