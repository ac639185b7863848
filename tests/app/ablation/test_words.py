"""What an ablation shows, in words: only what is shown is claimed."""

import math

from penalties.app.ablation import Outcome, analysed, headline, shown
from penalties.app.ablation.outcomes import Facts
from penalties.app.ablation.words import sentences

from .records import outcome, recorded

WITHOUT = {name: Facts({}, name.removeprefix("without "), {}) for name in ("without kl", "without l1", "without l2")}
BASE = [1.0, 2.0, 3.0, 4.0, 5.0]
WORSE = [1.5, 2.6, 3.4, 4.5, 5.5]
BETTER = [0.5, 1.4, 2.6, 3.5, 4.5]
SAME = [1.1, 1.9, 3.2, 3.9, 5.0]


def removed(*rows: tuple[str, list[float | None]], seeds: int = 5) -> list[Outcome]:
    return [outcome(name, seed, loss) for name, row in (("all", BASE), *rows) for seed, loss in enumerate(row[:seeds])]


class TestHeadline:
    def test_says_what_helped_what_cost_and_what_is_not_shown(self) -> None:
        made = removed(("without kl", WORSE), ("without l1", BETTER), ("without l2", SAME))
        assert headline(analysed(recorded(*made, **WITHOUT))) == "kl helped; l1 cost; no effect of l2 was shown."

    def test_without_any_effect_claims_none(self) -> None:
        found = analysed(recorded(*removed(("without kl", SAME), ("without l1", SAME)), **WITHOUT))
        assert headline(found) == "No effect of kl or l1 was shown."

    def test_two_seeds_claim_nothing(self) -> None:
        found = analysed(recorded(*removed(("without kl", WORSE), seeds=2), **WITHOUT))
        assert headline(found) == "Nothing is claimed: 2 seeds; at least 3 are needed."
        assert found.power is None
        assert not any("would" in line for line in (*sentences(found), *shown(found)))

    def test_another_value_ended_higher_or_lower_and_neither_helped_nor_cost(self) -> None:
        found = analysed(recorded(*removed(("kl.weight=1", WORSE), ("kl.weight=2", BETTER))))
        assert headline(found) == 'kl.weight=1 ended higher than "all"; kl.weight=2 ended lower than "all".'

    def test_variants_of_several_values_are_in_quotes(self) -> None:
        made = removed(("a=1, b=1", WORSE), ("a=1, b=2", WORSE), ("a=2", SAME))
        assert headline(analysed(recorded(*made))) == (
            '"a=1, b=1" and "a=1, b=2" ended higher than "all"; no effect of a=2 was shown.'
        )

    def test_with_another_baseline_no_term_is_judged(self) -> None:
        found = analysed(
            recorded(*removed(("without kl", WORSE), ("without l1", BETTER)), baseline="without kl", **WITHOUT)
        )
        assert headline(found) == 'all and without l1 ended lower than "without kl".'

    def test_before_all_runs_ended_nothing_is_claimed(self) -> None:
        made = recorded(*removed(("without kl", WORSE)), **WITHOUT)
        assert headline(analysed(made._replace(runs=10))) == "kl helped."
        assert headline(analysed(made._replace(runs=12))) == "Nothing is claimed yet: 10 of 12 runs ended."

    def test_without_losses_there_is_nothing_to_compare(self) -> None:
        assert (
            headline(analysed(recorded(outcome("all", 0, 1.0)))) == "There is nothing to compare by held-out base loss."
        )


