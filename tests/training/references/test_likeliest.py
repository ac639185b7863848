"""References with the K likeliest tokens at each position: on the local client, and through samplers of a server."""

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from penalties.errors import InputError, OptionError
from penalties.training import (
    AdamParams,
    Datum,
    LocalTrainingClient,
    ModelInput,
    adapters,
    forward_backward_custom,
    forward_backward_custom_async,
    references,
)
from penalties.training.references.likeliest import checked_likeliest, joined, split
from tests.training.clients import VOCABULARY, RemoteClient, batch
from tests.training.local.one_pass import count_forwards

DATA = [
    Datum(ModelInput.from_ints([1, 2, 3, 4]), {"target_tokens": [2, 3, 4, 5], "weights": [0.0, 1.0, 1.0, 1.0]}),
    Datum(ModelInput.from_ints([9, 8]), {"target_tokens": [8, 7], "weights": [0.0, 1.0]}),
]
COUNTED = [1, 2, 3, 5]
"""The positions with a weight."""


def term(**more: Any) -> pn.Term:
    return pn.Term(**({"fn": pn.kl_divergence, "name": "kl", "inputs": {"p": "logprobs.first", "q": "first"}} | more))


def full(**more: Any) -> pn.Term:
    """The same over all tokens."""
    inputs = {"p": "logits", "q": "first.logits", "mask": "mask"}
    return term(**({"inputs": inputs, "options": {"logits": True}} | more))


def trained(seed: int = 0, **options: Any) -> LocalTrainingClient:
    client = LocalTrainingClient("tiny", seed=seed, **options)
    for _ in range(3):
        client.forward_backward(DATA, "cross_entropy")
        client.optim_step(AdamParams(learning_rate=0.05)).result()
    return client


def passed(client: Any, one: pn.Term, reference: Any, loss: Any = None, **options: Any) -> Any:
    return forward_backward_custom(
        client, DATA, loss, regularizers=[one], references={"first": reference}, **options
    ).result(timeout=60)


def gradients(client: LocalTrainingClient) -> list[torch.Tensor]:
    found = [one.grad.clone() for one in client.parameters().values() if one.grad is not None]
    for one in client.parameters().values():
        one.grad = None
    return found


def vocabulary(client: LocalTrainingClient) -> int:
    graph = client.forward_with_graph(DATA, ["logits"], evaluate=True).result()
    return graph.packed["logits"].shape[1]


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("loss", [None, "cross_entropy"])
def test_with_all_tokens_it_is_the_divergence_over_the_vocabulary(direction: str, loss: Any) -> None:
    with trained() as client:
        width = vocabulary(client)
        exact = passed(client, full(options={"logits": True, "direction": direction}), references.initial(), loss)
        expected = gradients(client)
        found = passed(client, term(options={"direction": direction}), references.initial(top_k=width), loss)
        torch.testing.assert_close(gradients(client), expected, rtol=1e-4, atol=1e-6)
    assert exact.custom_loss["kl"].value > 0.05
    assert found.custom_loss["kl"].value == pytest.approx(exact.custom_loss["kl"].value, rel=1e-5)
    assert found.custom_loss.total == pytest.approx(float(exact.custom_loss.total), rel=1e-5)


def test_fewer_tokens_are_renormalised_unless_the_term_says_otherwise() -> None:
    with trained() as client, LocalTrainingClient("tiny") as untouched:
        rows = [
            one.forward_with_graph(DATA, ["logits"], evaluate=True).result().packed["logits"].log_softmax(-1)[COUNTED]
            for one in (client, untouched)
        ]
        best = rows[1].topk(5).indices
        p, q = (row.gather(1, best) for row in rows)
        partial = (p.exp() * (p - q)).sum(1).mean()
        p, q = (row.log_softmax(1) for row in (p, q))
        whole = (p.exp() * (p - q)).sum(1).mean()
        reference = references.initial(top_k=5)
        assert passed(client, term(), reference).custom_loss["kl"].value == pytest.approx(float(whole), rel=1e-4)
        as_they_are = passed(client, term(options={"logits": False}), reference).custom_loss["kl"].value
        assert as_they_are == pytest.approx(float(partial), rel=1e-4)
    assert abs(float(whole - partial)) > 1e-3


