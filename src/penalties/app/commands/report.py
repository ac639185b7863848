"""`penalties report`: draw a run, or compare several."""

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from ...encoding import dumps
from ...files import open_plain
from ..console import say
from ..runs.disk import RunError, reason
from .options import as_json, debug, quiet

__all__ = ["command", "lines_of"]

_OF_THE_FOLDER: Final = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EEXIST)
"""Errors of the folder that the report would be in."""

_PAGE: Final = b"<!doctype html"


@click.command("report")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write; by default report.html, in the folder of one run, or here for several.",
)
@quiet
@as_json
@debug
def command(runs: Sequence[Path], out: Path | None, quiet: bool, as_json: bool) -> None:
    """Write a report of one run, or compare several.

    RUN is the folder of a run, as `penalties train` writes it, or of an ablation or a search; or a log that another
    loop wrote with the sink for JSON lines. The report is one HTML file that works offline.
    """
    from ..report import make

    report = make(runs)
    if out is not None:
        _check_replaceable(out)
    path = out or _beside(runs)
    try:
        report.save(path)
    except RunError as error:
        cause = error.__cause__
        if not isinstance(cause, OSError) or cause.errno not in (errno.EISDIR, *_OF_THE_FOLDER):
            raise
        what = f"{path} is a folder" if cause.errno == errno.EISDIR else f"the folder {path.parent} is not writable"
        raise RunError(f"{what}; choose another file with --out", 2) from cause
    if as_json:
        said: dict[str, Any] = {"kind": "report", "report": str(path), "verdict": report.together or None}
        said["runs"] = {name: lines_of(verdict) for name, verdict in report.verdicts.items()}
        say(dumps(said))
    elif not quiet:
        for name, verdict in report.verdicts.items():
            say(f"{name}: {verdict.summary}")
        if report.together:
            say(report.together[0])
        say(f"report: {path}")


def _check_replaceable(path: Path) -> None:
    """Raise where the name has anything but a page, such as the log of a run."""
    try:
        with open(open_plain(path), "rb") as file:
            found = "" if file.read(len(_PAGE)).lower() in (b"", _PAGE) else "it is not an HTML page"
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        found = reason(error)
    if found:
        raise RunError(f"{path} is not replaced: {found}; choose another file with --out", 2)


def _beside(runs: Sequence[Path]) -> Path:
    """In the folder of the only run, beside the only log, or here."""
    if len(runs) == 1 and runs[0].is_file():
        return runs[0].with_suffix(".html")
    return (runs[0] if len(runs) == 1 else Path()) / "report.html"


def lines_of(verdict: Any) -> list[str] | None:
    """The sentences of a verdict, the headline first."""
    return None if verdict is None else str(verdict).splitlines()
