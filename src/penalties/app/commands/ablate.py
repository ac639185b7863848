"""`penalties ablate`: what each term does, shown by a run without it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ...encoding import dumps
from ..console import say
from .options import as_json, command_line, debug, folder_of, quiet, telling_what_checks, values
from .train import folder_for, nothing_in

if TYPE_CHECKING:
    from ..config import Config

__all__ = ["command"]

_LINES: Final = 5
"""Lines for the steps of each run, in a pipe."""


@click.command("ablate")
@click.argument("config_path", metavar="[CONFIG]", required=False)
@values
@click.option(
    "--sweep",
    "sweeps",
    multiple=True,
    metavar="KEY=A,B,C",
    help="Vary a value, such as kl.weight=0.01,0.1,1.",
)
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="Runs per variant.")
@click.option(
    "--remove/--keep", "remove", default=True, help="Remove each term in turn (default), or keep each one alone."
)
@folder_of("runs")
@click.option("--resume", is_flag=True, help="Resume an ablation; finished runs are kept.")
@quiet
@as_json
@debug
def command(
    config_path: str | None,
    overrides: Sequence[str],
    sweeps: Sequence[str],
    seeds: int,
    remove: bool,
    folder: Path | None,
    resume: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Train CONFIG, and again without each of its terms; compare them in a table and one report.

    All runs of one seed see the same data in the same order.
    """
    from ..ablate import Variant, ablate, compared, holds_ablation, shown, variants
    from ..config import load
    from ..report import make
    from ..runs.disk import RunError
    from ..train.loop import Interrupted
    from ..train.progress import Progress, chosen

    if sweeps and not remove:
        raise click.UsageError("--sweep and --keep cannot be combined: a sweep removes no terms")

    def loaded(more: Sequence[str]) -> "Config":
        return load(config_path, [*overrides, *more])

    with telling_what_checks(config_path, overrides):
        trials = variants(loaded, sweeps=sweeps, seeds=seeds, keep=not remove)
    folder = folder_for(config_path, resume=resume, suffix="-ablation") if folder is None else folder
    if resume and not holds_ablation(folder):
        raise nothing_in(folder, "ablation", holds_ablation)

    def progress(variant: Variant, number: int) -> Progress:
        if not (quiet or as_json):
            say("", f"{number + 1} of {len(trials)}: {variant.name}, seed {variant.seed}")
        return chosen(quiet=quiet or as_json, lines=_LINES)

    try:
        with telling_what_checks(config_path, overrides):
            outcomes = ablate(trials, folder, resume=resume, progress=progress)
    except Interrupted as error:
        more = [part for sweep in sweeps for part in ("--sweep", sweep)]
        more += ["--seeds", str(seeds)] if seeds > 1 else []
        more += [] if remove else ["--keep"]
        again = command_line("ablate", config_path, overrides, *more, "--run", str(folder), "--resume")
        raise Interrupted(f"{error}; resume with:\n{again}") from None
    report = folder / "report.html"
    make([outcome.folder for outcome in outcomes]).save(report)
    comparisons = compared(outcomes)
    if as_json:
        entries: list[dict[str, Any]] = [comparison._asdict() for comparison in comparisons]
        say(dumps({"kind": "ablation", "folder": str(folder), "report": str(report), "variants": entries}))
    elif not quiet:
        say("", *shown(comparisons), f"report: {report}")
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if failed:
        raise RunError(f"{len(failed)} of {len(outcomes)} runs failed")