@pytest.mark.parametrize("cache", [False, True])
def test_a_teacher_tells_its_own_tokens(cache: bool) -> None:
    with LocalTrainingClient("tiny") as client, trained(seed=3) as teacher:
        reference = references.client(teacher, cache=cache, top_k=4)
        first = passed(client, term(), reference).custom_loss["kl"].value
        assert first > 0.01
        assert len(reference) == (2 if cache else 0)
        for _ in range(10):
            passed(client, term(), reference)
            client.optim_step(AdamParams(learning_rate=0.05)).result()
        assert passed(client, term(), reference).custom_loss["kl"].value < first / 2


def test_adapters_read_them_and_renormalise_too() -> None:
    inputs = {"logprobs": "logprobs.first", "reference": "first", "mask": "mask"}
    with trained() as client:
        reference = references.initial(top_k=6)
        direct = passed(client, term(), reference).custom_loss["kl"]
        adapted = passed(client, term(fn=adapters.kl, inputs=inputs), reference).custom_loss["kl"]
    assert adapted.value == pytest.approx(direct.value, rel=1e-5)
    assert adapted.metrics["kl"] == pytest.approx(direct.value, rel=1e-5)


def test_parts_of_a_batch_have_the_same_gradient() -> None:
    found: list[Any] = []
    for options in ({}, {"micro_batch_tokens": 4}):
        with trained(**options) as client:
            passed(client, term(), references.initial(top_k=6), "cross_entropy")
            found.append(gradients(client))
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("track", [False, True, "parameters"])
@pytest.mark.parametrize("more", [{"every": 2}, {"enabled": False}])
def test_parts_of_a_batch_take_one_pass_in_steps_without_the_term(more: dict[str, Any], track: Any) -> None:
    found: list[Any] = []
    ran: list[int] = []
    for options in ({}, {"micro_batch_tokens": 4}):
        with trained(**options) as client:
            reference = references.initial(top_k=6)
            reference.prepare(client, DATA)
            seen = count_forwards(client)
            out = passed(client, term(**more), reference, "cross_entropy", step=1, track_grad_norms=track)
            assert "kl" not in out.custom_loss.terms
            found.append(gradients(client))
            ran.append(len(seen))
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-5)
    assert ran == [1, 2]


@pytest.mark.parametrize("track", [True, "parameters"])
def test_gradients_are_measured(track: Any) -> None:
    with trained() as client:
        out = passed(client, term(), references.initial(top_k=6), "cross_entropy", track_grad_norms=track, cosines=True)
    assert out.custom_loss["kl"].grad_norm > 0
    assert out.custom_loss.cosines is not None


def test_a_cache_is_saved_and_loaded(tmp_path: Any) -> None:
    with trained() as client:
        before = references.initial(top_k=4)
        value = passed(client, term(), before).custom_loss["kl"].value
        before.save(tmp_path / "first.npz")
        after = references.initial(top_k=4)
        after.load(tmp_path / "first.npz")
        assert len(after) == 2
        assert passed(client, term(), after).custom_loss["kl"].value == value
    with pytest.raises(InputError, match=r"was not saved with top_k=5"):
        references.initial(top_k=5).load(tmp_path / "first.npz")


class Sampler:
    """Answers about the prompts, as the SDK's sampling client does."""

    def __init__(self, client: "Server", fewer: int = 0) -> None:
        self.rows = (client.model.embedding.detach().tanh() @ client.model.head.detach()).log_softmax(-1)
        self.fewer = fewer

    def sample(
        self,
        prompt: Any,
        count: int,
        options: Any,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
    ) -> Any:
        assert (count, options.max_tokens, include_prompt_logprobs) == (1, 1, True)
        best = self.rows[prompt.to_ints()[:-1]].topk(topk_prompt_logprobs - self.fewer)
        pairs = [
            list(zip(tokens.tolist(), values.tolist(), strict=True))
            for tokens, values in zip(best.indices, best.values, strict=True)
        ]
        return SimpleNamespace(result=lambda: SimpleNamespace(topk_prompt_logprobs=[None, *pairs]))


class Server(RemoteClient):
    """A client on a server, which can be sampled from."""

    fewer = 0

    def save_weights_and_get_sampling_client(self) -> Sampler:
        self.calls.append(("sampler", ""))
        return Sampler(self, self.fewer)


