"""Exports: folders that other programs load to the same model, written as a whole or not at all."""

import errno
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from penalties.app.runs import Run, RunError
from penalties.app.runs.checkpoints import Checkpoint
from penalties.app.train import train
from penalties.app.trained import Trained, find
from penalties.app.trained.export import export
from penalties.app.trained.sampling import asked, continued
from penalties.training import Datum, ModelInput

from ..data.tokenizers import folder_with_code, model_folder
from .runs import small

PROMPT = "stone "


def logprobs(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        found = model.eval()(input_ids=torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
    return found.gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0]


def trained_logprobs(trained: Trained, tokens: list[int]) -> torch.Tensor:
    datum = Datum(ModelInput.from_ints(tokens[:-1]), {"target_tokens": tokens[1:]})
    with trained.opened() as backend:
        return backend.client.forward([datum]).result().loss_fn_outputs[0]["logprobs"].to_torch()


@pytest.fixture(scope="module")
def adapter(adapted: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapter") / "new" / "folder"
    export(find(adapted.folder), folder)
    return folder


@pytest.fixture(scope="module")
def merged(built_in: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("merged")
    export(find(built_in.folder, "last"), folder, merged=True)
    return folder


class TestAdapter:
    def test_peft_loads_the_trained_model(self, adapted: Run, adapter: Path, base: Path) -> None:
        tokens = AutoTokenizer.from_pretrained(adapter).encode("stone enots")
        plain = AutoModelForCausalLM.from_pretrained(base)
        before = logprobs(plain, tokens)
        after = logprobs(PeftModel.from_pretrained(plain, adapter), tokens)
        wanted = trained_logprobs(find(adapted.folder), tokens)
        torch.testing.assert_close(after, wanted, rtol=1e-5, atol=1e-5)
        assert (after - before).abs().max() > 1e-2

    def test_transformers_finds_the_model_that_it_adapts(self, adapted: Run, adapter: Path, base: Path) -> None:
        tokens = AutoTokenizer.from_pretrained(adapter).encode("stone enots")
        found = logprobs(AutoModelForCausalLM.from_pretrained(adapter), tokens)
        torch.testing.assert_close(found, trained_logprobs(find(adapted.folder), tokens), rtol=1e-5, atol=1e-5)
        assert json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"] == str(base)

    def test_it_has_what_a_server_of_adapters_reads(self, adapter: Path) -> None:
        """What vLLM requires of a folder: plain LoRA on named layers, and tensors named after these."""
        config = json.loads((adapter / "adapter_config.json").read_text())
        assert config["peft_type"] == "LORA"
        assert config["task_type"] == "CAUSAL_LM"
        assert config["r"] == 2
        assert config["lora_alpha"] == 32
        assert config["bias"] == "none"
        assert not config["use_dora"]
        assert not config["modules_to_save"]
        tensors = load_file(adapter / "adapter_model.safetensors")
        layers = {name: re.fullmatch(r"base_model\.model\.(.+)\.lora_[AB]\.weight", name) for name in tensors}
        assert {found[1] for found in layers.values() if found} == set(config["target_modules"])
        assert all(layers.values())

    def test_it_has_the_tokenizer_and_the_generation_config(self, adapter: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(adapter)
        assert tokenizer.encode("né") == [110, 195, 169]
        assert tokenizer.chat_template is not None
        assert GenerationConfig.from_pretrained(adapter).eos_token_id == 256
        # Older versions of transformers have the template in the tokenizer's config.
        assert {path.name for path in adapter.iterdir()} - {"chat_template.jinja"} == {
            "adapter_config.json",
            "adapter_model.safetensors",
            "generation_config.json",
            "tokenizer.json",
            "tokenizer_config.json",
        }

    def test_a_model_without_a_generation_config_gets_that_of_its_config(
        self, adapted: Run, base: Path, tmp_path: Path
    ) -> None:
        path = base / "generation_config.json"
        kept = path.read_bytes()
        path.unlink()
        try:
            export(find(adapted.folder), tmp_path / "to")
        finally:
            path.write_bytes(kept)
        assert GenerationConfig.from_pretrained(tmp_path / "to").eos_token_id == 256

    def test_code_that_came_to_the_model_meanwhile_is_not_run(
        self, adapted: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("builtins.input", lambda *_: "y")
        model = folder_with_code(tmp_path / "model", "config", "tokenizer")
        trained = find(adapted.folder)
        named = trained.config.model.model_copy(update={"name": str(model)})
        changed = Trained(trained.run, trained.config.model_copy(update={"model": named}), trained.checkpoint)
        with pytest.raises(RunError, match='model" comes with its own code, which is never run'):
            export(changed, tmp_path / "to")
        assert not (model / "ran").exists()
        assert not (tmp_path / "to").exists()

    def test_the_built_in_model_is_exported_as_a_whole_only(self, built_in: Run, tmp_path: Path) -> None:
        with pytest.raises(RunError, match='the built-in model, "tiny", .* with --merged') as raised:
            export(find(built_in.folder), tmp_path / "to")
        assert raised.value.status == 2
        assert list(tmp_path.iterdir()) == []


class TestMerged:
    def test_transformers_loads_the_trained_model_alone(self, built_in: Run, merged: Path) -> None:
        model = AutoModelForCausalLM.from_pretrained(merged)
        tokens = AutoTokenizer.from_pretrained(merged).encode("stone enots")
        assert not hasattr(model, "peft_config")
        wanted = trained_logprobs(find(built_in.folder, "last"), tokens)
        torch.testing.assert_close(logprobs(model, tokens), wanted, rtol=1e-5, atol=1e-5)

    def test_it_generates_what_a_sample_of_the_run_is(self, built_in: Run, merged: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(merged)
        model = AutoModelForCausalLM.from_pretrained(merged)
        given = tokenizer(PROMPT, return_tensors="pt")
        made = model.generate(**given, max_new_tokens=8, do_sample=False)[0, given["input_ids"].shape[1] :]
        with find(built_in.folder, "last").opened() as backend:
            ((text,),) = continued(backend, [PROMPT], max_tokens=8)
        assert tokenizer.decode(made, skip_special_tokens=True) == text

    def test_a_checkpoint_can_be_chosen(self, built_in: Run, merged: Path, tmp_path: Path) -> None:
        export(find(built_in.folder, 1), tmp_path / "first", merged=True)
        one, other = (load_file(folder / "model.safetensors") for folder in (merged, tmp_path / "first"))
        assert one.keys() == other.keys()
        assert any(not torch.equal(one[name], other[name]) for name in one)

    def test_weights_that_are_not_numbers_are_an_error(self, built_in: Run, tmp_path: Path) -> None:
        trained = find(built_in.folder, "last")
        broken = shutil.copytree(trained.checkpoint.client, tmp_path / "client")
        path = broken / "adapter_model.safetensors"
        save_file({name: torch.full_like(one, torch.nan) for name, one in load_file(path).items()}, path)
        given = Checkpoint(**vars(trained.checkpoint) | {"client": str(broken)})
        with pytest.raises(RunError, match="the adapter cannot be merged: NaNs"):
            export(Trained(trained.run, trained.config, given), tmp_path / "to", merged=True)
        assert [path.name for path in tmp_path.iterdir()] == ["client"]


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on conversations; the generation config, the tokenizer and the chat template have different end tokens."""
    folder = tmp_path_factory.mktemp("talking")
    config = small(folder, str(model_folder(folder / "model", eos="</s>")), steps=1)
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    for name in ("data.jsonl", "held_out.jsonl"):
        (folder / name).write_text(json.dumps({"messages": talk}) + "\n")
    return train(config, folder / "run")


class TestConversations:
    ENDS = ("</s>", "<|im_end|>")

    def test_samples_end_with_each_of_them(self, talking: Run) -> None:
        trained = find(talking.folder)
        heard: list[Any] = []
        with trained.opened() as backend:
            learned = backend.tokenizer.convert_tokens_to_ids(list(self.ENDS))
            draw = backend.sample
            backend.sample = lambda *given: heard.extend(draw(*given)) or heard
            continued(backend, [asked("a", chat=trained.chat)], 40, temperature=1.0, max_tokens=300)
        ends = {2, *learned}
        assert {tokens[-1] for tokens in heard[0]} >= ends
        assert all(token not in ends for tokens in heard[0] for token in tokens[:-1])

    @pytest.mark.parametrize("merged", [False, True])
    def test_exports_end_with_each_of_them(self, talking: Run, tmp_path: Path, merged: bool) -> None:
        export(find(talking.folder), tmp_path, merged=merged)
        learned = AutoTokenizer.from_pretrained(tmp_path).convert_tokens_to_ids(list(self.ENDS))
        assert GenerationConfig.from_pretrained(tmp_path).eos_token_id == [2, *learned]


class TestFolder:
    def test_files_are_for_whoever_may_read_new_ones(self, adapted: Run, adapter: Path, tmp_path: Path) -> None:
        mine = tmp_path / "mine"
        mine.mkdir()
        for path in (adapter, *adapter.iterdir()):
            assert path.stat().st_mode & 0o666 == mine.stat().st_mode & 0o666, path.name
        saved = Path(find(adapted.folder).weights)
        assert saved.is_dir()
        for path in saved.iterdir():
            assert path.stat().st_mode & 0o666 == mine.stat().st_mode & 0o666, path.name

    def test_an_empty_folder_is_used(self, adapted: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        export(find(adapted.folder), tmp_path)
        assert (tmp_path / "adapter_config.json").is_file()

    def test_one_that_is_not_empty_is_an_error(self, adapted: Run, tmp_path: Path) -> None:
        (tmp_path / "mine").write_text("mine")
        with pytest.raises(RunError, match="is not empty; choose a new folder with --to") as raised:
            export(find(adapted.folder), tmp_path)
        assert raised.value.status == 2
        assert [path.name for path in tmp_path.iterdir()] == ["mine"]

    @pytest.mark.parametrize("kind", ["link", "dangling link", "file"])
    def test_nothing_is_written_through_a_link_or_over_a_file(self, adapted: Run, tmp_path: Path, kind: str) -> None:
        (tmp_path / "elsewhere").mkdir()
        target = tmp_path / "to"
        if kind == "file":
            target.write_text("mine")
        else:
            target.symlink_to(tmp_path / ("elsewhere" if kind == "link" else "nowhere"))
        with pytest.raises(RunError, match=f"it is a {'file' if kind == 'file' else 'symbolic link'}") as raised:
            export(find(adapted.folder), target)
        assert raised.value.status == 2
        assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "to"]
        assert list((tmp_path / "elsewhere").iterdir()) == []

    def test_a_failure_leaves_nothing(self, adapted: Run, tmp_path: Path) -> None:
        trained = find(adapted.folder)
        gone = trained.config.model.model_copy(update={"name": str(tmp_path / "gone")})
        broken = Trained(trained.run, trained.config.model_copy(update={"model": gone}), trained.checkpoint)
        with pytest.raises(Exception, match="gone"):
            export(broken, tmp_path / "to")
        assert list(tmp_path.iterdir()) == []

    def test_what_appears_there_meanwhile_stays(
        self, adapted: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        target = tmp_path / "to"
        save = GenerationConfig.save_pretrained

        def meanwhile(*given: Any) -> None:
            target.mkdir()
            (target / "mine").write_text("mine")
            save(*given)

        monkeypatch.setattr(GenerationConfig, "save_pretrained", meanwhile)
        with pytest.raises(RunError, match="could not be written: directory not empty"):
            export(find(adapted.folder), target)
        assert [path.name for path in tmp_path.rglob("*")] == ["to", "mine"]

    def test_a_folder_that_cannot_be_made_is_a_sentence(self, adapted: Run, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("mine")
        with pytest.raises(RunError, match="file/to could not be written: file exists"):
            export(find(adapted.folder), tmp_path / "file" / "to")

    def test_a_disk_that_is_read_only_is_one_that_names_the_option(
        self, adapted: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def read_only(*_: Any, **__: Any) -> None:
            raise OSError(errno.EROFS, "Read-only file system")

        monkeypatch.setattr(Path, "mkdir", read_only)
        with pytest.raises(RunError, match="read-only file system; make the folder writable, or choose .* with --to"):
            export(find(adapted.folder), tmp_path / "to")
