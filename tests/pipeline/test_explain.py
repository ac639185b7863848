"""Which terms drive training, which conflict, and which do nothing."""

import json
import math
from typing import Any

import numpy as np
import pytest

import penalties as pn
from penalties import telemetry
from tests.libraries import close


def output(*terms: pn.TermOutput, **options: Any) -> pn.LossOutput:
    return pn.LossOutput.of(terms, **options)


def kinds(explanation: pn.Explanation) -> list[tuple[str, tuple[str, ...]]]:
    return [(finding.kind, finding.terms) for finding in explanation.findings]


class TestExplain:
    def test_shares_of_the_loss_and_of_the_gradient(self, autodiff: Any) -> None:
        pipeline = pn.Pipeline([pn.Term(pn.l1, weight=1.0), pn.Term(pn.l2, weight=0.25)], base=lambda x: -x.sum())
        found = pn.explain(pipeline.value_and_grad(autodiff.array([2.0]), wrt="input", cosines=True))
        assert [share.name for share in found.shares] == ["base_loss", "l1", "l2"]
        close([share.loss_share for share in found.shares], [0.4, 0.4, 0.2])
        close([share.grad_share for share in found.shares], [1 / 3, 1 / 3, 1 / 3])
        assert kinds(found) == [("conflicts", ("base_loss", "l1")), ("conflicts", ("base_loss", "l2"))]

    def test_without_gradients(self, library: Any) -> None:
        found = pn.explain(pn.Pipeline([pn.Term(pn.l1, 1e-3), pn.Term(pn.l2)])(library.array([3.0])))
        assert found.shares[0].grad_share is None
        assert found.total_grad_norm is None
        assert kinds(found) == [("dominates", ("l2", "l1"))]
        assert found.findings[0].message == "l2 dominates l1: its contribution is 3000 times as large"

    def test_dominates(self) -> None:
        terms = [pn.TermOutput(name, 1.0, 1.0, grad_norm=norm) for name, norm in (("a", 1.0), ("b", 0.5), ("c", 101.0))]
        assert kinds(pn.explain(output(*terms))) == [("dominates", ("c", "a", "b"))]
        assert "c dominates a and b: its gradient is at least 101 times" in str(pn.explain(output(*terms)))
        terms[2] = pn.TermOutput("c", 1.0, 1.0, grad_norm=50.0)
        assert kinds(pn.explain(output(*terms))) == []
        assert kinds(pn.explain(output(*terms), dominance=10.0)) == [("dominates", ("c", "a", "b"))]

    @pytest.mark.parametrize(("cosine", "found"), [(-0.31, True), (-0.29, False), (math.nan, False)])
    def test_conflicts(self, cosine: float, found: bool) -> None:
        out = pn.LossOutput(
            2.0,
            output(pn.TermOutput("a", 1.0), pn.TermOutput("b", 1.0)).terms,
            cosines=[[1.0, cosine], [cosine, 1.0]],
        )
        assert (kinds(pn.explain(out)) == [("conflicts", ("a", "b"))]) is found
        assert kinds(pn.explain(out, conflict=-0.2)) == ([] if math.isnan(cosine) else [("conflicts", ("a", "b"))])

    def test_does_nothing(self) -> None:
        found = pn.explain(output(pn.TermOutput("a", 1.0, 0), pn.TermOutput("b", 1.0, grad_norm=0.0)))
        assert kinds(found) == [("does nothing", ("a",)), ("does nothing", ("b",))]
        assert "a does nothing: its weight is 0" in str(found)
        assert "b does nothing: its gradient is 0" in str(found)

    def test_explodes(self) -> None:
        terms = pn.TermOutput("a", 1.0, 2.0, grad_norm=80.0), pn.TermOutput("b", 1.0, grad_norm=1.5)
        found = pn.explain(output(*terms, total_grad_norm=161.0))
        assert kinds(found)[0] == ("explodes", ("a",))
        assert "its length is 161, most of it from a" in found.findings[0].message
        assert kinds(pn.explain(output(*terms, total_grad_norm=99.0)))[:1] != [("explodes", ("a",))]

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_what_is_not_finite_explodes(self, bad: float) -> None:
        found = pn.explain(
            output(pn.TermOutput("a", bad), pn.TermOutput("b", 1.0, grad_norm=bad), pn.TermOutput("c", 2.0))
        )
        assert kinds(found)[:2] == [("explodes", ("a",)), ("explodes", ("b",))]
        assert found.shares[0].loss_share is None
        close(found.shares[2].loss_share, 2 / 3)
        assert "nan" in str(found) or "inf" in str(found)

    def test_failures_come_first(self) -> None:
        terms = [
            pn.TermOutput("a", None, error=pn.TermError("a", "raised ValueError: no")),
            pn.TermOutput("b", 1.0, grad_error="it does not read x"),
        ]
        found = pn.explain(output(*terms))
        assert kinds(found) == [("failed", ("a",)), ("no gradient", ("b",))]
        assert found.findings[0].message == "a was skipped: a: raised ValueError: no"

    def test_only_outputs_are_explained(self) -> None:
        with pytest.raises(pn.OptionError, match="explain: out=.*the output of a pipeline"):
            pn.explain(pn.Pipeline())  # type: ignore[arg-type]

    def test_nothing_at_all(self) -> None:
        found = pn.explain(pn.Pipeline()())
        assert (found.shares, found.findings, str(found)) == ((), (), "total 0")
        assert kinds(pn.explain(output(pn.TermOutput("a", 0.0)))) == []

    def test_as_data(self) -> None:
        found = pn.explain(output(pn.TermOutput("a", 3.0, 0.5, grad_norm=2.0), base=pn.TermOutput("base_loss", 1.0)))
        data = json.loads(json.dumps(found.to_dict()))
        assert data["total"] == 2.5
        assert data["shares"]["a"] == {
            "value": 3.0,
            "weight": 0.5,
            "contribution": 1.5,
            "loss_share": 0.6,
            "grad_norm_weighted": 1.0,
            "grad_share": 1.0,
        }
        assert data["findings"] == []

    def test_as_a_table(self) -> None:
        terms = pn.TermOutput("first", 3.0, 0.5, grad_norm=2.0), pn.TermOutput("second", 1.0, 0, grad_norm=1.0)
        assert str(pn.explain(output(*terms, total_grad_norm=1.0))).splitlines() == [
            "total 1.5, gradient 1",
            "term    contribution  of the loss  gradient  of the gradient",
            "first   1.5           100.0 %      1         100.0 %",
            "second  0             0.0 %        0         0.0 %",
            "second does nothing: its weight is 0",
        ]

    @pytest.mark.parametrize(
        "options", [{"dominance": 0.5}, {"conflict": 0.1}, {"conflict": -2}, {"explosion": 0}, {"explosion": "big"}]
    )
    def test_wrong_thresholds(self, options: Any) -> None:
        with pytest.raises(pn.OptionError, match=f"explain: {next(iter(options))}="):
            pn.explain(pn.Pipeline()(), **options)


