"""Options that several commands share."""

import contextlib
import shlex
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import click

from ..problems import ConfigError, DataError

__all__ = ["as_json", "command_line", "debug", "folder_of", "quiet", "telling_what_checks", "values"]

_Decorator: TypeAlias = Callable[[Callable[..., Any]], Any]

debug: _Decorator = click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
"""Read by the program itself if something fails."""
quiet: _Decorator = click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
as_json: _Decorator = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
values: _Decorator = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a value of the config, such as train.steps=200 or kl.weight=0.1; without a value, its default.",
)


def folder_of(what: str) -> _Decorator:
    """`--run FOLDER`: the argument `folder`."""
    return click.option(
        "--run",
        "folder",
        type=click.Path(path_type=Path, file_okay=False),
        help=f"The folder of the {what}; by default a folder in runs/ named after the config.",
    )


def command_line(name: str, config_path: str | None, overrides: Sequence[str], *more: str) -> str:
    """A command line that can be pasted into a shell.

    >>> command_line("check", "my config.toml", ["train.steps=5"], "--quiet")
    "penalties check 'my config.toml' --set train.steps=5 --quiet"
    """
    given = [part for one in overrides for part in ("--set", one)]
    return shlex.join(["penalties", name, *([] if config_path is None else [config_path]), *given, *more])


@contextlib.contextmanager
def telling_what_checks(config_path: str | None, overrides: Sequence[str]) -> Generator[None]:
    """Add the command that lists every problem to an error that shows only the first."""
    try:
        yield
    except (ConfigError, DataError) as error:
        error.add_note(command_line("check", config_path, overrides))
        raise
