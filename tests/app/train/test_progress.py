"""What is shown of a run: a table on a terminal, lines in a pipe, JSON for a machine, nothing where that is wanted."""

import array
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
from penalties.app.train.live import Live, means
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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"


def step(number: int, value: float = 2.0, **terms: Any) -> dict[str, Any]:
    kl = {"value": value / 2, "weight": 0.5, "contribution": value / 4, "grad_norm": 0.25, "custom": {}}
    kl |= {"grad_norm_weighted": 0.125, **terms}
    return {
        "kind": "step",
        "step": number,
        "seconds": 0.05,
        "tokens": 100,
        "learning_rate": 0.1,
        "loss": {
            "loss_total": 1.25 * value,
            "base_loss": {"value": value, "grad_norm": 1.0, "custom": {}},
            "regularizers": {"kl": kl},
            "regularizer_total": value / 4,
            "total_grad_norm": 1.1,
        },
    }


def event(kind: str, message: str = "something", number: int = 3) -> dict[str, Any]:
    return {"kind": "event", "step": number, "event": kind, "message": message}


def evaluation(number: int) -> dict[str, Any]:
    return {**step(number), "kind": "eval"}


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
        assert found[-1].endswith("tokens/s, 0:00 elapsed")

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

    def test_are_as_few_as_is_asked_for(self) -> None:
        out = io.StringIO()
        lines = chosen(out=out, lines=5)
        lines.begin(Path("run"), 60, 0)
        for number in range(60):
            lines.record(step(number), "")
        told = [line.split("/")[0] for line in out.getvalue().splitlines()[1:]]
        assert told == ["step 1", "step 12", "step 24", "step 36", "step 48", "step 60"]

    def test_a_run_that_goes_on_says_from_where(self) -> None:
        out = io.StringIO()
        Lines(out).begin(Path("run"), 10, 4)
        assert out.getvalue() == "run: 10 steps, 4 of them done\n"

    def test_the_first_step_of_one_that_goes_on_has_a_line(self) -> None:
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

    def test_a_skipped_term_is_said_to_be(self) -> None:
        out = io.StringIO()
        lines = Lines(out)
        lines.record(step(0, value=2.0) | {"loss": step(0)["loss"] | {"regularizers": {"kl": _skipped()}}}, "")
        assert "kl skipped;" in out.getvalue()

    def test_an_objective_without_a_base_has_none(self) -> None:
        loss = {key: part for key, part in step(0)["loss"].items() if key != "base_loss"}
        assert spoken({"kind": "eval", "step": 1, "loss": loss}, 1) == "evaluation after step 1: loss 2.5, kl 1 (100%)"


def _skipped() -> dict[str, Any]:
    return {"value": None, "weight": 0.5, "contribution": None, "grad_norm": None, "custom": {}, "error": "late"}


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
    def test_a_run_outlives_what_shows_it(self, ends_at: str, capfd: pytest.CaptureFixture[str]) -> None:
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

    def test_nothing_is_nothing(self, capfd: pytest.CaptureFixture[str]) -> None:
        SILENT.begin(Path("run"), 1, 0)
        SILENT.say("loading")
        SILENT.stopping()
        SILENT.record(step(0), "")
        SILENT.end()
        assert capfd.readouterr() == ("", "")


