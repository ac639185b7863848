"""Target Betti numbers: the formula, and circles where it can be worked out."""

from typing import Any

import numpy as np
import pytest

import penalties as pn
from penalties.terms import topology
from tests.terms.topologies import circle, cloud, lives


def longest(radius: float) -> float:
    """The life of the loop of 24 points on a circle: from neighbours to points a third of the way apart."""
    return radius * (2 * np.sin(np.pi / 3) - 2 * np.sin(np.pi / 24))


def test_a_large_circle_is_one_loop():
    found = topology.target_betti(circle(24, noise=0) * 2, betti={1: 1}, size=1.5)
    assert found.value == 0
    assert not found.gradient["x"].any()
    assert (found.metrics["betti_1"], found.metrics["longest_1"]) == (1, pytest.approx(longest(2)))


def test_a_small_circle_lacks_what_its_loop_is_shorter_by_and_grows():
    small = circle(24, noise=0) / 2
    found = topology.target_betti(small, betti={1: 1}, size=1.5)
    assert found.value == pytest.approx(1.5 - longest(0.5))
    assert (found.gradient["x"] * small).sum() < 0


def test_a_second_loop_counts_with_its_life():
    both = np.concatenate([circle(24, noise=0) * 2, circle(24, noise=0) / 2 + 10])
    found = topology.target_betti(both, betti={1: 1}, size=1.5, visible=0.3)
    assert found.value == pytest.approx(longest(0.5))
    assert found.metrics["betti_1"] == 2
    assert topology.target_betti(both, betti={1: 2}, size=1.5).value == pytest.approx(1.5 - longest(0.5))


@pytest.mark.parametrize("power", [1, 2])
def test_target_betti_is_its_formula(power: int):
    x = cloud(30)
    pieces, loops = lives(x, 0), lives(x, 1)
    size = float(loops[0] * 1.5)
    # One of the three pieces never dies.
    expected = (np.maximum(size - pieces[:2], 0) ** power).sum() + (pieces[2:] ** power).sum()
    expected += ((size - loops[:2]) ** power).sum() + (loops[2:] ** power).sum()
    evaluation = topology.target_betti(x, betti={0: 3, 1: 2}, size=size, power=power)
    assert evaluation.value == pytest.approx(expected)


def test_a_feature_that_is_missing_counts_its_whole_size_and_pulls_nothing():
    two = np.array([[0.0, 0.0], [1.0, 0.0]])
    evaluation = topology.target_betti(two, betti={1: 2}, size=1.5)
    assert evaluation.value == 3
    assert not evaluation.gradient["x"].any()


@pytest.mark.parametrize(
    ("filtration", "shape", "batched"),
    [("alpha", (9, 2), False), ("sublevel", (5, 5), False), ("superlevel", (3, 5, 5), True)],
)
def test_a_feature_that_no_input_of_this_shape_has_is_an_error(filtration: Any, shape: Any, batched: bool):
    x = np.random.default_rng(0).normal(size=shape)
    options = {"filtration": filtration, "batched": batched}
    with pytest.raises(pn.OptionError, match=r"betti=\{2: 1\}; expected targets of dimensions below 2"):
        topology.target_betti(x, betti={2: 1}, **options)
    assert topology.target_betti(x, betti={1: 0, 2: 0}, **options).metrics["betti_2"] == 0


def test_features_that_never_die_are_as_long_as_one_wants():
    stopped = topology.target_betti(circle(), betti={1: 1}, size=50.0, max_edge_length=1.0)
    assert stopped.value == 0
    assert stopped.metrics["betti_1"] == 1
    assert topology.target_betti(circle(), betti={1: 1}, size=50.0).value > 40


def test_the_count_is_of_features_longer_than_half_the_size():
    x = circle()
    assert topology.target_betti(x, betti={1: 1}, size=2.0).metrics["betti_1"] == 1
    assert topology.target_betti(x, betti={1: 1}, size=4.0).metrics["betti_1"] == 0
    assert topology.target_betti(x, betti={1: 1}, size=4.0, visible=1.0).metrics["betti_1"] == 1


def test_dimensions_may_be_strings_as_in_a_config():
    x = circle()
    by_strings = topology.target_betti(x, betti={"0": 1, "1": 1})
    assert by_strings.value == topology.target_betti(x, betti={0: 1, 1: 1}).value
