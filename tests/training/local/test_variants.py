"""Kinds of adapters, attention and compilation: other ways to the same numbers, or other models on request."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import penalties as pn
from penalties.errors import InputError, MissingLibraryError, OptionError
from penalties.training import forward_backward_custom
from penalties.training.local import LocalTrainingClient
from penalties.training.types import AdamParams, ModelInput, SamplingParams
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
from tests.training.local.test_model import HEADS, saved

# Adapters.


def test_rank_stabilised_lora_is_scaled_by_the_root_of_the_rank() -> None:
    batch = data(6)
    with tiny(rank=4, alpha=2, rslora=True) as client, tiny(rank=4, alpha=1) as plain:
        # alpha / √rank = 2 / 2, and alpha / rank = 1 / 4.
        assert_close(weights(client), weights(plain))
        for one in plain.parameters().values():
            one.data.mul_(2.0)
        assert_close(logprobs(client.forward(batch).result(WAIT)), logprobs(plain.forward(batch).result(WAIT)), 1e-5)
        assert math.sqrt(client.model.peft_config["default"].r) == 2.0


def test_saved_modules_are_trained_beside_the_adapter(tmp_path: Path) -> None:
    from peft import PeftModel

    batch = data(9, 3, weights=normal)
    with tiny(modules_to_save=["lm_head"], checkpoints=tmp_path) as client:
        (head,) = [name for name in client.parameters() if "lm_head" in name]
        before = logprobs(client.forward_initial(batch).result(WAIT))
        client.forward_backward(batch, "cross_entropy").result(WAIT)
        loss = sum((-plain_logprobs(client, one) * array(one, "weights")).sum() for one in batch)
        assert_close(gradients(client), plain_gradients(client, loss), 1e-5)
        assert gradients(client)[head].abs().max() > 0
        clear(client)
        train(client, 0, 1)
        path = client.save_state("two").result(WAIT).path
        found = logprobs(client.forward(batch).result(WAIT))
        # The model before training has its own head.
        assert_close(logprobs(client.forward_initial(batch).result(WAIT)), before)
        expected = train(client, 2)
    with tiny(modules_to_save=["lm_head"]) as client, tiny() as other:
        client.load_state_with_optimizer(path).result(WAIT)
        assert train(client, 2) == expected
        with pytest.raises(InputError, match=r"differ in .*modules_to_save"):
            other.load_state(path).result(WAIT)
        loaded: Any = PeftModel.from_pretrained(other.model.unload(), path).eval()
        tokens = torch.tensor([batch[0].model_input.to_ints()])
        logits = loaded(input_ids=tokens).logits[0].log_softmax(-1)
        assert_close(logits.gather(-1, array(batch[0], "target_tokens")[:, None])[:, 0], found[0])


def test_a_checkpoint_of_another_kind_of_adapter_raises(tmp_path: Path) -> None:
    with tiny(rslora=True, checkpoints=tmp_path) as client, tiny() as other:
        path = client.save_state("one").result(WAIT).path
        with pytest.raises(InputError, match=r"differ in rslora \(True, not None\)"):
            other.load_state(path).result(WAIT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modules_to_save": ["lm_hed"]}, 'modules_to_save="lm_hed"; expected names of modules .* mean lm_head'),
        ({"modules_to_save": "lm_head"}, 'modules_to_save="lm_head"; expected a list of names'),
        ({"modules_to_save": [1]}, "expected a list of names"),
        ({"rslora": 1}, "rslora=1; expected True or False"),
        ({"checkpointing": "yes"}, 'checkpointing="yes"; expected True or False'),
        ({"compile": 1}, "compile=1; expected True, False or the name of a backend"),
        ({"compile": "no_such"}, 'compile="no_such"; expected True, False or .*"inductor"'),
        ({"attention": 1}, 'attention=1; expected None, "sdpa"'),
        ({"attention": "no_such"}, 'attention="no_such"; expected one that this model and machine have'),
        ({"quantize": "2bit"}, 'quantize="2bit"; expected None, "4bit" or "8bit"'),
        ({"quantize": "4bit"}, 'quantize="4bit"; expected None: the built-in model has no files'),
        ({"optimizer": "sgd"}, 'optimizer="sgd"; expected "adamw" or "adamw8bit"'),
    ],
)
def test_a_wrong_option_raises(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        LocalTrainingClient("tiny", device="cpu", **options)


# Attention and compilation.


def test_kinds_of_attention_compute_the_same() -> None:
    batch, found = data(9, 3, 6, weights=normal), list[Any]()
    for attention in (None, "sdpa", "eager"):
        with tiny(attention=attention) as client:
            assert client.model.config._attn_implementation == (attention or "sdpa")
            client.forward_backward(batch, "cross_entropy").result(WAIT)
            found.append(gradients(client))
    for one in found[1:]:
        assert_close(one, found[0], 1e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="flash-attn may be there")
def test_attention_that_is_not_installed_raises() -> None:
    with pytest.raises(OptionError, match='attention="flash_attention_2"; expected one that this model and machine'):
        LocalTrainingClient("tiny", device="cpu", attention="flash_attention_2")


# Dynamo looks at the gradients of tensors that have none.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"checkpointing": True}, marks=pytest.mark.slow),
        {"adapter": "none"},
    ],
)
def test_a_compiled_model_computes_the_same(options: dict[str, Any]) -> None:
    batch, found = data(9, 3, 6, weights=normal), list[Any]()
    for compiled in (False, "aot_eager"):
        with tiny(compile=compiled, **options) as client:
            output = client.forward_backward(batch, "cross_entropy").result(WAIT)
            of_named = gradients(client)
            clear(client)
            graph = client.forward_with_graph(batch, reads=("hidden.1",)).result(WAIT)
            graph.backward({"hidden.1": [one.detach() for one in graph.inputs["hidden.1"]]})
            params = SamplingParams(max_tokens=4, temperature=0.0)
            drawn = client.sample(ModelInput.from_ints([1, 2]), 2, params).result(WAIT).sequences
            found.append((logprobs(output), of_named, gradients(client), [one.tokens for one in drawn]))
    for at in (0, 1, 2):
        assert_close(found[1][at], found[0][at], 1e-5)
    assert found[1][3] == found[0][3]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("options", [{}, pytest.param({"lora_dropout": 0.4}, marks=pytest.mark.slow)])
def test_gradients_of_terms_are_measured_after_steps_that_measured_none(options: dict[str, Any]) -> None:
    # The backward that a step without measurements compiles may write over what it reads.
    batch, found = data(9, 3, 6, weights=normal), list[Any]()
    terms = [pn.Term(pn.entropy, inputs={"p": "logits"}, options={"logits": True}), pn.Term(pn.l2)]
    for compiled in (False, "aot_eager"):
        with tiny(compile=compiled, **options) as client:
            for measured in (False, "parameters"):
                clear(client)
                passed = forward_backward_custom(
                    client, batch, "cross_entropy", regularizers=terms, track_grad_norms=measured
                )
                output = passed.result(WAIT).custom_loss
                found.append(([] if not measured else [one.grad_norm for one in output.all], gradients(client)))
    plain, compiled = found[:2], found[2:]
    for at in (0, 1):
        assert_close(compiled[at][0], plain[at][0], 1e-4)
        assert_close(compiled[at][1], plain[at][1], 1e-5)


# Quantized weights, and moments.


@pytest.mark.parametrize(
    "options", [{"quantize": "4bit"}, {"quantize": "8bit"}, {"optimizer": "adamw8bit"}], ids=lambda one: str(one)
)
def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    ((name, value),) = options.items()
    message = f'{name}="{value}" needs bitsandbytes: pip install "penalties.quantize."'
    with pytest.raises(MissingLibraryError, match=message):
        LocalTrainingClient(saved(tmp_path, "llama", **HEADS), device="cpu", **options)


@pytest.fixture
def bitsandbytes() -> Any:
    return pytest.importorskip("bitsandbytes")


@pytest.mark.usefixtures("bitsandbytes")
@pytest.mark.filterwarnings("ignore:MatMul8bitLt")
@pytest.mark.parametrize(("bits", "tolerance"), [("4bit", 0.5), ("8bit", 0.05)])
class TestQuantized:
    def test_frozen_weights_are_rounded_and_the_adapter_is_trained(
        self, tmp_path: Path, bits: Any, tolerance: float
    ) -> None:
        folder, batch = saved(tmp_path, "llama", **HEADS), data(9, 3, weights=normal)
        with LocalTrainingClient(folder, device="cpu", quantize=bits, checkpointing=True) as client:
            stir(client)
            dtypes = {one.dtype for name, one in client.model.named_parameters() if "q_proj.base_layer" in name}
            assert dtypes == {torch.uint8 if bits == "4bit" else torch.int8}
            assert {one.dtype for one in client.parameters().values()} == {torch.float32}
            with LocalTrainingClient(folder, device="cpu") as plain:
                stir(plain)
                expected = logprobs(plain.forward(batch).result(WAIT))
            # After a pass in eval mode, whoever set it, gradients still pass through.
            client.model.eval()
            client.forward(batch).result(WAIT)
            output = client.forward_backward(batch, "cross_entropy").result(WAIT)
            assert_close(logprobs(output), expected, tolerance)
            loss = sum((-plain_logprobs(client, one) * array(one, "weights")).sum() for one in batch)
            # With 8 bits, what is not rounded depends on the largest numbers of a batch.
            assert_close(gradients(client), plain_gradients(client, loss), 1e-5 if bits == "4bit" else 0.1)
            clear(client)
            before = float(client.forward(batch).result(WAIT).metrics["loss:sum"])
            train(client, 0)
            for _ in range(5):
                client.forward_backward(batch, "cross_entropy").result(WAIT)
                client.optim_step(AdamParams(1e-2)).result(WAIT)
            assert client.forward(batch).result(WAIT).metrics["loss:sum"] < before

    def test_resuming_is_the_same_to_the_bit(
        self, tmp_path: Path, bits: Any, tolerance: float, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder = saved(tmp_path, "llama", **HEADS)
        with LocalTrainingClient(folder, device="cpu", quantize=bits, checkpoints=tmp_path) as client:
            train(client, 0)
            assert not [one for one in caplog.records if one.name.startswith("bitsandbytes")], "a remark in each pass"
            path = client.save_state("one").result(WAIT).path
            expected, final = train(client, 1), weights(client)
        with LocalTrainingClient(folder, device="cpu", quantize=bits) as client:
            client.load_state_with_optimizer(path).result(WAIT)
            assert train(client, 1) == expected
            assert_same(weights(client), final)
        with LocalTrainingClient(folder, device="cpu") as plain, pytest.raises(InputError, match="quantize"):
            plain.load_state(path).result(WAIT)


@pytest.mark.usefixtures("bitsandbytes")
class TestEightBitOptimizer:
    def test_moments_of_large_weights_are_rounded_and_the_step_is_nearly_adamws(self) -> None:
        batch, found = data(9, 3, weights=normal), list[Any]()
        for optimizer in ("adamw", "adamw8bit"):
            with LocalTrainingClient("tiny", adapter="none", device="cpu", optimizer=optimizer) as client:
                before = weights(client)
                for _ in range(3):
                    client.forward_backward(batch, "cross_entropy").result(WAIT)
                    client.optim_step(AdamParams(1e-3, weight_decay=0.1)).result(WAIT)
                found.append({name: one - before[name] for name, one in weights(client).items()})
        for name, moved in found[0].items():
            assert float((found[1][name] - moved).norm() / moved.norm()) < 0.1, name

    def test_resuming_is_the_same_to_the_bit(self, tmp_path: Path) -> None:
        options: dict[str, Any] = {"adapter": "none", "device": "cpu", "optimizer": "adamw8bit"}
        with LocalTrainingClient("tiny", checkpoints=tmp_path, **options) as client:
            train(client, 0, 1)
            path = client.save_state("two").result(WAIT).path
            expected, final = train(client, 2), weights(client)
        for steps in ((), (7,)):
            with LocalTrainingClient("tiny", **options) as client:
                train(client, *steps)
                client.load_state_with_optimizer(path).result(WAIT)
                assert train(client, 2) == expected
                assert_same(weights(client), final)

    def test_the_state_of_another_optimizer_raises_and_changes_nothing(self, tmp_path: Path) -> None:
        with tiny(checkpoints=tmp_path) as client, tiny(optimizer="adamw8bit", checkpoints=tmp_path) as other:
            for one, name in ((client, "adamw"), (other, "adamw8bit")):
                train(one, 0)
                one.save_state(name).result(WAIT)
            before = weights(other)
            train(client, 1)
            with pytest.raises(InputError, match='the state of another optimizer, not of "adamw8bit"'):
                other.load_state_with_optimizer("adamw").result(WAIT)
            assert_same(weights(other), before)
            with pytest.raises(InputError, match='the state of another optimizer, not of "adamw"'):
                client.load_state_with_optimizer("adamw8bit").result(WAIT)
            other.load_state("adamw").result(WAIT)
