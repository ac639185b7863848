"""`penalties search`: the values of a config that make a metric best."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ...encoding import dumps
from ..console import say
from .many import Many, several
from .options import as_json, command_line, debug, folder_of, quiet, telling_what_checks, values
from .train import folder_for, nothing_in

if TYPE_CHECKING:
    from ..config import Config

__all__ = ["command"]

_TRIALS: Final = 30
_METRIC: Final = "eval.base_loss"


@click.command("search")
@click.argument("config_path", metavar="[CONFIG]", required=False)
@values
@click.option(
    "--over",
    "ranges",
    multiple=True,
    required=True,
    metavar="KEY=RANGE",
    help="A key and its range: kl.weight=log(1e-3,1), uniform(0,1) or int(4,64), or values such as model.rank=4,8.",
)
@click.option("--trials", type=click.IntRange(1), default=_TRIALS, show_default=True, help="Runs in all.")
@click.option(
    "--metric",
    "lowest",
    multiple=True,
    metavar="NAME",
    help=f"A metric of the last evaluation that is to be low; {_METRIC} by default. Several make a Pareto front.",
)
@click.option("--maximize", "highest", multiple=True, metavar="NAME", help="A metric to maximize.")
@click.option(
    "--constraint",
    "limits",
    multiple=True,
    metavar="NAME<LIMIT",
    help="A limit on a metric, such as kl<0.1, in quotes.",
)
@folder_of("runs")
@click.option("--resume", is_flag=True, help="Resume a search; finished runs are kept.")
@several
@quiet
@as_json
@debug
def command(
    config_path: str | None,
    overrides: Sequence[str],
    ranges: Sequence[str],
    trials: int,
    lowest: Sequence[str],
    highest: Sequence[str],
    limits: Sequence[str],
    folder: Path | None,
    resume: bool,
    many: Many,
    quiet: bool,
    as_json: bool,
) -> None:
    """Train CONFIG with values that Optuna proposes, and show which gave the best metric.

    With constraints or several metrics, the report has their Pareto front.
    """
    from ..config import load
    from ..report import make
    from ..runs.disk import RunError
    from ..search import Goal, Search, constraint_of, ended_in, headline, holds_search, range_of, search, shown
    from ..train.loop import Interrupted

    def loaded(more: Sequence[str]) -> "Config":
        return load(config_path, [*overrides, *more])

    goals = [*map(Goal.of, lowest), *(Goal.of(name, highest=True) for name in highest)] or [Goal.of(_METRIC)]
    wanted = Search(loaded, [*map(range_of, ranges)], goals, [*map(constraint_of, limits)], trials)
    many.check()
    with telling_what_checks(config_path, overrides):
        config = wanted.check()
    folder = folder_for(config_path, resume=resume, suffix="-search") if folder is None else folder
    if resume and not holds_search(folder):
        raise nothing_in(folder, "search", holds_search)
    left = trials - (ended_in(folder) if resume else 0)
    training = many.training(folder, [config], left, quiet=quiet or as_json)
    try:
        found = search(wanted, folder, resume=resume, training=training)
    except Interrupted as error:
        given = {"--over": ranges, "--metric": lowest, "--maximize": highest, "--constraint": limits}
        more = [part for option, texts in given.items() for one in texts for part in (option, one)]
        more += ["--trials", str(trials)] if trials != _TRIALS else []
        again = command_line("search", config_path, overrides, *more, *many.given, "--run", str(folder), "--resume")
        raise Interrupted(f"{error}; resume with:\n{again}") from None
    report = folder / "report.html"
    make([folder]).save(report)
    if as_json:
        described = [{**trial._asdict(), "folder": str(trial.folder)} for trial in found.trials]
        about: dict[str, Any] = {"kind": "search", "folder": str(folder), "report": str(report)}
        front = [str(trial.folder) for trial in found.front]
        best = None if found.best is None else str(found.best.folder)
        say(dumps({**about, "verdict": headline(found), "best": best, "front": front, "trials": described}))
    elif not quiet:
        say("", *shown(found), f"report: {report}")
    failed = [trial for trial in found.trials if trial.error is not None]
    if failed:
        raise RunError(f"{len(failed)} of {len(found.trials)} runs failed")
