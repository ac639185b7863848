"""The display of a run in a pipe: lines, JSON, or nothing; and the numbers of every display."""

import errno
import io
import json
import math
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penalties.app.train import progress as progress_module
from penalties.app.train import start as start_module
from penalties.app.train import train
from penalties.app.train.live import Live
from penalties.app.train.progress import (
    SILENT,
    Enduring,
    JSONProgress,
    Lines,
    Pace,
    Quiet,
    chosen,
    clock,
    share_of,
    short,
    sparkline,
    spoken,
)
from penalties.app.train.signals import Interruption

from ..stand_ins import Backend, toy_config
from .displayed import Terminal, evaluation, event, skipped, step


class TestLines:
    def test_show_the_beginning_the_end_and_some_steps_between(self) -> None:
        out = io.StringIO()
        lines = Lines(out)
        lines.begin(Path("runs/demo"), 100, 0)
        for number in range(100):
            lines.record(step(number), "")
        lines.end()
        found = out.getvalue().splitlines()
        assert found[0] == "runs/demo: 100 steps"
        assert [int(line.split("/")[0].removeprefix("step ")) for line in found[1:]] == [1, *range(5, 101, 5)]
        assert found[1].startswith("step 1/100: loss 2.5, base_loss 2, kl 1 (20%); 2000 tokens/s, ")
        assert found[1].endswith(" left")
        assert found[-1].endswith("tokens/s, learning rate 0.1, 0:00 elapsed")

    @pytest.mark.parametrize(("steps", "said"), [(1, "1 step"), (2, "2 steps")])
    def test_begin_with_the_number_of_steps(self, steps: int, said: str) -> None:
        out = io.StringIO()
        Lines(out).begin(Path("run"), steps, 0)
        assert out.getvalue() == f"run: {said}\n"

    def test_say_once_what_may_take_long(self) -> None:
        out = io.StringIO()
        lines = Lines(out)
        for what in (
            *("loading the model", "asking the model before training: 8 examples"),
            *("asking the model before training: 16 examples", "evaluating", "saving a checkpoint"),
        ):
            lines.say(what)
        assert out.getvalue() == "loading the model\nasking the model before training\n"

    @pytest.mark.parametrize("steps", [21, 39, 60, 150, 12_345])
    def test_are_about_twenty_however_long_the_run_is(self, steps: int) -> None:
        out = io.StringIO()
        lines = Lines(out)
        lines.begin(Path("run"), steps, 0)
        for number in range(steps):
            lines.record(step(number), "")
            lines.record(evaluation(number + 1), "")
            lines.record(event("checkpoint", f"after {number + 1} steps", number + 1), "")
        found = out.getvalue().splitlines()[1:]
        for kind in ("step", "evaluation", "checkpoint"):
            told = [line for line in found if line.startswith(kind)]
            assert 20 <= len(told) <= 21
            assert str(steps) in told[-1]

    def test_are_as_few_as_requested(self) -> None:
        out = io.StringIO()
        lines = chosen(out=out, lines=5)
        lines.begin(Path("run"), 60, 0)
        for number in range(60):
            lines.record(step(number), "")
        told = [line.split("/")[0] for line in out.getvalue().splitlines()[1:]]
        assert told == ["step 1", "step 12", "step 24", "step 36", "step 48", "step 60"]

    def test_have_own_metrics_the_learning_rate_and_the_memory(self) -> None:
        out = io.StringIO()
        lines = Lines(out)
        lines.begin(Path("run"), 1, 0)
        record = {**step(0, custom={"kl_max": 3.0}), "memory": 123_000_000}
        record["loss"]["base_loss"]["custom"] = {"accuracy": 0.75}
        lines.record(record, "")
        lines.record({**record, "kind": "eval"}, "")
        shown = "loss 2.5, base_loss 2, kl 1 (20%); base_loss/accuracy 0.75, kl/kl_max 3"
        assert out.getvalue().splitlines()[1:] == [
            f"step 1/1: {shown}; 2000 tokens/s, learning rate 0.1, 123 MB, 0:00 elapsed",
            f"evaluation after step 1: {shown}",
        ]

    def test_a_resumed_run_shows_the_finished_steps(self) -> None:
        out = io.StringIO()
        Lines(out).begin(Path("run"), 10, 4)
        assert out.getvalue() == "run: 10 steps, 4 of them done\n"

    def test_the_first_step_of_a_resumed_run_has_a_line(self) -> None:
        out = io.StringIO()
        lines = Lines(out)
        lines.begin(Path("run"), 1000, 401)
        for number in (401, 402):
            lines.record(step(number), "")
        assert [line.split(":")[0] for line in out.getvalue().splitlines()[1:]] == ["step 402/1000"]

    def test_evaluations_and_events_have_lines(self) -> None:
        out = io.StringIO()
        lines = Lines(out)
        lines.begin(Path("run"), 20, 0)
        first = [evaluation(0), event("warning", "2 lines are bad", 0), *(step(number) for number in range(4))]
        then = [event("warning"), evaluation(20), event("checkpoint", "after 20 steps", 20), event("finished")]
        for record in (*first, *then):
            lines.record(record, "")
        found = out.getvalue().splitlines()
        assert found[1:3] == [
            "evaluation before step 1: loss 2.5, base_loss 2, kl 1 (20%)",
            "warning: 2 lines are bad",
        ]
        assert found[6].startswith("step 4/20: ")
        assert found[7:] == [
            "warning at step 4: something",
            "evaluation after step 20: loss 2.5, base_loss 2, kl 1 (20%)",
            "checkpoint after 20 steps",
            "finished: something",
        ]

    def test_askipped_term_is_shown_asskipped(self) -> None:
        out = io.StringIO()
        lines = Lines(out)
        lines.record(step(0, value=2.0) | {"loss": step(0)["loss"] | {"regularizers": {"kl": skipped()}}}, "")
        assert "kl skipped;" in out.getvalue()

    def test_an_objective_without_a_base_has_none(self) -> None:
        loss = {key: part for key, part in step(0)["loss"].items() if key != "base_loss"}
        assert spoken({"kind": "eval", "step": 1, "loss": loss}) == "evaluation after step 1: loss 2.5, kl 1 (100%)"


