"""`penalties train`: train a run, and write its report."""

import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from ...encoding import dumps
from .options import as_json, debug, quiet, values

__all__ = ["command", "folder_for", "next_command"]

_RUNS: Final = Path("runs")


@click.command("train")
@click.argument("config_path", metavar="[CONFIG]", required=False)
@values
@click.option(
    "--run",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder of the run; by default one in runs/, by the name of the config.",
)
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint of the run.")
@quiet
@as_json
@debug
def command(
    config_path: str | None, overrides: Sequence[str], folder: Path | None, resume: bool, quiet: bool, as_json: bool
) -> None:
    """Train as CONFIG says, a TOML file; without one, train the demo.

    Ctrl-C finishes the step and saves a checkpoint, from which --resume goes on.
    """
    from ..config import load
    from ..progress import chosen
    from ..runs import Run
    from ..train import Interrupted, train

    config = load(config_path, overrides)
    place = folder_for(config_path, resume=resume) if folder is None else folder
    progress = chosen(quiet=quiet, json=as_json)
    try:
        run = train(config, place, resume=resume, progress=progress)
    except BaseException as error:
        if folder is None and not Run(place).begun():
            # Nobody asked for this folder, and there is nothing in it.
            shutil.rmtree(place, ignore_errors=True)
        elif isinstance(error, Interrupted):
            _report(place)
            again = next_command("train", config_path, overrides, place)
            raise Interrupted(place, error.step, f"{error}; go on with:\n{again}") from None
        raise
    _report(run.folder)
    if as_json:
        click.echo(dumps({"kind": "result", "run": str(run.folder), "report": str(run.report)}))
    elif not quiet:
        click.echo(f"report: {run.report}")


def folder_for(config_path: str | None, *, resume: bool, suffix: str = "") -> Path:
    """A folder in runs/ by the name of the config: a new one, or with `resume` the last that there is."""
    from ..config import find

    stem = f"{find(config_path).stem}{suffix}"
    there = {1: _RUNS / stem} if (_RUNS / stem).exists() else {}
    for path in _RUNS.glob(f"{stem}-*"):
        number = re.fullmatch(r"-(\d+)", path.name.removeprefix(stem))
        if number is not None:
            there[int(number[1])] = path
    last = max(there, default=0)
    if resume and last:
        return there[last]
    while True:
        last += 1
        place = _RUNS / (stem if last == 1 else f"{stem}-{last}")
        # Made at once, so that two that start together do not meet in it.
        if _made(place):
            return place


def _made(place: Path) -> bool:
    from ..disk import writing

    with writing(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            place.mkdir()
        except FileExistsError:
            return False
    return True


def next_command(name: str, config_path: str | None, overrides: Sequence[str], place: Path, *more: str) -> str:
    """The command that goes on with a run.

    >>> next_command("train", "demo.toml", ["train.steps=5"], Path("runs/demo"))
    'penalties train demo.toml --set train.steps=5 --run runs/demo --resume'
    """
    parts = ["penalties", name, *([] if config_path is None else [config_path])]
    for one in overrides:
        parts += ["--set", one]
    return shlex.join([*parts, *more, "--run", str(place), "--resume"])


def _report(folder: Path) -> None:
    from ..report import write

    write([folder], folder / "report.html")
