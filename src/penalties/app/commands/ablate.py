"""`penalties ablate`: what each term does, shown by runs without it."""

from collections.abc import Sequence
from dataclasses import asdict
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

_SEEDS: Final = 5
"""With fewer, only large effects can be told from chance."""


@click.command("ablate")
@click.argument("config_path", metavar="[CONFIG]", required=False)
@values
@click.option(
    "--sweep",
    "sweeps",
    multiple=True,
    metavar="KEY=A,B,C",
    help="Vary a value by itself, such as kl.weight=0.01,0.1,1.",
)
@click.option(
    "--grid",
    "grids",
    multiple=True,
    metavar="KEY=A,B,C",
    help="Vary a value together with those of the other --grid: every combination is trained.",
)
@click.option("--seeds", type=click.IntRange(1), default=_SEEDS, show_default=True, help="Runs per variant.")
@click.option(
    "--remove/--keep", "remove", default=True, help="Remove each term in turn (default), or keep each one alone."
)
@click.option(
    "--baseline",
    default="all",
    show_default=True,
    metavar="VARIANT",
    help='The variant that others are compared with, such as "without kl"; "all" is the config as it is.',
)
@folder_of("runs")
@click.option("--resume", is_flag=True, help="Resume an ablation; finished runs are kept.")
@several
@quiet
@as_json
@debug
def command(
    config_path: str | None,
    overrides: Sequence[str],
    sweeps: Sequence[str],
    grids: Sequence[str],
    seeds: int,
    remove: bool,
    baseline: str,
    folder: Path | None,
    resume: bool,
    many: Many,
    quiet: bool,
    as_json: bool,
) -> None:
    """Train CONFIG, and again without each of its terms; compare them in a table and one report.

    All runs of one seed see the same data in the same order. An effect is claimed only where the differences between
    runs of the same seeds show it.
    """
    from ..ablation import ablate, analysed, check_baseline, headline, holds_ablation, shown, variants
    from ..config import load
    from ..report import make
    from ..runs.disk import RunError
    from ..train.loop import Interrupted

    if (sweeps or grids) and not remove:
        raise click.UsageError("--keep cannot be combined with --sweep or --grid, which remove no terms")

    def loaded(more: Sequence[str]) -> "Config":
        return load(config_path, [*overrides, *more])

    with telling_what_checks(config_path, overrides):
        trials = variants(loaded, sweeps=sweeps, grids=grids, seeds=seeds, keep=not remove)
    check_baseline(trials, baseline)
    many.check()
    folder = folder_for(config_path, resume=resume, suffix="-ablation") if folder is None else folder
    if resume and not holds_ablation(folder):
        raise nothing_in(folder, "ablation", holds_ablation)
    training = many.training(folder, [trial.config for trial in trials], len(trials), quiet=quiet or as_json)
    try:
        with telling_what_checks(config_path, overrides):
            record = ablate(trials, folder, baseline=baseline, resume=resume, training=training)
    except Interrupted as error:
        more = [part for one in sweeps for part in ("--sweep", one)]
        more += [part for one in grids for part in ("--grid", one)]
        more += ["--seeds", str(seeds)] if seeds != _SEEDS else []
        more += [] if remove else ["--keep"]
        more += ["--baseline", baseline] if baseline != "all" else []
        again = command_line("ablate", config_path, overrides, *more, *many.given, "--run", str(folder), "--resume")
        raise Interrupted(f"{error}; resume with:\n{again}") from None
    report = folder / "report.html"
    make([folder]).save(report)
    found = analysed(record)
    if as_json:
        about: dict[str, Any] = {"kind": "ablation", "folder": str(folder), "report": str(report)}
        say(dumps({**about, "verdict": headline(found), **asdict(found)}))
    elif not quiet:
        say("", *shown(found), f"report: {report}")
    failed = [outcome for outcome in record.outcomes if outcome.error is not None]
    if failed:
        raise RunError(f"{len(failed)} of {len(record.outcomes)} runs failed")
