"""The gradient of every adapter weight after a custom loss is that of plain autograd through the whole model."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

import penalties as pn
from penalties.training import AdamParams, Datum, LocalTrainingClient, ModelInput, forward_backward_custom
from penalties.training.reading import numpy_of, targets_of

TEXTS = ("a tall tree", "rain", "many small stones")


def datum(text: str, candidates: int | None = None, **inputs: Any) -> Datum:
    tokens = list(text.encode())
    targets: Any = tokens[1:]
    if candidates is not None:
        targets = [[(token + shift) % 250 for shift in range(candidates)] for token in targets]
    return Datum(ModelInput.from_ints(tokens[:-1]), {"target_tokens": targets, **inputs})


@pytest.fixture(scope="module")
def client() -> Iterator[LocalTrainingClient]:
    with LocalTrainingClient("tiny", seed=0) as client:
        # A few steps, so that no factor of the adapter is zero any more.
        for _ in range(3):
            client.forward_backward([datum(text) for text in TEXTS], "cross_entropy")
            client.optim_step(AdamParams(learning_rate=1e-2)).result(60)
        yield client


@pytest.fixture(autouse=True)
def clean(client: LocalTrainingClient) -> Iterator[None]:
    yield
    for parameter in client.parameters().values():
        parameter.grad = None


class Summing:
    """The protocol alone, so that a surrogate is sent."""

    def __init__(self, client: LocalTrainingClient) -> None:
        self.client = client
        self.forward, self.forward_backward = client.forward, client.forward_backward


class Averaging(Summing):
    """A server that divides by the length of a sequence and by how many there are."""

    def __init__(self, client: LocalTrainingClient) -> None:
        super().__init__(client)
        self.forward_backward = self.averaged

    def averaged(self, data: Sequence[Any], loss_fn: str) -> Any:
        assert loss_fn == "importance_sampling"
        scaled = []
        for one in data:
            inputs = dict(one.loss_fn_inputs)
            advantages = numpy_of(inputs["advantages"])
            inputs["advantages"] = advantages / len(advantages) / len(data)
            scaled.append(Datum(one.model_input, inputs))
        return self.client.forward_backward(scaled, loss_fn)


WAYS: dict[str, tuple[Callable[[LocalTrainingClient], Any], str]] = {
    "graph": (lambda client: client, "tinker"),
    "sums": (Summing, "sums"),
    "averages": (Averaging, "averages"),
}


def plain(client: LocalTrainingClient, data: Sequence[Any], loss: Callable[..., Tensor]) -> dict[str, Tensor]:
    """The gradient by autograd, sequence by sequence and without padding."""
    client.forward(data, "cross_entropy").result(60)  # nothing else is under way
    logprobs, logits, hidden = [], [], []
    for place, one in enumerate(data):
        tokens = torch.tensor([one.model_input.to_ints()])
        found = client.model(input_ids=tokens, use_cache=False, output_hidden_states=True)
        logits.append(found.logits[0])
        hidden.append(found.hidden_states[1][0])
        targets = torch.as_tensor(targets_of(place, one))
        chosen = found.logits[0].log_softmax(-1).gather(-1, targets if targets.ndim == 2 else targets[:, None])
        logprobs.append(chosen if targets.ndim == 2 else chosen[:, 0])
    parameters = client.parameters()
    value = loss(logprobs, logits=logits, hidden=hidden, params=parameters)
    gradients = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if gradient is None else gradient
        for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True)
    }


def assert_same(client: LocalTrainingClient, expected: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    size = float(torch.stack([gradient.norm() for gradient in expected.values()]).norm())
    assert size > 0
    for name, gradient in expected.items():
        found = client.parameters()[name].grad
        assert found is not None
        assert float((found - gradient).norm()) <= tolerance * size, name


def nonlinear(data: Any, logprobs: Sequence[Tensor]) -> Tensor:
    sums = torch.stack([one.mean() for one in logprobs])
    return sum(((one.exp() - 0.4) ** 2).sum() for one in logprobs) + sums.logsumexp(0) * sums.std()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scale", [1.0, 10.0])
@pytest.mark.parametrize("tracked", [False, True])
def test_a_loss_with_regularizers(client: LocalTrainingClient, way: str, scale: float, tracked: bool) -> None:
    make, server = WAYS[way]
    data = [datum(text) for text in TEXTS]

    def pairs(logprobs: Any) -> Tensor:
        sums = torch.stack([one.sum() for one in logprobs])
        return torch.tanh(0.1 * (sums[0] - sums[1])) * torch.tanh(0.1 * sums[2])

    terms = [pn.Term("l2", 0.02, inputs="logprobs"), pn.Term(pairs, 3.0), pn.Term("entropy_estimate", 0.1)]
    result = forward_backward_custom(
        make(client),
        data,
        lambda data, logprobs: scale * nonlinear(data, logprobs),
        regularizers=terms,
        server=server,
        track_grad_norms=tracked,
    ).result(60)

    def loss(logprobs: list[Tensor], **_: Any) -> Tensor:
        flat = torch.cat(logprobs)
        return (
            scale * nonlinear(data, logprobs)
            + 0.02 * pn.l2(flat)
            + 3.0 * pairs(logprobs)
            + 0.1 * pn.entropy_estimate(flat)
        )

    expected = plain(client, data, loss)
    assert_same(client, expected)
    assert (result.custom_loss.total_grad_norm is not None) is tracked


@pytest.mark.parametrize("way", ["graph", "sums"])
def test_candidates(client: LocalTrainingClient, way: str) -> None:
    make, server = WAYS[way]
    data = [datum(text, 4) for text in TEXTS]
    teacher = [torch.randn(len(text) - 1, 4, generator=torch.Generator().manual_seed(3)) for text in TEXTS]
    teacher = [one.log_softmax(-1) for one in teacher]
    forward_backward_custom(
        make(client), data, "reverse_kl", references={"teacher": teacher}, regularizers=["entropy"], server=server
    ).result(60)

    def loss(logprobs: list[Tensor], **_: Any) -> Tensor:
        value, _ = pn.training.losses.reverse_kl(data, logprobs, teacher)
        return value + pn.entropy(torch.cat(logprobs), logits=True)

    assert_same(client, plain(client, data, loss))


@pytest.mark.parametrize("tracked", [False, True])
def test_terms_inside_the_model(client: LocalTrainingClient, tracked: bool) -> None:
    data = [datum(text) for text in TEXTS]

    def spread(hidden: Any, logprobs: Any) -> Tensor:
        return sum(h.std() * p.mean() for h, p in zip(hidden, logprobs, strict=True))

    def factors(params: Any) -> Tensor:
        return sum((one @ one.T).square().sum() for name, one in params.items() if "lora_A" in name)

    terms = [
        pn.Term(spread, 0.7, inputs={"hidden": "hidden.1", "logprobs": "logprobs"}),
        pn.Term(factors, 0.01),
        pn.Term("entropy", 0.5, inputs="logits", options={"logits": True}),
        pn.Term("l2", 1e-3, name="flat", inputs="flat_logits"),
    ]
    result = forward_backward_custom(client, data, nonlinear, regularizers=terms, track_grad_norms=tracked).result(60)

    def loss(logprobs: list[Tensor], *, logits: list[Tensor], hidden: list[Tensor], params: Any) -> Tensor:
        flat = torch.cat(logits)
        return (
            nonlinear(data, logprobs)
            + 0.7 * spread(hidden, logprobs)
            + 0.01 * factors(params)
            + 0.5 * pn.entropy(flat, logits=True)
            + 1e-3 * pn.l2(flat)
        )

    assert_same(client, plain(client, data, loss))
    if tracked:
        assert set(result.custom_loss["spread"].grad_norms) == {"flat_hidden.1", "flat_logprobs"}


def test_calls_accumulate_until_a_step(client: LocalTrainingClient) -> None:
    data = [datum(text) for text in TEXTS]
    for part in (data[:1], data[1:]):
        forward_backward_custom(client, part, lambda d, lp: sum((one**2).sum() for one in lp)).result(60)
    assert_same(client, plain(client, data, lambda lp, **_: sum((one**2).sum() for one in lp)))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(2, 9), min_size=1, max_size=4),
    coefficients=st.lists(st.floats(-2.0, 2.0), min_size=3, max_size=3),
    weight=st.floats(0.0, 5.0),
    way=st.sampled_from(list(WAYS)),
)
def test_any_loss(
    client: LocalTrainingClient, lengths: list[int], coefficients: list[float], weight: float, way: str
) -> None:
    make, server = WAYS[way]
    data = [datum("abcdefghijkl"[place : place + length]) for place, length in enumerate(lengths)]
    a, b, c = coefficients

    def loss(data: Any, logprobs: Sequence[Tensor]) -> Tensor:
        means = torch.stack([one.mean() for one in logprobs])
        return (
            a * means.prod().tanh()
            # Of a small number: in float32 the sine of a large one has fewer digits than are compared.
            + b * (0.01 * means**2).sum().sin()
            + c * sum(one.exp().sum() for one in logprobs)
            + (means**2).sum()
        )

    for parameter in client.parameters().values():
        parameter.grad = None
    term = pn.Term("smooth_l1", weight, inputs="logprobs")
    forward_backward_custom(make(client), data, loss, regularizers=[term], server=server).result(60)
    found = {name: parameter.grad.clone() for name, parameter in client.parameters().items()}
    expected = plain(client, data, lambda lp, **_: loss(data, lp) + weight * pn.smooth_l1(torch.cat(lp)))
    size = float(torch.stack([gradient.norm() for gradient in expected.values()]).norm())
    for name, gradient in expected.items():
        # Where large parts cancel, what is left of the sum has fewer digits than they.
        assert float((found[name] - gradient).norm()) <= 1e-5 * max(size, 1.0), name


def test_of_another_thread_or_loop(client: LocalTrainingClient) -> None:
    import asyncio

    from penalties.training import forward_backward_custom_async

    data = [datum(text) for text in TEXTS]

    async def main() -> None:
        await (await forward_backward_custom_async(client, data, nonlinear))

    asyncio.run(main())
    assert_same(client, plain(client, data, lambda lp, **_: nonlinear(data, lp)))


@pytest.mark.parametrize(
    ("name", "where"),
    [("params", "the parameter .*lora_B"), ("logits", "datum 1, logits"), ("hidden.1", "datum 1, hid")],
)
def test_gradients_that_are_not_finite_are_kept_from_the_model(
    client: LocalTrainingClient, name: str, where: str
) -> None:
    def steep(given: Any) -> Tensor:
        if name == "params":
            return (0 * given[next(key for key in given if "lora_B" in key)]).square().sum().sqrt()
        return (0 * given[1]).abs().sqrt().sum()

    data = [datum(text) for text in TEXTS]
    with pytest.raises(pn.NonFiniteError, match=f"{where}.*: the gradient of the loss is nan; nothing was sent"):
        forward_backward_custom(client, data, nonlinear, regularizers=[pn.Term(steep, inputs=name)])
    assert all(parameter.grad is None for parameter in client.parameters().values())


def test_a_layer_that_is_not_there(client: LocalTrainingClient) -> None:
    with pytest.raises(pn.OptionError, match='reads="hidden.99"'):
        forward_backward_custom(client, [datum("abc")], None, regularizers=[pn.Term("l2", inputs="hidden.99")])


def test_the_first_model_as_a_reference(client: LocalTrainingClient) -> None:
    data = [datum(text) for text in TEXTS]
    initial = client.forward_initial(data).result(60)
    seen: list[Any] = []

    def term(logprobs: Any, initial: Any) -> Tensor:
        seen.extend(initial)
        return sum((one - other).square().sum() for one, other in zip(logprobs, initial, strict=True))

    references = {"initial": pn.training.references.initial()}
    forward_backward_custom(client, data, None, regularizers=[term], references=references).result(60)
    for one, output in zip(seen, initial.loss_fn_outputs, strict=True):
        torch.testing.assert_close(one, output["logprobs"].to_torch())
    now = client.forward(data, "cross_entropy").result(60)
    assert not torch.equal(seen[0], now.loss_fn_outputs[0]["logprobs"].to_torch())
