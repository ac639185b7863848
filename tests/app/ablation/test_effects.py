"""What an ablation shows, as data."""

import math

import pytest

from penalties.app.ablation import Effect, Outcome, analysed
from penalties.app.ablation.outcomes import Facts
from penalties.app.ablation.statistics import detectable

from .records import outcome, recorded

LOSSES = {
    "all": [1.0, 2.0, 3.0, 4.0, 5.0],
    "without kl": [1.5, 2.6, 3.4, 4.5, 5.5],
    "without l1": [1.1, 1.9, 3.2, 3.9, 5.0],
}


def outcomes(losses: dict[str, list[float | None]] = LOSSES) -> list[Outcome]:
    return [outcome(name, seed, loss) for name, row in losses.items() for seed, loss in enumerate(row)]


def effect_of(losses: dict[str, list[float | None]], variant: str, baseline: str = "all") -> Effect:
    (row,) = [row for row in analysed(recorded(*outcomes(losses), baseline=baseline)).rows if row.variant == variant]
    assert row.effect is not None
    return row.effect


class TestEffects:
    def test_differences_are_seed_by_seed(self) -> None:
        found = effect_of(LOSSES, "without kl")
        assert found.differences == pytest.approx({0: 0.5, 1: 0.6, 2: 0.4, 3: 0.5, 4: 0.5})
        assert found.mean == pytest.approx(0.5)
        assert found.deviation == pytest.approx(0.0707107, rel=1e-5)
        assert (found.low, found.high) == pytest.approx((0.412202, 0.587798), rel=1e-5)
        assert found.claimed
        assert found.detectable == pytest.approx(detectable(5, 2) * found.deviation)

    def test_only_what_is_clear_is_claimed(self) -> None:
        found = effect_of(LOSSES, "without l1")
        assert found.low < 0 < found.high
        assert not found.claimed
        assert found.adjusted == found.p

    def test_another_baseline_turns_the_differences_around(self) -> None:
        found = effect_of(LOSSES, "all", baseline="without kl")
        assert found.mean == pytest.approx(-0.5)
        assert found.claimed

    @pytest.mark.parametrize("lost", [None, math.nan, math.inf])
    def test_nothing_is_claimed_where_a_seed_was_lost(self, lost: float | None) -> None:
        found = effect_of({**LOSSES, "without kl": [1.5, 2.6, 3.4, 4.5, lost]}, "without kl")
        assert list(found.lost) == [4]
        assert len(found.differences) == 4
        assert found.adjusted < 0.05
        assert not found.claimed

    def test_a_seed_that_the_baseline_lost_is_lost(self) -> None:
        found = effect_of({**LOSSES, "all": [None, 2.0, 3.0, 4.0, 5.0]}, "without kl")
        assert list(found.lost) == [0]

    def test_equal_losses_are_equal(self) -> None:
        found = effect_of({**LOSSES, "without kl": LOSSES["all"]}, "without kl")
        assert found.equal
        assert not found.claimed
        assert not effect_of(LOSSES, "without kl").equal

    def test_one_seed_has_a_difference_alone(self) -> None:
        found = effect_of({name: row[:1] for name, row in LOSSES.items()}, "without kl")
        assert found.mean == 0.5
        assert math.isnan(found.p)
        assert not found.claimed


