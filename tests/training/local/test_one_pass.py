"""Losses and terms that are sums or means over tokens or sequences: each part goes through the model once."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from penalties.errors import OptionError
from penalties.training import adapters, forward_backward_custom, losses, references
from tests.training.local.cases import WAIT, assert_close, data, gradients, negative, normal, tiny
from tests.training.local.one_pass import (
    LENGTHS,
    MEASURED,
    OVER_LOGITS,
    OVER_LOGPROBS,
    assert_one_pass,
    count_forwards,
    flags,
    numbers,
    reference,
    spread,
    trained,
)


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


@pytest.mark.parametrize("options", MEASURED)
def test_penalties_over_log_probabilities(options: dict[str, Any]) -> None:
    batch = data(*LENGTHS, weights=flags)
    terms = [*OVER_LOGPROBS, pn.Term(pn.l2, name="size", weight=0.1, inputs="params")]
    assert_one_pass(batch, "cross_entropy", terms, references={"teacher": reference(batch)}, **options)


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


def mass(flat_likeliest: Any, flat_mask: Any) -> Any:
    return (flat_likeliest.exp().sum(-1) * flat_mask).sum() / flat_mask.sum()


LIKELIEST = [
    pn.Term(pn.kl_divergence, weight=0.5, inputs={"p": "logprobs.top", "q": "top", "mask": "mask"}),
    pn.Term(pn.js_divergence, weight=0.5, inputs=("logprobs.other", "other"), options={"reduction": "sum"}),
    pn.Term(
        mass,
        weight=0.5,
        inputs={"flat_likeliest": "flat_logprobs.top", "flat_mask": "flat_mask"},
        scope="mean",
        separable=True,
    ),
    pn.Term(adapters.kl, name="kl", weight=0.2, inputs=("logprobs.top", "top")),
]


@pytest.mark.parametrize("options", [{}, {"track_grad_norms": "parameters", "cosines": True}])
def test_the_likeliest_tokens_of_references(options: dict[str, Any]) -> None:
    batch = data(*LENGTHS, weights=flags)
    with tiny(seed=3) as teacher:
        given = {"top": references.client(teacher, top_k=3), "other": references.client(teacher, top_k=2)}
        assert_one_pass(batch, "cross_entropy", [*LIKELIEST, *OVER_LOGPROBS[:2]], references=given, **options)


def test_likeliest_tokens_are_targets_only_in_steps_with_a_term_that_reads_them() -> None:
    batch = data(*LENGTHS, weights=flags)
    terms = [pn.Term(pn.kl_divergence, inputs=("logprobs.top", "top"), every=2), OVER_LOGPROBS[1]]
    with tiny(seed=3) as teacher:
        given: dict[str, Any] = {"references": {"top": references.client(teacher, top_k=3)}}
        for step, names in ((0, {"kl_divergence", "l2"}), (1, {"l2"})):
            whole, expected, _ = trained(batch, "cross_entropy", terms, step=step, **given)
            parts, found, forwards = trained(batch, "cross_entropy", terms, limit=8, step=step, **given)
            assert forwards == 6
            assert set(parts.custom_loss.terms) == names
            assert numbers(parts) == pytest.approx(numbers(whole), rel=1e-4, abs=1e-5)
            assert_close(found, expected, 1e-5)


def test_norms_at_likeliest_tokens_take_the_second_forward() -> None:
    batch = data(*LENGTHS, weights=flags)
    with tiny(seed=3) as teacher:
        given = {"references": {"top": references.client(teacher, top_k=3)}, "track_grad_norms": True}
        whole, expected, _ = trained(batch, "cross_entropy", LIKELIEST[:1], **given)
        parts, found, forwards = trained(batch, "cross_entropy", LIKELIEST[:1], limit=8, **given)
    assert forwards == 12
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


def test_a_mean_over_arrays_of_data_says_over_what() -> None:
    term = pn.Term(per_text, scope="mean", separable=True)
    with tiny() as client, pytest.raises(OptionError, match='separable=True; expected "tokens" or "sequences"'):
        forward_backward_custom(client, data(3), None, regularizers=[term], references={"rewards": [1.0]})


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
