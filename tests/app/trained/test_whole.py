"""Runs of other kinds than a plain adapter: trained, resumed and exported."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from penalties.app.config.tables import ClientTable
from penalties.app.runs import Run
from penalties.app.runs.disk import RunError
from penalties.app.train import Interrupted, train
from penalties.app.train.clients import connect
from penalties.app.trained import export as exporting
from penalties.app.trained import find
from penalties.app.trained.export import export
from penalties.app.trained.sampling import asked, continued
from penalties.errors import OptionError

from ..stand_ins import comparable, killing, toy_config
from .runs import small
from .test_export import logprobs, trained_logprobs

pytestmark = pytest.mark.timeout(120)

KL = """
[[term]]
fn = "kl_divergence"
name = "kl"
weight = 0.5
inputs = ["logits", "initial.logits"]
options = { logits = true }
"""

KINDS = {
    "whole": 'adapter = "none"',
    "dropout": "rank = 2\nlora_dropout = 0.3",
    "checkpointing": "rank = 2\nlora_dropout = 0.3\ncheckpointing = true",
    "stabilised": "rank = 2\nrslora = true",
    "saved": 'rank = 2\nmodules_to_save = ["lm_head"]',
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_goes_on_to_the_bit(tmp_path: Path, kind: str) -> None:
    config = toy_config(tmp_path, KL, f"[model]\n{KINDS[kind]}\n", learning_rate=0.01)
    whole = train(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", progress=killing(3))
    run = train(config, tmp_path / "run", resume=True)
    assert comparable(run.records()) == comparable(whole.records())
    divergences = [one["loss"]["regularizers"]["kl"]["value"] for one in run.records() if one["kind"] == "eval"]
    assert divergences[0] == pytest.approx(0.0, abs=1e-6)
    assert divergences[-1] > 1e-4


def test_how_a_model_computes_may_change_when_a_run_is_resumed(tmp_path: Path) -> None:
    whole = train(small(tmp_path), tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(small(tmp_path), tmp_path / "run", progress=killing(2))
    config = small(tmp_path, model='rank = 2\ncheckpointing = true\nattention = "eager"')
    run = train(config, tmp_path / "run", resume=True)
    losses = [[one["loss"]["loss_total"] for one in two.records() if one["kind"] == "step"] for two in (run, whole)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("options", [{}, {"gradients_every": 1}])
def test_a_teacher_may_have_another_precision(tmp_path: Path, options: dict[str, Any]) -> None:
    terms = KL.replace("initial.logits", "teacher.logits")
    found: list[list[float]] = []
    for dtype in ("float32", "bfloat16"):
        more = f'[references.teacher]\nkind = "client"\nmodel = "tiny"\nseed = 3\ndevice = "cpu"\ndtype = "{dtype}"\n'
        run = train(toy_config(tmp_path, terms, more, learning_rate=0.01, **options), tmp_path / dtype)
        found.append([one["loss"]["regularizers"]["kl"]["value"] for one in run.records() if one["kind"] == "step"])
    # Close, and not the same.
    assert found[0] == pytest.approx(found[1], rel=0.02)
    assert found[0] != found[1]


def test_a_teacher_has_its_own_device_and_precision(tmp_path: Path) -> None:
    backend = connect(toy_config(tmp_path, "", '[model]\ndtype = "float64"\ndevice = "cpu"\n'))
    tables = [ClientTable(kind="client", model="tiny", **options) for options in ({}, {"dtype": "bfloat16"})]
    made = [backend.another(table).model.get_base_model().lm_head.weight.dtype for table in tables]
    assert made == [torch.float64, torch.bfloat16]
    with pytest.raises(OptionError, match='device="cuda:99"; expected an available torch device'):
        backend.another(ClientTable(kind="client", model="tiny", device="cuda:99"))
    backend.close("success")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Run:
    folder = tmp_path_factory.mktemp("whole")
    config = small(folder, str(base), 'adapter = "none"', best_by="base_loss", checkpoint_every=1, keep=3)
    return train(config, folder / "run")


@pytest.mark.parametrize("merged", [False, True])
def test_a_whole_model_is_exported_as_transformers_loads_it(run: Run, base: Path, tmp_path: Path, merged: bool) -> None:
    trained = find(run.folder)
    export(trained, tmp_path / "to", merged=merged)
    tokens = AutoTokenizer.from_pretrained(tmp_path / "to").encode("stone enots")
    found = logprobs(AutoModelForCausalLM.from_pretrained(tmp_path / "to"), tokens)
    torch.testing.assert_close(found, trained_logprobs(trained, tokens), rtol=1e-5, atol=1e-5)
    assert (found - logprobs(AutoModelForCausalLM.from_pretrained(base), tokens)).abs().max() > 1e-2


def test_the_built_in_model_needs_no_merging_if_it_was_trained_whole(tmp_path: Path) -> None:
    run = train(small(tmp_path, model='adapter = "none"'), tmp_path / "run")
    export(find(run.folder), tmp_path / "to")
    assert (tmp_path / "to" / "model.safetensors").is_file()


def test_samples_are_those_of_the_exported_model(run: Run, tmp_path: Path) -> None:
    trained = find(run.folder)
    export(trained, tmp_path / "to")
    with trained.opened() as backend:
        ((said,),) = continued(backend, [asked("stone ", chat=False)], max_tokens=5)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "to")
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "to")
    given = tokenizer("stone ", return_tensors="pt")
    drawn = model.generate(**given, max_new_tokens=5, do_sample=False)
    assert tokenizer.decode(drawn[0, given["input_ids"].shape[1] :], skip_special_tokens=True) == said


# What peft warns of is what this is about.
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`", "ignore:Input and output embeddings are no")
def test_a_head_that_was_trained_by_itself_is_not_tied_again(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(base)
    model.config.tie_word_embeddings = True
    model.tie_weights()
    model.save_pretrained(tmp_path / "tied")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "tied")
    run = train(small(tmp_path, str(tmp_path / "tied"), KINDS["saved"]), tmp_path / "run")
    export(find(run.folder), tmp_path / "to", merged=True)
    tokens = AutoTokenizer.from_pretrained(base).encode("stone enots")
    found = logprobs(AutoModelForCausalLM.from_pretrained(tmp_path / "to"), tokens)
    torch.testing.assert_close(found, trained_logprobs(find(run.folder), tokens), rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(exporting, "version", lambda name: "0.18.1")
    with pytest.raises(RunError, match=r'would lose a layer of model\.modules_to_save.*pip install "peft>=0\.21"'):
        export(find(run.folder), tmp_path / "older", merged=True)


def test_a_quantized_model_is_merged_as_its_files_are(tmp_path: Path, base: Path) -> None:
    pytest.importorskip("bitsandbytes")
    run = train(small(tmp_path, str(base), 'rank = 2\nquantize = "4bit"'), tmp_path / "run")
    trained = find(run.folder)
    export(trained, tmp_path / "to", merged=True)
    export(trained, tmp_path / "adapter")
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "to")
    assert {one.dtype for one in model.parameters()} == {torch.float32}
    tokens = AutoTokenizer.from_pretrained(base).encode("stone enots")
    found = logprobs(AutoModelForCausalLM.from_pretrained(tmp_path / "adapter"), tokens)
    torch.testing.assert_close(logprobs(model, tokens), found, rtol=1e-5, atol=1e-5)
