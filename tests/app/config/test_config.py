"""A config that is right: what it is made of, and what it makes."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pydantic
import pytest

from penalties import schedules
from penalties.app.config import Config, ConfigError, Problem, examine, find, load, load_again
from penalties.pipeline import Term
from penalties.training import references

from ..configs import config, problems, write

TERMS = """
[references]
initial = { kind = "initial" }
noisy = { kind = "perturbed", token_dropout = 0.3, seed = 2, replacement = 5 }
teacher = { kind = "client", model = "tiny", seed = 7 }

[[term]]
fn = "kl_estimate"
name = "kl"
weight = 0.05
inputs = ["logprobs", "initial"]
schedule = { kind = "warmup", steps = 20 }

[[term]]
fn = "l2"
weight = 1
inputs = "params"
wrap = [{ kind = "ema", decay = 0.5 }, { kind = "normalized" }]

[[term]]
fn = "tests.app.config_terms:steady"
enabled = false
options = { size = 2.0 }
"""


class TestDefaults:
    def test_data_is_all_that_must_be_said(self, tmp_path: Path) -> None:
        made = config(tmp_path)
        assert made.model.name == "tiny"
        assert made.backend.kind == "local"
        assert (made.train.steps, made.train.loss, made.train.reduction) == (100, "cross_entropy", "mean")
        assert made.term == []
        assert made.pipeline().names == ()
        assert made.base == {"fn": "cross_entropy", "options": {}}

    def test_every_key_is_in_the_resolved_config(self, tmp_path: Path) -> None:
        def keys(table: type[pydantic.BaseModel]) -> set[str]:
            return set(table.model_fields)

        resolved = config(tmp_path, TERMS).to_dict()
        made = Config.from_dict(resolved)
        assert set(resolved) - {"folder"} == keys(Config)
        for name in ("model", "backend", "data", "train", "executor", "sinks"):
            assert set(resolved[name]) == keys(type(getattr(made, name)))
        for written, table in zip(resolved["term"], made.term, strict=True):
            assert set(written) == keys(type(table))
        assert resolved["term"][1]["wrap"][1] == {"kind": "normalized", "decay": 0.99}

    def test_a_term_without_a_name_is_resolved_with_the_one_that_it_gets(self, tmp_path: Path) -> None:
        assert [table.name for table in config(tmp_path, TERMS).term] == ["kl", "l2", "steady"]

    def test_the_resolved_config_is_the_config_again(self, tmp_path: Path) -> None:
        made = config(tmp_path, TERMS + "[sinks]\nwandb = true\nmlflow = false\n")
        assert Config.from_dict(json.loads(json.dumps(made.to_dict()))) == made

    def test_reading_it_again_looks_for_no_file(self, tmp_path: Path) -> None:
        made = config(tmp_path)
        (tmp_path / "lines.jsonl").unlink()
        assert Config.from_dict(made.to_dict()) == made

    def test_what_was_written_by_others_is_checked(self) -> None:
        with pytest.raises(ConfigError, match="config: train.steps: found 0"):
            Config.from_dict({"data": {"path": "x"}, "train": {"steps": 0}})

    def test_it_never_changes(self, tmp_path: Path) -> None:
        with pytest.raises(pydantic.ValidationError, match="frozen"):
            config(tmp_path).train.steps = 5  # pyright: ignore[reportAttributeAccessIssue]


class TestWhatItMakes:
    def test_terms(self, tmp_path: Path) -> None:
        pipeline = config(tmp_path, TERMS).pipeline()
        assert pipeline.names == ("kl", "l2", "steady")
        assert dict(pipeline["kl"].inputs) == {"logprobs": "logprobs", "reference": "initial"}
        assert pipeline["steady"].options == {"size": 2.0}
        assert not pipeline["steady"].enabled
        assert "Normalized(EMA(l2, decay=0.5), decay=0.99)" in repr(pipeline["l2"])

    def test_schedules_take_their_weight_from_the_term(self, tmp_path: Path) -> None:
        assert config(tmp_path, TERMS).pipeline()["kl"].weight == schedules.warmup(0.05, 20)

    def test_a_weight_that_is_set_is_that_of_the_schedule_too(self, tmp_path: Path) -> None:
        pipeline = config(tmp_path, TERMS, ["kl.weight=1"]).pipeline()
        assert pipeline["kl"].weight == schedules.warmup(1.0, 20)

    def test_the_learning_rate_is_constant_or_scheduled(self, tmp_path: Path) -> None:
        assert config(tmp_path, "[train]\nlearning_rate = 0.5").learning_rate()(7) == 0.5
        text = '[train]\nlearning_rate = 0.5\nsteps = 11\nschedule = { kind = "cosine" }'
        assert config(tmp_path, text).learning_rate() == schedules.cosine(0.5, 0.0, 11)

    def test_references(self, tmp_path: Path) -> None:
        class Client:
            def forward(self, *given: Any) -> None: ...

        asked: list[Any] = []

        def teacher(table: Any) -> Client:
            asked.append(table)
            return Client()

        made = config(tmp_path, TERMS).providers(teacher)
        assert list(made) == ["initial", "noisy", "teacher"]
        assert isinstance(made["initial"], references.Initial)
        assert made["noisy"] == references.perturbed(0.3, 2, 5)
        assert repr(made["teacher"]) == "client(Client, cache=True)"
        assert [(table.model, table.seed) for table in asked] == [("tiny", 7)]

    @pytest.mark.parametrize(("written", "reduces"), [("tinker", "sums"), ("averages", "averages")])
    def test_a_server_is_named_by_how_it_reduces(self, tmp_path: Path, written: str, reduces: str) -> None:
        made = config(tmp_path, f'[backend]\nkind = "tinker"\nserver = "{written}"')
        assert made.to_dict()["backend"]["server"] == reduces

    def test_skyrl_is_a_server_that_averages_with_a_warning(self, tmp_path: Path) -> None:
        with pytest.warns(FutureWarning, match=r'backend.server = "skyrl".*JAX backend.*write "averages" or "sums"'):
            made = config(tmp_path, '[backend]\nkind = "tinker"\nserver = "skyrl"')
        # Once: a run that is resumed has the name of the reduction.
        assert Config.from_dict(made.to_dict()).backend.server == "averages"

    def test_a_base_loss_by_name(self, tmp_path: Path) -> None:
        text = '[references]\ninitial = { kind = "initial" }\n[train]\nloss = "dpo"\nloss_options = { beta = 0.5 }'
        assert config(tmp_path, text).base == {"fn": "dpo", "options": {"beta": 0.5}}

    @pytest.mark.parametrize(
        ("function", "reads"),
        [
            ("loss", {"examples": "data", "values": "logprobs"}),
            ("loss_by_name", {"logprobs": "logprobs", "mask": "mask"}),
            ("loss_of_reference", {"data": "data", "logprobs": "logprobs", "initial": "initial"}),
        ],
    )
    def test_a_base_loss_of_ones_own(self, tmp_path: Path, function: str, reads: dict[str, str]) -> None:
        text = f'[references]\ninitial = {{ kind = "initial" }}\n[train]\nloss = "tests.app.config_terms:{function}"'
        base = config(tmp_path, text, ["train.loss_options={scale = 2.0}"]).base
        assert isinstance(base, Term)
        assert dict(base.inputs) == reads
        assert base.options == {"scale": 2.0}
        assert base.name == "base_loss"


class TestSinks:
    def test_true_is_a_table_of_defaults_and_false_is_none(self, tmp_path: Path) -> None:
        made = config(tmp_path, '[sinks]\ntensorboard = true\nwandb = false\nmlflow = { experiment = "mine" }').sinks
        assert made.tensorboard is not None
        assert made.tensorboard.folder is None
        assert made.wandb is None
        assert made.mlflow is not None
        assert made.mlflow.experiment == "mine"


class TestFiles:
    @pytest.mark.parametrize("path", [None, "demo"])
    def test_without_a_file_it_is_the_demo(self, path: str | None) -> None:
        assert find(path).name == "demo.toml"
        assert load(path).pipeline().names == ("kl", "entropy", "size")

    def test_a_file_that_is_called_demo_is_that_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write(tmp_path, "[train]\nsteps = 3", name="demo")
        monkeypatch.chdir(tmp_path)
        assert load("demo").train.steps == 3

    def test_paths_are_relative_to_the_config(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "inner").mkdir()
        write(tmp_path / "inner")
        monkeypatch.chdir(tmp_path)
        assert load("inner/run.toml").data.path == str(tmp_path / "inner" / "lines.jsonl")

    def test_paths_that_are_set_are_relative_to_the_working_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "inner").mkdir()
        write(tmp_path / "inner")
        write(tmp_path)
        monkeypatch.chdir(tmp_path)
        made = load("inner/run.toml", ["data.eval_path=lines.jsonl"])
        assert made.data.eval_path == str(tmp_path / "lines.jsonl")
        assert made.data.path == str(tmp_path / "inner" / "lines.jsonl")

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ("store", "{}/store"),
            ("../store", "{}/../store"),
            ("/store", "/store"),
            ("sqlite:///runs.db", "sqlite:///{}/runs.db"),
            ("sqlite:////runs.db", "sqlite:////runs.db"),
            ("sqlite:///:memory:", "sqlite:///:memory:"),
            ("sqlite:///", "sqlite:///"),
            ("file:./store", "file:{}/store"),
            ("file:///store", "file:///store"),
            ("http://host:5000", "http://host:5000"),
            ("databricks", "databricks"),
        ],
    )
    def test_what_sinks_write_is_relative_to_the_config(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, expected: str
    ) -> None:
        (tmp_path / "inner").mkdir()
        monkeypatch.chdir(tmp_path)
        text = f'[sinks]\ntensorboard = {{ folder = "board" }}\nmlflow = {{ tracking_uri = "{given}" }}'
        sinks = load(write(tmp_path / "inner", text)).sinks
        assert sinks.tensorboard is not None
        assert sinks.tensorboard.folder == str(tmp_path / "inner" / "board")
        assert sinks.mlflow is not None
        assert sinks.mlflow.tracking_uri == expected.format(tmp_path / "inner").replace("/inner/..", "")

    def test_what_sinks_write_is_relative_to_the_working_directory_where_it_is_set(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "inner").mkdir()
        monkeypatch.chdir(tmp_path)
        overrides = ["sinks.tensorboard.folder=board", "sinks.mlflow.tracking_uri=sqlite:///runs.db"]
        sinks = load(write(tmp_path / "inner", "[sinks]\nmlflow = true"), overrides).sinks
        assert sinks.tensorboard is not None
        assert sinks.tensorboard.folder == str(tmp_path / "board")
        assert sinks.mlflow is not None
        assert sinks.mlflow.tracking_uri == f"sqlite:///{tmp_path}/runs.db"

    def test_folders_of_caches_are_paths_too(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "inner").mkdir()
        monkeypatch.chdir(tmp_path)
        text = '[[term]]\nfn = "l2"\ninputs = "flat_mask"\nwrap = [{ kind = "cached", folder = "cache" }]'
        (layer,) = load(write(tmp_path / "inner", text)).term[0].wrap
        assert layer.kind == "cached"
        assert layer.folder == str(tmp_path / "inner" / "cache")

    def test_folders_of_models_are_paths_too(self, tmp_path: Path) -> None:
        for name in ("student", "teacher"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "config.json").write_text("{}")
        text = '[model]\nname = "./student"\n[references]\nteacher = { kind = "client", model = "../teacher" }'
        (tmp_path / "inner").mkdir()
        found = problems(tmp_path / "inner", text)
        assert "student" in found["model.name"]
        made = config(tmp_path, text.replace("../", "./"))
        assert made.model.name == str(tmp_path / "student")

    def test_names_on_the_hub_are_left_alone(self, tmp_path: Path) -> None:
        assert config(tmp_path, '[model]\nname = "Qwen/Qwen3-0.6B"').model.name == "Qwen/Qwen3-0.6B"

    def test_functions_beside_the_config_are_found(self, tmp_path: Path) -> None:
        (tmp_path / "beside_the_config.py").write_text(
            "def mine(logprobs):\n    return sum(x.sum() for x in logprobs)\n"
        )
        made = config(tmp_path, '[[term]]\nfn = "beside_the_config:mine"')
        assert made.pipeline().names == ("mine",)

    def test_a_byte_order_mark_is_ignored(self, tmp_path: Path) -> None:
        path = write(tmp_path)
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
        assert load(path).train.steps == 100

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        write(tmp_path)
        with pytest.raises(ConfigError) as caught:
            load(tmp_path / "rum.toml")
        assert caught.value.problems == [Problem("file", "does not exist; did you mean run.toml?")]
        with pytest.raises(ConfigError, match="file: does not exist; give the path of a TOML file$"):
            load(tmp_path / "no" / "such" / "folder.toml")

    def test_a_file_that_cannot_be_read(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"file: cannot be read \(it is a folder; expected a file\)"):
            load(tmp_path)

    @pytest.mark.parametrize("text", [b"[train\nsteps = 1", b"\xff\xfe", b"a = 1\na = 2", b"a = " + b"9" * 5000])
    def test_a_file_that_is_not_toml_is_an_error(self, tmp_path: Path, text: bytes) -> None:
        (tmp_path / "run.toml").write_bytes(text)
        with pytest.raises(ConfigError, match="run.toml: file: is not valid TOML"):
            load(tmp_path / "run.toml")

    def test_a_link_is_followed_but_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        path = write(tmp_path)
        (tmp_path / "linked.toml").symlink_to(path)
        assert load(tmp_path / "linked.toml") == load(path)
        os.mkfifo(tmp_path / "pipe.toml")
        with pytest.raises(ConfigError, match=r"file: cannot be read \(it is a named pipe; expected a file\)"):
            load(tmp_path / "pipe.toml")
        with pytest.raises(ConfigError, match=r"file: cannot be read \(it is a device; expected a file\)"):
            load("/dev/zero")

    @pytest.mark.parametrize("text", [f"a = {'[' * 3000}{']' * 3000}", f"{'a.' * 3000}b = 1", f"{'a.' * 400}b = 1"])
    def test_a_file_that_is_nested_too_deeply_is_an_error(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "run.toml").write_text(text)
        with pytest.raises(ConfigError, match="run.toml: file: is nested too deeply; expected at most 50 levels"):
            load(tmp_path / "run.toml")

    def test_so_is_the_config_of_a_run(self, tmp_path: Path) -> None:
        deep: dict[str, Any] = {}
        for _ in range(900):
            deep = {"a": deep}
        with pytest.raises(ConfigError, match="file: is nested too deeply"):
            load_again(deep, tmp_path)

    @pytest.mark.parametrize("table", ["[model]\nname", "[data]\npath"])
    def test_a_home_that_nobody_has_is_a_problem(self, tmp_path: Path, table: str) -> None:
        found = problems(tmp_path, f'{table} = "~no-such-user/here"')
        assert len(found) == 1
        assert "~no-such-user/here" in next(iter(found.values()))


class TestErrors:
    def test_they_travel_between_processes(self) -> None:
        error = ConfigError("run.toml", [Problem("train.steps", "missing")])
        again = pickle.loads(pickle.dumps(error))
        assert str(again) == str(error) == "run.toml: train.steps: missing"
        assert again.problems == error.problems

    def test_what_is_right_is_given_beside_what_is_wrong(self, tmp_path: Path) -> None:
        made, wrong = examine(write(tmp_path, "[train]\nsteps = 0\nseed = 5"))
        assert made.train.seed == 5
        assert [one.where for one in wrong] == ["train.steps"]
