"""What the terms on topology make of inputs at the edge, and of wrong ones."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import penalties as pn
from penalties.terms import topology
from tests.terms.topologies import FILTRATIONS, circle, cloud, field

TERMS = (
    topology.total_persistence,
    lambda x, **options: topology.target_betti(x, betti={0: 1}, **options),
    lambda x, **options: topology.wasserstein(x, np.empty((0, 2)), dimension=0, essential=False, **options),
)


@pytest.mark.parametrize("filtration", FILTRATIONS)
@pytest.mark.parametrize("term", TERMS)
def test_one_point_or_cell_is_one_piece_without_a_gradient(term: Any, filtration: str):
    evaluation = term(np.array([[2.0]]), filtration=filtration)
    assert evaluation.value == 0
    assert evaluation.metrics["betti_0"] == 1
    np.testing.assert_array_equal(evaluation.gradient["x"], [[0.0]])


@pytest.mark.parametrize("filtration", FILTRATIONS)
def test_nothing_has_no_features(filtration: str):
    x = np.empty((0, 2))
    evaluation = topology.total_persistence(x, filtration=filtration)
    assert evaluation.value == 0
    assert evaluation.metrics["betti_0"] == 0
    assert evaluation.gradient["x"].shape == (0, 2)
    assert topology.diagram(x, filtration=filtration).shape == (0, 2)
    assert topology.target_betti(x, filtration=filtration, betti={0: 1}, size=2.0).value == 2


@pytest.mark.parametrize("filtration", FILTRATIONS)
def test_an_empty_batch_is_zero(filtration: str):
    evaluation = topology.total_persistence(np.empty((0, 3, 2)), filtration=filtration, batched=True)
    assert evaluation.value == 0
    assert evaluation.gradient["x"].shape == (0, 3, 2)


@pytest.mark.parametrize("filtration", ["rips", "alpha"])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_few_points_on_a_line_have_pieces_alone(filtration: str, count: int):
    points = np.stack([np.arange(count), np.zeros(count)], -1)
    evaluation = topology.total_persistence(points, filtration=filtration, dimensions=(0, 1, 2))
    assert [evaluation.metrics[f"features_{k}"] for k in (0, 1, 2)] == [count - 1, 0, 0]


@pytest.mark.parametrize(("number", "kind"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
@pytest.mark.parametrize("filtration", FILTRATIONS)
def test_numbers_that_are_not_finite_are_an_error(filtration: str, number: float, kind: str):
    x = cloud(5)
    x[3, 1] = number
    with pytest.raises(pn.NonFiniteError, match=f"total_persistence: x contains {kind}; expected finite"):
        topology.total_persistence(x, filtration=filtration)


def test_distances_that_overflow_are_an_error():
    with pytest.raises(pn.NonFiniteError, match="distances between points of x overflow"):
        topology.total_persistence(1e200 * cloud(4))


@pytest.mark.parametrize("filtration", ["rips", "alpha"])
def test_a_cloud_of_another_rank_is_an_error(filtration: str):
    for shape in ((5,), (2, 5, 2), (5, 0)):
        with pytest.raises(pn.ShapeError, match=r"expected \(points, coordinates\)"):
            topology.total_persistence(np.zeros(shape), filtration=filtration)
    with pytest.raises(pn.ShapeError, match="for a batch of clouds set batched=True"):
        topology.total_persistence(np.zeros((2, 5, 2)), filtration=filtration)
    with pytest.raises(pn.ShapeError, match=r"expected \(batch, points, coordinates\)"):
        topology.total_persistence(np.zeros((5, 2)), filtration=filtration, batched=True)


def test_a_field_without_axes_is_an_error():
    with pytest.raises(pn.ShapeError, match=r"x has shape \(\); expected at least 1 axes"):
        topology.total_persistence(np.float64(1), filtration="sublevel")
    with pytest.raises(pn.ShapeError, match="expected at least 2 axes"):
        topology.total_persistence(np.zeros(3), filtration="sublevel", batched=True)


def test_a_list_is_an_error():
    with pytest.raises(pn.BackendError, match="x is a list; expected a NumPy array"):
        topology.total_persistence([[0.0, 1.0]])


WRONG = {
    "filtration": ["cech", None],
    "dimensions": [(), -1, (0, 0.5), "01", True],
    "power": [0.5, np.nan, "2"],
    "longer_than": [-1, np.inf],
    "visible": [-1, None],
    "max_edge_length": [0, np.inf, "long"],
    "batched": [1, None],
}


@pytest.mark.parametrize(("option", "value"), [(option, value) for option, values in WRONG.items() for value in values])
def test_an_option_that_makes_no_sense_is_an_error(option: str, value: Any):
    with pytest.raises(pn.OptionError, match=f"total_persistence: {option}="):
        topology.total_persistence(cloud(4), **{option: value})


@pytest.mark.parametrize("betti", [None, {}, {-1: 1}, {0: -1}, {0: 1.5}, {"one": 1}, {0: True}, {0: 1, "0": 2}, [1, 1]])
def test_targets_that_make_no_sense_are_an_error(betti: Any):
    with pytest.raises(pn.OptionError, match=r"target_betti: betti=.*; expected a dict of a target for each dimension"):
        topology.target_betti(cloud(4), betti=betti)
    with pytest.raises(pn.OptionError, match="target_betti: size=0"):
        topology.target_betti(cloud(4), betti={0: 1}, size=0)


@pytest.mark.parametrize("filtration", ["alpha", "sublevel", "superlevel"])
def test_only_rips_has_edges(filtration: str):
    with pytest.raises(pn.OptionError, match='max_edge_length=1.0; expected None with filtration="'):
        topology.diagram(cloud(4), filtration=filtration, max_edge_length=1.0)


@pytest.mark.parametrize(
    ("reference", "error", "message"),
    [
        (np.zeros((3, 3)), pn.ShapeError, r"reference has shape \(3, 3\); expected \(features, 2\)"),
        (np.zeros(2), pn.ShapeError, r"reference has shape \(2,\)"),
        (np.array([[0.0, np.nan]]), pn.NonFiniteError, "reference contains NaN"),
        (np.array([[-np.inf, 1.0]]), pn.NonFiniteError, "reference contains a birth at infinity"),
        (np.array([[1.0, 0.5]]), pn.OptionError, "expected a reference whose deaths are above their births"),
        ([[0.0, 1.0]], pn.BackendError, "reference is a list"),
    ],
)
def test_a_reference_that_is_no_diagram_is_an_error(reference: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=f"wasserstein: .*{message}|wasserstein: {message}"):
        topology.wasserstein(cloud(4), reference)


def test_a_reference_of_the_other_direction_is_an_error():
    reference = topology.diagram(field(6, 6), filtration="sublevel")
    with pytest.raises(pn.OptionError, match='filtration="superlevel"; expected a reference whose deaths are below'):
        topology.wasserstein(field(6, 6), reference, filtration="superlevel")


def test_different_numbers_of_features_that_never_die_are_an_error():
    message = "x has 1 and reference has 0; essential=False ignores them"
    with pytest.raises(pn.OptionError, match=message):
        topology.wasserstein(circle(), np.array([[0.0, 1.0]]), dimension=0)
    assert topology.wasserstein(circle(), np.array([[0.0, 1.0]]), dimension=0, essential=False).value > 0


@pytest.mark.parametrize("options", [{"order": 0.5}, {"internal_p": 0.5}, {"dimension": (0, 1)}, {"essential": "yes"}])
def test_an_option_of_the_distance_that_makes_no_sense_is_an_error(options: dict[str, Any]):
    (option,) = options
    with pytest.raises(pn.OptionError, match=f"wasserstein: {option}="):
        topology.wasserstein(circle(), np.array([[0.0, 1.0]]), **options)


@pytest.mark.parametrize("missing", ["gudhi", pytest.param("sklearn", marks=pytest.mark.slow)])
def test_a_missing_library_is_named_with_what_installs_it(missing: str):
    code = (
        f"import sys; sys.modules['{missing}'] = None\n"
        "import numpy as np, penalties as pn\n"
        "try:\n    pn.terms.topology.total_persistence(np.ones((3, 2)))\n"
        "except pn.MissingLibraryError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f'persistent homology needs {missing}: pip install "penalties[topology]"'
