"""`penalties train`: train a run, and write its report."""

import contextlib
import difflib
import glob
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ...encoding import dumps
from ..problems import joined
from ..runs.disk import RunError
from .options import as_json, command_line, debug, folder_of, quiet, telling_what_checks, values
from .report import told

if TYPE_CHECKING:
    from ..config import Config
    from ..train import TermFailed

__all__ = ["command", "folder_for", "nothing_in"]

_RUNS: Final = Path("runs")
_NAMED: Final = 5
"""Folders that a message names."""


@click.command("train")
@click.argument("config_path", metavar="[CONFIG]", required=False)
@values
@folder_of("run")
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint of the run, by default with its config.")
@quiet
@as_json
@debug
def command(
    config_path: str | None, overrides: Sequence[str], folder: Path | None, resume: bool, quiet: bool, as_json: bool
) -> None:
    """Train as CONFIG says, a TOML file; without one, train the demo.

    Ctrl-C finishes the step and saves a checkpoint, from which --resume goes on.
    """
    from ..config import load, load_again
    from ..runs.run import Run
    from ..train import Interrupted, TermFailed, train
    from ..train.progress import chosen

    place = folder
    if resume:
        place = folder_for(config_path, resume=True) if folder is None else folder
        if not Run(place).exists():
            raise nothing_in(place, "run", lambda one: Run(one).exists())
    with contextlib.ExitStack() as checking:
        if resume and place is not None and config_path is None:
            config = load_again(Run(place).config(), str(place), overrides)
        else:
            checking.enter_context(telling_what_checks(config_path, overrides))
            config = load(config_path, overrides)
        place = folder_for(config_path, resume=False) if place is None else place
        progress = chosen(quiet=quiet, json=as_json)
        try:
            run = train(config, place, resume=resume, progress=progress)
        except BaseException as error:
            begun = Run(place).begun()
            if folder is None and not resume and not begun:
                # Nobody asked for this folder, and there is nothing in it.
                Run(place).discard()
            elif isinstance(error, Interrupted):
                if begun:
                    # How to go on is said in any case, on a full disk above all.
                    with contextlib.suppress(RunError, OSError):
                        _report(place)
                again = command_line("train", None, (), "--run", str(place), "--resume")
                raise Interrupted(place, error.step, f"{error}; go on with:\n{again}") from None
            if isinstance(error, TermFailed):
                raise _with_hint(error, config) from error
            raise
    name, verdict = _report(run.folder)
    if as_json:
        result = {"kind": "result", "run": str(run.folder), "report": str(run.report), "verdict": told(verdict)}
        click.echo(dumps(result))
    elif not quiet:
        click.echo(f"{name}: {verdict.summary}")
        click.echo(f"report: {run.report}")


def _with_hint(error: "TermFailed", config: "Config") -> RunError:
    """A term that failed, and what the user can do: two lines."""
    # The base loss cannot be left out.
    is_term = error.term in [table.name for table in config.term]
    skipping = 'on_error = "skip" in its [[term]] leaves it out when it fails, and ' if is_term else ""
    return RunError(f"{error}\n{skipping}--debug shows the traceback")


def folder_for(config_path: str | None, *, resume: bool, suffix: str = "") -> Path:
    """A folder in runs/ by the name of the config: a new one, or with `resume` the last that there is, if any is."""
    from ..config import find

    stem = f"{find(config_path).stem}{suffix}"
    there = {1: _RUNS / stem} if (_RUNS / stem).exists() else {}
    for path in _RUNS.glob(f"{glob.escape(stem)}-*"):
        number = re.fullmatch(r"-(\d+)", path.name.removeprefix(stem))
        if number is not None:
            there[int(number[1])] = path
    last = max(there, default=0)
    if resume:
        return there[last] if last else _RUNS / stem
    while True:
        last += 1
        place = _RUNS / (stem if last == 1 else f"{stem}-{last}")
        # Made at once, so that two that start together do not meet in it.
        if _made(place):
            return place


def _made(place: Path) -> bool:
    from ..runs.disk import writing

    with writing(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            place.mkdir()
        except FileExistsError:
            return False
    return True


def nothing_in(place: Path, what: str, holds: Callable[[Path], bool]) -> RunError:
    """There is nothing to go on with in a folder; names the folders in runs/ where there is."""
    there = {one.name: str(one) for one in sorted(_RUNS.glob("*")) if holds(one)}
    near = difflib.get_close_matches(place.name, there, n=1)
    if near:
        hint = f"; did you mean {there[near[0]]}?"
    elif there:
        some = joined([*list(there.values())[:_NAMED], *(["others"] if len(there) > _NAMED else [])], "and")
        hint = f"; there is one in {some}: choose by --run"
    else:
        hint = "; begin one without --resume"
    return RunError(f"{place} holds no {what}{hint}", 2)


def _report(folder: Path) -> tuple[str, Any]:
    """Write the report of a run; gives the name that the run has in it, and the verdict."""
    from ..report import make

    report = make([folder])
    report.save(folder / "report.html")
    return next(iter(report.verdicts.items()))
