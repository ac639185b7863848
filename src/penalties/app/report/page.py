"""The page: a single file that needs no other."""

import base64
import functools
import hashlib
import html
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...errors import MissingLibraryError
from ...files import write_atomically
from ..problems import counted
from ..runs.disk import RunError, writing
from .charts.chart import SIGNS
from .charts.columns import buckets_for
from .charts.palette import css
from .comparison.contenders import Contender, contenders
from .comparison.sections import comparison_charts, run_rows
from .comparison.verdict import compare
from .config_text import differences, toml
from .examples import LEGEND, examples
from .folders import named, runs_in
from .histories import read_sink
from .numbers import seconds, steps_shown
from .reading import read
from .resources import environments, pace
from .runlog import RunLog
from .sections import colors, sections
from .study import Study, study_of
from .summary import Summary, summarise
from .tables import cosines, events, failures, samples, term_note, term_rows, time_rows
from .verdict.findings import Verdict
from .verdict.judge import judge
from .verdict.sentences import short

__all__ = ["Report", "make"]

_HERE: Final = Path(__file__).parent

_SCRIPT: Final = ("numbers", "runs", "scales", "figure", "group", "lines", "marks", "points", "scatter", "menu", "page")
"""The files of the page's script, in their order: each uses those before it."""
_ITS_OWN: Final = ("ranking", "compared")
"""Findings that only an ablation or a search has, by tests rather than by the order of numbers."""
_SMOOTHED: Final = 300
"""From this number of steps on, charts are smoothed a little at first."""


@dataclass(frozen=True, slots=True)
class Report:
    """A page, with the verdict of each run and of the comparison."""

    html: str
    verdicts: dict[str, Verdict]
    comparison: Verdict | None
    study: Study | None = None
    """What an ablation or a search shows, if the report is of one."""

    @property
    def together(self) -> list[str]:
        """What all runs show together, the headline first; empty for one run."""
        if self.study is not None:
            return [self.study.headline, *self.study.sentences]
        return [] if self.comparison is None else str(self.comparison).splitlines()

    def _repr_html_(self) -> str:
        """The page, in a frame, where a notebook shows it."""
        return f'<iframe srcdoc="{html.escape(self.html)}" style="width:100%;height:800px;border:0"></iframe>'

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to one file that works offline; a reader never sees an incomplete page."""
        path = Path(path)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Half of a surrogate pair, as in a name that is not UTF-8, is shown as an escape.
            write_atomically(path, self.html.encode("utf-8", "backslashreplace"))


def make(runs: Sequence[Path], *, watched: str | None = None) -> Report:
    """The report of these runs, not yet written; the folder of an ablation stands for the runs in it.

    A file is a log that another loop wrote by `telemetry.JSONLines`. A page that is `watched` is loaded again when the
    logs are no longer as this says.
    """
    if not runs:
        raise RunError("no run was given; expected the folder of at least one", 2)
    folders = runs_in([Path(folder) for folder in runs])
    logs = [read_sink(one) if one.is_file() else read(one) for one in folders]
    return compose(logs, named(folders), study_of(runs), watched=watched)


@np.errstate(all="ignore")
def compose(
    logs: Sequence[RunLog], names: Sequence[str], study: Study | None = None, *, watched: str | None = None
) -> Report:
    """The report of runs that were read already; numbers of a log may be too large to add up."""
    found = contenders(logs, [summarise(log) for log in logs], names)
    css_of = colors(list(dict.fromkeys(name for log in logs for name in log.terms)))
    several = len(found) > 1
    verdicts = {one.letter: judge(one.run, one.summary) for one in found}
    comparison = compare(found) if several else None
    together = comparison_charts(found) if several else []
    header, cells = run_rows(found)
    runs = [_run(one, verdicts[one.letter], css_of, len(found)) for one in found]
    # Now that all charts are known.
    buckets, exact = buckets_for([one.columns for one in found])
    longest = max((len(log.steps) for log in logs), default=0)
    page = _template().render(
        title=names[0] if not several else _title(study, len(found)),
        style="\n".join(
            [_text("vendor/uplot/uPlot.min.css"), _text("style.css"), css(len({one.group for one in found}))]
        ),
        scripts=_scripts(watched is not None),
        watched=watched,
        description=(comparison or verdicts[found[0].letter]).summary if study is None else study.headline,
        several=several,
        comparison=comparison if study is None or comparison is None else _beside(comparison),
        together=together,
        header=header,
        rows=list(zip(found, cells, strict=True)),
        study=study,
        unlike=differences([log.config for log in logs]) if several else {},
        runs=runs,
        css_of={"term": css_of, "run": {one.name: one.css for one in found}},
        numbers=[(one.letter, one.columns.data(buckets, exact=exact)) for one in found],
        axes=[axis for axis in ("tokens", "seconds") if all(one.columns.over(axis) for one in found)],
        smoothing=2 if longest >= _SMOOTHED else 0,
        thinned=_thinned(longest, buckets, exact),
        signs=SIGNS,
        losses=LEGEND,
    )
    return Report(page.lstrip(), {one.name: verdicts[one.letter] for one in found}, comparison, study)


def _title(study: Study | None, runs: int) -> str:
    return f"{runs} runs compared" if study is None else f"{study.title} of {counted(runs, 'run')}"


def _beside(comparison: Verdict) -> Verdict:
    """What a comparison adds to a study, which says itself how its runs differ, and what that shows."""
    return Verdict(comparison.headline, [one for one in comparison.findings if one.kind not in _ITS_OWN])


def _thinned(longest: int, buckets: int, exact: bool) -> str:
    """What of the numbers of a log the page has; nothing if it has all of them."""
    digits = "" if exact else "Numbers have six digits. "
    if longest <= 3 * buckets:
        return digits
    kept = f"Charts keep the minimum, the maximum and the last of each of {steps_shown(buckets)} parts of a long run"
    return f"{digits}{kept}; curves are smoothed over the means of these parts. The log has every step. "


@functools.cache
def _text(name: str) -> str:
    return (_HERE / name).read_text("utf-8")


@functools.cache
def _scripts(watched: bool) -> list[tuple[str, str]]:
    """The scripts of the page, and what the security policy knows them by."""
    names = [*_SCRIPT[:-1], *(["watch"] if watched else []), _SCRIPT[-1]]
    own = "\n".join(_text(f"script/{name}.js") for name in names)
    scripts = [_text("vendor/uplot/uPlot.iife.min.js"), f'(() => {{\n"use strict";\n{own}}})();']
    return [(text, base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()) for text in scripts]


def _run(one: Contender, verdict: Verdict, css_of: dict[str, str], runs: int) -> dict[str, Any]:
    """What the template shows about one of so many runs."""
    run, summary = one.run, one.summary
    return {
        "letter": one.letter,
        "name": one.name,
        "css": one.css,
        "facts": _facts(run, summary),
        "verdict": verdict,
        "sections": sections(run, css_of, one.columns),
        "pace": pace(run, summary, one.columns),
        "terms": term_rows(summary, css_of),
        "terms_note": term_note(summary),
        "cosines": cosines(run, summary, css_of, one.columns),
        "times": time_rows(run, summary, css_of),
        "failures": failures(run, css_of),
        "samples": samples(run),
        "examples": examples(run, runs),
        "events": events(run),
        "folder": run.folder,
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
