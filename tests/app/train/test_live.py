"""The live table on a terminal."""

import array
import io
import math
from pathlib import Path

import pytest

from penalties.app.train import progress as progress_module
from penalties.app.train import start as start_module
from penalties.app.train import train
from penalties.app.train.live import Live, means

from ..stand_ins import Backend, toy_config
from .displayed import Terminal, evaluation, event, skipped, step


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
        assert [line.split()[-2] for line in self.drawn(live).splitlines()[2:-1]] == ["1.1", "1", "0.125"]

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
        failed["loss"]["regularizers"] = {"kl": skipped()}
        live.record(failed, "")
        assert "skipped" in self.drawn(live).splitlines()[4]

    def test_an_objective_without_a_base_has_no_row_for_it(self) -> None:
        live = Live(Terminal())
        record = step(0)
        del record["loss"]["base_loss"]
        live.record(record, "")
        assert [line.split()[0] for line in self.drawn(live).splitlines()[1:-1]] == ["term", "loss", "kl"]

    def test_metrics_of_the_loss_and_of_terms_have_rows_after_those_of_terms(self) -> None:
        live = Live(Terminal())
        record = step(0, custom={"kl": 1.0, "kl_max": 3.0})
        record["loss"]["base_loss"]["custom"] = {"accuracy": 0.75}
        held_out = evaluation(0)
        held_out["loss"]["base_loss"]["custom"] = {"accuracy": 0.5}
        live.record(held_out, "")
        live.record(record, "")
        rows = [line.split() for line in self.drawn(live).splitlines()[2:-1]]
        # The metric kl is the value of the term.
        assert [row[0] for row in rows] == ["loss", "base_loss", "kl", "base_loss/accuracy", "kl/kl_max"]
        assert rows[3][1:3] == ["0.75", "0.5"]
        assert rows[4][1:3] == ["3", "-"]

    def test_the_last_line_has_the_learning_rate_and_the_memory(self) -> None:
        live = Live(Terminal())
        live.record({**step(0), "memory": 1_500_000_000}, "")
        assert self.drawn(live).splitlines()[-1] == "learning rate 0.1  1.5 GB"

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
        rows = live.picture().plain.splitlines()[2:-1]
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


def test_samples_are_printed_above_the_table() -> None:
    terminal = Terminal()
    live = Live(terminal)
    live.begin(Path("runs/demo"), 10, 0)
    try:
        live.record(step(0), "")
        said = [{"prompt": "2 + 3 =", "text": " \x1b[2J5"}]
        live.record({"kind": "samples", "step": 1, "samples": said, "metrics": {"exact_match": 0.5}}, "")
    finally:
        live.end()
    shown = terminal.getvalue()
    assert "samples after step 1: exact_match 0.5" in shown
    assert "2 + 3 = → \\x1b[2J5" in shown
