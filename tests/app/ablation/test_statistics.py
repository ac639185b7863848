"""Statistics of paired differences: against SciPy, and by simulation of whole ablations."""

import math

import numpy as np
import pytest
from scipy import stats

from penalties.app.ablation import statistics
from penalties.app.ablation.statistics import detectable, holm, on_front, paired
from penalties.errors import MissingLibraryError

ABLATIONS, TERMS = 2000, 4


def simulated(seeds: int, effects: list[float], seed: int) -> np.ndarray:
    """Differences of many ablations: each seed has a loss of its own, which variants share, and each run has noise."""
    rng = np.random.default_rng(seed)
    whole = rng.normal(size=(ABLATIONS, 1, seeds))
    shared = rng.normal(scale=10.0, size=(ABLATIONS, 1, seeds))
    without = np.array(effects)[:, None] + rng.normal(size=(ABLATIONS, TERMS, seeds))
    return (shared + without) - (shared + whole)


class TestPaired:
    @pytest.mark.parametrize("seeds", [2, 3, 5, 20])
    def test_is_the_t_test_of_scipy(self, seeds: int) -> None:
        differences = np.random.default_rng(seeds).normal(0.4, 1.3, size=(6, seeds))
        found, wanted = paired(differences), stats.ttest_1samp(differences, 0.0, axis=-1)
        interval = wanted.confidence_interval(0.95)
        np.testing.assert_allclose(found.p, wanted.pvalue, rtol=1e-10)
        np.testing.assert_allclose(found.low, interval.low, rtol=1e-10)
        np.testing.assert_allclose(found.high, interval.high, rtol=1e-10)
        np.testing.assert_allclose(found.deviation, differences.std(-1, ddof=1), rtol=1e-12)

    def test_a_missing_difference_is_left_out(self) -> None:
        rows = np.array([[1.0, 2.0, 4.0, math.nan], [1.0, 2.0, 4.0, math.inf]])
        found, wanted = paired(rows), stats.ttest_1samp([1.0, 2.0, 4.0], 0.0)
        np.testing.assert_allclose(found.p, [wanted.pvalue] * 2)
        assert found.count.tolist() == [3.0, 3.0]

    def test_one_seed_shows_a_difference_and_nothing_more(self) -> None:
        found = paired(np.array([[0.5], [math.nan]]))
        assert found.mean[0] == 0.5
        for part in (found.deviation, found.low, found.high, found.p, found.adjusted):
            assert np.isnan(part).all()
        assert not found.claimed.any()

    def test_two_seeds_claim_nothing_however_clear_it_is(self) -> None:
        found = paired(np.array([[1.0, 1.0 + 1e-9]]))
        assert found.adjusted[0] < 1e-6
        assert not found.claimed[0]

    def test_losses_that_are_equal_show_no_effect(self) -> None:
        found = paired(np.array([[0.0, 0.0, 0.0], [2.0, 2.0, 2.0]]))
        assert found.p.tolist() == [1.0, 0.0]
        assert found.claimed.tolist() == [False, True]


class TestHolm:
    def test_known_values(self) -> None:
        # Aickin and Gensler (1996), as in R: p.adjust(c(0.01, 0.02, 0.03, 0.005), "holm").
        np.testing.assert_allclose(holm(np.array([0.01, 0.02, 0.03, 0.005])), [0.03, 0.04, 0.04, 0.02])

    def test_is_at_least_the_closed_test_of_every_intersection_by_bonferroni(self) -> None:
        for p in np.random.default_rng(3).uniform(size=(50, 4)) ** 3:
            wanted = [
                max(min(1.0, min(p[list(group)]) * len(group)) for group in _groups(4) if index in group)
                for index in range(4)
            ]
            np.testing.assert_allclose(holm(p), wanted)

    def test_a_comparison_without_a_p_counts(self) -> None:
        found = holm(np.array([0.02, math.nan, 0.04]))
        assert found[0] == pytest.approx(0.06)
        assert found[2] == pytest.approx(0.08)
        assert np.isnan(found[1])


