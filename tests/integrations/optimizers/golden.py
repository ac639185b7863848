"""Known updates: (id, transforms in order, learning rate, weights, gradients, weights after one step minus before)."""

from typing import Any

Row = tuple[str, list[tuple[str, dict[str, Any]]], float, list[Any], list[Any], list[Any]]


def l2(strength: float) -> tuple[str, dict[str, Any]]:
    return "decay", {"l2": strength}


def l1(strength: float) -> tuple[str, dict[str, Any]]:
    return "decay", {"l1": strength}


def elastic(strength: float, ratio: float) -> tuple[str, dict[str, Any]]:
    return "decay", {"l1": strength * ratio, "l2": strength * (1 - ratio)}


def clip(norm: float) -> tuple[str, dict[str, Any]]:
    return "clip_norm", {"max_norm": norm}


def units(ratio: float, eps: float = 1e-3) -> tuple[str, dict[str, Any]]:
    return "clip_units", {"ratio": ratio, "eps": eps}


CENTRALIZE: tuple[str, dict[str, Any]] = ("centralize", {})

UPDATES: list[Row] = [
    ("S1", [l2(0.1)], 0.1, [[1, 2]], [[0.1, 0.1]], [[-0.02, -0.03]]),
    ("S2", [l2(0.01)], 0.1, [[1]], [[0]], [[-0.001]]),
    ("S3", [l2(0.1)], 0.1, [[1, 2], [3]], [[0, 0], [0]], [[-0.01, -0.02], [-0.03]]),
    ("S4", [l1(0.1)], 0.1, [[2, -3]], [[0, 0]], [[-0.01, 0.01]]),
    ("S5", [l1(0.1)], 0.1, [[0, 1]], [[0, 0]], [[0, -0.01]]),
    ("S6", [elastic(1, 0.5)], 1, [[2]], [[0]], [[-1.5]]),
    ("S7, all L1", [elastic(0.1, 1)], 1, [[2]], [[0]], [[-0.1]]),
    ("S7, all L2", [elastic(0.1, 0)], 1, [[2]], [[0]], [[-0.2]]),
    ("S8", [l2(0.01), l1(0.001)], 0.1, [[1]], [[0]], [[-0.0011]]),
    ("S9", [clip(1)], 1, [[0, 0]], [[3, 4]], [[-0.6, -0.8]]),
    ("S10", [clip(10)], 1, [[0, 0]], [[3, 4]], [[-3, -4]]),
    ("S10, below", [clip(10)], 1, [[0, 0]], [[1, 1]], [[-1, -1]]),
    ("S11", [clip(1)], 1, [[0], [0]], [[3], [4]], [[-0.6], [-0.8]]),
    ("S12", [units(0.1)], 1, [[10]], [[5]], [[-1]]),
    ("S12, below", [units(0.1)], 1, [[10]], [[0.5]], [[-0.5]]),
    ("S13", [units(1.0, eps=0.1)], 1, [[0.01]], [[1]], [[-0.1]]),
    ("S14", [CENTRALIZE], 1, [[[0, 0, 0], [0, 0, 0]]], [[[1, 2, 3], [4, 5, 6]]], [[[1, 0, -1], [1, 0, -1]]]),
    ("S15", [CENTRALIZE], 1, [[0, 0, 0]], [[1, 2, 3]], [[-1, -2, -3]]),
    ("S16", [CENTRALIZE], 1, [[[0, 0]], [0]], [[[1, 3]], [5]], [[[1, -1]], [-5]]),
    ("S17", [l2(0.1), clip(1)], 1, [[10]], [[0]], [[-1]]),
    # Each runs on what the one before it left.
    ("S18, clipped first", [clip(1), l2(0.1)], 1, [[10]], [[5]], [[-2]]),
    ("S18, decay first", [l2(0.1), clip(1)], 1, [[10]], [[5]], [[-1]]),
    ("S23, L2", [l2(0.1)], 0.1, [[2, -1]], [[0, 0]], [[-0.02, 0.01]]),
    ("S23, L1", [l1(0.1)], 0.1, [[2, -1]], [[0, 0]], [[-0.01, 0.01]]),
    ("S23, both", [elastic(0.2, 0.5)], 0.1, [[2, -1]], [[0, 0]], [[-0.03, 0.02]]),
    ("S23, in turn", [l2(0.01), l1(0.001)], 0.1, [[2, -1]], [[0, 0]], [[-0.0021, 0.0011]]),
    ("S27", [CENTRALIZE], 0.1, [[[0, 0], [0, 0]]], [[[5, 6], [7, 8]]], [[[0.05, -0.05], [0.05, -0.05]]]),
]

# (id, variance, exponent, {step: variance of the noise})
NOISE = [
    ("S20", 0.1, 0.5, {0: 0.1, 1: 0.0707107, 10: 0.0301511, 100: 0.00995037}),
    ("S21", 0.01, 0.55, {0: 0.1**2, 1: 0.08264503**2, 9: 0.05308844**2}),
]
