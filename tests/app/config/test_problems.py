"""A config that is wrong: everything at once, each with its place, what was found, what is allowed, what is near."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penalties.app.config import Config, checks
from penalties.app.config.checks import checked
from penalties.app.config.reading import read
from penalties.app.problems import joined, nearest, shown

from ..configs import problems

KL = '[references]\ninitial = { kind = "initial" }\n[[term]]\nfn = "kl_estimate"\nname = "kl"\n'
READS = 'inputs = ["logprobs", "initial"]\n'

TOP = '[[term]]\nfn = "kl_divergence"\nname = "kl"\n'

STRUCTURE = [
    (
        "[train]\nstep = 5",
        "train.step",
        ["no such key", "found 5", "did you mean steps?", "allowed: steps, epochs"],
    ),
    ("[train]\nlr = 5", "train.lr", ["no such key", "use train.learning_rate"]),
    ("[train]\nnum_epochs = 3", "train.num_epochs", ["use train.epochs"]),
    ("[train]\nwarmup_steps = 3", "train.warmup_steps", ['use train.schedule, such as { kind = "warmup", ']),
    (
        "[train]\ngradient_accumulation_steps = 4",
        "train.gradient_accumulation_steps",
        ["use train.batch_size, which is that of an optimizer step"],
    ),
    ("[train]\nearly_stopping_patience = 2", "train.early_stopping_patience", ["use train.patience"]),
    ("[train]\nsave_total_limit = 2", "train.save_total_limit", ["use train.keep"]),
    ("[model]\nlora_r = 3", "model.lora_r", ["use model.rank"]),
    ("lr = 5", "lr", ["no such table", "use train.learning_rate"]),
    ("[train]\nzzz = 5", "train.zzz", ["no such key", "allowed: steps"]),
    ("[model]\nlearning_rate = 5", "model.learning_rate", ["it is a key of [train]"]),
    ("[trian]\nsteps = 5", "trian", ["no such table", "did you mean train?", "model, backend, data"]),
    ("[train]\nsteps = 0", "train.steps", ["found 0", "a whole number of at least 1"]),
    ("[train]\nsteps = 1.5", "train.steps", ["found 1.5", "a whole number"]),
    ("[train]\nsteps = true", "train.steps", ["found true", "a whole number"]),
    ('[train]\nsteps = "many"', "train.steps", ['found "many"', "a whole number"]),
    ("[train]\nlearning_rate = 0", "train.learning_rate", ["found 0", "a number above 0"]),
    ("[train]\nlearning_rate = nan", "train.learning_rate", ["found nan", "a number above 0"]),
    ("[train]\nlearning_rate = inf", "train.learning_rate", ["found inf", "a number above 0"]),
    ("[train]\nbeta1 = 1", "train.beta1", ["found 1", "a number of at least 0 and below 1"]),
    ("[train]\ngradients_every = true", "train.gradients_every", ["found true", "a whole number"]),
    ("[train]\nloss_options = 5", "train.loss_options", ["found 5", "a table"]),
    ("[train]\nschedule = 5", "train.schedule", ["found 5", "a table with a kind"]),
    ('[train]\nschedule = { kind = "cosin" }', "train.schedule.kind", ['found "cosin"', 'did you mean "cosine"?']),
    ("[train]\nschedule = { steps = 5 }", "train.schedule.kind", ["missing", '"constant"']),
    (
        '[train]\nschedule = { kind = "warmup" }',
        "train.schedule.steps",
        ["missing", "a whole number of at least 0: The"],
    ),
    ('[backend]\nkind = "locla"', "backend.kind", ['found "locla"', '"local" or "tinker"', 'did you mean "local"?']),
    ("[executor]\nworkers = 0", "executor.workers", ["found 0", "a whole number of at least 1"]),
    ("[executor]\ntimeout = 301", "executor.timeout", ["found 301", "a number above 0 and up to 300"]),
    ("[executor]\nsequential = 1", "executor.sequential", ["found 1", "true or false"]),
    ("[executor]\nworker = 2", "executor.worker", ["no such key", "did you mean workers?"]),
    ('[backend]\nserver = "sum"', "backend.server", ['found "sum"', '"sums", "averages"', 'did you mean "sums"?']),
    ('[model]\nname = ""', "model.name", ['found ""', "a string that is not empty"]),
    ("[model]\ntarget_modules = [1]", "model.target_modules", ["found [1]", "a string or a list of strings"]),
    ("[data]\nshuffle = true", "data.path", ["missing", "a string or a list of strings: A file, or a list"]),
    ("references = 5", "references", ["found 5", "a table"]),
    ("[references]\na = 5", "references.a", ["found 5", "a table with a kind"]),
    ('[references]\na = { kind = "clent" }', "references.a.kind", ['did you mean "client"?']),
    ('[references]\na = { kind = "client" }', "references.a.model", ["missing", "a string"]),
    ('[references]\n"a b" = { kind = "initial" }', "references.a b", ["letters, digits and underscores"]),
    ('[references]\nmask = { kind = "initial" }', "references.mask", ["another name", "reserved"]),
    ("[term]\nfn = 5", "term", ["found { fn = 5 }", "[[term]]", "two brackets"]),
    ("term = [5]", "term.1", ["found 5", "a table"]),
    ("[[term]]\nweight = 1", "term.1.fn", ["missing", "penalties list"]),
    ('[[term]]\nfn = "l2"\nweigth = 1', "term.l2.weigth", ["did you mean weight?"]),
    ('[[term]]\nfn = "l2"\nweight = -1', "term.l2.weight", ["found -1", "a number of at least 0"]),
    ('[[term]]\nfn = "l2"\ntimeout = 301', "term.l2.timeout", ["a number above 0 and up to 300"]),
    ('[[term]]\nfn = "l2"\ninputs = 5', "term.l2.inputs", ["found 5", "a string, a list of strings or a table"]),
    ('[[term]]\nfn = "l2"\nruns = "proces"', "term.l2.runs", ['did you mean "process"?']),
    ('[[term]]\nfn = "l2"\nwrap = [{ kind = "ema", decay = 2 }]', "term.l2.wrap.1.decay", ["found 2", "below 1"]),
    (
        '[[term]]\nfn = "l2"\nschedule = { kind = "piecewise", values = { a = 1 } }',
        "term.l2.schedule.values",
        ['found the key "a"', "{ 0 = 0.0, 100 = 0.1 }"],
    ),
    (
        '[[term]]\nfn = "l2"\nschedule = { kind = "piecewise", values = { 0 = 1.0, 00 = 2.0 } }',
        "term.l2.schedule.values",
        ['found the key "00"', "{ 0 = 0.0, 100 = 0.1 }"],
    ),
    (
        '[[term]]\nfn = "l2"\nschedule = { kind = "piecewise", values = {} }',
        "term.l2.schedule.values",
        ["a table that is not empty"],
    ),
    ("[sinks]\nwandb = 5", "sinks.wandb", ["found 5", "true, false or a table"]),
    ("[sinks.wandb]\nprojct = 5", "sinks.wandb.projct", ["did you mean project?"]),
]

MEANING = [
    ('[[term]]\nfn = "kl_estimat"', "term.kl_estimat.fn", ["expected one of ", "did you mean kl_estimate?"]),
    ('[[term]]\nfn = "kl"', "term.kl.fn", ["did you mean kl_divergence or kl_estimate?"]),
    ('[[term]]\nfn = "zzz"', "term.zzz.fn", ["expected one of "]),
    ('[[term]]\nfn = "os:nothing"', "term.nothing.fn", ["can be imported", "has no attribute 'nothing'"]),
    ('[[term]]\nfn = "no.such:thing"', "term.thing.fn", ["No module named 'no'"]),
    ('[[term]]\nfn = "tests.app.config_terms:NUMBER"', "term.NUMBER.fn", ["found 5", "a function"]),
    (f'{KL}{READS}options = {{ estimator = "k9" }}', "term.kl.options.estimator", ['found "k9"', '"k1", "k2" or "k3"']),
    (f"{KL}{READS}options = {{ estimator = 1 }}", "term.kl.options.estimator", ["found 1", '"k1", "k2" or "k3"']),
    (f'{KL}{READS}options = {{ estimater = "k1" }}', "term.kl.options.estimater", ["did you mean estimator?"]),
    (f'{KL}{READS}options = {{ reduction = "none" }}', "term.kl.options.reduction", ['"sum" or "mean"']),
    ('[[term]]\nfn = "smooth_l1"\noptions = { delta = -1 }', "term.smooth_l1.options.delta", ["found -1", "above 0"]),
    ('[[term]]\nfn = "l2"\noptions = { x = 3.0 }', "term.l2.options.x", ["3.0", "an array", "from an input"]),
    ('[[term]]\nfn = "l2"\noptions = { center = "middle" }', "term.l2.options.center", ["middle"]),
    (
        '[[term]]\nfn = "entropy"\ninputs = ["logits"]\noptions = { logits = true, mask = "mask" }',
        "term.entropy.options.mask",
        ['found "mask"', "from an input: inputs = { mask = … }"],
    ),
    ('[[term]]\nfn = "l2"\noptions = { clip = true }', "term.l2.options.clip", ["found true", "a number"]),
    (
        '[[term]]\nfn = "penalties.training.adapters:entropy"\noptions = { mode = "bonsu" }',
        "term.entropy.options.mode",
        ['did you mean "bonus"?'],
    ),
    (f'{KL}inputs = ["logprobs", "inital"]', "term.kl.inputs", ['found "inital"', "did you mean initial?"]),
    (KL, "term.kl.inputs", ['found "reference"', "[references]", "initial, logprobs"]),
    (f'{KL}inputs = ["logprobs"]', "term.kl.inputs", ['found "logprobs"', "2 names in order"]),
    (
        f"[references]\ninitial = {{ kind = \"initial\" }}\n{TOP}inputs = {{ p = 'logprobs.initial', q = 'initial' }}",
        "term.kl.inputs",
        ["initial has no likeliest tokens", "set references.initial.top_k"],
    ),
    (
        '[references]\ninitial = { kind = "initial", top_k = 8 }\n'
        f"{TOP}inputs = {{ p = 'logprobs.inital', q = 'initial' }}",
        "term.kl.inputs",
        ['found "logprobs.inital"'],
    ),
    (
        '[references]\nfirst = { kind = "initial", top_k = 0 }\n'
        f"{TOP}inputs = {{ p = 'logprobs.first', q = 'first' }}",
        "references.first.top_k",
        ["found 0", "at least 1"],
    ),
    (
        '[references]\nfirst = { kind = "initial", top_k = 8 }\n[[term]]\nfn = "kl_estimate"\nname = "kl"\n'
        "inputs = ['logprobs.first', 'first']",
        "term.kl.inputs",
        ["which were not sampled; use kl_divergence"],
    ),
    (
        '[train]\nloss = "dpo"\n[references]\nfirst = { kind = "initial", top_k = 8 }',
        "train.loss",
        ["compares with one reference, but there are 0"],
    ),
    (
        '[backend]\nkind = "tinker"\nserver = "averages"\n[references]\nfirst = { kind = "initial", top_k = 8 }\n'
        f"{TOP}inputs = {{ p = 'logprobs.first', q = 'first' }}",
        "term.kl.inputs",
        ['found "logprobs.first", of several tokens', "a server that averages takes one"],
    ),
    ('[model]\npath = "x"', "model.path", ["it is a key of [data]"]),
    ("[train]\ndata = 5", "train.data", ["no such key"]),
    ("[references]\nfn = 5", "references.fn", ["a table with a kind"]),
    (
        '[references]\nother = { kind = "perturbed" }\n[[term]]\nfn = "kl_divergence"\nname = "kl"\n'
        'inputs = { p = "logits", q = "other.logits" }\noptions = { logits = true }',
        "term.kl.inputs",
        ['found "other.logits", of a reference of kind "perturbed"; expected one of kind "initial" or "client"'],
    ),
    (f'{KL}inputs = {{ foo = "logprobs" }}', "term.kl.inputs", ["parameters of the function"]),
    ('[[term]]\nfn = "entropy"\ninputs = "logprobs"', "term.entropy.inputs", ["entropy_estimate"]),
    ('[[term]]\nfn = "l2"\nname = "total"', "term.total.name", ["cannot be taken for a metric"]),
    ('[[term]]\nfn = "l2"\nbase = true', "term.l2.base", ["no such key", "use train.loss, which is the base loss"]),
    ('[[term]]\nfn = "l2"\nname = "a.b"', "term.a.b.name", ['found "a.b"', "no dot or equals sign", "--set finds"]),
    ('[[term]]\nfn = "l2"\nname = "a=b"', "term.a=b.name", ['found "a=b"', "no dot or equals sign"]),
    ('[[term]]\nfn = "l2"\nname = "a\\u001b[2J"', "term.a\x1b[2J.name", ["a printable name"]),
    ('[[term]]\nfn = "l2"\nname = "loss"', "term.loss.name", ['found "loss"', "the total", "another name"]),
    ('[[term]]\nfn = "tests.app.config_terms:loss"', "term.loss.name", ['found "loss"', "the total"]),
    (
        '[samples]\nmetrics = ["tests.app.config_terms:steady"]\n[[term]]\nfn = "l2"\nname = "steady"\n'
        '[data]\npath = "lines.jsonl"\neval_path = "lines.jsonl"',
        "samples.metrics",
        ['found "tests.app.config_terms:steady"', 'the objective has a metric "steady"', "another name"],
    ),
    ('[[term]]\nfn = "l2"\nname = "2"', "term.2.name", ['found "2"', "not digits alone"]),
    ('[model]\ndtype = "bfloat17"', "model.dtype", ['found "bfloat17"', 'did you mean "bfloat16"?']),
    ('[model]\ndtype = "int32"', "model.dtype", ['found "int32"', "another floating dtype of PyTorch"]),
    ('[model]\ndevice = "cudaa"', "model.device", ['found "cudaa"', 'did you mean "cuda"?']),
    ('[model]\ndevice = "cpu:x"', "model.device", ['found "cpu:x"', 'as "cpu" or "cuda:0"']),
    ('[[term]]\nfn = "l2"\n[[term]]\nfn = "l2"', "term.2.name", ['found "l2"', "term.1", "set name"]),
    ('[[term]]\nfn = "orthogonality"\nchunk = 2', "term.orthogonality.chunk", ["not a sum over rows"]),
    (
        '[[term]]\nfn = "tests.app.config_terms:later"\nwrap = [{ kind = "ema" }]',
        "term.later.wrap",
        ["not asynchronous"],
    ),
    (
        '[[term]]\nfn = "l2"\ninputs = "params"\nwrap = [{ kind = "stale", steps = 2, wrt = "logits" }]',
        "term.l2.wrap",
        ['found "logits"', 'names among the inputs of l2: "x", "params"'],
    ),
    (
        '[[term]]\nfn = "l2"\nwrap = [{ kind = "straight_through", discretize = "floor" }]',
        "term.l2.wrap",
        ['found "floor"', '"round", "sign", "argmax", a function'],
    ),
    ('[train]\nloss = "dpoo"', "train.loss", ['found "dpoo"', '"reverse_kl", "none" or', 'did you mean "dpo"?']),
    ('[train]\nloss = "reverse_kl"', "train.loss", ["one reference, but there are 0"]),
    ('[train]\nloss = "none"', "train.loss", ['found "none"', "no [[term]] to train on", "add one"]),
    (
        '[train]\nloss = "none"\nloss_options = { beta = 1.0 }\n[[term]]\nfn = "l1"',
        "train.loss_options.beta",
        ["found 1.0", "no options without a loss"],
    ),
    (
        '[train]\nloss = "none"\n[[term]]\nfn = "l1"\nenabled = false',
        "train.loss",
        ["no [[term]] to train on"],
    ),
    (
        '[train]\nloss = "reverse_kl"\n[references]\na = { kind = "initial" }\n'
        '[backend]\nkind = "tinker"\nserver = "averages"',
        "train.loss",
        ["several targets per position", "a server that averages takes one"],
    ),
    (
        '[train]\nloss = "reverse_kl"\n[references]\na = { kind = "initial" }\n[[term]]\nfn = "entropy_estimate"',
        "term.entropy_estimate.inputs",
        ["needs one sampled token per position", "use entropy"],
    ),
    ('[executor]\nray_address = "cluster"', "executor.ray_address", ['found "cluster"', '"auto", host:port']),
    ('[executor]\nray_address = "host:x"', "executor.ray_address", ['found "host:x"', "as for ray.init"]),
    ('[train]\nloss = "dpo"', "train.loss", ["one reference, but there are 0", 'initial = { kind = "initial" }']),
    (
        '[train]\nloss = "dpo"\n[references]\na = { kind = "initial" }\nb = { kind = "initial" }',
        "train.loss",
        ["there are 2", 'name the one to compare with "reference"'],
    ),
    ("[train]\nloss_options = { beta = 1.0 }", "train.loss_options.beta", ["found 1.0", "no option"]),
    ('[train]\nloss = "os:nothing"', "train.loss", ["has no attribute"]),
    ('[train]\nloss = "tests.app.config_terms:NUMBER"', "train.loss", ["found 5", "a function"]),
    ('[train]\nloss = "builtins:max"', "train.loss", []),
    ('[train]\nloss = "tests.app.config_terms:loss"\nloss_options = { x = 1 }', "train.loss_options.x", ["scale"]),
    ('[train]\nloss = "tests.app.config_terms:loss_of_reference"', "train.loss", ['found "initial"', "[references]"]),
    ('[data]\npath = "lins.jsonl"', "data.path", ["does not exist", "did you mean lines.jsonl?"]),
    ('[data]\npath = "no/such/folder.jsonl"', "data.path", ["does not exist"]),
    ('[data]\npath = "."', "data.path", ["a folder", "a file, or a folder written by save_to_disk of datasets"]),
    ('[data]\npath = "lines.jsonl"\neval_path = "x"', "data.eval_path", ["does not exist"]),
    ('[model]\nname = "./nothing"', "model.name", ["a folder with a model"]),
    ('[backend]\nbase_url = "http://localhost"', "backend.base_url", ['is for backend.kind = "tinker"', "remove it"]),
    ('[backend]\nserver = "averages"', "backend.server", ['is for backend.kind = "tinker"']),
    ('[backend]\nkind = "tinker"\n[model]\nalpha = 5', "model.alpha", ['is for backend.kind = "local"']),
    (
        '[backend]\nkind = "tinker"\n[train]\nmicro_batch_tokens = 9',
        "train.micro_batch_tokens",
        ['is for backend.kind = "local"'],
    ),
    ('[backend]\nkind = "tinker"\n[model]\nadapter = "none"', "model.adapter", ['is for backend.kind = "local"']),
    (
        '[backend]\nkind = "tinker"\n[train]\noptimizer = "adamw8bit"',
        "train.optimizer",
        ['is for backend.kind = "local"'],
    ),
    (
        '[backend]\nkind = "tinker"\n[references]\na = { kind = "client", model = "org/model", dtype = "float16" }',
        "references.a.dtype",
        ['is for backend.kind = "local"'],
    ),
    ('[model]\nadapter = "none"\nrank = 4', "model.rank", ['this config has model.adapter = "none"', "remove it"]),
    ('[model]\nadapter = "none"\nmodules_to_save = ["lm_head"]', "model.modules_to_save", ["is for an adapter"]),
    ('[model]\nadapter = "full"', "model.adapter", ['found "full"', '"lora" or "none"']),
    ("[model]\nlora_dropout = 1.0", "model.lora_dropout", ["found 1.0", "of at least 0 and below 1"]),
    ("[model]\ngradient_checkpointing = true", "model.gradient_checkpointing", ["use model.checkpointing"]),
    ('[model]\nattn_implementation = "sdpa"', "model.attn_implementation", ["use model.attention"]),
    ('[train]\noptim = "adamw_8bit"', "train.optim", ["use train.optimizer"]),
    (
        '[references]\na = { kind = "client", model = "tiny", device = "cua" }',
        "references.a.device",
        ['found "cua"', 'did you mean "cuda"?'],
    ),
    (
        '[references]\na = { kind = "client", model = "tiny", dtype = "int8" }',
        "references.a.dtype",
        ['found "int8"', "another floating dtype"],
    ),
    ('[backend]\nkind = "tinker"\nbase_url = "localhost:80"', "backend.base_url", ["https://host:port"]),
    ('[backend]\nkind = "tinker"\nbase_url = "http://[x"', "backend.base_url", ["https://host:port"]),
    ('[backend]\nkind = "tinker"\n[[term]]\nfn = "l2"\ninputs = "params"', "term.l2.inputs", ["inside the model"]),
]


def dpo(beta: str) -> str:
    return f'[references]\na = {{ kind = "initial" }}\n[train]\nloss = "dpo"\nloss_options = {{ {beta} }}'


MEANING += [
    (dpo("beta = -1"), "train.loss_options.beta", ["found -1", "above 0"]),
    (dpo('beta = "x"'), "train.loss_options.beta", ['found "x"', "a number"]),
    (dpo("bta = 1"), "train.loss_options.bta", ["did you mean beta?"]),
]


@pytest.mark.parametrize(("text", "where", "says"), STRUCTURE + MEANING)
def test_a_mistake_says_where_what_and_what_else(tmp_path: Path, text: str, where: str, says: list[str]) -> None:
    found = problems(tmp_path, text)
    assert list(found) == [where]
    for part in says:
        assert part in found[where]
    assert "\n" not in found[where]


def test_a_module_that_raises_is_named(tmp_path: Path) -> None:
    (tmp_path / "raising_terms.py").write_text('raise RuntimeError("not today")\n')
    found = problems(tmp_path, '[[term]]\nfn = "raising_terms:x"')
    assert "can be imported (RuntimeError: not today)" in found["term.x.fn"]


def test_every_mistake_is_found_at_once(tmp_path: Path) -> None:
    text = """
        [data]
        path = "lins.jsonl"
        on_bad_line = "ignore"
        [train]
        step = 5
        steps = "many"
        loss = "dpoo"
        [references]
        initial = { kind = "inital" }
        teacher = { kind = "client", cache = 1 }
        [[term]]
        fn = "kl_estimate"
        inputs = ["logprobs", "inital"]
        options = { estimator = "k9", foo = 3 }
        [[term]]
        weight = -1
        schedule = { kind = "product", schedules = [{ kind = "warmup" }, { kind = "nope" }] }
        [[term]]
        fn = "l2"
        inputs = ["params", "logprobs"]
        timeout = -1
    """
    assert set(problems(tmp_path, text, ["train.seed=x", "nothing"])) == {
        "--set nothing",
        "data.path",
        "data.on_bad_line",
        "train.step",
        "train.steps",
        "train.seed",
        "train.loss",
        "references.initial.kind",
        "references.teacher.model",
        "references.teacher.cache",
        "term.kl_estimate.inputs",
        "term.kl_estimate.options.estimator",
        "term.kl_estimate.options.foo",
        "term.2.fn",
        "term.2.weight",
        "term.2.schedule.schedules.1.steps",
        "term.2.schedule.schedules.2.kind",
        "term.l2.timeout",
        "term.l2.inputs",
    }


def test_one_mistake_is_one_problem(tmp_path: Path) -> None:
    """A reference that is wrong is there for the terms that read it, and a file that is not named is not missed."""
    text = f'{KL}inputs = ["logprobs", "initial"]'.replace('"initial" }', '"inital" }')
    assert list(problems(tmp_path, text)) == ["references.initial.kind"]
    assert list(problems(tmp_path, "[data]\npath = 5")) == ["data.path"]


class TestSecrets:
    @pytest.mark.parametrize("key", ["api_key", "token", "API_KEY", "password"])
    def test_an_api_key_in_a_config_is_a_problem_that_does_not_repeat_it(self, tmp_path: Path, key: str) -> None:
        found = problems(tmp_path, f'[backend]\nkind = "tinker"\n{key} = "tml-secret"')
        assert "TINKER_API_KEY" in found[f"backend.{key}"]
        assert "tml-secret" not in str(found)

    @pytest.mark.parametrize("address", ["https://me:tml-secret@host/", "https://host/?key=tml-secret"])
    def test_nor_is_one_in_an_address(self, tmp_path: Path, address: str) -> None:
        found = problems(tmp_path, f'[backend]\nkind = "tinker"\nbase_url = "{address}"')
        assert "set TINKER_API_KEY instead" in found["backend.base_url"]
        sinks = problems(tmp_path, f'[sinks]\nmlflow = {{ tracking_uri = "{address}" }}')
        assert "MLFLOW_TRACKING_USERNAME" in sinks["sinks.mlflow.tracking_uri"]
        assert "tml-secret" not in str(found) + str(sinks)
        local = problems(tmp_path, f'[backend]\nbase_url = "{address}"')
        assert "tml-secret" not in str(local)

    @pytest.mark.parametrize(
        "address",
        [
            "postgresql://me:tml-secret@host/runs",
            "mysql+pymysql://tml-secret@host/runs",
            "postgresql://me:tml-secret/1@host/runs",
            "postgresql://me:tml@secret@host/runs",
            "postgresql://host/runs?user=me&password=tml-secret",
        ],
    )
    def test_nor_is_one_in_the_address_of_a_database(self, tmp_path: Path, address: str) -> None:
        found = problems(tmp_path, f'[sinks]\nmlflow = {{ tracking_uri = "{address}" }}')
        assert list(found) == ["sinks.mlflow.tracking_uri"]
        assert "set MLFLOW_TRACKING_USERNAME and _PASSWORD, or all of it as MLFLOW_TRACKING_URI, instead" in str(found)
        assert "secret" not in str(found)

    @pytest.mark.parametrize(
        ("text", "where"),
        [
            ('[model]\nname = "https://me:tml-secret@host/model"', "model.name"),
            ('[data]\npath = "https://me:tml-secret@host/lines.jsonl"', "data.path"),
            ('[sinks.mlflow]\ntracking_url = "https://me:tml-secret@host"', "sinks.mlflow.tracking_url"),
            ('[[term]]\nfn = "l2"\ninputs = ["a", "http://tml-secret@host"]', "term.l2.inputs.2"),
            ('[train]\nsteps = "https://me:tml-secret@host"', "train.steps"),
        ],
    )
    def test_nor_is_one_in_any_address(self, tmp_path: Path, text: str, where: str) -> None:
        found = problems(tmp_path, text)
        assert found[where] == "contains more than an address; expected no user or password: remove it"
        assert "tml-secret" not in str(found)

    @pytest.mark.parametrize(
        ("text", "where"),
        [
            ('[backend]\nkind = "tinker"\nbase_url = "http://host/tml-0123456789"', "backend.base_url"),
            ('[model]\nname = "tml-0123456789"', "model.name"),
            ('[data]\npath = "tml-0123456789.jsonl"', "data.path"),
            ('[[term]]\nfn = "l2"\nname = "tml-0123456789"', "term.<TINKER_API_KEY>.name"),
            ('[train]\nloss_options = { x = [1, ["tml-0123456789"]] }', "train.loss_options.x.2.1"),
        ],
    )
    def test_what_the_environment_holds_is_in_no_config(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, where: str
    ) -> None:
        monkeypatch.setenv("TINKER_API_KEY", "tml-0123456789")
        found = problems(tmp_path, text)
        assert "contains the value of TINKER_API_KEY" in found[where]
        assert "tml-0123456789" not in str(found)

    def test_nor_is_it_set_from_the_command_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TINKER_API_KEY", "tml-0123456789")
        given = ["tml-0123456789", "backend.base_url=http://tml-0123456789", "http://me:pass@host"]
        found = problems(tmp_path, "", given)
        assert list(found)[:3] == ["--set <TINKER_API_KEY>", "--set http://<user>@host", "backend.base_url"]
        assert "tml-0123456789" not in str(found)
        assert "pass" not in str(found)

    @pytest.mark.parametrize(
        "uri",
        ["file:///tmp/a@b", "sqlite:///x@y.db", "./a@b", "https://host:5000", "postgresql://host/runs?sslmode=require"],
    )
    def test_other_stores_are_fine(self, tmp_path: Path, uri: str) -> None:
        assert problems(tmp_path, f'[sinks]\nmlflow = {{ tracking_uri = "{uri}" }}') == {}


class TestLibraries:
    @pytest.mark.parametrize(
        ("text", "missing", "where", "install"),
        [
            ("", "peft", "backend.kind", 'pip install "penalties[train]"'),
            ('[backend]\nkind = "tinker"', "tinker", "backend.kind", 'pip install "penalties[tinker,torch]"'),
            ('[[term]]\nfn = "l2"\nruns = "process"', "pebble", "term.l2.runs", 'pip install "penalties[process]"'),
            ('[model]\nquantize = "4bit"', "bitsandbytes", "model.quantize", 'pip install "penalties[quantize]"'),
            (
                '[train]\noptimizer = "adamw8bit"',
                "bitsandbytes",
                "train.optimizer",
                'pip install "penalties[quantize]"',
            ),
            ("[sinks]\nwandb = true", "wandb", "sinks.wandb", 'pip install "penalties[wandb]"'),
            ("[sinks]\ntensorboard = true", "tensorboard", "sinks.tensorboard", 'pip install "penalties[tensorboard]"'),
        ],
    )
    def test_what_is_not_installed_is_named_with_its_installation(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, missing: str, where: str, install: str
    ) -> None:
        there = checks.find_spec
        monkeypatch.setattr(checks, "find_spec", lambda name: None if name.startswith(missing) else there(name))
        found = problems(tmp_path, text)
        assert list(found) == [where]
        assert missing in found[where]
        assert install in found[where]

    def test_devices_are_not_looked_at_where_torch_is_missing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        there = checks.find_spec
        monkeypatch.setattr(checks, "find_spec", lambda name: None if name == "torch" else there(name))
        assert list(problems(tmp_path, '[model]\ndevice = "cudaa"')) == ["backend.kind"]

    def test_either_writer_serves_tensorboard(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def find_spec(name: str) -> object:
            return None if name == "tensorboardX" else name

        monkeypatch.setattr(checks, "find_spec", find_spec)
        assert problems(tmp_path, "[sinks]\ntensorboard = true") == {}


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "cannot be read" in problems(tmp_path)["data.path"]


def test_options_are_checked_where_torch_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(checks, "find_spec", lambda name: name)
    assert problems(tmp_path, dpo("beta = 0.5")) == {}


class TestWords:
    def test_long_values_are_cut(self) -> None:
        assert shown("x" * 100) == '"' + "x" * 58 + "…"

    def test_values_are_shown_as_they_are_written(self) -> None:
        assert shown({}) == "{}"
        assert shown(None) == "nothing"
        assert shown({"a": [True, 1.5, "é"]}) == '{ a = [true, 1.5, "é"] }'

    def test_names_are_near_whatever_their_case(self) -> None:
        assert nearest("LOCAL", ["local"], quoted=True) == '; did you mean "local"?'
        assert joined(["a", "b"], "and") == "a and b"


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.floats()
    | st.sampled_from(["", "l1", "initial", "warmup", "x"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["kind", "fn", "steps", "x"]), inner),
    max_leaves=6,
)
KEYS = {
    name: sorted(field.annotation.model_fields)
    for name, field in Config.model_fields.items()
    if hasattr(field.annotation, "model_fields")
}
TERM_KEYS = ["fn", "weight", "name", "inputs", "options", "schedule", "wrap", "runs", "other"]
TABLES: dict[str, st.SearchStrategy[Any]] = {
    name: VALUES | st.dictionaries(st.sampled_from([*keys, "other"]), VALUES, max_size=4) for name, keys in KEYS.items()
}
TABLES["references"] = VALUES | st.dictionaries(st.sampled_from(["a", "b c", "mask"]), VALUES, max_size=2)
TABLES["term"] = VALUES | st.lists(VALUES | st.dictionaries(st.sampled_from(TERM_KEYS), VALUES, max_size=4), max_size=3)
TABLES["other"] = VALUES


@given(st.fixed_dictionaries({}, optional=TABLES))
def test_any_config_is_read_or_has_problems(raw: dict[str, Any]) -> None:
    """No mistake, or heap of mistakes, is an error of ours."""
    made, wrong = read(Config, raw)
    problems = [*wrong, *checked(made, raw, code=True)]
    assert all(one.where and one.message for one in problems)
    assert Config.from_dict(made.to_dict()) == made
    if not wrong:
        assert set(made.model_fields_set) == set(raw)
