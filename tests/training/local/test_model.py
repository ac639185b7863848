import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from penalties.errors import InputError, MissingLibraryError, OptionError
from penalties.training.local import LocalTrainingClient
from penalties.training.local.tiny import ByteTokenizer
from penalties.training.types import AdamParams, ModelInput, SamplingParams
from tests.app.data.tokenizers import folder_with_code
from tests.training.local.cases import (
    WAIT,
    array,
    assert_close,
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

SMALL = {"vocab_size": 257, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
HEADS = {"intermediate_size": 48, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 64}


def saved(folder: Path, kind: str, **options: Any) -> Path:
    """A small random model of some architecture, in a folder."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(1)
    config = AutoConfig.for_model(kind, **{**SMALL, "initializer_range": 0.2, **options})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / kind)
    return folder / kind


ARCHITECTURES = {
    "llama": {**HEADS, "tie_word_embeddings": True},
    # Changes its logits after the last layer, and looks back no more than 4 tokens in every second layer.
    "gemma2": {**HEADS, "final_logit_softcapping": 3.0, "sliding_window": 4, "query_pre_attn_scalar": 16},
    # No linear layers, but transposed ones; learned positions.
    "gpt2": {"n_positions": 64, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    # No longest context.
    "bloom": {},
}


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_models_of_a_folder_are_padded_and_packed_rightly(tmp_path: Path, kind: str) -> None:
    folder = saved(tmp_path, kind, **ARCHITECTURES[kind])
    batch = data(9, 3, 6, weights=normal)
    with LocalTrainingClient(folder, rank=2, device="cpu") as client:
        stir(client)
        output = client.forward_backward(batch, "cross_entropy").result(WAIT)
        expected = [plain_logprobs(client, one) for one in batch]
        assert_close(logprobs(output), expected)
        loss = sum((-one * array(datum, "weights")).sum() for one, datum in zip(expected, batch, strict=True))
        # The softcap of Gemma and the sums of Bloom lose a digit.
        assert_close(gradients(client), plain_gradients(client, loss), 1e-5)
        graph = client.forward_with_graph(batch, reads=("hidden.1",)).result(WAIT)
        assert [tuple(one.shape) for one in graph.inputs["hidden.1"]] == [(9, 32), (3, 32), (6, 32)]
        (drawn,) = (
            client.sample(ModelInput.from_ints([1, 2]), 1, SamplingParams(max_tokens=4, seed=1)).result(WAIT).sequences
        )
        assert len(drawn.tokens) == 4


def test_a_model_without_a_maximum_context_needs_max_tokens(tmp_path: Path) -> None:
    import tinker

    with LocalTrainingClient(saved(tmp_path, "bloom"), device="cpu") as client:
        assert client.forward(data(300)).result(WAIT).metrics
        with pytest.raises(OptionError, match="max_tokens=None; expected a number"):
            client.sample(ModelInput.from_ints([1]), 1, tinker.SamplingParams())


def test_dtype_defaults_to_that_of_the_files(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = saved(tmp_path, "llama", **HEADS)
    half = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    half.save_pretrained(tmp_path / "half")
    for path, given, expected in (
        (folder, None, torch.float32),
        (tmp_path / "half", None, torch.bfloat16),
        (folder, "bfloat16", torch.bfloat16),
        (tmp_path / "half", torch.float32, torch.float32),
    ):
        with LocalTrainingClient(path, device="cpu", dtype=given) as client:
            assert client.model.get_base_model().lm_head.weight.dtype is expected
            assert {one.dtype for one in client.parameters().values()} == {torch.float32}


def test_adapters_can_be_on_chosen_layers_even_the_last(tmp_path: Path) -> None:
    with tiny(target_modules=("q_proj", "lm_head")) as client:
        assert {name.split(".")[-4] for name in client.parameters()} == {"q_proj", "lm_head"}
        batch = data(5, 2, weights=normal)
        client.forward_backward(batch, "cross_entropy").result(WAIT)
        loss = sum((-plain_logprobs(client, one) * array(one, "weights")).sum() for one in batch)
        assert_close(gradients(client), plain_gradients(client, loss))


def test_a_folder_has_its_tokenizer(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizers = pytest.importorskip("tokenizers")
    folder = saved(tmp_path, "llama", **HEADS)
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=model, unk_token="?").save_pretrained(folder)
    with LocalTrainingClient(str(folder), device="cpu") as client:
        assert client.tokenizer.encode("b a c") == [1, 0, 2]
        assert client.get_tokenizer() is client.tokenizer
        assert client.model_id == str(folder)


def test_a_folder_without_a_tokenizer_trains(tmp_path: Path) -> None:
    with LocalTrainingClient(saved(tmp_path, "llama", **HEADS), device="cpu") as client:
        client.forward_backward(data(4), "cross_entropy").result(WAIT)
        client.optim_step(AdamParams()).result(WAIT)


def test_a_missing_model_raises(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match='model="/no/such/folder"; expected "tiny", a folder with a causal language'):
        LocalTrainingClient("/no/such/folder")
    with pytest.raises(OptionError, match="expected .*tiny.*, a folder"):
        LocalTrainingClient(tmp_path)


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    folder = folder_with_code(tmp_path, "config", "tokenizer")
    with pytest.raises(OptionError, match="contains custom code"):
        LocalTrainingClient(folder)
    folder_with_code(folder, "tokenizer")
    with LocalTrainingClient(folder, device="cpu") as client, pytest.raises(ValueError, match="contains custom code"):
        _ = client.tokenizer
    assert not (folder / "ran").exists()


def test_a_model_without_an_output_layer_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import LlamaForCausalLM

    folder = saved(tmp_path, "llama", **HEADS)
    monkeypatch.setattr(LlamaForCausalLM, "get_output_embeddings", lambda self: None)
    with pytest.raises(OptionError, match="a causal language model, with an output layer"):
        LocalTrainingClient(folder)


@pytest.mark.parametrize("package", ["torch", "transformers", "peft"])
def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        MissingLibraryError, match=f'LocalTrainingClient needs {package}: pip install "penalties.train."'
    ):
        LocalTrainingClient("tiny")


def test_the_adapter_changes_nothing_at_first() -> None:
    batch = data(6, 2)
    with LocalTrainingClient("tiny", device="cpu") as client:
        assert_close(logprobs(client.forward(batch).result(WAIT)), logprobs(client.forward_initial(batch).result(WAIT)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_a_gpu_computes_the_same_as_a_cpu(tmp_path: Path, dtype: str | None) -> None:  # pragma: no cover
    batch = data(9, 3, 6, weights=normal)
    tolerance = 1e-4 if dtype is None else 0.05
    with tiny() as cpu, LocalTrainingClient("tiny", dtype=dtype, checkpoints=tmp_path) as gpu:
        stir(gpu)
        assert gpu.device.type == "cuda"
        expected = logprobs(cpu.forward_backward(batch, "cross_entropy").result(WAIT))
        assert_close(logprobs(gpu.forward_backward(batch, "cross_entropy").result(WAIT)), expected, tolerance)
        found = {name: one.cpu() for name, one in gradients(gpu).items()}
        assert_close(found, gradients(cpu), tolerance)
        gpu.optim_step(AdamParams(1e-3)).result(WAIT)
        graph = gpu.forward_with_graph(batch, reads=("logits", "hidden.1")).result(WAIT)
        graph.backward({"logprobs": [torch.ones(len(one)) for one in graph.logprobs]})
        path = gpu.save_state("one").result(WAIT).path
        outcomes = []
        for _ in range(2):
            gpu.load_state_with_optimizer(path).result(WAIT)
            gpu.optim_step(AdamParams(1e-3)).result(WAIT)
            for _ in range(3):
                gpu.forward_backward(batch, "cross_entropy").result(WAIT)
                gpu.optim_step(AdamParams(1e-3)).result(WAIT)
            outcomes.append(weights(gpu))
        assert_close(outcomes[1], outcomes[0], 1e-5)
        assert gpu.forward_initial(batch).result(WAIT).loss_fn_outputs
        params = SamplingParams(max_tokens=5, seed=1)
        assert len(gpu.sample(ModelInput.from_ints([1, 2]), 3, params).result(WAIT).sequences[0].tokens) == 5


# The tokenizer of bytes.


def test_bytes_survive_encoding_and_decoding() -> None:
    tokenizer = ByteTokenizer()
    text = "a ñ € 😀\n\0"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("hé") == [104, 195, 169]
    assert len(tokenizer) == tokenizer.vocab_size == 257
    assert tokenizer("ab") == {"input_ids": [97, 98], "attention_mask": [1, 1]}
    assert tokenizer.batch_decode([[97], [98, 256]]) == ["a", "b<end>"]
    assert tokenizer.decode([98, 256], skip_special_tokens=True) == "b"
    assert tokenizer.decode([195]) == "�"
    assert tokenizer.decode(torch.tensor([97])) == "a"


@pytest.mark.parametrize("token", [257, -1])
def test_a_token_outside_the_vocabulary_raises(token: int) -> None:
    with pytest.raises(InputError, match=f"got token {token}; expected 0 to 256"):
        ByteTokenizer().decode([token])


def test_the_tokenizer_of_the_built_in_model_is_saved_for_transformers(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from penalties.training.local.tiny import CONTEXT, ByteTokenizer

    own = ByteTokenizer()
    own.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == own.get_vocab()
    assert (loaded.eos_token_id, loaded.pad_token_id) == (own.eos_token_id, own.pad_token_id)
    assert loaded.model_max_length == CONTEXT
    # Every byte that UTF-8 has, and what other tokenizers add, drop or merge.
    for text in ("".join(map(chr, range(0x500))), " leading,  double \n\t", "don't </s> 汉字 \U0001f600\u00ad", ""):
        assert loaded.encode(text) == own.encode(text)
        assert loaded.decode(own.encode(text)) == text
    assert [loaded.decode([110, 256], skip_special_tokens=skip) for skip in (False, True)] == ["n<end>", "n"]
    for tokens in ([110, 195, 65], [240, 159, 65, 200], [255, 110]):
        assert loaded.decode(tokens) == own.decode(tokens)
    talk = [{"role": "user", "content": " hi\n"}, {"role": "assistant", "content": "yes"}]
    for answered in (False, True):
        options = {"tokenize": False, "add_generation_prompt": answered}
        assert loaded.apply_chat_template(talk, **options) == own.apply_chat_template(talk, **options)


def test_passes_switch_all_modules_to_training_and_back_by_their_own_ways() -> None:
    seen: list[bool] = []

    class Marked(torch.nn.Identity):
        def train(self, mode: bool = True) -> "Marked":
            seen.append(mode)
            return super().train(mode)

    with tiny(checkpointing=True) as client:
        first = client.model.get_base_model().model.layers[0]
        first.add_module("marked", Marked().eval())
        client.forward_backward(data(5), "cross_entropy").result(WAIT)
        assert seen[-2:] == [True, False]
        assert not any(module.training for module in client.model.modules())
        client.model.train()
        client.forward(data(5)).result(WAIT)
        assert all(module.training for module in client.model.modules())
