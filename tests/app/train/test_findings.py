"""Warnings: each when it begins, and not again at every step."""

from typing import Any

from penalties import LossOutput, TermOutput
from penalties.app.train.findings import Findings


def dominated(by: float = 1000.0) -> LossOutput:
    return LossOutput.of([TermOutput("l1", by), TermOutput("l2", 1.0)])


def told(findings: Findings, outputs: list[Any], first: int = 0) -> list[tuple[int, str]]:
    return [
        (first + place, finding.kind)
        for place, output in enumerate(outputs)
        for finding in findings.look(output, first + place)
    ]


def conflicting(cosine: float | None) -> LossOutput:
    out = LossOutput.of([TermOutput("l1", 1.0), TermOutput("l2", 1.0)])
    cosines = None if cosine is None else [[1.0, cosine], [cosine, 1.0]]
    return LossOutput(out.total, out.terms, cosines=cosines)


def test_a_lasting_finding_is_reported_once_after_a_while() -> None:
    assert told(Findings(), [dominated()] * 10) == [(2, "dominates")]


def test_one_that_comes_and_goes_is_none() -> None:
    assert told(Findings(), [dominated(), dominated(), dominated(2.0)] * 5) == []


def test_a_finding_is_reported_again_after_a_long_absence() -> None:
    findings = Findings()
    assert told(findings, [dominated()] * 4) == [(2, "dominates")]
    assert told(findings, [dominated(2.0)], 100) == []
    assert told(findings, [dominated()] * 4, 101) == []
    assert told(findings, [dominated(2.0)], 400) == []
    assert told(findings, [dominated()] * 4, 401) == [(403, "dominates")]


def test_a_conflict_is_looked_for_where_there_are_cosines() -> None:
    outputs = [conflicting(-0.9), conflicting(None)] * 4
    assert told(Findings(), outputs) == [(4, "conflicts")]


def test_between_measurements_only_failures_are_reported() -> None:
    findings = Findings()
    for step in range(9):
        told = findings.look(dominated(), step, measured=step % 3 == 0)
        assert [finding.kind for finding in told] == (["dominates"] if step == 6 else [])
    failed = LossOutput.of([TermOutput("l1", None, error=RuntimeError("no")), TermOutput("l2", 1.0)])
    assert [finding.kind for finding in findings.look(failed, 10, measured=False)] == ["failed"]


def test_a_failure_is_reported_at_once() -> None:
    failed = LossOutput.of([TermOutput("l1", None, error=RuntimeError("no")), TermOutput("l2", 1.0)])
    assert told(Findings(), [failed] * 3) == [(0, "failed")]


def test_a_weight_of_zero_is_not_reported() -> None:
    assert told(Findings(), [LossOutput.of([TermOutput("l1", 1.0, 0.0), TermOutput("l2", 1.0)])] * 5) == []


def test_reported_findings_are_restored_from_notes() -> None:
    findings = Findings()
    assert told(findings, [dominated()] * 4) == [(2, "dominates")]
    assert told(Findings(findings.notes()), [dominated()] * 4, 4) == []