def distribution(client: RemoteClient, data: list[Any]) -> torch.Tensor:
    rows = (client.model.embedding.tanh() @ client.model.head).log_softmax(-1)
    return torch.cat([rows[one.model_input.to_ints()] for one in data])


def test_a_server_has_the_gradient_of_the_whole_vocabulary_with_all_tokens() -> None:
    data = batch(4, 3)
    client, teacher, plain = Server(), Server(), RemoteClient()
    with torch.no_grad():
        teacher.model.head.mul_(0.3)
    forward_backward_custom(
        client,
        data,
        "cross_entropy",
        regularizers=[term()],
        references={"first": references.client(teacher, top_k=VOCABULARY)},
    ).result(timeout=10)
    p, q = distribution(plain, data), distribution(teacher, data).detach()
    loss = -torch.cat([plain.model.logprobs(one) for one in data]).sum() + (p.exp() * (p - q)).sum(1).mean()
    loss.backward()
    for name, one in plain.model.named_parameters():
        torch.testing.assert_close(client.gradients()[name], one.grad, rtol=1e-4, atol=1e-6)


def test_the_first_model_of_a_server_is_kept_by_its_sampler() -> None:
    client, reference = Server(), references.initial(top_k=3)
    options: dict[str, Any] = {"regularizers": [term()], "references": {"first": reference}}
    first = forward_backward_custom(client, batch(4), "cross_entropy", **options).result(timeout=10)
    assert first.custom_loss["kl"].value == pytest.approx(0, abs=1e-6)
    with torch.no_grad():
        client.model.head.mul_(2.0)
    # Another datum: the sampler still has the weights that were there at first.
    later = forward_backward_custom(client, batch(5, 6), "cross_entropy", **options).result(timeout=10)
    assert later.custom_loss["kl"].value > 0.01
    assert client.calls.count(("sampler", "")) == 1


def test_a_sampling_client_can_be_the_teacher() -> None:
    client, sampler = RemoteClient(), Sampler(Server())
    out = forward_backward_custom(
        client, batch(4), None, regularizers=[term()], references={"first": references.client(sampler, top_k=3)}
    ).result(timeout=10)
    assert out.custom_loss["kl"].value == pytest.approx(0, abs=1e-6)


def of_server(client: RemoteClient, reference: Any, one: pn.Term | None = None, **options: Any) -> Any:
    return forward_backward_custom(
        client,
        options.pop("data", batch(4)),
        "cross_entropy",
        regularizers=[one or term()],
        references={"first": reference},
        **options,
    ).result(timeout=10)


def test_a_client_that_cannot_tell_them_is_an_error() -> None:
    with pytest.raises(InputError, match=r"initial: RemoteClient returns only log-probabilities.*LocalTrainingClient"):
        of_server(RemoteClient(), references.initial(top_k=3))
    sampler = SimpleNamespace(sample=lambda prompt: None)
    old = SimpleNamespace(forward=lambda: None, save_weights_and_get_sampling_client=lambda: sampler)
    with pytest.raises(InputError, match=r"client: the sample of SimpleNamespace does not take topk_prompt_logprobs"):
        of_server(RemoteClient(), references.client(old, top_k=3))


def test_a_server_that_averages_takes_one_target() -> None:
    with pytest.raises(InputError, match=r"has 4 targets per position.*importance_sampling, which takes one"):
        of_server(Server(), references.initial(top_k=3), server="averages")


def test_a_server_that_returns_fewer_is_an_error() -> None:
    client = Server()
    client.fewer = 1
    with pytest.raises(InputError, match=r"datum 0: its sample returned 2 tokens at position 0; expected top_k=3"):
        of_server(client, references.initial(top_k=3))


def raising(*_: Any, **__: Any) -> Any:
    raise OSError("no route")


def answering(found: Any) -> Any:
    """A sampling client with this answer to everything."""

    def sample(
        prompt: Any, count: int, options: Any, *, include_prompt_logprobs: bool, topk_prompt_logprobs: int
    ) -> Any:
        return found() if callable(found) else SimpleNamespace(topk_prompt_logprobs=found)

    return SimpleNamespace(sample=sample)