class TestLive:
    def drawn(self, live: Live) -> str:
        from rich.console import Console

        out = io.StringIO()
        Console(file=out, width=110, legacy_windows=False).print(live.picture())
        return out.getvalue()

    def test_has_a_bar_and_a_row_for_each_term(self) -> None:
        live = Live(Terminal())
        live.begin(Path("runs/demo"), 10, 0)
        try:
            assert "0/10 steps" in self.drawn(live)
            live.say("loading the model")
            assert "loading the model …" in self.drawn(live)
            for number in range(4):
                live.record(step(number, value=4.0 - number), "")
            shown = self.drawn(live)
        finally:
            live.end()
        assert "loading" not in shown
        lines = shown.splitlines()
        assert "demo" in lines[0]
        assert "4/10 steps" in lines[0]
        assert "2000 tokens/s" in lines[0]
        assert "left" in lines[0]
        assert lines[1].split() == ["term", "value", "weight", "of", "loss", "gradient", "×", "weight"]
        assert lines[2].split() == ["loss", "1.25", "-", "-", "1.1", "█▆▃▁"]
        assert lines[3].split() == ["base_loss", "1", "-", "80%", "1", "█▆▃▁"]
        assert lines[4].split() == ["kl", "0.5", "0.5", "20%", "0.125", "█▆▃▁"]

    def test_a_gradient_that_was_not_measured_is_the_last_that_was(self) -> None:
        live = Live(Terminal())
        live.record(step(0), "")
        unmeasured = step(1, grad_norm=None, grad_norm_weighted=None)
        unmeasured["loss"] |= {"total_grad_norm": None, "base_loss": {"value": 1.0, "grad_norm": None, "custom": {}}}
        live.record(unmeasured, "")
        assert [line.split()[-2] for line in self.drawn(live).splitlines()[2:]] == ["1.1", "1", "0.125"]

    def test_the_bar_ends_with_the_time_that_it_took(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [100.0]
        monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
        live = Live(Terminal())
        live.begin(Path("run"), 10, 0)
        now[0] += 83.0
        live.record(step(0), "")
        assert self.drawn(live).splitlines()[0].endswith(" left")
        live.end()
        assert self.drawn(live).splitlines()[0].endswith("  1:23 elapsed")

    def test_held_out_values_have_a_column_once_there_are_some(self) -> None:
        live = Live(Terminal())
        live.record(evaluation(0), "")
        live.record(step(0, value=3.0), "")
        lines = self.drawn(live).splitlines()
        assert lines[1].split() == ["term", "value", "held", "out", "weight", "of", "loss", "gradient", "×", "weight"]
        assert lines[4].split()[:3] == ["kl", "1.5", "1"]

    def test_a_term_that_rests_or_failed_keeps_its_row(self) -> None:
        live = Live(Terminal())
        live.record(step(0), "")
        resting = step(1)
        resting["loss"]["regularizers"] = {}
        live.record(resting, "")
        assert self.drawn(live).splitlines()[4].split()[:2] == ["kl", "-"]
        failed = step(2)
        failed["loss"]["regularizers"] = {"kl": _skipped()}
        live.record(failed, "")
        assert "skipped" in self.drawn(live).splitlines()[4]

    def test_an_objective_without_a_base_has_no_row_for_it(self) -> None:
        live = Live(Terminal())
        record = step(0)
        del record["loss"]["base_loss"]
        live.record(record, "")
        assert [line.split()[0] for line in self.drawn(live).splitlines()[1:]] == ["term", "loss", "kl"]

    def test_ctrl_c_is_answered_until_the_end(self) -> None:
        live = Live(Terminal())
        live.stopping()
        live.record(step(0), "")
        assert "stopping after this step" in self.drawn(live)

    def test_warnings_are_printed_above_and_checkpoints_are_not(self) -> None:
        out = Terminal()
        live = Live(out)
        live.begin(Path("run"), 10, 0)
        live.record(step(3), "")
        live.record(event("warning", "l1 dominates [l2]"), "")
        live.record(event("checkpoint", "after 3 steps"), "")
        live.end()
        live.end()
        assert "warning at step 4: l1 dominates [l2]" in out.getvalue()
        assert "checkpoint" not in out.getvalue()

    def test_the_course_of_the_whole_run_fits_a_narrow_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        live = Live(Terminal())
        live.record(evaluation(0), "")
        for number in range(40):
            live.record(step(number, value=100.0 - number), "")
        rows = live.picture().plain.splitlines()[2:]
        assert all(len(row) <= 80 for row in rows)
        assert all(row.endswith("▁") for row in rows)

    def test_a_warning_does_not_colour_the_table(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.delenv("NO_COLOR", raising=False)
        out = Terminal()
        live = Live(out)
        live.begin(Path("run"), 10, 0)
        live.record(step(3), "")
        live.record(event("warning", "l1 dominates l2"), "")
        live.end()
        yellow = [line for line in out.getvalue().splitlines() if "33m" in line]
        assert len(yellow) == 1
        assert "warning at step 4" in yellow[0]

    def test_a_terminal_of_few_signs_has_a_line_of_them(self) -> None:
        class Plain(Terminal):
            @property
            def encoding(self) -> str:  # type: ignore[override]
                return "ascii"

        live = Live(Plain())
        for number in range(3):
            live.record(step(number, value=number + 1.0), "")
        shown = self.drawn(live).splitlines()
        assert shown[3].split()[-1] == "_=#"
        assert shown[1].endswith("gradient x weight")

    def test_a_whole_run_can_be_watched(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(start_module, "connect", Backend)
        out = Terminal()
        train(toy_config(tmp_path), tmp_path / "run", progress=Live(out))
        assert "6/6 steps" in out.getvalue()
        assert "finished: 6 steps" in out.getvalue()


class TestHistory:
    @pytest.mark.parametrize(
        ("most", "expected"), [(4, [1.5, 5.5, 9.5, 13.5]), (3, [2.5, 8.5, 13.5]), (100, list(range(16)))]
    )
    def test_is_means_of_equally_many_steps(self, most: int, expected: list[float]) -> None:
        assert means(array.array("d", range(16)), most) == expected

    def test_numbers_that_are_not_finite_are_left_out_of_a_mean(self) -> None:
        found = means(array.array("d", [1.0, math.nan, math.inf, 3.0, -math.inf]), 3)
        assert found[:2] == [1.0, 3.0]
        assert math.isnan(found[2])


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
        pace.step({"step": 4, "tokens": 10, "seconds": 2.0})
        assert pace.left() == "0:10"
        now[0] += 4.0
        pace.step({"step": 5, "tokens": 10, "seconds": 2.0})
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