def _groups(count: int) -> list[tuple[int, ...]]:
    return [tuple(index for index in range(count) if bits >> index & 1) for bits in range(1, 2**count)]


class TestBySimulation:
    """2 000 ablations of four terms."""

    @pytest.mark.parametrize("seeds", [3, 5, 10])
    @pytest.mark.parametrize("effects", [[0.0] * 4, [3.0, 0.0, 0.0, 0.0], [-3.0, 3.0, 1.0, 0.0]])
    def test_a_false_claim_is_rare(self, seeds: int, effects: list[float]) -> None:
        claimed = paired(simulated(seeds, effects, seed=seeds)).claimed
        idle = [index for index, effect in enumerate(effects) if not effect]
        assert claimed[:, idle].any(-1).mean() <= 0.06

    @pytest.mark.parametrize("seeds", [3, 5, 10])
    def test_an_interval_covers_the_effect(self, seeds: int) -> None:
        effects = [0.0, 0.5, -2.0, 30.0]
        found = paired(simulated(seeds, effects, seed=10 + seeds))
        covered = ((found.low <= effects) & (effects <= found.high)).mean(0)
        assert covered.min() >= 0.93
        assert covered.max() <= 0.97

    def test_two_standard_errors_would_be_wrong_far_more_often(self) -> None:
        """What the t quantile and Holm's method are for."""
        found = paired(simulated(3, [0.0] * 4, seed=3))
        naive = np.abs(found.mean) > 2 * found.deviation / 3**0.5
        assert naive.any(-1).mean() > 0.3

    @pytest.mark.parametrize("seeds", [3, 5, 10])
    def test_the_power_is_what_is_said(self, seeds: int) -> None:
        effect = detectable(seeds, comparisons=TERMS) * 2**0.5
        found = paired(simulated(seeds, [effect, 0.0, 0.0, 0.0], seed=20 + seeds))
        # At Holm's first step, as if no other were clearer.
        assert (found.p[:, 0] < 0.05 / TERMS).mean() == pytest.approx(0.8, abs=0.025)


class TestPower:
    @pytest.mark.parametrize(("seeds", "deviations"), [(3, 6.55), (4, 3.45), (5, 2.48), (10, 1.28)])
    def test_is_that_of_the_noncentral_t(self, seeds: int, deviations: float) -> None:
        found = detectable(seeds, comparisons=4)
        assert found == pytest.approx(deviations, abs=0.005)
        least = stats.t.isf(0.05 / 4 / 2, seeds - 1)
        shifted = stats.nct(seeds - 1, found * seeds**0.5)
        assert shifted.sf(least) + shifted.cdf(-least) == pytest.approx(0.8, abs=1e-5)

    def test_one_comparison_needs_no_correction(self) -> None:
        least = stats.t.isf(0.025, 4)
        assert stats.nct(4, detectable(5, comparisons=1) * 5**0.5).sf(least) == pytest.approx(0.8, abs=1e-5)


class TestFront:
    def test_is_what_no_other_beats(self) -> None:
        points = np.random.default_rng(0).normal(size=(60, 2))
        found = on_front(points)
        for index, point in enumerate(points):
            beaten = any((other <= point).all() and (other < point).any() for other in points)
            assert found[index] == (not beaten)

    def test_equal_points_are_both_on_it(self) -> None:
        assert on_front(np.array([[1.0, 1.0], [1.0, 1.0]])).tolist() == [True, True]


def test_without_scipy_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(statistics.importlib, "import_module", missing)
    statistics._special.cache_clear()
    with pytest.raises(
        MissingLibraryError, match=r'statistics of an ablation needs scipy: pip install "penalties\[cli\]"'
    ):
        paired(np.zeros((1, 3)))
    statistics._special.cache_clear()
