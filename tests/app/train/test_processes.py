"""`penalties train` in two processes: the curve, the log and the weights of one, and everything once."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from penalties.app.processes import launched
from penalties.app.runs import Run
from penalties.app.runs.disk import RunError
from penalties.app.train.clients import connect

from ..configs import LINES, config, lines, problems, write
from ..stand_ins import comparable, events, records
from .launching import WAIT, Launched, free_port, plain_environment, run

pytestmark = pytest.mark.slow

STEPS = 6

# Terms over everything that there is to read, of which none is a sum over data; one draws, one remembers.
CONFIG = """
[model]
rank = 2
device = "cpu"

[train]
steps = 6
batch_size = 3
learning_rate = 1e-2
checkpoint_every = 2
eval_every = 3
gradients_every = 2

[samples]
prompts = ["say:"]
max_tokens = 3

[references]
initial = { kind = "initial" }
teacher = { kind = "client", model = "tiny", seed = 3 }

[[term]]
fn = "kl_divergence"
weight = 0.1
inputs = { p = "logits", q = "initial.logits", mask = "mask" }
options = { logits = true }

[[term]]
fn = "tests.app.train.batch_terms:spread"
weight = 0.01
inputs = { hidden = "flat_hidden.1" }

[[term]]
fn = "tests.app.train.batch_terms:apart"
weight = 0.1

[[term]]
fn = "tests.app.terms:counting"
weight = 0.01

[[term]]
fn = "tests.app.terms:drawing"
weight = 0.01

[[term]]
fn = "l2"
weight = 1e-3
inputs = "params"

[data]
path = "lines.jsonl"
eval_path = "held_out.jsonl"
"""
# Terms that are sums or means over tokens, so that parts go through the model once.
SUMS = f"""{CONFIG[: CONFIG.index("[[term]]")]}
[[term]]
fn = "js_divergence"
weight = 0.1
inputs = {{ p = "logits", q = "initial.logits", mask = "mask" }}
options = {{ logits = true }}

[[term]]
fn = "l2"
weight = 1e-3
inputs = "logprobs"
options = {{ reduction = "mean" }}

