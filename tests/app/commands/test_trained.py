"""`penalties sample` and `penalties export`, from the command line."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from penalties.app.console import printable
from penalties.app.runs import Run as RunFolder
from penalties.app.train import train
from penalties.app.trained import find
from penalties.training import ModelInput, SamplingParams
from tests.servers.protocol_server import ProtocolServer

from ..train.test_clients import remote, server
from ..trained.runs import adapted, base, built_in, small
from .conftest import Run

__all__ = ["adapted", "base", "built_in", "server"]


def expected(folder: RunFolder, prompt: str, which: Any = None, **options: Any) -> str:
    """What the client itself samples."""
    with find(folder.folder, which).opened() as backend:
        wanted = SamplingParams(**{"temperature": 0.0, "seed": 0, "max_tokens": 64, **options})
        tokens = ModelInput.from_ints(list(prompt.encode()))
        (sequence,) = backend.client.sample(tokens, 1, wanted).result().sequences
        return backend.tokenizer.decode(sequence.tokens, skip_special_tokens=True)


class TestSample:
    def test_continues_a_prompt_and_prints_nothing_else(self, run: Run, built_in: RunFolder) -> None:
        text = expected(built_in, "stone ", max_tokens=5)
        shown = "\n".join(map(printable, text.split("\n")))
        assert run("sample", built_in.folder, "stone ", "--max-tokens", 5) == (0, f"{shown}\n", "")
        status, out, err = run("sample", built_in.folder, "stone ", "--max-tokens", 5, "--json")
        assert (status, err) == (0, "")
        step = find(built_in.folder).checkpoint.step
        assert json.loads(out) == {"kind": "sample", "step": step, "prompt": "stone ", "text": text}

    def test_options_are_those_of_sampling(self, run: Run, built_in: RunFolder) -> None:
        options = {"temperature": 0.9, "top_k": 20, "top_p": 0.8, "seed": 7, "max_tokens": 9}
        given = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
        status, out, _ = run(
            "sample", built_in.folder, "stone ", *given, "--json", "--checkpoint", 1, "--device", "cpu"
        )
        assert status == 0
        assert json.loads(out)["text"] == expected(built_in, "stone ", 1, **options)
        assert json.loads(out)["step"] == 1

    def test_several_samples_are_shown_after_their_prompts(self, run: Run, built_in: RunFolder) -> None:
        given = ["--count", 2, "--temperature", 1, "--max-tokens", 1]
        status, out, _ = run("sample", built_in.folder, "stone ", "fire ", *given)
        assert status == 0
        lines = out.splitlines()
        assert [line for line in lines if line in ("stone ", "fire ")] == ["stone ", "stone ", "fire ", "fire "]
        assert lines.count("") >= 3

    def test_a_model_of_conversations_answers_a_user(self, run: Run, tmp_path: Path) -> None:
        config = small(tmp_path, steps=1)
        talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
        for name in ("data", "held_out"):
            (tmp_path / f"{name}.jsonl").write_text(f"{json.dumps({'messages': talk})}\n")
        trained = train(config, tmp_path / "run")
        status, out, _ = run("sample", trained.folder, "stone", "--max-tokens", 5, "--json")
        assert status == 0
        text = expected(trained, "user: stone\nassistant: ", max_tokens=5)
        assert text != expected(trained, "stone", max_tokens=5)
        assert (json.loads(out)["prompt"], json.loads(out)["text"]) == ("stone", text)

    def test_neither_data_nor_terms_are_needed(self, run: Run, built_in: RunFolder, tmp_path: Path) -> None:
        folder = shutil.copytree(built_in.folder, tmp_path / "run")
        config = json.loads((folder / "config.json").read_text())
        config["data"] |= {"path": "/gone.jsonl", "eval_path": None}
        config["term"] = [{"fn": "gone_module:term", "name": "gone"}]
        (folder / "config.json").write_text(json.dumps(config))
        assert run("sample", folder, "stone ", "--max-tokens", 1)[0] == 0

    def test_a_damaged_checkpoint_is_reported(self, run: Run, built_in: RunFolder, tmp_path: Path) -> None:
        folder = shutil.copytree(built_in.folder, tmp_path / "run")
        (folder / "checkpoints" / "000003" / "checkpoint.json").write_text("{")
        status, out, err = run("sample", folder, "stone ", "--max-tokens", 1, "--checkpoint", "last", "--json")
        assert status == 0
        assert json.loads(out)["step"] == 2
        assert err.startswith("warning: a later checkpoint is damaged and was ignored: ")

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ([""], "the prompt is empty"),
            (["a" * 2049], "has 2049 tokens, but the model reads at most 2048; shorten it"),
            (["\udc80"], "is not UTF-8"),
            ([], "Missing argument 'PROMPT...'"),
            (["a", "--count", 2], "--count needs --temperature above 0"),
            (["a", "--checkpoint", "best!"], "expected best, last or a number of steps"),
            (["a", "--checkpoint", 9], "has no checkpoint after 9 steps; there are those after 1, 2 and 3"),
            (["a", "--max-tokens", 0], "--max-tokens"),
            (["a", "--top-p", 0], "--top-p"),
            (["a", "--device", "abacus"], "device"),
        ],
    )
    def test_mistakes(self, run: Run, built_in: RunFolder, arguments: list[Any], says: str) -> None:
        status, out, err = run("sample", built_in.folder, *arguments)
        assert status in (1, 2) if "--device" in arguments else status == 2
        assert out == ""
        assert says in err
        assert len(err.splitlines()) <= 2

    def test_a_folder_without_a_run_names_one_like_it(self, run: Run, built_in: RunFolder, tmp_path: Path) -> None:
        shutil.copytree(built_in.folder, tmp_path / "demo")
        assert run("sample", tmp_path / "demmo", "a") == (
            2,
            "",
            f"error: {tmp_path}/demmo holds no run; did you mean demo?\n",
        )
        (tmp_path / "demo" / "config.json").unlink()
        status, _, err = run("sample", tmp_path / "demo", "a")
        assert status == 2
        assert "but no config.json; restore that" in err

    def test_a_run_without_a_checkpoint_is_an_error(self, run: Run, built_in: RunFolder, tmp_path: Path) -> None:
        folder = shutil.copytree(built_in.folder, tmp_path / "run")
        shutil.rmtree(folder / "checkpoints")
        for command in (["sample", folder, "a"], ["export", folder, "--to", tmp_path / "to"]):
            status, _, err = run(*command)
            assert status == 2
            assert "has no checkpoint yet" in err

    def test_a_run_of_another_version_is_an_error(self, run: Run, built_in: RunFolder, tmp_path: Path) -> None:
        folder = shutil.copytree(built_in.folder, tmp_path / "run")
        (folder / "config.json").write_text('{"data": {"path": "x"}, "model": {}, "train": {"stepz": 1}}')
        status, _, err = run("sample", folder, "a")
        assert status == 2
        assert "its config is from another version of penalties: train.stepz" in err


class TestExport:
    def test_says_what_it_wrote(self, run: Run, adapted: RunFolder, built_in: RunFolder, tmp_path: Path) -> None:
        name = find(adapted.folder).config.model.name
        said = f"the adapter of {name}, after 3 steps: {tmp_path}/one\n"
        assert run("export", adapted.folder, "--to", tmp_path / "one") == (0, said, "")
        assert (tmp_path / "one" / "adapter_config.json").is_file()
        assert run("export", adapted.folder, "--to", tmp_path / "two", "--quiet") == (0, "", "")
        out = run("export", built_in.folder, "--to", tmp_path / "first", "--merged", "--checkpoint", 1)[1]
        assert out == f"the whole model, after 1 step: {tmp_path}/first\n"
        status, out, err = run("export", built_in.folder, "--to", tmp_path / "whole", "--merged", "--json")
        assert (status, err) == (0, "")
        step = find(built_in.folder).checkpoint.step
        assert json.loads(out) == {
            "kind": "export",
            "run": str(built_in.folder),
            "step": step,
            "merged": True,
            "folder": str(tmp_path / "whole"),
        }
        assert (tmp_path / "whole" / "config.json").is_file()

    def test_no_bar_is_shown(self, run: Run, adapted: RunFolder, tmp_path: Path) -> None:
        said = f"the whole model, after 3 steps: {tmp_path}/whole\n"
        assert run("export", adapted.folder, "--to", tmp_path / "whole", "--merged") == (0, said, "")

    def test_an_adapter_that_vllm_does_not_load_is_noted(self, run: Run, base: Path, tmp_path: Path) -> None:
        config = small(tmp_path, str(base), 'rank = 2\nmodules_to_save = ["lm_head"]', steps=1)
        folder = train(config, tmp_path / "run").folder
        _, out, _ = run("export", folder, "--to", tmp_path / "adapter")
        assert "vLLM loads no adapter with model.modules_to_save; for vLLM, export the model with --merged" in out
        assert "vLLM" not in run("export", folder, "--to", tmp_path / "merged", "--merged")[1]

    def test_a_folder_is_required(self, run: Run, adapted: RunFolder) -> None:
        status, _, err = run("export", adapted.folder)
        assert status == 2
        assert "Missing option '--to'" in err


class TestOnAServer:
    def test_the_server_samples_and_keeps_the_weights(self, run: Run, server: ProtocolServer, tmp_path: Path) -> None:
        config = small(tmp_path)
        here = train(config, tmp_path / "here")
        there = train(remote(config, server.url), tmp_path / "there")
        status, out, err = run("sample", there.folder, "stone ", "--max-tokens", 8, "--json")
        assert (status, err) == (0, "")
        assert json.loads(out)["text"] == expected(here, "stone ", max_tokens=8)

        trained = find(there.folder)
        assert trained.weights.startswith("tinker://")
        status, out, err = run("export", there.folder, "--to", tmp_path / "to")
        assert (status, out) == (2, "")
        assert f"its weights are on a server, as {trained.weights}" in err
        assert f"`tinker checkpoint download {trained.weights}`" in err
        assert not (tmp_path / "to").exists()
        assert "leave --device out" in run("sample", there.folder, "a", "--device", "cpu")[2]

        server.fail("save_weights_for_sampler", 400)
        status, _, err = run("sample", there.folder, "stone ")
        assert status == 1
        assert f"could not sample on {server.url}" in err
