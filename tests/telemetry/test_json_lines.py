"""JSON lines: one complete line per event, whatever happens."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from penalties.encoding import loads
from penalties.errors import OptionError, PenaltiesError
from penalties.telemetry import JSONLines, attach, detach, events

from .outputs import Explanation, Output, fail, stop


def read(path: Path) -> list[dict]:
    text = path.read_text()
    assert text.endswith("\n")
    return [loads(line) for line in text.splitlines()]


def test_a_stop_is_a_line_with_the_nested_output_in_one_transfer(tmp_path: Path):
    output = Output()
    start = time.time()
    with JSONLines(tmp_path / "metrics.jsonl"):
        stop(output, call=4, step=20)
    (line,) = read(tmp_path / "metrics.jsonl")
    assert start <= line.pop("time") <= time.time()
    assert line == {
        "event": "pipeline.stop",
        "step": 20,
        "call": 4,
        "pipeline": "main",
        "term_count": 1,
        "duration": 0.25,
        "loss_total": 3.0,
        "regularizer_total": 3.0,
        "total_grad_norm": None,
        "output": Output().to_dict(),
    }
    assert list(line)[:2] == ["event", "step"]
    assert output.transfers == 1


def test_exceptions_and_explanations_are_lines(tmp_path: Path):
    with JSONLines(tmp_path / "metrics.jsonl"):
        fail(ValueError("bad\nvalue"), step=3)
        events.emit("monitor.explain", {}, {"step": 3, "reason": "jump", "explanation": Explanation()})
    error, explanation = read(tmp_path / "metrics.jsonl")
    assert error["event"] == "pipeline.exception"
    assert error["error"] == {"type": "ValueError", "message": "bad\nvalue"}
    assert error["term"] == "l1"
    assert explanation["reason"] == "jump"
    assert explanation["explanation"]["dominant"] == ["l1"]
    assert math.isnan(explanation["explanation"]["share"])


def test_nan_is_a_string_that_every_parser_reads(tmp_path: Path):
    with JSONLines(tmp_path / "metrics.jsonl"):
        stop(Output(math.nan))
        stop(Output(-math.inf), call=2)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    values = [json.loads(line, parse_constant=pytest.fail)["loss_total"] for line in lines]
    assert values == ["NaN", "-Infinity"]
    assert math.isnan(read(tmp_path / "metrics.jsonl")[0]["output"]["regularizers"]["l1"]["value"])


def test_measurements_outside_an_output_are_read_one_by_one(tmp_path: Path):
    with JSONLines(tmp_path / "metrics.jsonl", events="term.stop"):
        events.emit("term.stop", {"value": np.array(0.5, np.float32)}, {"name": "l1", "weight": np.float32(0.5)})
    (line,) = read(tmp_path / "metrics.jsonl")
    assert (line["value"], line["weight"], line["name"]) == (0.5, 0.5, "l1")


def test_steps_are_counted_where_none_is_given(tmp_path: Path):
    with JSONLines(tmp_path / "metrics.jsonl"):
        stop(Output(), call=1)
        stop(Output(), call=1, event="custom_loss.stop")  # the custom loss around that pipeline
        fail(ValueError("bad"), call=2)
        stop(Output(), call=3)
        stop(Output(), call=4, step=np.int64(40))
        stop(Output(), call=5)
    assert [line["step"] for line in read(tmp_path / "metrics.jsonl")] == [0, 0, 1, 1, 40, 2]


def test_lines_are_appended_to_those_of_an_earlier_run(tmp_path: Path):
    for step in range(3):
        with JSONLines(tmp_path / "metrics.jsonl"):
            stop(Output(), step=step)
    assert [line["step"] for line in read(tmp_path / "metrics.jsonl")] == [0, 1, 2]


@pytest.mark.parametrize("before", ['{"step": 0}\n', "", '{"step": 0}\n' * 9000])
def test_a_piece_of_a_line_is_removed(tmp_path: Path, before: str):
    path = tmp_path / "metrics.jsonl"
    path.write_text(before + '{"ste' + "p" * 70000)
    with JSONLines(path):
        stop(Output(), step=1)
    text = path.read_text()
    assert text.startswith(before)
    assert loads(text.removeprefix(before))["step"] == 1


def test_a_line_that_is_just_being_written_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{"ste')
    monkeypatch.setattr(time, "sleep", lambda seconds: path.write_text('{"step": 0}\n{"step": 1}\n'))
    JSONLines(path).close()
    assert [line["step"] for line in read(path)] == [0, 1]


CHILD = """
import sys
from penalties.telemetry import JSONLines, events
from tests.telemetry.outputs import Output

