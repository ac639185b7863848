"""The command line, `penalties COMMAND`. A command's module is loaded when the command is called: help is quick."""

import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ..errors import MissingLibraryError, PenaltiesError, said
from .console import filtered, say
from .processes import launched, together

if TYPE_CHECKING:
    import click

__all__ = ["COMMANDS", "main"]

COMMANDS: Final = {
    "train": "Train the run that CONFIG, a TOML file, describes; without one, train the demo.",
    "init": "Write a config with comments for a recipe (sft, dpo or distill) that runs as it is.",
    "report": "Write a report of one run, or compare several.",
    "watch": "Serve the report of runs on this machine, kept up to date while they train.",
    "ablate": "Train CONFIG, and again without each of its terms; compare them in a table and one report.",
    "search": "Train CONFIG with values that Optuna proposes, and show which gave the best metric.",
    "sample": "Continue each PROMPT with the model of RUN.",
    "export": "Write the model of RUN to a folder that transformers, peft and vLLM load.",
    "check": "List every problem with a config.",
    "list": "List penalties, losses, schedules and everything else that a config may name.",
    "describe": "Describe anything that a config may name, and each of its tables.",
    "schema": "Print the JSON Schema of a config, for editors.",
    "version": "Print the version.",
}
"""The commands, with a line about each, so that help does not load their modules."""

_PACKAGES: Final = ("click", "rich", "pydantic", "pydantic_core", "jinja2", "filelock")
"""The packages that the program needs."""

FAILED: Final = 1
WRONG: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 0 done, 1 the run failed, 2 the command or config was wrong."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    with filtered():
        try:
            return together(lambda: _run(given)) if launched() else _run(given)
        except Exception as error:
            # Looked up here, since parsing may have failed.
            return _told(error, debug="--debug" in given)


def _run(given: list[str]) -> int:
    result = _group().main(given, prog_name="penalties", standalone_mode=False)
    return result if isinstance(result, int) else 0


def _group() -> "click.Group":
    import click

    class LazyGroup(click.Group):
        """Commands by name, each loaded when it is called."""

        def list_commands(self, ctx: click.Context) -> list[str]:
            return list(COMMANDS)

        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
            if cmd_name not in COMMANDS:
                from .problems import joined, nearest

                there = joined(COMMANDS, "and")
                raise click.UsageError(f'there is no command "{cmd_name}"{nearest(cmd_name, COMMANDS)} ({there})', ctx)
            module: Any = importlib.import_module(f".commands.{cmd_name}", __package__)
            return module.command

        def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
            with formatter.section("Commands"):
                formatter.write_dl(list(COMMANDS.items()))

    @click.group(
        cls=LazyGroup,
        no_args_is_help=False,
        invoke_without_command=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    @click.option("--version", is_flag=True, help="Print the version.")
    @click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
    @click.pass_context
    def penalties(ctx: click.Context, version: bool) -> None:
        """Train with structured objectives, `loss = base + Σ weight·term`, and see what each term did.

        Without a config, `penalties train` trains a small model that is built in.
        """
        if version:
            from .. import __version__

            say(__version__)
        elif ctx.invoked_subcommand is None:
            say(*ctx.get_help().splitlines())

    return penalties


def _told(error: Exception, *, debug: bool) -> int:
    """Print in a line or two what went wrong, after the traceback if it is requested; returns the status."""
    import traceback

    lines, status = _lines(error)
    if debug:
        say(*"".join(traceback.format_exception(error)).splitlines(), "", err=True)
    # Without rich, which may be what is missing.
    print("\x1b[1;31merror:\x1b[0m" if sys.stderr.isatty() else "error:", end=" ", file=sys.stderr)
    say(*lines, err=True)
    return status


def _lines(error: Exception) -> tuple[list[str], int]:
    if isinstance(error, ModuleNotFoundError) and error.name in _PACKAGES:
        return [str(MissingLibraryError("the program", error.name, extra="cli"))], WRONG
    problems: list[Any] = getattr(error, "problems", [])
    if len(problems) > 1:
        lines = str(error).splitlines()
        notes: list[str] = getattr(error, "__notes__", [])
        how = f"`{notes[0]}` lists" if notes else "--debug shows"
        more: int = getattr(error, "more", 0)
        which = "the first of them" if more else "all of them"
        return [lines[0], f"and {len(problems) - 1 + more} more: {how} {which}"], WRONG
    if isinstance(error, PenaltiesError):
        status = WRONG if isinstance(error, MissingLibraryError) else FAILED
        return _short(str(error)), getattr(error, "status", status)
    if type(error).__module__.partition(".")[0] == "click":
        return _of_click(error)
    return [*_short(said(error))[:1], "--debug shows the traceback"], FAILED


def _of_click(error: Any) -> tuple[list[str], int]:
    """Click's message about a wrong command, or an interruption."""
    if not hasattr(error, "format_message"):
        return ["interrupted"], FAILED
    context = getattr(error, "ctx", None)
    hint = [f"see: {context.command_path} --help"] if context is not None else []
    # Click writes each choice on its own line.
    return [" ".join(str(error.format_message()).split()), *hint], error.exit_code


def _short(message: str) -> list[str]:
    """At most two lines of a message."""
    lines = [line for line in message.splitlines() if line.strip()] or ["something failed without a message"]
    return lines if len(lines) <= 2 else [f"{lines[0]} …"]