class TestSentences:
    def test_each_has_the_difference_and_the_evidence(self) -> None:
        made = removed(("without kl", WORSE), ("without l1", BETTER), ("without l2", SAME))
        assert sentences(analysed(recorded(*made, **WITHOUT)))[:3] == [
            "without kl: the held-out base loss ended 0.5 higher (interval 0.412 to 0.588, adjusted p 0.00028): "
            "kl helped.",
            "without l1: the held-out base loss ended 0.5 lower (interval -0.588 to -0.412, adjusted p 0.00028): "
            "l1 cost.",
            "without l2: the held-out base loss ended 0.02 higher (interval -0.142 to 0.182, adjusted p 0.75): "
            "no effect is shown; 0.299 would have been found with a probability of 80 %.",
        ]

    def test_the_intervals_are_called_uncorrected_and_the_power_is_said(self) -> None:
        made = removed(("without kl", SAME), ("without l1", SAME))
        *_, basis, power = sentences(analysed(recorded(*made, **WITHOUT)))
        assert basis == (
            "Differences from all are taken seed by seed. Intervals are 95 % t-intervals of each variant by itself, "
            "uncorrected; an effect is claimed where p, adjusted by Holm's method for 2 comparisons, is below 0.05, "
            "with at least 3 seeds."
        )
        assert power == (
            "With 5 seeds and 2 comparisons, an effect of 2.1 standard deviations of the differences would be found "
            "with a probability of 80 %."
        )

    def test_a_term_that_changed_nothing_is_called_that(self) -> None:
        first, *_ = sentences(analysed(recorded(*removed(("without kl", BASE)), **WITHOUT)))
        assert first == "without kl: the losses are those of all, to the last bit, in every seed."

    def test_lost_seeds_are_said_and_no_claim_is_made(self) -> None:
        made = removed(("without kl", [*WORSE[:4], math.inf]), ("without l1", [None] * 5))
        found = analysed(recorded(*made, **WITHOUT))
        first, second, *_ = sentences(found)
        assert first.startswith(
            "without kl: lost in 1 of 5 seeds (failed, or not finite): no claim. In the others it ended"
        )
        assert second == "without l1: lost in 5 of 5 seeds (failed, or not finite): no claim."
        assert headline(found) == "No effect of kl or l1 was shown."

    def test_a_run_that_has_not_ended_is_not_called_lost(self) -> None:
        made = removed(("without kl", WORSE), ("without l1", BETTER))
        left = [one for one in made if one.variant == "all" or one.seed < (one.variant == "without kl")]
        lines = sentences(analysed(recorded(*left, **WITHOUT)._replace(runs=15)))
        assert lines[0] == "without kl: 0.5 higher so far, in 1 pair of runs."
        assert not any("lost" in line or "probability" in line for line in lines)
        two = [*left, made[6]]
        assert sentences(analysed(recorded(*two, **WITHOUT)._replace(runs=15)))[0] == (
            "without kl: 0.55 higher so far, in 2 pairs of runs."
        )
        failed = [*left, made[10]._replace(base_loss=None, error="TermError: no")]
        found = analysed(recorded(*failed, **WITHOUT)._replace(runs=15))
        assert (found.rows[2].effect.lost, found.rows[2].effect.pending) == ([0], [1, 2, 3, 4])
        assert sentences(found)[1] == "without l1: no pair of runs has ended."

    def test_one_seed_has_a_difference_and_no_evidence(self) -> None:
        first, *_ = sentences(analysed(recorded(*removed(("without kl", WORSE), seeds=1), **WITHOUT)))
        assert first == "without kl: the held-out base loss ended 0.5 higher with 1 seed."

    def test_what_is_not_compared_and_different_ends_are_said(self) -> None:
        apart = {"all": Facts({}, None, {"train.loss": "dpo"}), "b": Facts({}, None, {"train.loss": "simpo"})}
        found = analysed(recorded(outcome("all", 0, 1.0), outcome("b", 0, 1.0, step=20), **apart))
        assert sentences(found) == [
            "b is not compared: its train.loss is not that of all.",
            "Runs ended at different steps, from 10 to 20: each counts as it ended.",
        ]


class TestTable:
    def test_has_a_line_for_each_variant(self) -> None:
        made = removed(("without kl", WORSE), ("without l1", SAME))
        made[0] = made[0]._replace(terms={"kl": 2.0})
        lines = shown(analysed(recorded(*made, **WITHOUT)))
        assert lines[:5] == [
            "variant     base loss     difference  95 % interval    adjusted p  kl",
            "all         3 ± 1.581                                              2",
            "without kl  3.5 ± 1.567   0.5         0.412 to 0.588   0.00019 *   -",
            "without l1  3.02 ± 1.555  0.02        -0.142 to 0.182  0.75        -",
            "kl helped; no effect of l1 was shown.",
        ]

    def test_a_failed_variant_has_its_reason(self) -> None:
        made = [outcome("all", 0, 1.0), outcome("without kl", 0, None)]
        lines = shown(analysed(recorded(*made, **WITHOUT)))
        assert lines[2].split() == ["without", "kl", "failed"]
        assert lines[3] == "without kl: TermError: no"
