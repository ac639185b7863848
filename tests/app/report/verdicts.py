"""Verdicts on made-up runs."""

from penalties.app.report import read
from penalties.app.report.summary import summarise
from penalties.app.report.verdict.findings import Verdict
from penalties.app.report.verdict.judge import judge

from .synthetic import Part


def verdict(folder) -> Verdict:
    run = read(folder)
    return judge(run, summarise(run))


def told(found: Verdict, kind: str) -> list[str]:
    return [str(finding) for finding in found.findings if finding.kind == kind]


def base(value=lambda step: 2.0, norm=lambda step: 1.0) -> Part:
    return Part(value, lambda step: 1.0, norm)