class TestJSON:
    def test_prints_the_lines_of_the_log(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(start_module, "connect", Backend)
        out = io.StringIO()
        run = train(toy_config(tmp_path), tmp_path / "run", progress=JSONProgress(out))
        assert out.getvalue() == run.metrics.read_text()
        assert all(json.loads(line) for line in out.getvalue().splitlines())


class TestChoice:
    def test_is_by_the_options_and_where_the_output_goes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def kind(**options: Any) -> type[Any]:
            made: Any = chosen(**options)
            return type(made._shown)

        assert kind(json=True) is JSONProgress
        assert kind(quiet=True) is Quiet
        assert kind(out=io.StringIO()) is Lines
        assert kind(out=Terminal()) is Live
        monkeypatch.setattr("sys.stdout", io.StringIO())
        assert kind() is Lines

    @pytest.mark.parametrize("ends_at", ["begin", "say", "record", "stopping", "end"])
    def test_a_run_outlives_its_display(self, ends_at: str, capfd: pytest.CaptureFixture[str]) -> None:
        heard: list[str] = []

        def hear(name: str) -> Any:
            def method(*_: Any) -> None:
                heard.append(name)
                if name == ends_at:
                    raise BrokenPipeError(errno.EPIPE, "Broken pipe")

            return method

        names = ["begin", "say", "record", "stopping", "end"]
        shown: Any = Enduring(SimpleNamespace(**{name: hear(name) for name in names}))
        shown.begin(Path("run"), 1, 0)
        shown.say("loading the model")
        shown.record(step(0), "")
        shown.stopping()
        shown.end()
        assert heard == names[: names.index(ends_at) + 1]

    @pytest.mark.parametrize("progress", [Quiet(), Lines(io.StringIO())])
    def test_an_answer_to_ctrl_c_is_safe_in_a_handler(self, progress: Any, capfd: pytest.CaptureFixture[str]) -> None:
        with Interruption(progress.stopping):
            signal.raise_signal(signal.SIGINT)
        assert capfd.readouterr().err == "stopping after this step; press Ctrl-C again to stop at once\n"

    def test_a_silent_display_writes_nothing(self, capfd: pytest.CaptureFixture[str]) -> None:
        SILENT.begin(Path("run"), 1, 0)
        SILENT.say("loading")
        SILENT.stopping()
        SILENT.record(step(0), "")
        SILENT.end()
        assert capfd.readouterr() == ("", "")


class TestNumbers:
    def test_a_duration_is_read_at_a_glance(self) -> None:
        assert [clock(0.4), clock(59.6), clock(3599), clock(3600)] == ["0:00", "1:00", "59:59", "1:00:00"]

    def test_the_time_left_is_by_the_steps_of_this_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [100.0]
        monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
        pace = Pace(10, 4)
        assert pace.left() == "-:--"
        assert pace.tokens_per_second() == 0.0
        now[0] = 500.0  # loading the model is no step
        pace.step({"step": 5, "tokens": 10, "seconds": 2.0})
        assert pace.left() == "0:10"
        now[0] += 4.0
        pace.step({"step": 6, "tokens": 10, "seconds": 2.0})
        assert pace.left() == "0:12"
        assert pace.tokens_per_second() == pytest.approx(5.0)

    def test_shares_are_of_magnitudes(self) -> None:
        loss = {
            "base_loss": {"value": 3.0},
            "regularizers": {
                "a": {"contribution": -1.0},
                "b": {"contribution": math.nan},
                "c": {"contribution": None},
            },
        }
        assert share_of(loss, "base_loss") == 0.75
        assert share_of(loss, "a") == 0.25
        assert share_of(loss, "b") is None
        assert share_of(loss, "c") is None
        assert share_of({"regularizers": {"a": {"contribution": 0.0}}}, "a") is None

    def test_a_line_of_marks_is_flat_where_nothing_changes(self) -> None:
        assert sparkline([1.0, 1.0]) == "▁▁"
        assert sparkline([]) == ""
        assert sparkline([math.inf, 1.0, 2.0]) == " ▁█"

    def test_numbers_are_short(self) -> None:
        assert [short(1234.5678), short(math.inf), short(0), short(-0.00012345)] == ["1235", "inf", "0", "-0.000123"]


def test_the_handler_writes_to_the_standard_error_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[int, bytes]] = []
    monkeypatch.setattr(os, "write", lambda descriptor, content: written.append((descriptor, content)))
    Quiet().stopping()
    assert written == [(2, b"stopping after this step; press Ctrl-C again to stop at once\n")]