with JSONLines(sys.argv[1]):
    for step in range(int(sys.argv[2]), 10**9):
        events.emit("pipeline.stop", {"duration": 0.1}, {"call": step, "step": step, "output": Output()})
        if step % 100 == 0:
            print("alive", flush=True)
"""


def test_killed_processes_leave_complete_lines(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    kills = 4
    for number in range(kills):
        command = [sys.executable, "-c", CHILD, str(path), str(1_000_000 * number)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"alive\n"
            time.sleep(0.01)
            os.kill(child.pid, signal.SIGKILL)
    # The kernel may end a write between two pages of the file: the last kill may leave a piece without an end.
    lines = path.read_bytes().splitlines(keepends=True)
    steps = [loads(line)["step"] for line in lines if line.endswith(b"\n")]
    assert len(lines) - len(steps) <= 1
    runs = [[step for step in steps if step // 1_000_000 == number] for number in range(kills)]
    for number, run in enumerate(runs):
        assert run == [1_000_000 * number + step for step in range(len(run))]
        assert run


def test_threads_do_not_mix_their_lines(tmp_path: Path):
    def work(number: int) -> None:
        for step in range(100):
            stop(Output(), call=1000 * number + step, step=1000 * number + step)

    with JSONLines(tmp_path / "metrics.jsonl"):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    steps = sorted(line["step"] for line in read(tmp_path / "metrics.jsonl"))
    assert steps == [1000 * number + step for number in range(4) for step in range(100)]


def test_a_line_that_does_not_fit_on_the_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sink = JSONLines(tmp_path / "metrics.jsonl")
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, line: write(descriptor, line[:10]))
    with pytest.raises(OSError, match="metrics.jsonl: only part of a line could be written; is the disk full?"):
        sink("pipeline.stop", {}, {})
    sink.close()


def test_the_folder_must_exist(tmp_path: Path):
    with pytest.raises(OptionError, match=r'JSONLines: path=".*run/metrics.jsonl"; expected .* create .*run'):
        JSONLines(tmp_path / "run" / "metrics.jsonl")
    assert not (tmp_path / "run").exists()
    with pytest.raises(IsADirectoryError):
        JSONLines(tmp_path)


def test_what_cannot_be_written_is_named_and_leaves_no_part_of_a_line(tmp_path: Path):
    with JSONLines(tmp_path / "metrics.jsonl") as sink, pytest.raises(TypeError, match="encode: name is a set"):
        sink("pipeline.stop", {}, {"name": {1}})
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


def test_a_closed_sink_says_so(tmp_path: Path):
    sink = JSONLines(tmp_path / "metrics.jsonl")
    assert repr(sink) == f"<JSONLines {tmp_path / 'metrics.jsonl'}>"
    sink.close()
    sink.close()
    with pytest.raises(PenaltiesError, match="<JSONLines .*, closed> accepts no more events"):
        sink("pipeline.stop", {}, {})
    with pytest.raises(PenaltiesError, match="cannot be entered again"), sink:
        pass


def test_with_attaches_and_detaches(tmp_path: Path):
    with JSONLines(tmp_path / "metrics.jsonl") as sink:
        assert [attached.handler for attached in events.handlers] == [sink]
        with pytest.raises(PenaltiesError, match="cannot be entered again"), sink:
            pass
    assert events.handlers == ()
    assert sink.closed


def test_an_error_inside_with_passes_and_still_closes(tmp_path: Path):
    sink = JSONLines(tmp_path / "metrics.jsonl")
    with pytest.raises(KeyError), sink:
        raise KeyError
    assert sink.closed
    assert events.handlers == ()


def test_detaching_does_not_close(tmp_path: Path):
    sink = JSONLines(tmp_path / "metrics.jsonl")
    detach(attach(sink))
    attach(sink)
    stop(Output())
    sink.close()
    assert len(read(tmp_path / "metrics.jsonl")) == 1


def test_unknown_events_are_errors_before_there_is_a_file(tmp_path: Path):
    with pytest.raises(OptionError, match='JSONLines: events="pipeline.stpo"; .* did you mean pipeline.stop?'):
        JSONLines(tmp_path / "metrics.jsonl", events=["pipeline.stpo"])
    assert not list(tmp_path.iterdir())