{CONFIG[CONFIG.index("[data]") :]}"""
PAUSE = """
[[term]]
fn = "tests.app.train.batch_terms:pausing"
weight = 0.0
"""


def written(folder: Path, more: str = "", text: str = CONFIG) -> Path:
    lines(folder / "held_out.jsonl", LINES[:3])
    return write(folder, text + more)


def trained(folder: Path, name: str, *arguments: str, count: int = 2, more: str = "", text: str = CONFIG) -> Run:
    """A run in a folder, by so many processes, of which the first alone says anything."""
    written(folder, more, text)
    first, *others = run(folder, "train", "run.toml", "--run", name, *arguments, count=count)
    assert (first.status, first.err) == (0, "")
    assert first.out.count(f"report: {name}/report.html") == 1
    assert first.out.count("loading the model" if count == 1 else f"loading the model in {count} processes") == 1
    assert all(other == (0, "", "") for other in others)
    return Run(folder / name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def alone(folder: Path) -> Run:
    return trained(folder, "alone", count=1)


@pytest.fixture(scope="module")
def both(folder: Path) -> Run:
    return trained(folder, "both")


def weights(run: Run) -> dict[str, Any]:
    return load_file(run.checkpoints / f"{STEPS:06d}" / "client" / "adapter_model.safetensors")


def assert_same_curve(found: Run, expected: Run) -> None:
    """The same records, whose losses and terms agree to 1e-4."""
    kinds = [[(one["kind"], one["step"]) for one in comparable_records(run)] for run in (found, expected)]
    assert kinds[0] == kinds[1]
    for mine, other in zip(comparable_records(found), comparable_records(expected), strict=True):
        if "loss" in mine:
            numbers = [numbers_of(one["loss"]) for one in (mine, other)]
            assert numbers[0] == pytest.approx(numbers[1], abs=1e-4, rel=1e-4)
    for name, one in weights(expected).items():
        torch.testing.assert_close(weights(found)[name], one, atol=1e-4, rtol=1e-4)


def comparable_records(run: Run) -> list[dict[str, Any]]:
    return [one for one in run.records() if one.get("event") not in ("resumed", "interrupted", "failed")]


def numbers_of(value: Any, path: str = "") -> dict[str, float]:
    """Every number in a record but durations, by its path."""
    if isinstance(value, dict):
        parts = [numbers_of(part, f"{path}/{name}") for name, part in value.items() if name != "duration"]
        return {key: one for part in parts for key, one in part.items()}
    return {path: float(value)} if isinstance(value, int | float) else {}


def test_two_processes_have_the_curve_the_log_and_the_weights_of_one(alone: Run, both: Run) -> None:
    assert_same_curve(both, alone)
    assert [len(one["samples"]) for one in records(both, "samples")] == [1, 1, 1]
    assert sorted(path.name for path in both.folder.iterdir()) == sorted(path.name for path in alone.folder.iterdir())
    # The norms of gradients at the parameters, too.
    assert any("grad_norm" in key for key in numbers_of(records(both, "step")[0]["loss"]))


def test_sharded_weights_give_the_same(folder: Path, alone: Run) -> None:
    changed = ("--set", "train.shard=true", "--set", "train.micro_batch_tokens=40")
    assert_same_curve(trained(folder, "sharded", *changed), alone)


@pytest.mark.parametrize("shard", ["false", "true"])
def test_sums_over_parts_give_the_same_and_resume_to_the_bit(tmp_path: Path, shard: str) -> None:
    parts = ("--set", "train.micro_batch_tokens=20", "--set", f"train.shard={shard}")
    single = trained(tmp_path, "single", *parts[:2], count=1, text=SUMS)
    assert_same_curve(trained(tmp_path, "both", *parts, text=SUMS), single)
    drawing = (*parts, "--set", "model.lora_dropout=0.3")
    expected = trained(tmp_path, "whole", *drawing, text=SUMS)
    trained(tmp_path, "resumed", *drawing, "--set", "train.steps=4", text=SUMS)
    found = trained(tmp_path, "resumed", *drawing, "--resume", text=SUMS)
    assert all(torch.equal(weights(found)[name], one) for name, one in weights(expected).items())


def test_three_processes_and_a_line_for_each_but_one(folder: Path) -> None:
    few = ("--set", "train.batch_size=2")
    assert_same_curve(trained(folder, "three", *few, count=3), trained(folder, "two lines", *few, count=1))


def test_a_term_that_fails_ends_all_with_one_message(tmp_path: Path) -> None:
    written(tmp_path, '[[term]]\nfn = "tests.app.terms:failing"\n')
    first, second = run(tmp_path, "train", "run.toml", "--run", "failed", "--quiet")
    assert (first.status, first.out) == (1, "")
    assert first.err.startswith("error: at step 5: failing: raised RuntimeError: as the test wants it\n")
    assert second == (0, "", "")
    assert events(Run(tmp_path / "failed"))[-1] == "failed"
    assert (tmp_path / "failed" / "report.html").exists()


def test_a_wrong_command_is_said_once(tmp_path: Path) -> None:
    first, second = run(tmp_path, "train", "nowhere.toml")
    assert first.status == 2
    assert first.err.startswith("error: ")
    assert second == (0, "", "")


# Interrupted, killed, resumed.


def paused(folder: Path, name: str, act: Callable[[Launched], None]) -> list[Any]:
    """A run to which something happens in its fifth step."""
    there = folder / "paused"
    there.unlink(missing_ok=True)
    written(folder, PAUSE)
    with Launched(folder, ["train", "run.toml", "--run", name]) as launched:
        until = time.monotonic() + WAIT
        while not there.exists():
            assert time.monotonic() < until
            assert launched.processes[0].poll() is None, launched.processes[0].communicate()
            time.sleep(0.05)
        act(launched)
        return launched.ended()


@pytest.fixture(scope="module")
def whole(folder: Path) -> Run:
    """What the runs below would be, had nothing happened."""
    return trained(folder, "whole", more=PAUSE)


def assert_same_bits(found: Run, expected: Run) -> None:
    # An interruption saves a checkpoint of its own.
    logs = [[one for one in run.records() if one.get("event") != "checkpoint"] for run in (found, expected)]
    assert comparable(logs[0]) == comparable(logs[1])
    assert all(torch.equal(weights(found)[name], one) for name, one in weights(expected).items())


def test_an_interrupted_run_saves_a_checkpoint_and_resumes_to_the_bit(folder: Path, whole: Run) -> None:
    def interrupt(launched: Launched) -> None:
        # As a launcher does: every process gets it.
        for process in launched.processes:
            process.send_signal(signal.SIGTERM)

    first, second = paused(folder, "interrupted", interrupt)
    assert first.status == 1
    assert "error: interrupted after 5 steps; resume with:\n" in first.err
    assert second == (0, "", "")
    assert_same_bits(trained(folder, "interrupted", "--resume", more=PAUSE), whole)


def test_a_run_whose_first_process_is_killed_resumes_to_the_bit_or_alone(folder: Path, whole: Run) -> None:
    began = time.monotonic()
    _, second = paused(folder, "killed", lambda launched: launched.processes[0].kill())
    # At once: it does not wait for orders that will not come.
    assert second == (1, "", "")
    assert time.monotonic() - began < WAIT / 2
    shutil.copytree(folder / "killed", folder / "killed too")
    assert_same_bits(trained(folder, "killed", "--resume", more=PAUSE), whole)
    assert_same_curve(trained(folder, "killed too", "--resume", count=1, more=PAUSE), whole)


def test_a_run_whose_other_process_is_killed_fails_with_one_message(folder: Path, whole: Run) -> None:
    first, _ = paused(folder, "deserted", lambda launched: launched.processes[1].kill())
    assert first.status == 1
    assert first.err.startswith("error: one of the 2 processes ended or does not answer: ")
    assert events(Run(folder / "deserted"))[-1] == "failed"
    assert_same_bits(trained(folder, "deserted", "--resume", more=PAUSE), whole)


# Launchers.


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_launchers_start_it(folder: Path, alone: Run, launcher: str) -> None:
    written(folder)
    options = {
        "torchrun": ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}", "-m", "--"],
        "accelerate": [
            *("-m", "accelerate.commands.launch", "--cpu", "--num_processes=2", "--num_machines=1"),
            *("--mixed_precision=no", "--dynamo_backend=no", f"--main_process_port={free_port()}", "-m"),
        ],
    }
    command = [sys.executable, *options[launcher], "penalties", "train", "run.toml", "--run", launcher, "--quiet"]
    ended = subprocess.run(command, cwd=folder, env=plain_environment(), capture_output=True, text=True, timeout=WAIT)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    assert_same_curve(Run(folder / launcher), alone)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"WORLD_SIZE": "2"}, False),
        ({"RANK": "0", "WORLD_SIZE": "1"}, False),
        ({"RANK": "1", "WORLD_SIZE": "many"}, False),
        ({"RANK": "1", "WORLD_SIZE": "2"}, True),
    ],
)
def test_launched_reads_the_environment(
    environment: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert launched() is expected


def test_a_server_takes_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penalties.app.train.clients.launched", lambda: True)
    with pytest.raises(RunError, match='backend.kind = "tinker": the model is on a server'):
        connect(config(tmp_path, '[backend]\nkind = "tinker"\n'))


def test_what_a_sharded_model_cannot_have_is_a_problem_of_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = '[model]\nadapter = "none"\ncompile = true\n[train]\nshard = true\npacking = true\n'
    found = problems(tmp_path, given)
    assert found.keys() == {"model.adapter", "model.compile", "train.packing"}
    expected = 'found "none", which a model with train.shard cannot have yet; remove one of the two'
    assert found["model.adapter"] == expected
    # As if bitsandbytes were installed.
    monkeypatch.setattr("penalties.app.config.checks.find_spec", lambda name: name)
    found = problems(tmp_path, '[model]\nquantize = "4bit"\n[train]\nshard = true\n')
    assert found["model.quantize"].startswith('found "4bit", which a model with train.shard cannot have yet')


def test_sharding_needs_a_fixed_number_of_tokens(tmp_path: Path) -> None:
    found = problems(tmp_path, '[train]\nshard = true\nmicro_batch_tokens = "auto"\n')
    assert found["train.micro_batch_tokens"].startswith('found "auto"; expected a number with train.shard')
    found = problems(tmp_path, '[backend]\nkind = "tinker"\n[train]\nshard = true\n')
    assert "train.shard" in found
