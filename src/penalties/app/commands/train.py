"""`penalties train`: train a run, and write its report."""

import contextlib
import difflib
import glob
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from ...encoding import dumps
from ..console import say
from ..problems import joined
from ..runs.disk import RunError
from .options import as_json, command_line, debug, folder_of, quiet, telling_what_checks, values
from .report import lines_of

if TYPE_CHECKING:
    from ..config import Config
    from ..runs.run import Run
    from ..train import TermFailed

__all__ = ["command", "failed", "folder_for", "hinted", "nothing_in", "own_config", "written_report"]

_RUNS: Final = Path("runs")
_NAMED: Final = 5
"""Folders that a message names."""


@click.command("train")
@click.argument("config_path", metavar="[CONFIG]", required=False)
@values
@folder_of("run")
@click.option(
    "--resume",
    is_flag=True,
    help="Resume from the last checkpoint of the run; without CONFIG, with the run's own config.",
)
@quiet
@as_json
@debug
def command(
    config_path: str | None, overrides: Sequence[str], folder: Path | None, resume: bool, quiet: bool, as_json: bool
) -> None:
    """Train the run that CONFIG, a TOML file, describes; without one, train the demo.

    Ctrl-C finishes the step and saves a checkpoint; --resume continues from it.
    """
    from ..config import load
    from ..runs.run import Run
    from ..train import Interrupted, TermFailed, train
    from ..train.progress import chosen

    given = folder
    if folder is None and resume:
        folder = folder_for(config_path, resume=True)
    if resume and folder is not None and not Run(folder).exists():
        Run(folder).check_whole()
        raise nothing_in(folder, "run", lambda one: Run(one).exists())
    with contextlib.ExitStack() as checking:
        if resume and folder is not None and config_path is None:
            config = own_config(Run(folder), overrides)
        else:
            checking.enter_context(telling_what_checks(config_path, overrides))
            config = load(config_path, overrides)
        folder = folder_for(config_path, resume=False) if folder is None else folder
        try:
            run = train(config, folder, resume=resume, progress=chosen(quiet=quiet, json=as_json))
        except BaseException as error:
            outcome = failed(folder, error, ours=given is None and not resume)
            if outcome == "reported" and not (quiet or as_json):
                say(f"report: {Run(folder).report}")
            if isinstance(error, Interrupted) and outcome != "removed":
                again = command_line("train", None, (), "--run", str(folder), "--resume")
                raise Interrupted(f"{error}; resume with:\n{again}") from None
            if isinstance(error, TermFailed):
                raise hinted(error, config) from error
            raise
    name, verdict = written_report(run.folder)
    kind, path = "weights" if config.model.adapter == "none" else "adapter", _trained(run)
    if as_json:
        result = {"kind": "result", "run": str(run.folder), "report": str(run.report), kind: path}
        say(dumps({**result, "verdict": lines_of(verdict)}))
    elif not quiet:
        where = [] if path is None else [f"{kind}: {path}"]
        say(*where, f"{name}: {verdict.summary}", f"report: {run.report}")


def own_config(run: "Run", overrides: Sequence[str]) -> "Config":
    """The config of a run that is resumed; its modules are imported once it is known to be that of the checkpoint."""
    from ..config import load_again
    from ..runs import checkpoints
    from ..train import check_config

    given = run.config()
    checkpoint = checkpoints.latest(run)
    if checkpoint is not None:
        check_config(run, load_again(given, run.folder, overrides, code=False), checkpoint)
    return load_again(given, run.folder, overrides)


def _trained(run: "Run") -> str | None:
    """Where the trained weights are, those of the best checkpoint if there is one; None if they were removed."""
    from ..trained import find

    # The run is finished, whatever became of its checkpoints.
    with contextlib.suppress(RunError):
        return find(run.folder).weights
    return None


def failed(folder: Path, error: BaseException, *, ours: bool) -> Literal["removed", "reported", ""]:
    """Write the report of a run that failed, or remove its folder if that is `ours` and has no step; returns which."""
    from ..runs.run import Run

    if ours and not Run(folder).begun():
        Run(folder).discard()
        return "removed"
    if Run(folder).exists() and getattr(error, "status", 1) == 1:
        # The error and how to resume are shown in any case, above all when the disk is full.
        with contextlib.suppress(RunError, OSError):
            written_report(folder)
            return "reported"
    return ""


def hinted(error: "TermFailed", config: "Config") -> RunError:
    """A term that failed, and what the user can do: two lines."""
    # The base loss cannot be left out.
    is_term = error.term in [table.name for table in config.term]
    skipping = 'on_error = "skip" in its [[term]] leaves it out when it fails' if is_term else ""
    if error.finite:
        return RunError(f"{error}\n{skipping}{', and ' if skipping else ''}--debug shows the traceback")
    tries = ["lower train.learning_rate", *(["set train.grad_clip_norm"] if not config.train.grad_clip_norm else [])]
    if error.of_gradient and error.term is None and config.train.gradients_every != 1:
        tries.append("set train.gradients_every = 1, which names the term")
    return RunError(f"{error}\n{joined(tries)}{'; ' if skipping else ''}{skipping}")


def folder_for(config_path: str | None, *, resume: bool, suffix: str = "") -> Path:
    """A folder in runs/ named after the config: a new one, or with `resume` the latest that exists."""
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
        folder = _RUNS / (stem if last == 1 else f"{stem}-{last}")
        # Created at once, so that two runs that start together do not share it.
        if _made(folder):
            return folder


def _made(folder: Path) -> bool:
    from ..runs.disk import writing

    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir()
        except FileExistsError:
            return False
    return True


def nothing_in(folder: Path, what: str, holds: Callable[[Path], bool]) -> RunError:
    """The error for a folder without anything to resume; it names the folders in runs/ that have something."""
    there = {one.name: str(one) for one in sorted(_RUNS.glob("*")) if holds(one)}
    near = difflib.get_close_matches(folder.name, there, n=1)
    if near:
        hint = f"; did you mean {there[near[0]]}?"
    elif there:
        some = joined([*list(there.values())[:_NAMED], *(["others"] if len(there) > _NAMED else [])], "and")
        hint = f"; there is one in {some}: choose it with --run"
    else:
        hint = "; start one without --resume"
    return RunError(f"{folder} holds no {what}{hint}", 2)


def written_report(folder: Path) -> tuple[str, Any]:
    """Write the report of a run; returns the name that the run has in it, and the verdict."""
    from ..report import make

    report = make([folder])
    report.save(folder / "report.html")
    return next(iter(report.verdicts.items()))