@pytest.mark.parametrize(
    ("teacher", "says"),
    [
        (
            SimpleNamespace(forward=raising, save_weights_and_get_sampling_client=raising),
            r"client: its save_weights_and_get_sampling_client raised OSError: no route",
        ),
        (answering(raising), r"client: datum 0: its sample raised OSError: no route"),
        (
            answering(lambda: SimpleNamespace(result=raising)),
            r"client: datum 0: its sample raised OSError: no route",
        ),
        (answering(None), r"datum 0: its sample returned no topk_prompt_logprobs; expected those of 5"),
        (answering([None, [(1, -1.0)]]), r"returned topk_prompt_logprobs of 2 tokens; expected those of 5"),
        (answering([None] * 5), r"datum 0: its sample returned 0 tokens at position 0; expected top_k=3"),
    ],
)
def test_a_teacher_that_fails_is_an_error_that_says_how(teacher: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        of_server(RemoteClient(), references.client(teacher, top_k=3))


def test_awaited_it_is_the_same() -> None:
    async def step() -> Any:
        options: dict[str, Any] = {"regularizers": [term()], "references": {"first": references.initial(top_k=3)}}
        return await (await forward_backward_custom_async(Server(), batch(4), "cross_entropy", **options))

    assert asyncio.run(step()).custom_loss["kl"].value == pytest.approx(0, abs=1e-6)


def test_more_tokens_than_the_model_has_are_an_error() -> None:
    wrong = pytest.raises(InputError, match=r"top_k=9999, but the model has \d+ tokens")
    with LocalTrainingClient("tiny") as client, wrong:
        passed(client, term(), references.initial(top_k=9999))


def test_terms_over_other_tokens_are_errors() -> None:
    reference = references.initial(top_k=3)
    estimate = pn.Term(pn.kl_estimate, inputs=("logprobs.first", "first"))
    with pytest.raises(InputError, match=r"kl_estimate needs one sampled token.*use kl_divergence"):
        of_server(Server(), reference, estimate)
    with pytest.raises(
        InputError, match=r"target_tokens have several per position; pass target_tokens of shape \(N,\)"
    ):
        of_server(Server(), reference, data=batch(4, candidates=2))
    both = {"first": reference, "second": references.initial(top_k=3)}
    mixed = term(inputs={"p": "logprobs.first", "q": "second"})
    with pytest.raises(InputError, match=r"different tokens; expected logprobs.first and first"):
        forward_backward_custom(Server(), batch(4), None, regularizers=[mixed], references=both)
    with pytest.raises(InputError, match=r'no input is named "logprobs.first"'):
        of_server(Server(), references.initial())


def test_a_loss_does_not_take_them_for_its_reference() -> None:
    with pytest.raises(InputError, match=r"dpo: needs log-probabilities to compare with"):
        forward_backward_custom(
            Server(), batch(4, 4), "dpo", regularizers=[term()], references={"first": references.initial(top_k=3)}
        )


@pytest.mark.parametrize("wrong", [0, -1, 2.5, True, "3"])
def test_a_number_of_tokens_is_checked(wrong: Any) -> None:
    with pytest.raises(OptionError, match="top_k"):
        references.initial(top_k=wrong)
    with pytest.raises(OptionError, match="top_k"):
        references.client(Server(), top_k=wrong)


def test_what_a_provider_returns_is_checked() -> None:
    tokens, logprobs = np.zeros((4, 2), int), np.full((4, 2), -1.0)
    data = batch(4)
    assert len(checked_likeliest("mine", [(tokens, logprobs)], data, 2)) == 1
    with pytest.raises(InputError, match=r'"mine": its provider returned 0 pairs for 1 data'):
        checked_likeliest("mine", [], data, 2)
    with pytest.raises(InputError, match=r"expected \(4, 3\): its positions, and top_k=3"):
        checked_likeliest("mine", [(tokens, logprobs)], data, 3)
    with pytest.raises(InputError, match="contains nan"):
        checked_likeliest("mine", [(tokens, logprobs * np.nan)], data, 2)


def test_a_cached_pair_keeps_every_token() -> None:
    tokens, logprobs = np.array([[2**24 - 1, 151_935]]), np.array([[-0.25, -1.5]], np.float32)
    found = split(joined((tokens, logprobs)))
    np.testing.assert_array_equal(found[0], tokens)
    np.testing.assert_array_equal(found[1], logprobs)
