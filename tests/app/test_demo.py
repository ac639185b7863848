"""The demo: its data are what their generator writes, its loss falls, and `make demo` leaves a report."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools import pig_latin

from penalties.app.config import find, load
from penalties.app.data import Stream
from penalties.training import AdamParams, LocalTrainingClient, forward_backward_custom

FOLDER = find(None).parent


def test_the_files_are_what_the_generator_writes(tmp_path: Path) -> None:
    pig_latin.write(tmp_path)
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == [f"pig_latin{kind}.jsonl" for kind in ("", "_eval", "_pairs", "_pairs_eval")]
    for name in written:
        assert (FOLDER / name).read_bytes() == (tmp_path / name).read_bytes()


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("pig", "igpay"),
        ("owl", "owlway"),
        ("street", "eetstray"),
        ("queen", "eenquay"),
        ("sky", "yskay"),
        ("ivy", "ivyway"),
    ],
)
def test_words_are_translated(word: str, expected: str) -> None:
    assert pig_latin.translated(word) == expected


def test_no_phrase_is_both_trained_on_and_held_out() -> None:
    train, held_out = (
        {json.loads(line)["prompt"] for line in (FOLDER / name).read_text().splitlines()}
        for name in ("pig_latin.jsonl", "pig_latin_eval.jsonl")
    )
    assert len(train) == 260
    assert len(held_out) == 40
    assert not train & held_out


def test_there_are_as_many_examples_as_one_asks_for() -> None:
    some = list(pig_latin.examples(1000, seed=1))
    assert len({one["prompt"] for one in some}) == 1000


def test_its_loss_falls_by_a_third_in_a_quarter_of_its_steps() -> None:
    config = load()
    with LocalTrainingClient(config.model.name, rank=config.model.rank, seed=config.train.seed) as client:
        stream = Stream(config, client.tokenizer)
        base, pipeline = config.base, config.pipeline()
        providers, rate = config.providers(lambda table: None), config.learning_rate()
        losses: list[float] = []
        for step in range(config.train.steps // 4):
            result = forward_backward_custom(
                client,
                stream.batch(step),
                base,
                regularizers=pipeline,
                references=providers,
                step=step,
            ).result()
            client.optim_step(AdamParams(learning_rate=rate(step), beta2=config.train.beta2)).result()
            assert result.custom_loss is not None
            losses.append(float(result.custom_loss.total))
    assert losses[-1] < losses[0] * 2 / 3


@pytest.mark.slow
def test_make_demo_trains_to_a_finished_report(tmp_path: Path) -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    assert "\ndemo: $(VENV)/.demo\n\t$(BIN)/penalties train\n" in makefile
    # From another folder, as whoever installed it: paths are relative to that.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "penalties", "train"]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == f"report: {Path('runs', 'demo', 'report.html')}"

    run = tmp_path / "runs" / "demo"
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["event"] == "finished"
    for kind in ("step", "eval"):
        losses = [record["loss"]["loss_total"] for record in records if record["kind"] == kind]
        assert losses[-1] < losses[0] * 2 / 3
    page = (run / "report.html").read_text()
    assert '<figure class="chart' in page
    assert all(name in page for name in ("base_loss", "kl", "entropy", "size"))
