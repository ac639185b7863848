"""The display of many runs."""

import io
from pathlib import Path
from typing import Any

import pytest

from penalties.app.parallel.board import STOPPING, Board, Lines, Live, chosen
from penalties.app.runs import Run


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def folder(finished: Run) -> Path:
    return finished.folder


def drawn(board: Live) -> str:
    from rich.console import Console

    out = Console(file=io.StringIO(), width=100, height=40)
    out.print(board.picture())
    written: Any = out.file
    return written.getvalue()


class TestLines:
    def test_a_run_has_a_line_when_it_starts_and_one_when_it_ends(self, folder: Path, tmp_path: Path) -> None:
        out = io.StringIO()
        board = Lines(3, out)
        board.start("all, seed 0", folder, 6)
        board.start("without kl, seed 0", tmp_path, 6)
        board.finish(folder, None)
        board.finish(tmp_path, "a term failed")
        lines = out.getvalue().splitlines()
        loss = [record for record in Run(folder).records() if record["kind"] == "step"][-1]["loss"]["loss_total"]
        assert lines == [
            "1 of 3: all, seed 0 started",
            "2 of 3: without kl, seed 0 started",
            f"all, seed 0 finished 6 steps, loss {loss:.4g} (1 running, 1 finished, 1 waiting)",
            "without kl, seed 0 failed: a term failed (1 failed, 1 finished, 1 waiting)",
        ]


class TestLive:
    def test_has_a_row_for_each_run_and_a_summary(self, folder: Path, tmp_path: Path) -> None:
        board = Live(4, Terminal())
        try:
            board.start("all, seed 0", folder, 6)
            board.start("without kl, seed 0", tmp_path, 6)
            board.start("[red]odd\x1b, seed 0", tmp_path / "other", 6)
            board.look()
            board.finish(folder, None)
            board.finish(tmp_path / "other", "a term failed")
            lines = drawn(board).splitlines()
        finally:
            board.end()
        rows = [line.split("  ") for line in lines if "seed 0" in line]
        assert [row[0].strip() for row in rows] == ["without kl, seed 0", r"[red]odd\x1b, seed 0", "all, seed 0"]
        assert "running" in lines[3]
        assert "0/6" in lines[3]
        assert "a term failed" in lines[4]
        assert "finished" in lines[5]
        assert "6/6" in lines[5]
        assert lines[-1].strip() == "1 running, 1 failed, 1 finished, 1 waiting"

    def test_ctrl_c_is_answered(self) -> None:
        board = Live(1, Terminal())
        board.stopping()
        board.end()
        assert STOPPING in drawn(board)

    def test_a_stopped_run_is_not_a_failed_one(self, folder: Path) -> None:
        board = Board(1)
        board.start("all", folder, 6)
        board.stop(folder)
        assert board.summary == "1 stopped"


def test_the_display_suits_the_stream() -> None:
    assert type(chosen(1, io.StringIO(), quiet=False)) is Lines
    assert type(chosen(1, Terminal(), quiet=True)) is Board
    live = chosen(1, Terminal(), quiet=False)
    live.end()
    assert type(live) is Live


def test_ctrl_c_is_answered_without_a_table(capfd: pytest.CaptureFixture[str]) -> None:
    Board(1).stopping()
    assert capfd.readouterr().err == f"{STOPPING}\n"
