"""The logits of a local model are computed a block of rows at a time, where its output layer allows it."""

from pathlib import Path
from typing import Any

import pytest
import torch

import penalties as pn
from penalties.functional import blocks
from penalties.training import forward_backward_custom
from penalties.training.local import LocalTrainingClient
from penalties.training.local.model import LocalModel
from tests.training.local.cases import WAIT, assert_close, clear, data, gradients, logprobs, plain_gradients, tiny


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows at a time."""
    monkeypatch.setattr(blocks, "_FEWEST", 2)
    monkeypatch.setattr("penalties.backends.torch.block", lambda _: 1)


def own(logits: Any) -> Any:
    return sum(one.square().mean() for one in logits)


TERMS = [
    pn.Term(pn.entropy, weight=0.3, inputs="logits", options={"logits": True, "mode": "bonus"}),
    pn.Term(own, weight=0.1),
]


def trained(work: str, **options: Any) -> tuple[Any, dict[str, Any]]:
    """What some work returns, and the gradient that it leaves."""
    batch = data(9, 4, 5)
    with tiny(**options) as client:
        if work == "custom":
            done = forward_backward_custom(client, batch, "cross_entropy", regularizers=TERMS).result(WAIT)
            return torch.tensor([done.metrics["total"], done.metrics["entropy"], done.metrics["own"]]), gradients(
                client
            )
        done = client.forward_backward(batch, work).result(WAIT)
        return logprobs(done), gradients(client)


@pytest.mark.parametrize("options", [{}, {"adapter": "none"}, {"adapter": "none", "micro_batch_tokens": 9}])
@pytest.mark.parametrize("work", ["cross_entropy", "custom"])
def test_gradients_are_those_of_the_whole_logits(
    monkeypatch: pytest.MonkeyPatch, work: str, options: dict[str, Any]
) -> None:
    found, slopes = trained(work, **options)
    monkeypatch.setattr(LocalModel, "lazy", False)
    right, expected = trained(work, **options)
    assert ("lm_head.weight" in slopes) is bool(options)
    assert_close(found, right)
    assert_close(slopes, expected)


def test_the_output_layer_is_never_run_on_all_rows() -> None:
    rows: list[int] = []
    with tiny() as client:
        assert client._model.lazy
        client._model.head.register_forward_hook(lambda module, args, output: rows.append(output.shape[1]))
        client.forward_backward(data(9, 4), "cross_entropy").result(WAIT)
        forward_backward_custom(client, data(9, 4), "cross_entropy", regularizers=TERMS[:1]).result(WAIT)
        client.forward(data(9, 4)).result(WAIT)
    assert set(rows) == {0}


def test_norms_need_the_whole_logits() -> None:
    with tiny() as client:
        out = forward_backward_custom(
            client, data(9, 4), "cross_entropy", regularizers=TERMS[:1], track_grad_norms=True
        ).result(WAIT)
    assert out.custom_loss["entropy"].grad_norm is not None


def test_a_model_that_changes_its_logits_otherwise_is_left_alone() -> None:
    with tiny() as client:
        client._model.head.register_forward_hook(lambda module, args, output: 2 * output)
        assert not client._model.lazy
        assert_close(logprobs(client.forward(data(5)).result(WAIT))[0].shape, (5,))


def test_a_cap_on_the_logits() -> None:
    with tiny() as client:
        client._model.head.register_forward_hook(lambda module, args, output: 3 * torch.tanh(output / 3))
        client._model.base.config.final_logit_softcapping = 3.0
        assert client._model.lazy
        found = logprobs(client.forward(data(5)).result(WAIT))
    with tiny() as plain:
        plain._model.head.register_forward_hook(lambda module, args, output: 3 * torch.tanh(output / 3))
        assert not plain._model.lazy
        assert_close(found, logprobs(plain.forward(data(5)).result(WAIT)))


def test_a_trained_output_layer_gets_its_gradient_with_that_of_the_logits() -> None:
    with tiny(adapter="none") as client:
        graph = client.forward_with_graph(data(5), ["logits"], lazy=True).result(WAIT)
        (logits,) = graph.inputs["logits"]
        with pytest.raises(pn.InputError, match="at their hidden states alone, but their output layer is trained too"):
            graph.backward({"logits": [torch.zeros_like(logits.hidden)]})
        out = pn.Pipeline([TERMS[0]]).value_and_grad(logits=logits, wrt="logits")
        graph.backward({"logits": [out.gradient["logits"]]})
        found = gradients(client)
        clear(client)
        expected = pn.Pipeline([TERMS[0]]).total(
            logits=client.model(input_ids=torch.tensor([data(5)[0].model_input.to_ints()])).logits[0]
        )
        # Products of other shapes: each machine rounds them in its own way.
        assert_close(found, plain_gradients(client, expected), 1e-5)


@pytest.mark.parametrize(
    ("family", "scale", "dtype", "found"),
    [
        ("Cohere", {"logit_scale": 0.0625}, "float32", False),
        ("Cohere", {"logit_scale": 1.0}, "bfloat16", True),
        ("Granite", {"logits_scaling": 8.0}, "float32", False),
        ("Granite", {"logits_scaling": 1.015}, "bfloat16", False),
    ],
)
def test_a_model_that_scales_its_logits(
    tmp_path: Path, family: str, scale: dict[str, float], dtype: str, found: bool
) -> None:
    """Its token 0 is padding, whose embedding is 0: logits of 0 would show no factor."""
    transformers: Any = pytest.importorskip("transformers")
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    config = getattr(transformers, f"{family}Config")(
        **sizes, num_attention_heads=2, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2, **scale
    )
    torch.manual_seed(0)
    getattr(transformers, f"{family}ForCausalLM")(config).save_pretrained(tmp_path)
    with LocalTrainingClient(tmp_path, rank=2, dtype=dtype, device="cpu") as client:
        assert client._model.lazy is found


@pytest.mark.parametrize("work", ["cross_entropy", "custom"])
def test_a_block_is_computed_once(monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    computed: list[int] = []
    materialize = pn.Logits.materialize

    def counted(self: pn.Logits) -> Any:
        computed.append(len(self.hidden))
        return materialize(self)

    monkeypatch.setattr(pn.Logits, "materialize", counted)
    with tiny() as client:
        assert client._model.lazy
        computed.clear()
        if work == "custom":
            forward_backward_custom(client, data(9, 4, 5), "cross_entropy").result(WAIT)
        else:
            client.forward_backward(data(9, 4, 5), work).result(WAIT)
    assert sum(computed) == 9 + 4 + 5
