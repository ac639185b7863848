"""The command line: what it prints and where, what it loads, and how it ends."""

import importlib
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import penalties
from penalties.app import cli
from penalties.app.cli import COMMANDS, main
from penalties.app.config import ConfigError, DataError, Problem
from penalties.app.runs.disk import RunError
from penalties.errors import MissingLibraryError, OptionError

Run = Callable[..., tuple[int, str, str]]


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Make `penalties version` raise."""

    def fail() -> None:
        raise error

    params: list[click.Parameter] = [click.Option(["--debug"], is_flag=True, expose_value=False)]
    monkeypatch.setattr(
        "penalties.app.commands.version.command", click.Command("version", callback=fail, params=params)
    )


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


class TestHelp:
    @pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
    def test_it_names_every_command(self, run: Run, arguments: list[str]) -> None:
        status, out, err = run(*arguments)
        assert (status, err) == (0, "")
        for name in COMMANDS:
            assert f"\n  {name} " in out

    def test_it_loads_nothing_but_click(self) -> None:
        code = (
            "import sys; from penalties.app.cli import main; main(['--help']); print([m for m in "
            "('numpy', 'pydantic', 'rich', 'torch', 'jinja2', 'penalties.app.config') if m in sys.modules])"
        )
        assert python("-c", code).stdout.splitlines()[-1] == "[]"

    def test_it_is_quick(self) -> None:
        """In the time that the processor takes, which does not depend on what else it does."""

        def seconds(*arguments: str) -> float:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            assert python(*arguments).returncode == 0
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

        bare = min(seconds("-c", "pass") for _ in range(5))
        ours = min(seconds("-m", "penalties", "--help") for _ in range(5))
        assert ours - bare < 0.150

    def test_python_runs_it_too(self) -> None:
        done = python("-m", "penalties", "nothing")
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.startswith('error: there is no command "nothing"')

    def test_shells_complete_commands(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = {"_PENALTIES_COMPLETE": "bash_complete", "COMP_WORDS": "penalties de", "COMP_CWORD": "1"}
        for name, value in asked.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit):
            main(["de"])
        assert capsys.readouterr().out == "plain,describe\n"


class TestVersion:
    def test_it_is_the_packages(self, run: Run) -> None:
        assert run("version") == (0, f"penalties {penalties.__version__}\n", "")
        assert run("--version") == (0, f"{penalties.__version__}\n", "")

    def test_for_machines_it_has_whatever_decides_a_run(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        import penalties.app.commands.version as module

        monkeypatch.setattr(module, "_PACKAGES", ("numpy", "no-such-package"))
        found = json.loads(run("version", "--json")[1])
        assert found["penalties"] == penalties.__version__
        assert found["numpy"]
        assert found["no-such-package"] is None


class TestErrors:
    def test_an_unknown_command_has_a_near_one(self, run: Run) -> None:
        status, out, err = run("lst")
        assert (status, out) == (2, "")
        assert err.splitlines() == [
            'error: there is no command "lst"; did you mean list? '
            "(train, init, report, watch, ablate, search, sample, export, check, list, describe, schema and version)",
            "see: penalties --help",
        ]

    def test_an_unknown_option(self, run: Run) -> None:
        status, _, err = run("version", "--jsn")
        assert status == 2
        assert "--jsn" in err
        assert err.splitlines()[1] == "see: penalties version --help"

    def test_a_missing_argument(self, run: Run) -> None:
        status, _, err = run("describe")
        assert status == 2
        assert "Missing argument 'NAME'" in err

    @pytest.mark.parametrize(
        ("error", "status", "says"),
        [
            (ConfigError("a.toml", [Problem("train.steps", "missing")]), 2, ["error: a.toml: train.steps: missing"]),
            (
                ConfigError("a.toml", [Problem("train.steps", "missing"), Problem("x", "y"), Problem("z", "y")]),
                2,
                ["error: a.toml: train.steps: missing", "and 2 more: --debug shows all of them"],
            ),
            (DataError("a.jsonl", [Problem("line 1", "bad")]), 2, ["error: a.jsonl: line 1: bad"]),
            (MissingLibraryError("it", "peft", "train"), 2, ['error: it needs peft: pip install "penalties[train]"']),
            (RunError("the disk is full"), 1, ["error: the disk is full"]),
            (RunError("there is a run already", 2), 2, ["error: there is a run already"]),
            (RunError("stopped;\ngo on with this"), 1, ["error: stopped;", "go on with this"]),
            (OptionError("l1", "reduction", "x", "y"), 1, ['error: l1: reduction="x"; expected y']),
            (RunError("one\n\ntwo\nthree"), 1, ["error: one …"]),
            (RunError(""), 1, ["error: something failed without a message"]),
            (KeyError("x"), 1, ["error: KeyError: 'x'", "--debug shows the traceback"]),
            (RuntimeError("one\ntwo\nthree"), 1, ["error: RuntimeError: one …", "--debug shows the traceback"]),
            (click.ClickException("odd"), 1, ["error: odd"]),
            (
                ModuleNotFoundError("No module", name="rich"),
                2,
                ['error: the program needs rich: pip install "penalties[cli]"'],
            ),
            (
                ModuleNotFoundError("No module", name="x"),
                1,
                ["error: ModuleNotFoundError: No module", "--debug shows the traceback"],
            ),
        ],
    )
    def test_they_are_a_line_or_two(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, says: list[str]
    ) -> None:
        failing(monkeypatch, error)
        found, out, err = run("version")
        assert (found, out) == (status, "")
        assert err.splitlines() == says

    @pytest.mark.parametrize("error", [KeyboardInterrupt(), EOFError(), click.Abort()])
    def test_an_interrupted_command(self, run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
        failing(monkeypatch, error)
        status, _, err = run("version")
        assert status == 1
        assert err.strip() == "error: interrupted"

    def test_debug_shows_the_traceback(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        failing(monkeypatch, RuntimeError("odd"))
        status, _, err = run("version", "--debug")
        assert status == 1
        assert "Traceback (most recent call last)" in err
        assert err.splitlines()[-2] == "error: RuntimeError: odd"
        assert "Traceback" in run("--debug", "version")[2]

    def test_keys_are_hidden(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TINKER_API_KEY", "tml-0123456789")
        failing(monkeypatch, RuntimeError("401 for tml-0123456789"))
        for arguments in (["version"], ["version", "--debug"]):
            assert "tml-0123456789" not in run(*arguments)[2]

    @pytest.mark.usefixtures("terminal")
    def test_on_a_terminal_they_are_red(self, run: Run) -> None:
        assert run("lst")[2].startswith("\x1b[1;31merror:\x1b[0m there is no command")

    def test_without_click_it_says_what_to_install(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "click", None)
        assert run("list") == (2, "", 'error: the program needs click: pip install "penalties[cli]"\n')

    def test_a_command_that_was_wrong_loads_no_library(self) -> None:
        code = "import sys; from penalties.app.cli import main; main(['lst']); print('numpy' in sys.modules)"
        assert python("-c", code).stdout.strip() == "False"


def test_every_command_has_a_module_of_its_name() -> None:
    folder = Path(cli.__file__).parent / "commands"
    there = {path.stem for path in folder.glob("*.py")} - {"__init__", "many", "options"}
    assert there == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_has_the_first_line_of_each_commands_help(name: str) -> None:
    command: click.Command = importlib.import_module(f"penalties.app.commands.{name}").command
    assert command.name == name
    assert str(command.help).splitlines()[0] == COMMANDS[name]
    assert "--debug" in [option for parameter in command.params for option in parameter.opts]


def test_a_closed_pipe_shows_no_traceback() -> None:
    done = subprocess.run(
        f"{sys.executable} -m penalties list | head -n 1; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("penalty")
    assert "Traceback" not in done.stderr