class TestRows:
    def test_failed_runs_have_reasons_and_no_losses(self) -> None:
        row = analysed(recorded(outcome("all", 0, 1.0), outcome("without kl", 0, None))).rows[1]
        assert (row.mean, row.deviation, list(row.errors)) == (None, None, ["TermError: no"])

    def test_losses_that_are_not_finite_have_no_spread(self) -> None:
        (row,) = analysed(recorded(outcome("all", 0, math.inf), outcome("all", 1, 1.0))).rows
        assert (row.mean, row.deviation) == (math.inf, None)

    def test_terms_are_means_over_the_seeds_that_have_them(self) -> None:
        (row,) = analysed(recorded(outcome("all", 0, 1.0, kl=1.0), outcome("all", 1, 1.0, kl=3.0, l1=5.0))).rows
        assert row.terms == {"kl": 2.0, "l1": 5.0}

    def test_without_a_base_loss_nothing_is_compared(self) -> None:
        gone = [one._replace(base_loss=None, error=None) for one in outcomes()]
        found = analysed(recorded(*gone))
        assert all(row.effect is None for row in found.rows)
        assert (found.comparisons, found.power) == (0, None)

    def test_losses_that_measure_something_else_are_not_compared(self) -> None:
        facts = {"all": Facts({}, None, {"train.loss": "dpo"}), "without kl": Facts({}, None, {"train.loss": "simpo"})}
        found = analysed(recorded(*outcomes(), **facts, **{"without l1": Facts({}, None, {"train.loss": "dpo"})}))
        assert [list(row.apart) for row in found.rows] == [[], ["train.loss"], []]
        assert [row.effect is None for row in found.rows] == [True, True, False]
        assert found.comparisons == 1


class TestAblation:
    def test_says_what_is_compared_and_how_much_would_be_found(self) -> None:
        found = analysed(recorded(*outcomes()))
        assert (found.metric, found.seeds, found.comparisons) == ("held-out base loss", 5, 2)
        assert found.power == pytest.approx(detectable(5, 2))
        assert found.steps == (10, 10)
        trained = [one._replace(held_out=False) for one in outcomes()]
        assert analysed(recorded(*trained)).metric == "base loss"

    def test_an_ablation_that_has_just_begun_has_no_rows(self) -> None:
        found = analysed(recorded())
        assert (list(found.rows), found.power, found.steps) == ([], None, None)


FACTS = {
    "all": Facts({"kl.weight": 0.5, "l1.weight": 1.0}, None, {}),
    "kl.weight=0.1": Facts({"kl.weight": 0.1}, None, {}),
    "kl.weight=2": Facts({"kl.weight": 2}, None, {}),
    "both": Facts({"kl.weight": 3, "l1.weight": 0.0}, None, {}),
    "named": Facts({"kl.fn": "l2"}, None, {}),
}


class TestSwept:
    def test_the_values_of_a_key_are_in_order_with_that_of_the_config(self) -> None:
        found = analysed(recorded(*(outcome(name, 0, 1.0) for name in FACTS), **FACTS)).swept
        assert [one.key for one in found] == ["kl.weight"]
        assert [(point.value, point.variant) for point in found[0].points] == [
            (0.1, "kl.weight=0.1"),
            (0.5, "all"),
            (2.0, "kl.weight=2"),
        ]
        assert found[0].points[0].losses == {0: 1.0}
        assert found[0].positive

    def test_a_zero_has_no_place_on_a_log_axis(self) -> None:
        facts = {**FACTS, "kl.weight=0.1": Facts({"kl.weight": 0.0}, None, {})}
        (found,) = analysed(recorded(*(outcome(name, 0, 1.0) for name in facts), **facts)).swept
        assert not found.positive


class TestFronts:
    def test_of_the_base_loss_against_each_term(self) -> None:
        made = [outcome("all", 0, 1.0, kl=3.0), outcome("a", 0, 2.0, kl=1.0), outcome("b", 0, 2.5, kl=2.0)]
        (front,) = analysed(recorded(*made)).fronts
        assert front.term == "kl"
        assert [(point.variant, point.best) for point in front.points] == [("all", True), ("a", True), ("b", False)]

    def test_a_term_of_one_variant_has_none(self) -> None:
        assert not analysed(recorded(outcome("all", 0, 1.0, kl=3.0), outcome("without kl", 0, 1.0))).fronts

    def test_what_is_not_finite_is_on_none(self) -> None:
        made = [outcome(name, 0, loss, kl=1.0) for name, loss in (("all", 1.0), ("a", math.nan), ("b", 2.0))]
        (front,) = analysed(recorded(*made)).fronts
        assert [point.variant for point in front.points] == ["all", "b"]