class TestMonitor:
    def test_every_so_many_steps(self) -> None:
        monitor = pn.Monitor(every=3, jump=None)
        out = output(pn.TermOutput("a", 1.0))
        assert [step for step in range(8) if monitor(out, step)] == [0, 3, 6]

    @pytest.mark.parametrize(
        ("losses", "jumps"),
        [
            ([1.0, 1.0, 1.0, 1.9, 1.0], []),
            ([1.0, 1.0, 1.0, 2.1, 1.0], [3]),
            ([1.0, 1.0, math.nan, 1.0], [2]),
            ([1.0, 1.0, math.inf, 1.0, 2.5], [2, 4]),
            ([-1.0, -1.0, -0.5, 0.1], [3]),
            ([9.0, 9.0, 3.0, 3.0, 3.0, 3.0, 6.5], [6]),
        ],
    )
    def test_when_the_loss_jumps(self, losses: list[float], jumps: list[int]) -> None:
        monitor = pn.Monitor(every=1000, window=4)
        seen = [step for step, loss in enumerate(losses, 1) if monitor(output(pn.TermOutput("a", loss)), step)]
        assert [step - 1 for step in seen] == jumps

    def test_emits_what_it_says(self) -> None:
        heard: list[Any] = []
        handler = telemetry.attach(lambda event, measurements, metadata: heard.append((event, metadata)))
        try:
            monitor = pn.Monitor(every=10, dominance=2.0)
            for step in range(1, 12):
                monitor(output(pn.TermOutput("a", 1.0 if step != 7 else 5.0), pn.TermOutput("b", 0.4)), step)
        finally:
            telemetry.detach(handler)
        assert [(event, data["step"], data["reason"]) for event, data in heard] == [
            ("monitor.explain", 7, "jump"),
            ("monitor.explain", 10, "every"),
        ]
        assert kinds(heard[0][1]["explanation"]) == [("dominates", ("a", "b"))]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"every": 0}, "Monitor: every=0"),
            ({"window": 1}, "Monitor: window=1"),
            ({"jump": 0.5}, "Monitor: jump=0.5; expected None or a number above 1"),
            ({"dominance": 0.5}, "Monitor: dominance=0.5"),
        ],
    )
    def test_wrong(self, options: Any, message: str) -> None:
        with pytest.raises(pn.OptionError, match=message):
            pn.Monitor(**options)

    def test_reads_arrays(self, library: Any) -> None:
        found = pn.Monitor()(pn.Pipeline(["l1"])(library.array([1.0])), 0)
        assert found is not None
        assert found.total == 1.0
        assert isinstance(np.float64(found.total), float)
