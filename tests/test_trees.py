"""Nests: what is one, and what is found, kept and paired in it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from penalties import trees
from penalties.arrays import is_array


class Point(NamedTuple):
    x: Any
    y: Any


@jax.tree_util.register_dataclass
@dataclass
class Registered:
    a: Any
    b: Any


class Loader:
    """Iterable, and no nest."""

    def __iter__(self) -> Any:
        raise AssertionError("a loader is not to be iterated over")


ONE, TWO, THREE = np.ones(1), np.ones(2), np.ones(3)

NESTS: dict[str, Callable[[], Any]] = {
    "array": lambda: ONE,
    "list": lambda: [ONE, TWO],
    "empty": list,
    "deep": lambda: {"a": [ONE, (TWO,)], "b": {"c": THREE}},
    "named tuple": lambda: Point(ONE, [TWO]),
    "others": lambda: {"a": ONE, "b": None, "c": "text", "d": 3.0, "e": Loader()},
    "registered": lambda: [Registered(ONE, {"k": TWO}), THREE],
}


@pytest.mark.parametrize("name", NESTS)
def test_rebuilding_from_its_own_leaves_gives_the_nest_back(name: str) -> None:
    nest = NESTS[name]()
    flat = trees.flatten(nest)
    again = flat.rebuild(flat.leaves)
    assert type(again) is type(nest)
    assert repr(again).split(" at 0x")[0] == repr(nest).split(" at 0x")[0]
    assert len(flat.paths) == len(flat.leaves) == len(list(trees.arrays(nest)))


@pytest.mark.parametrize("name", NESTS)
def test_mapping_and_pairing_agree_with_flattening(name: str) -> None:
    nest = NESTS[name]()
    doubled = trees.map_arrays(lambda x: 2 * x, nest)
    for left, right in zip(trees.flatten(nest).leaves, trees.pair(nest, doubled), strict=True):
        np.testing.assert_array_equal(2 * left, right)


def test_paths_say_where_a_leaf_is() -> None:
    assert trees.flatten(NESTS["deep"]()).paths == ["['a'][0]", "['a'][1][0]", "['b']['c']"]
    assert trees.flatten(ONE).paths == [""]


def test_mappings_are_known_by_what_they_do() -> None:
    weights = torch.nn.ParameterDict({"w": torch.ones(2), "b": torch.ones(1)})
    assert set(trees.map_arrays(lambda x: x.numel(), weights)) == {"w", "b"}
    for nest in (weights, {"w": 1, **dict(weights)}.values(), torch.nn.ParameterList(weights.values())):
        assert len(list(trees.arrays(nest))) == 2


def test_a_key_that_is_missing_pairs_with_none() -> None:
    nest = {"a": [ONE, TWO], "b": THREE}
    assert trees.pair(nest, {"b": "x"}) == [None, None, "x"]
    assert trees.pair(nest, None) == [None, None, None]
    assert trees.pair(Registered(ONE, TWO), Registered(None, "x")) == [None, "x"]
    assert trees.flatten(Registered(None, TWO)).rebuild(["x"]) == Registered(None, "x")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"a": [1], "b": 2}, r"at \['a'\]: expected a sequence of 2 parts"),
        ({"a": {"x": 1}, "b": 2}, r"at \['a'\]: expected a sequence"),
        ({"a": [1, 2], "z": 2}, r"expected a mapping with keys among 'a', 'b'"),
        ([[1, 2], 3], r"expected a mapping"),
        (ONE, r"expected a mapping"),
    ],
)
def test_structures_that_differ_are_named(other: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trees.pair({"a": [ONE, TWO], "b": THREE}, other)


def test_rejecting_names_the_path_and_takes_generators() -> None:
    def reject(path: str, thing: Any) -> Exception:
        return TypeError(f"{path} is {thing!r}")

    flat = trees.flatten([(x for x in (ONE, TWO)), None], reject=reject)
    assert len(flat.leaves) == 2
    assert flat.rebuild([1, 2]) == [(1, 2), None]
    with pytest.raises(TypeError, match=r"\['a'\]\[1\] is 3.0"):
        trees.flatten({"a": [ONE, 3.0]}, reject=reject)


@pytest.mark.parametrize("x", [ONE, np.float64(1.0), torch.ones(1), jnp.ones(1)])
def test_arrays_of_every_library_are_arrays(x: Any) -> None:
    assert is_array(x)
    assert not is_array([x])
    assert not is_array(1.0)


def test_it_traces_under_torch_compile() -> None:
    def total(nest: Any) -> Any:
        halves = trees.map_arrays(lambda x: x / 2, nest)
        flat = trees.flatten(halves)
        again = flat.rebuild(x * 2 for x in flat.leaves)
        return sum(x.sum() for x in trees.arrays(again)) + sum(y.sum() for y in trees.pair(nest, again))

    nest = {"a": [torch.ones(2), Point(torch.ones(1), 3.0)], "b": {"c": torch.ones(3)}}
    assert torch.compile(total, fullgraph=True, backend="eager")(nest).item() == 12.0


def test_it_traces_under_jit() -> None:
    nest = {"a": [jnp.ones(2), jnp.ones(1)], "b": Registered(jnp.ones(3), None)}
    doubled = jax.jit(lambda nest: trees.map_arrays(lambda x: 2 * x, nest))(nest)
    assert isinstance(doubled["b"], Registered)
    assert [float(x.sum()) for x in trees.arrays(doubled)] == [4.0, 2.0, 6.0]
