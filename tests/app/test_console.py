"""What reaches the terminal: no keys, whoever writes them, and no control characters of names and messages."""

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penalties.app import cli, console
from penalties.app.console import filtered, printable, say
from penalties.app.train import start as start_module
from penalties.app.train.live import Live

from .stand_ins import Backend, write_config
from .train.displayed import Terminal, event, step

KEY = "sk-0123456789"
NAME = "kl\x1b[31m\x9b2J\u202e\ud800\nerror: no"


@pytest.fixture
def leaking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config whose term repeats a key."""
    monkeypatch.setenv("SCORER_API_KEY", KEY)
    monkeypatch.setattr(start_module, "connect", Backend)
    monkeypatch.chdir(tmp_path)
    return write_config(tmp_path, '[[term]]\nfn = "tests.app.terms:leaking"\n', steps=2)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("option", ["--debug", "--json"])
def test_a_key_that_a_term_repeats_reaches_neither_the_terminal_nor_a_file(
    leaking: Path, capfd: pytest.CaptureFixture[str], option: str, on_error: str
) -> None:
    given = ["train", str(leaking), "--run", "run", "--set", f"leaking.on_error={on_error}", option]
    assert cli.main(given) == (on_error == "raise")
    said = capfd.readouterr()
    for text in (said.out, said.err, *(path.read_bytes().decode("latin-1") for path in _files(Path("run")))):
        assert KEY not in text
    assert "sending <SCORER_API_KEY>" in said.out
    assert "RuntimeWarning: sent with <SCORER_API_KEY>" in said.err
    assert "401 for <SCORER_API_KEY>" in Path("run", "metrics.jsonl").read_text()


def test_so_does_one_that_a_term_in_a_process_repeats(leaking: Path, capfd: pytest.CaptureFixture[str]) -> None:
    term = '[[term]]\nfn = "tests.app.terms:leaking_in_many_ways"\nruns = "process"\n'
    write_config(leaking.parent, term, steps=2)
    assert cli.main(["train", str(leaking), "--run", "run", "--set", "executor.workers=1", "--quiet"]) == 0
    said = capfd.readouterr()
    for text in (said.out, said.err, *(path.read_bytes().decode("latin-1") for path in _files(Path("run")))):
        assert KEY not in text
    assert said.out.count("sending <SCORER_API_KEY>\n") == said.out.count("wrote <SCORER_API_KEY>\n") > 1
    for line in ("RuntimeWarning: warned of", "logged", "RuntimeError: 401 for"):
        assert f"{line} <SCORER_API_KEY>\n" in said.err


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_the_streams_are_as_before_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    assert cli.main(["version"]) == 0
    assert (sys.stdout, sys.stderr) == before


def test_a_text_is_one_line_that_every_terminal_shows() -> None:
    assert printable(NAME) == r"kl\x1b[31m\x9b2J\u202e\ud800\nerror: no"
    assert printable("café 模型 ✓") == "café 模型 ✓"


def test_lines_tables_and_errors_show_control_characters_as_escapes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for terminal in (False, True):
        monkeypatch.setattr(type(sys.stdout), "isatty", lambda stream, answer=terminal: answer)
        say(NAME)
        console.styled((NAME, "bold"))
        console.table(NAME, ["name"], [[NAME]])
        assert cli.main(["describe", NAME]) == 2
        assert cli.main([NAME]) == 2
        said = capsys.readouterr()
        for text in (said.out, said.err):
            plain = re.sub(r"\x1b\[[\d;]*m", "", text) if terminal else text
            assert r"\x1b[31m" in plain
            assert not {"\x1b", "\x9b", "\u202e", "\ud800"} & set(plain)
            assert not any(line.lstrip().startswith("error: no") for line in plain.splitlines())


def test_the_live_table_does_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCORER_API_KEY", KEY)
    out = Terminal()
    live = Live(out)
    record = step(0)
    record["loss"]["regularizers"][NAME] = record["loss"]["regularizers"].pop("kl")
    live.begin(Path(NAME), 3, 0)
    live.record(record, "")
    live.record(event("warning", f"{NAME} {KEY}"), "")
    live.say(NAME)
    assert not {"\x1b", "\x9b", "\u202e", "\ud800"} & set(str(live.picture()))
    live.end()
    assert KEY not in out.getvalue()
    assert "\x1b[31mkl" not in out.getvalue()


def test_what_a_stream_cannot_encode_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    with filtered():
        say("café")
        print("\ud800")
        with pytest.raises(TypeError, match="bytes"):
            sys.stdout.write(b"")  # type: ignore[arg-type]
    assert raw.getvalue() == b"caf\\xe9\n\\ud800\n"


def test_a_program_without_streams_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert cli.main(["version"]) == 0


def test_a_reader_that_leaves_gets_no_traceback() -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "penalties", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert program.stdout is not None
    program.stdout.close()
    _, said = program.communicate(timeout=60)
    assert said == b""


def test_nothing_else_prints() -> None:
    """One filter: other modules print by `say`, `styled` and `table`."""
    prints = re.compile(r".*(\b(?<!\.)print\(|\.echo\(|std(out|err)\.write|\bConsole\()")
    own = {"console.py": 3, "cli.py": 1, "live.py": 1, "board.py": 1}
    for path in Path(console.__file__).parent.rglob("*.py"):
        found = [line.group() for line in prints.finditer(path.read_text("utf-8"))]
        found = [line for line in found if not line.lstrip().startswith((">>>", "..."))]
        assert len(found) == own.get(path.name, 0), (path, found)
