"""The command line: what it prints and where, what it loads, and how it ends."""

import importlib
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

import penalties
from penalties.app import cli, console
from penalties.app.cli import COMMANDS, main
from penalties.app.config import ConfigError, DataError, Problem, load
from penalties.app.config.schema import FILE
from penalties.app.runs.disk import RunError
from penalties.errors import MissingLibraryError, OptionError

from ..configs import write

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command here: its status, and what it printed."""

    def call(*arguments: Any) -> tuple[int, str, str]:
        status = main([str(one) for one in arguments])
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # The class: the streams themselves are others when the test begins.
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda stream: True)
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "120"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


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
        ours = min(seconds("-m", "penalties.app", "--help") for _ in range(5))
        assert ours - bare < 0.150

    def test_python_runs_it_too(self) -> None:
        done = python("-m", "penalties.app", "nothing")
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


class TestList:
    def test_it_names_everything_by_kind(self, run: Run) -> None:
        status, out, err = run("list")
        assert (status, err) == (0, "")
        assert out.startswith("penalty: fn of a [[term]]\n")
        assert "\n  l1 " in out
        assert "\n  penalties.training.adapters:kl " in out
        assert "\n  warmup " in out
        assert "\x1b" not in out

    def test_one_kind_alone(self, run: Run) -> None:
        out = run("list", "loss")[1]
        assert "dpo" in out
        assert "l1" not in out

    def test_for_machines(self, run: Run) -> None:
        found = json.loads(run("list", "--json")[1])
        assert {
            "kind": "loss",
            "name": "cross_entropy",
            "summary": "`Σ −logprob·weight`, as the service computes it.",
        } in found

    def test_an_unknown_kind(self, run: Run) -> None:
        status, _, err = run("list", "losses")
        assert status == 2
        assert err.splitlines() == [
            'error: Invalid value for KIND: there is no "losses"; did you mean loss? '
            "(penalty, batch, loss, reference, schedule, wrap, sink, input and table)",
            "see: penalties list --help",
        ]
        assert "Usage: penalties list [OPTIONS] [KIND]" in run("list", "--help")[1]

    def test_shells_complete_kinds(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        asked = {"_PENALTIES_COMPLETE": "bash_complete", "COMP_WORDS": "penalties list s", "COMP_CWORD": "2"}
        for name, value in asked.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit):
            main(["list", "s"])
        assert capsys.readouterr().out == "plain,schedule\nplain,sink\n"

    @pytest.mark.usefixtures("terminal")
    def test_on_a_terminal_it_is_a_table(self, run: Run) -> None:
        out = run("list", "loss")[1]
        assert "\x1b[" in out
        assert "what it is" in out


class TestDescribe:
    def test_a_penalty(self, run: Run) -> None:
        status, out, _ = run("describe", "kl_estimate")
        assert status == 0
        for part in (
            "kl_estimate (penalty: fn of a [[term]])",
            "reads: logprobs, reference",
            '"k1", "k2" or "k3"',
            '    fn = "kl_estimate"',
        ):
            assert part in out
        assert ">>>" not in out

    @pytest.mark.parametrize("name", ["train", "[train]"])
    def test_a_table(self, run: Run, name: str) -> None:
        out = run("describe", name)[1]
        assert "steps             100" in out
        assert "The number of optimizer steps." in out

    def test_a_list_of_tables(self, run: Run) -> None:
        out = run("describe", "[[term]]")[1]
        assert "fn              (required)" in out

    def test_a_key(self, run: Run) -> None:
        out = run("describe", "train.learning_rate")[1]
        assert "a number above 0" in out

    def test_two_things_of_one_name(self, run: Run) -> None:
        out = run("describe", "data")[1]
        assert "data (input: in inputs of a [[term]])" in out
        assert "data (table: a table of a config)" in out

    def test_a_kind_is_listed(self, run: Run) -> None:
        status, out, _ = run("describe", "schedule")
        assert (status, out) == (0, run("list", "schedule")[1])
        found = json.loads(run("describe", "schedule", "--json")[1])
        assert [one["name"] for one in found][:3] == ["constant", "linear", "warmup"]

    def test_what_has_no_default_is_not_set(self, run: Run) -> None:
        assert "eval_path  not set  a string" in run("describe", "data.eval_path")[1]

    def test_a_function_of_ones_own(self, run: Run) -> None:
        out = run("describe", "tests.app.config_terms:steady")[1]
        assert "How large they are." in out
        assert "size  1.0" in out

    def test_for_machines(self, run: Run) -> None:
        (found,) = json.loads(run("describe", "l1", "--json")[1])
        assert found["reads"] == ["x"]
        assert found["values"][0]["name"] == "reduction"

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("kl_estimat", "did you mean kl_estimate?"),
            ("train.step", "did you mean train.steps?"),
            ("schedules", "did you mean schedule?"),
            ("zzz", "`penalties list` shows all names"),
            ("os:nothing", "has no attribute"),
        ],
    )
    def test_what_is_not_there(self, run: Run, name: str, says: str) -> None:
        status, out, err = run("describe", name)
        assert (status, out) == (2, "")
        assert says in err
        assert "see: penalties describe --help" in err

    @pytest.mark.usefixtures("terminal")
    def test_on_a_terminal_it_is_coloured(self, run: Run) -> None:
        out = run("describe", "l1")[1]
        assert "\x1b[" in out
        assert "reduction" in out


class TestCheck:
    def test_a_config_that_is_right(self, run: Run, tmp_path: Path) -> None:
        path = write(tmp_path, "[train]\nsteps = 7")
        status, out, err = run("check", path)
        assert (status, err) == (0, "")
        assert (
            out == f"{path}: ok: 7 steps, batch size 8, 5 lines of data, cross_entropy, terms: none, backend: local\n"
        )

    @pytest.mark.parametrize("arguments", [[], ["demo"]])
    def test_the_demo(self, run: Run, arguments: list[str]) -> None:
        assert run("check", *arguments)[:2] == (
            0,
            "demo: ok: 150 steps, batch size 16, 260 lines of data, cross_entropy, terms: kl, entropy, size, "
            "backend: local\n",
        )

    def test_everything_that_is_wrong(self, run: Run, tmp_path: Path) -> None:
        path = write(tmp_path, '[train]\nstep = 7\n[[term]]\nfn = "l3"', data=["x", "[]"])
        status, out, err = run("check", path, "--set", "train.seed=-1")
        assert (status, out) == (2, "")
        said = err.splitlines()
        assert [line.removeprefix(f"{path}: ").split(": ")[0] for line in said[:-1]] == [
            *("train.seed", "train.step", "term.l3.fn", "lines.jsonl", "lines.jsonl")
        ]
        assert said[3].startswith(f"{path}: lines.jsonl: line 1: is no")
        assert said[-1] == "5 problems"

    def test_data_are_not_looked_at_where_they_cannot_be(self, run: Run, tmp_path: Path) -> None:
        path = write(tmp_path, '[data]\npath = "nothing.jsonl"')
        assert run("check", path)[2].splitlines()[-1] == "1 problem"

    def test_a_file_that_is_not_there(self, run: Run, tmp_path: Path) -> None:
        status, _, err = run("check", tmp_path / "nothing.toml")
        assert status == 2
        assert err.splitlines()[-1] == "1 problem"

    def test_tokens_are_counted_where_the_tokenizer_is_here(self, run: Run, tmp_path: Path) -> None:
        long = [{"prompt": "a" * 9, "completion": "b"}, {"prompt": "", "completion": "b"}]
        text = '[data]\npath = "lines.jsonl"\nmax_length = 5\nend_token = false\n'
        said = run("check", write(tmp_path, text, data=long))[2]
        assert "line 1: its prompt has 9 tokens" in said
        assert "line 2: has no prompt" in said
        assert run("check", write(tmp_path, f'{text}[model]\nname = "org/model"', data=long))[0] == 0

    def test_quietly(self, run: Run, tmp_path: Path) -> None:
        assert run("check", write(tmp_path), "--quiet") == (0, "", "")
        assert len(run("check", write(tmp_path, "[train]\nsteps = 0"), "-q")[2].splitlines()) == 1

    def test_for_machines(self, run: Run, tmp_path: Path) -> None:
        status, out, _ = run("check", write(tmp_path, "[train]\nsteps = 0"), "--json")
        found = json.loads(out)
        assert status == 2
        assert not found["ok"]
        assert found["problems"][0]["where"] == "train.steps"
        assert found["config"] is None
        path = write(tmp_path)
        status, out, _ = run("check", path, "--json")
        assert status == 0
        assert json.loads(out) == {"ok": True, "problems": [], "notes": [], "config": load(path).to_dict()}

    def test_what_may_not_be_meant(self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("TINKER_API_KEY", raising=False)
        text = (
            '[backend]\nkind = "tinker"\n[references]\ninitial = { kind = "initial" }\n'
            '[data]\npath = "lines.jsonl"\neval_path = "lines.jsonl"\non_bad_line = "skip"'
        )
        status, out, _ = run("check", write(tmp_path, text, data=[{"prompt": "a", "completion": "b"}, "x"]))
        assert status == 0
        for part in (
            "references.initial: no term reads it",
            "TINKER_API_KEY is not set",
            "nothing is held out",
            "line 2: is no",
        ):
            assert f"note: {part}" in out or part in out
        assert " 1 line of data, " in out

    @pytest.mark.parametrize(
        "reader",
        [
            '[[term]]\nfn = "kl_estimate"\ninputs = ["logprobs", "initial"]',
            '[train]\nloss = "tests.app.config_terms:loss_of_reference"',
        ],
    )
    def test_a_reference_that_is_read_is_no_note(self, run: Run, tmp_path: Path, reader: str) -> None:
        text = f'[references]\ninitial = {{ kind = "initial" }}\n{reader}'
        assert "note" not in run("check", write(tmp_path, text))[1]

    @pytest.mark.usefixtures("terminal")
    def test_on_a_terminal_places_are_coloured(self, run: Run, tmp_path: Path) -> None:
        assert "\x1b[1;31mtrain.steps\x1b[0m" in run("check", write(tmp_path, "[train]\nsteps = 0"))[2]


class TestSchema:
    def test_it_is_the_one_that_ships(self, run: Run) -> None:
        assert run("schema") == (0, FILE.read_text(encoding="utf-8"), "")

    def test_it_can_be_written(self, run: Run, tmp_path: Path) -> None:
        assert run("schema", "--out", tmp_path / "schema.json") == (0, "", "")
        assert (tmp_path / "schema.json").read_bytes() == FILE.read_bytes()

    def test_a_place_that_cannot_be_written(self, run: Run, tmp_path: Path) -> None:
        status, _, err = run("schema", "--out", tmp_path / "no" / "schema.json")
        assert status == 2
        assert "cannot be written (No such file or directory)" in err


class TestErrors:
    def test_an_unknown_command_has_a_near_one(self, run: Run) -> None:
        status, out, err = run("lst")
        assert (status, out) == (2, "")
        assert err.splitlines() == [
            'error: there is no command "lst"; did you mean list? '
            "(train, report, ablate, check, list, describe, schema and version)",
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
    there = {path.stem for path in folder.glob("*.py")} - {"__init__", "options"}
    assert there == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_the_command_says_of_itself(name: str) -> None:
    command: click.Command = importlib.import_module(f"penalties.app.commands.{name}").command
    assert command.name == name
    assert str(command.help).splitlines()[0] == COMMANDS[name]
    assert "--debug" in [option for parameter in command.params for option in parameter.opts]


def test_a_table_in_a_pipe_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    console.table("title", ["a", "b"], [["x", "first"], ["longer", "second"]])
    assert capsys.readouterr().out == "title\n  x       first\n  longer  second\n"


def test_output_that_nobody_reads_is_no_traceback() -> None:
    done = subprocess.run(
        f"{sys.executable} -m penalties.app list | head -n 1; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("penalty")
    assert "Traceback" not in done.stderr
