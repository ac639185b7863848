"""Training the weights of a model themselves, without an adapter."""

from pathlib import Path
from typing import Any

import pytest
import torch

import penalties as pn
from penalties.errors import InputError, OptionError
from penalties.training import forward_backward_custom
from penalties.training.local import LocalTrainingClient
from penalties.training.references import initial
from penalties.training.types import AdamParams, ModelInput, SamplingParams
from tests.training.local.cases import (
    WAIT,
    array,
    assert_close,
    assert_same,
    data,
    gradients,
    logprobs,
    normal,
    plain_gradients,
    plain_logprobs,
    weights,
)
from tests.training.local.test_checkpoint import train
from tests.training.local.test_model import HEADS, saved


def full(model: Any = "tiny", **options: Any) -> LocalTrainingClient:
    return LocalTrainingClient(model, adapter="none", device="cpu", **options)


def test_every_weight_is_trained_with_its_exact_gradient() -> None:
    batch = data(9, 3, 6, weights=normal)
    with full() as client:
        assert set(client.parameters()) == {name for name, _ in client.model.named_parameters()}
        output = client.forward_backward(batch, "cross_entropy").result(WAIT)
        expected = [plain_logprobs(client, one) for one in batch]
        assert_close(logprobs(output), expected)
        loss = sum((-one * array(datum, "weights")).sum() for one, datum in zip(expected, batch, strict=True))
        assert_close(gradients(client), plain_gradients(client, loss), 1e-5)


def test_tied_weights_are_one_parameter(tmp_path: Path) -> None:
    folder = saved(tmp_path, "llama", **HEADS, tie_word_embeddings=True)
    batch = data(5, weights=normal)
    with full(folder, checkpoints=tmp_path) as client, full(folder) as other:
        assert "lm_head.weight" not in client.parameters()
        client.forward_backward(batch, "cross_entropy").result(WAIT)
        loss = (-plain_logprobs(client, batch[0]) * array(batch[0], "weights")).sum()
        assert_close(gradients(client), plain_gradients(client, loss), 1e-5)
        client.optim_step(AdamParams(1e-2)).result(WAIT)
        other.load_state(client.save_state("tied").result(WAIT).path).result(WAIT)
        assert_same(logprobs(other.forward(batch).result(WAIT)), logprobs(client.forward(batch).result(WAIT)))


def test_micro_batches_have_the_gradient_of_the_whole_batch() -> None:
    batch = data(6, 4, 5, weights=normal)
    terms = [pn.Term(pn.entropy, name="entropy", inputs={"p": "flat_logits"}, options={"logits": True}, weight=0.3)]
    found: list[Any] = []
    for limit in (None, 6):
        with full(micro_batch_tokens=limit) as client:
            forward_backward_custom(client, batch, "cross_entropy", regularizers=terms).result(WAIT)
            found.append(gradients(client))
    assert_close(found[1], found[0], 1e-5)


def test_resuming_is_the_same_to_the_bit(tmp_path: Path) -> None:
    with full(checkpoints=tmp_path) as client:
        train(client, 0, 1)
        path = client.save_state("two").result(WAIT).path
        expected = train(client, 2, 3)
        final = weights(client)
    for steps in ((), (7,)):
        with full() as client:
            train(client, *steps)
            client.load_state_with_optimizer(path).result(WAIT)
            assert train(client, 2, 3) == expected
            assert_same(weights(client), final)


def test_the_model_before_training_is_kept_on_request(tmp_path: Path) -> None:
    batch = data(6, 3)
    with full(keep_initial=True, checkpoints=tmp_path) as client:
        before = logprobs(client.forward(batch).result(WAIT))
        train(client, 0, 1)
        assert_close(logprobs(client.forward_initial(batch).result(WAIT)), before)
        assert float((torch.as_tensor(logprobs(client.forward(batch).result(WAIT))[0] - before[0])).abs().max()) > 1e-3
        path = client.save_state("two").result(WAIT).path
        graph = client.forward_with_graph(batch, initial=True).result(WAIT)
        assert_close([one.detach().numpy() for one in graph.logprobs], before)
    with full(keep_initial=True) as client:
        client.load_state_with_optimizer(path).result(WAIT)
        assert_close(logprobs(client.forward_initial(batch).result(WAIT)), before)


