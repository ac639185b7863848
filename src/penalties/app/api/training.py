"""Training a run from Python: what `penalties train` does, with errors that are raised."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from ...errors import OptionError
from .runs import Run, needs_program, read

if TYPE_CHECKING:
    from ..config import Config

__all__ = ["train"]

_HERE: Final = {
    ", and --debug shows the traceback": "",
    "--debug shows the traceback": "the cause is chained",
    "--resume": "resume=True",
    "--run": "run=",
}
"""What the options of the program are called here."""


def train(
    config: "str | os.PathLike[str] | Mapping[str, Any] | Config | None" = None,
    *,
    run: str | os.PathLike[str] | None = None,
    resume: bool = False,
    overrides: Mapping[str, Any] | None = None,
    quiet: bool | None = None,
) -> Run:
    """Train a run to its end, as `penalties train` does; returns it, read from its folder.

    `config` is the path of a TOML file, its tables as a mapping, a `Config`, or "demo". Paths in a mapping are relative
    to the working directory, and a function of the notebook itself is `"__main__:function"`. `overrides` sets keys,
    such as `{"train.steps": 5}`. `run` is the folder, by default a new one in `runs`. With `resume` the run continues
    from its last checkpoint, without `config` with its own.

    A notebook sees nothing while it trains unless `quiet=False`; a script sees what the program prints. Nothing exits:
    a config that cannot be used raises `ConfigError`, with every problem, and a run that fails an error with the step,
    the term and what to try, after its report was written. Interrupting the kernel finishes the step and saves a
    checkpoint.

    >>> import tempfile
    >>> import penalties as pn
    >>> run = pn.train("demo", run=tempfile.mkdtemp(), overrides={"train.steps": 2}, quiet=True)
    >>> len(run.steps["loss"]), run.report.name
    (2, 'report.html')
    """
    needs_program("penalties.train")
    from ..commands.train import failed, folder_for, hinted, nothing_in, written_report
    from ..runs.disk import RunError
    from ..runs.run import Run as Folder
    from ..train import Interrupted, TermFailed
    from ..train import train as carry_out
    from ..train.progress import chosen

    settings = _settings(overrides)
    name = os.fspath(config) if isinstance(config, str | os.PathLike) else None if config is None else "run"
    folder = None if run is None else Path(run).expanduser()
    if folder is None and resume:
        folder = folder_for(name, resume=True)
    if resume and folder is not None and not Folder(folder).exists():
        Folder(folder).check_whole()
        raise _in_python(nothing_in(folder, "run", lambda one: Folder(one).exists()))
    try:
        loaded = _loaded(config, settings, folder if resume else None)
        ours = folder is None
        folder = folder_for(name, resume=False) if folder is None else folder
        try:
            carry_out(loaded, folder, resume=resume, progress=chosen(quiet=_in_notebook() if quiet is None else quiet))
        except BaseException as error:
            outcome = failed(folder, error, ours=ours)
            if outcome == "reported":
                error.add_note(f"report: {Folder(folder).report}")
            if isinstance(error, Interrupted) and outcome != "removed":
                again = f"pn.train(run={str(folder)!r}, resume=True)"
                raise Interrupted(f"{error}; resume with {again}") from None
            if isinstance(error, TermFailed):
                told = hinted(error, loaded)
                for note in getattr(error, "__notes__", ()):
                    told.add_note(note)
                raise told from error
            raise
        written_report(folder)
    except RunError as error:
        _in_python(error)
        raise
    return read(folder)


def _loaded(config: Any, settings: Sequence[str], resumed: Path | None) -> "Config":
    from ..commands.train import own_config
    from ..config import Config, load, load_tables
    from ..runs.run import Run as Folder

    if config is None and resumed is not None:
        return own_config(Folder(resumed), settings)
    if isinstance(config, Config):
        return load_tables(config.to_dict(), settings)
    if isinstance(config, Mapping):
        return load_tables(cast("Mapping[str, Any]", config), settings)
    if config is None or isinstance(config, str | os.PathLike):
        return load(cast("str | None", config), settings)
    raise OptionError("train", "config", config, "the path of a TOML file, a mapping of its tables, or a Config")


def _settings(overrides: Any) -> list[str]:
    """The overrides as the command line has them."""
    from ..problems import toml_value

    if overrides is None:
        return []
    if not isinstance(overrides, Mapping):
        raise OptionError("train", "overrides", overrides, 'a mapping such as {"train.steps": 5}')
    given = cast("Mapping[Any, Any]", overrides)
    return [f"{key}={toml_value(os.fspath(one) if isinstance(one, Path) else one)}" for key, one in given.items()]


def _in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this; a shell in a terminal has no kernel."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def _in_python(error: Exception) -> Exception:
    """The error, with the names that options have here."""
    message = str(error)
    for option, here in _HERE.items():
        message = message.replace(option, here)
    error.args = (message,)
    return error
