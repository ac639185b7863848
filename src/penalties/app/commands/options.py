"""Options that several commands share."""

import contextlib
import shlex
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from ..console import say
from ..problems import ConfigError, DataError

if TYPE_CHECKING:
    from ..trained import Trained

__all__ = ["as_json", "checkpoint", "command_line", "debug", "device", "folder_of", "quiet", "telling_what_checks"]
__all__ += ["values", "warn_of_damage"]

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


def _which(context: click.Context, parameter: click.Parameter, value: str | None) -> str | int | None:
    """A checkpoint: `best`, `last`, or a number of steps."""
    if value is None or value in ("best", "last"):
        return value
    if not (value.isascii() and value.isdigit()):
        raise click.BadParameter(f'found "{value}"; expected best, last or a number of steps')
    return int(value)


checkpoint: _Decorator = click.option(
    "--checkpoint",
    "which",
    callback=_which,
    metavar="best|last|STEPS",
    help="The checkpoint to use; by default the best if the config has train.best_by, or else the last.",
)
device: _Decorator = click.option("--device", help="The device to load the model on; by default that of the run.")


def warn_of_damage(trained: "Trained") -> None:
    """Say which checkpoints were passed over because they are damaged."""
    for damaged in trained.checkpoint.damaged:
        say(f"warning: a later checkpoint is damaged and was ignored: {damaged}", err=True)
