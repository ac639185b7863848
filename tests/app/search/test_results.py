"""What a search has found: the best trial, the front, and what is said of them."""

import json
import math
from pathlib import Path

import pytest

from penalties.app.runs.disk import RunError
from penalties.app.search import Found, Goal, Trial, constraint_of, ended_in, found_in, headline, shown
from penalties.app.search.results import sentences, write


def trial(number: int, error: str | None = None, **metrics: float) -> Trial:
    return Trial(Path("out") / f"trial-{number:04d}", {"kl.weight": number / 10}, metrics, error)


TRIALS = [
    trial(0, base_loss=1.0, kl=3.0),
    trial(1, base_loss=2.0, kl=1.0),
    trial(2, base_loss=2.5, kl=2.0),
    trial(3, base_loss=3.0, kl=0.1),
    trial(4, "TermError: no"),
]


def found(*limits: str, goals: tuple[Goal, ...] = (Goal("base_loss"),)) -> Found:
    return Found(list(goals), [constraint_of(one) for one in limits], 5, TRIALS)


class TestBest:
    def test_is_the_lowest(self) -> None:
        assert found().best == TRIALS[0]
        told = "The lowest base_loss of 5 trials is 1, with kl.weight 0 (trial-0000)."
        assert headline(found()) == told

    def test_before_all_trials_ended_it_is_so_far(self) -> None:
        told = "The lowest base_loss of 5 trials so far is 1, with kl.weight 0 (trial-0000)."
        assert headline(found()._replace(total=9)) == told

    def test_is_the_highest_where_high_is_good(self) -> None:
        made = found(goals=(Goal("base_loss", highest=True),))
        assert made.best == TRIALS[3]
        assert headline(made) == "The highest base_loss of 5 trials is 3, with kl.weight 0.3 (trial-0003)."

    def test_breaks_no_constraint(self) -> None:
        assert found("kl<2").best == TRIALS[1]
        told = "The lowest base_loss with kl<2 of 5 trials is 2, with kl.weight 0.1 (trial-0001)."
        assert headline(found("kl<2")) == told
        assert found("kl<0.01").best is None
        assert headline(found("kl<0.01")) == "None of 5 trials ended with a finite base_loss that keeps to kl<0.01."


class TestFront:
    def test_of_one_metric_is_the_best(self) -> None:
        assert found().front == [TRIALS[0]]

    def test_of_a_metric_and_what_is_limited_is_their_trade_off(self) -> None:
        assert found("kl<2").front == [TRIALS[0], TRIALS[1], TRIALS[3]]

    def test_of_two_metrics_follows_their_directions(self) -> None:
        assert found(goals=(Goal("base_loss"), Goal("kl", highest=True))).front == [TRIALS[0]]
        assert found(goals=(Goal("kl"), Goal("base_loss"))).front == [TRIALS[3], TRIALS[1], TRIALS[0]]

    def test_without_complete_trials_is_empty(self) -> None:
        assert found()._replace(trials=[TRIALS[4]]).front == []


class TestWords:
    def test_say_how_many_are_where(self) -> None:
        assert sentences(found("kl<2"))[:3] == [
            "3 trials on the front of base_loss and kl: no other is better in one and as good in the rest.",
            "1 trial breaks kl<2.",
            "1 trial failed, or ended with a metric that is missing or not finite.",
        ]
        assert "the best of many looks better than it is" in sentences(found())[-1]

    def test_the_table_has_the_front(self) -> None:
        lines = shown(found("kl<2"))
        assert lines[:5] == [
            "trial       kl.weight  base_loss  kl",
            "trial-0000  0          1          3    front; breaks kl<2",
            "trial-0001  0.1        2          1    front",
            "trial-0003  0.3        3          0.1  front",
            "trial-0004: TermError: no",
        ]

    def test_with_one_metric_the_table_has_the_best_trials(self) -> None:
        lines = shown(found(), most=2)
        assert [line.split()[0] for line in lines[1:3]] == ["trial-0000", "trial-0001"]


class TestFile:
    def test_has_all_of_it(self, tmp_path: Path) -> None:
        trials = [one._replace(folder=tmp_path / one.folder.name) for one in TRIALS]
        made = found("kl<2")._replace(trials=trials)
        write(tmp_path, made)
        assert found_in(tmp_path) == made
        assert ended_in(tmp_path) == 5

    def test_is_json(self, tmp_path: Path) -> None:
        write(tmp_path, found()._replace(trials=[trial(0, base_loss=math.nan)]))
        plain = json.loads((tmp_path / "search.json").read_text(), parse_constant=lambda _: pytest.fail("not JSON"))
        assert plain["runs"][0]["metrics"] == {"base_loss": "NaN"}

    @pytest.mark.parametrize("broken", ["{", "[]", '{"runs": 3}'])
    def test_one_that_cannot_be_read_is_an_error(self, tmp_path: Path, broken: str) -> None:
        (tmp_path / "search.json").write_text(broken)
        with pytest.raises(RunError, match="search.json cannot be read .* resume the search to write it again"):
            found_in(tmp_path)
        assert ended_in(tmp_path) == 0