def test_exact_divergences_from_the_model_before_training() -> None:
    batch = data(6, 3)
    terms = [pn.Term(pn.kl_divergence, name="kl", inputs=("logits", "initial.logits"), options={"logits": True})]
    with full(keep_initial=True) as client:
        values: list[float] = []
        provider = initial()
        for _ in range(2):
            passed = forward_backward_custom(
                client, batch, "cross_entropy", regularizers=terms, references={"initial": provider}
            )
            values.append(float(passed.result(WAIT).metrics["kl"]))
            client.optim_step(AdamParams(1e-2)).result(WAIT)
        assert values[0] == pytest.approx(0.0, abs=1e-6)
        assert values[1] > 1e-3


def test_without_the_copy_the_model_before_training_is_gone() -> None:
    batch = data(6)
    with full() as client:
        message = "keep_initial=False; expected True: forward_initial needs the model before training"
        with pytest.raises(OptionError, match=message):
            client.forward_initial(batch)
        with pytest.raises(OptionError, match=r"keep_initial=False; expected True: forward_with_graph\(initial=True\)"):
            client.forward_with_graph(batch, initial=True)
        terms = [pn.Term(pn.kl_estimate, inputs=("logprobs", "initial"))]
        with pytest.raises(pn.PenaltiesError, match="forward_initial raised .*keep_initial=False; expected True"):
            forward_backward_custom(client, batch, None, regularizers=terms, references={"initial": initial()}).result(
                WAIT
            )


def test_weights_are_float32_unless_another_precision_is_given(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = saved(tmp_path, "llama", **HEADS)
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(tmp_path / "half")
    for dtype, expected in ((None, torch.float32), ("bfloat16", torch.bfloat16)):
        with full(tmp_path / "half", dtype=dtype) as client:
            assert {one.dtype for one in client.parameters().values()} == {expected}
            train(client, 0)


def test_samples_are_those_of_the_trained_model() -> None:
    with full() as client:
        (datum,) = batch = data(8)
        for _ in range(30):
            client.forward_backward(batch, "cross_entropy").result(WAIT)
            client.optim_step(AdamParams(1e-2)).result(WAIT)
        prompt, target = datum.model_input.to_ints()[:1], array(datum, "target_tokens")
        drawn = client.sample(ModelInput.from_ints(prompt), 1, SamplingParams(max_tokens=1, temperature=0.0))
        assert drawn.result(WAIT).sequences[0].tokens == [int(target[0])]


def test_checkpoints_of_an_adapter_and_of_weights_are_told_apart(tmp_path: Path) -> None:
    with full(checkpoints=tmp_path) as client, LocalTrainingClient("tiny", device="cpu", checkpoints=tmp_path) as lora:
        whole, adapter = client.save_state("whole").result(WAIT).path, lora.save_state("adapter").result(WAIT).path
        with pytest.raises(InputError, match=r"differ in .*adapter \(None, not none\)"):
            client.load_state(adapter).result(WAIT)
        with pytest.raises(InputError, match=r"differ in .*adapter \(none, not None\)"):
            lora.load_state(whole).result(WAIT)


def test_a_checkpoint_of_other_weights_raises(tmp_path: Path) -> None:
    with full(checkpoints=tmp_path) as client, full(seed=1) as other:
        train(client, 0)
        with pytest.raises(InputError, match="differ in weights;"):
            other.load_state(client.save_state("one").result(WAIT).path).result(WAIT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adapter": "full"}, 'adapter="full"; expected "lora" or "none"'),
        ({"adapter": "none", "rank": 4}, 'rank=4; expected nothing: adapter="none" trains the model itself'),
        ({"adapter": "none", "lora_dropout": 0.1}, "lora_dropout=0.1; expected nothing"),
        ({"adapter": "none", "quantize": "4bit"}, 'quantize="4bit"; expected nothing'),
        ({"keep_initial": True}, "keep_initial=True; expected False: with an adapter"),
        ({"adapter": "none", "keep_initial": 1}, "keep_initial=1; expected True or False"),
    ],
)
def test_options_that_do_not_go_together_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        LocalTrainingClient("tiny", **options)
