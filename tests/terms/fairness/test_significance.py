"""The permutation test: exact where it can be counted, uniform without a difference, small with one."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from penalties.terms.fairness import calibration, demographic_parity, equal_opportunity, equalized_odds
from penalties.terms.fairness.significance import p_value
from tests.terms.fairness.test_parity import batch


def test_it_is_the_share_of_all_deals_as_large() -> None:
    p, groups = np.array([0.9, 0.8, 0.6, 0.5, 0.3, 0.1]), np.array([0, 0, 0, 1, 1, 1])
    gaps = [2 * abs(p[list(chosen)].mean() - p.mean()) for chosen in itertools.combinations(range(6), 3)]
    exact = np.mean([gap >= gaps[0] - 1e-12 for gap in gaps])
    found = demographic_parity(p, groups, permutations=20_000)[1]["p_value"]
    assert exact == 0.1
    assert found == pytest.approx(exact, abs=0.01)


@pytest.mark.parametrize("fn", [equalized_odds, equal_opportunity, calibration])
def test_without_a_difference_it_is_uniform(fn: Any) -> None:
    found = [fn(*batch(60, 2, seed=seed), permutations=99)[1]["p_value"] for seed in range(100)]
    assert 0.4 < np.mean(found) < 0.62
    assert np.mean(np.array(found) <= 0.1) < 0.18


def test_a_difference_is_found() -> None:
    p, labels, groups = batch(200, 2)
    p = np.clip(p + 0.3 * groups, 0, 1)
    upside_down = np.where(groups == 1, p < 0.5, np.random.default_rng(1).random(200) < p)
    for metrics in (
        demographic_parity(p, groups, permutations=199)[1],
        equalized_odds(p, labels, groups, permutations=199)[1],
        calibration(p, upside_down, groups, permutations=199)[1],
    ):
        assert metrics["p_value"] == 1 / 200


def test_groups_are_dealt_out_within_labels() -> None:
    """Groups with different base rates, and predictions that depend on the label alone: fair by label, not over all."""
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 2, 400)
    labels = (rng.random(400) < np.where(groups == 1, 0.8, 0.2)).astype(int)
    p = np.clip(0.25 + 0.5 * labels + 0.1 * rng.normal(size=400), 0, 1)
    assert demographic_parity(p, groups, permutations=199)[1]["p_value"] < 0.01
    assert equalized_odds(p, labels, groups, permutations=199)[1]["p_value"] > 0.05


def test_rows_that_do_not_count_are_not_dealt() -> None:
    p, _, groups = batch(30, 2)
    mask = (np.arange(30) < 20).astype(float)
    here = demographic_parity(p[:20], groups[:20], permutations=500)[1]["p_value"]
    assert demographic_parity(p, groups, permutations=500, mask=mask)[1]["p_value"] == pytest.approx(here, abs=0.06)


def test_a_seed_is_a_draw() -> None:
    p, _, groups = batch(30, 2)
    found = [demographic_parity(p, groups, permutations=50, seed=seed)[1]["p_value"] for seed in (0, 0, 1, 2, 3)]
    assert found[0] == found[1]
    assert len(set(found)) > 1
    tensors = demographic_parity(torch.tensor(p), torch.tensor(groups), permutations=50)[1]["p_value"]
    assert tensors == found[0]


def test_without_evidence_nothing_is_significant() -> None:
    p, _, groups = batch(30, 2)
    assert demographic_parity(p, 0 * groups, permutations=20)[1]["p_value"] == 1


def test_large_batches_are_shuffled_in_parts() -> None:
    members = np.eye(2)[np.random.default_rng(0).integers(0, 2, 100_000)]
    sizes: list[int] = []

    def statistic(dealt: Any) -> Any:
        sizes.append(len(dealt))
        return np.zeros(len(dealt))

    assert p_value(statistic, members, np.zeros(100_000, int), permutations=25, seed=0) == 1
    assert sum(sizes[1:]) == 25
    assert max(sizes) < 25


def test_nan_is_not_significant() -> None:
    p, _, groups = batch()
    p[0] = np.nan
    assert np.isnan(demographic_parity(p, groups, permutations=9)[1]["p_value"])
