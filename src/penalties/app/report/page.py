"""The page: a single file that needs no other."""

import base64
import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...errors import MissingLibraryError
from ...files import write_atomically
from ..problems import counted
from ..runs.disk import RunError, writing
from .charts.palette import css
from .charts.scales import seconds, steps_shown
from .comparison.contenders import Contender, contenders
from .comparison.sections import comparison_figures, run_rows
from .comparison.verdict import compare
from .config_text import differences, toml
from .folders import named, runs_in
from .reading import read
from .resources import environments, pace
from .runlog import RunLog
from .sections import (
    colors,
    cosines,
    count_series,
    events,
    failures,
    figures,
    samples,
    term_note,
    term_rows,
    time_rows,
)
from .study import Study, study_of
from .summary import Summary, summarise
from .verdict.findings import Verdict
from .verdict.judge import judge
from .verdict.sentences import short

__all__ = ["Report", "make"]

_HERE: Final = Path(__file__).parent

_VALUES: Final = 150_000
"""How many numbers a page may draw: each takes about 17 bytes, and a page should stay below 4 MB."""
_POINTS: Final = (120, 1000)
"""The minimum and maximum number of points in a chart."""


@dataclass(frozen=True, slots=True)
class Report:
    """A page, with the verdict of each run and of the comparison."""

    html: str
    verdicts: dict[str, Verdict]
    comparison: Verdict | None

    def save(self, path: Path) -> None:
        """Write the page to one file that works offline; a reader never sees an incomplete page."""
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Half of a surrogate pair, as in a name that is not UTF-8, is shown as an escape.
            write_atomically(path, self.html.encode("utf-8", "backslashreplace"))


def make(runs: Sequence[Path]) -> Report:
    """The report of these runs, not yet written; the folder of an ablation stands for the runs in it."""
    if not runs:
        raise RunError("no run was given; expected the folder of at least one", 2)
    folders = runs_in([Path(folder) for folder in runs])
    return compose([read(folder) for folder in folders], named(folders), study_of(runs))


@np.errstate(all="ignore")
def compose(logs: Sequence[RunLog], names: Sequence[str], study: Study | None = None) -> Report:
    """The report of runs that were read already; numbers of a log may be too large to add up."""
    found = contenders(logs, [summarise(log) for log in logs], names)
    css_of = colors(list(dict.fromkeys(name for log in logs for name in log.terms)))
    several = len(found) > 1
    metrics = {key for log in logs for key in log.own_metrics()} if several else set[tuple[str, str]]()
    drawn = sum(map(count_series, logs)) + (len(css_of) + 4 + 2 * len(metrics)) * len(found) * several
    points = min(max(_VALUES // drawn, _POINTS[0]), _POINTS[1])
    verdicts = {one.letter: judge(one.run, one.summary) for one in found}
    comparison = compare(found) if several else None
    title = names[0] if not several else f"{len(found)} runs compared"
    style, script = ((_HERE / name).read_text("utf-8") for name in ("style.css", "script.js"))
    html = _template().render(
        title=title,
        style=f"{style}\n{css(len({one.group for one in found}))}",
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        description=(comparison or verdicts[found[0].letter]).summary,
        several=several,
        comparison=comparison,
        study=study,
        comparison_figures=comparison_figures(found, points) if several else [],
        rows=list(zip(found, run_rows(found), strict=True)),
        unlike=differences([log.config for log in logs]) if several else {},
        runs=[_run(one, verdicts[one.letter], css_of, points) for one in found],
        css_of={"term": css_of, "run": {one.name: one.css for one in found}},
    )
    return Report(html.lstrip(), {one.name: verdicts[one.letter] for one in found}, comparison)


def _run(one: Contender, verdict: Verdict, css_of: dict[str, str], points: int) -> dict[str, Any]:
    """What the template shows about a run."""
    run, summary = one.run, one.summary
    return {
        "letter": one.letter,
        "name": one.name,
        "css": one.css,
        "facts": _facts(run, summary),
        "verdict": verdict,
        "figures": figures(run, css_of, points),
        "pace": pace(run, summary),
        "terms": term_rows(summary, css_of),
        "terms_note": term_note(summary),
        "cosines": cosines(run, summary, css_of),
        "times": time_rows(run, summary, css_of),
        "failures": failures(run, css_of),
        "samples": samples(run),
        "events": events(run),
        "config": None if run.config is None else toml(run.config),
        "environments": environments(run),
    }


def _facts(run: RunLog, summary: Summary) -> list[str]:
    config: Any = run.config or {}
    model, backend = config.get("model", {}).get("name"), config.get("backend", {}).get("kind")
    facts = [f"model {model}"] if model else []
    if backend:
        facts.append(f"{backend} backend")
    facts.append(counted(len(run.steps), "step", steps_shown))
    if summary.tokens:
        facts.append(f"{steps_shown(summary.tokens)} tokens")
    if summary.seconds:
        facts.append(seconds(summary.seconds))
    if run.started:
        facts.append(f"started {run.started.replace('T', ' ').replace('Z', ' UTC')}")
    if run.environments and (commit := run.environments[-1].get("commit")):
        changed = ", with changes" if run.environments[-1].get("changed") else ""
        facts.append(f"commit {commit[:8]}{changed}")
    return facts


@functools.cache
def _template() -> Any:
    try:
        import jinja2
    except ImportError:
        raise MissingLibraryError("a report", "jinja2", extra="cli") from None
    loader = jinja2.FileSystemLoader(_HERE)
    environment: Any = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["short"] = short
    return environment.get_template("template.html.j2")
