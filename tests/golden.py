"""Known values: (id, function, inputs, options, factor, expected), where factor·function(inputs) = expected.

A factor is what a weight would be. Expected values of more than seven digits were computed in float64 by the formula.
"""

from typing import Any

import numpy as np

from tests.cases import log_softmax

PI = np.log([0.4, 0.3, 0.2, 0.1])
UNIFORM = np.log(np.full(4, 0.25))
P = log_softmax(np.array([-0.1, -1.5, -3.0, -4.0]))
Q = log_softmax(np.array([-2.0, -0.5, -2.0, -3.0]))
COLD = log_softmax(np.array([-0.5, -1.0, -2.0, -3.0]))
HOT = log_softmax(np.array([0.0, -3.0, -5.0, -8.0]))
TWO_P = [[-1.0, -2.0], [-0.5, -1.5]]
TWO_Q = [[-1.5, -1.5], [-1.0, -1.0]]
ROWS = [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]
ONE_HOT = [0.0, -100.0, -100.0, -100.0]


def with_corner(value: float) -> np.ndarray:
    matrix = np.eye(4)
    matrix[0, 1] = matrix[1, 0] = value
    return matrix


def uniform(classes: int) -> np.ndarray:
    return np.full(classes, -np.log(classes))


VALUES: list[tuple[str, str, list[Any], dict[str, Any], float, Any]] = [
    ("N1", "l1", [[1, -2, 3]], {}, 1, 6.0),
    ("N2", "l1", [[1, -2, 3]], {}, 0.1, 0.6),
    ("N3", "l1", [[1, -1]], {}, 0.5, 1.0),
    ("N4", "l1", [[0, 0, 1]], {}, 1, 1.0),
    ("N5", "l1", [[1, 2, 3]], {"reduction": "mean"}, 1, 2.0),
    ("N6", "l1", [[[1, -2], [-3, 4]]], {}, 0.1, 1.0),
    ("N7", "l1", [[1, -2, 0.5, -0.5]], {}, 0.1, 0.4),
    ("N8", "l1", [[1, -2, 3, -0.5]], {}, 1, 6.5),
    ("N8b", "l1", [[1, -2, 3, -0.5]], {}, 0.1, 0.65),
    ("N8c", "l1", [[1, -2, 3, -0.5]], {"reduction": "mean"}, 1, 1.625),
    ("N12", "l1", [[1e-30, 1e-30]], {}, 1, 2e-30),
    ("N13", "l1", [0.0], {}, 1, 0.0),
    ("N14", "l2", [[1, 2, 3]], {}, 0.1, 1.4),
    ("N15", "l2", [[-2, -3]], {}, 0.1, 1.3),
    ("N16", "l2", [[1000, 2000]], {"clip": 100}, 0.01, 200.0),
    ("N19", "l2", [[1, 2]], {"reduction": "mean"}, 1, 2.5),
    ("N20", "l2", [[0, 0, 0]], {}, 1, 0.0),
    ("N21", "l2", [[1, 2, 3]], {"center": "mean"}, 1, 2.0),
    ("N22", "l2", [[1, 2, 3]], {"center": 1.0}, 1, 5.0),
    ("N23", "l2", [[1, 2, 3]], {"center": 0.0}, 1, 14.0),
    ("N24", "l2", [[1, 2, 3]], {"center": -1.0}, 1, 29.0),
    ("N25", "l2", [[1, 2, 3]], {"center": "mean", "reduction": "mean"}, 1, 0.6666667),
    ("N26", "l2", [[10, 20, 30, 40, 50]], {"center": "mean"}, 1, 1000.0),
    ("N27", "l2", [[[1, 2], [3, 4]]], {"center": "mean"}, 1, 5.0),
    ("N28", "l2", [[100, 200, 300]], {"center": 200, "clip": 50}, 1, 5000.0),
    ("N29", "l2", [[100, 200, 300]], {"center": 200, "clip": 50, "reduction": "mean"}, 1, 1666.66667),
    ("N30", "l2", [[1, -2, 3, -0.5]], {}, 1, 14.25),
    ("N30b", "l2", [[1, -2, 3, -0.5]], {}, 0.01, 0.1425),
    ("N31", "l2", [[1, 2, 3, 4, 5]], {}, 1, 55.0),
    ("N31b", "l2", [[1, 2, 3, 4, 5]], {"center": "mean"}, 1, 10.0),
    ("N31c", "l2", [[1, 2, 3, 4, 5]], {"center": 3.0}, 1, 10.0),
    ("N32", "l2", [[1e-30, 1e-30]], {}, 1, 2e-60),
    ("N33", "elastic_net", [[1, -2, 3]], {}, 0.1, 1.0),
    ("N34", "elastic_net", [[1, -2, 3]], {"l1_ratio": 1}, 0.1, 0.6),
    ("N35", "elastic_net", [[1, -2, 3]], {"l1_ratio": 0}, 0.1, 1.4),
    ("N36", "elastic_net", [[1, 2]], {"l1_ratio": 0.5}, 1, 4.0),
    ("N36b", "elastic_net", [[1, 2]], {"l1_ratio": 0.5}, 0.1, 0.4),
    ("N37", "elastic_net", [[1, 2, 3]], {"l1_ratio": 0.5, "reduction": "mean"}, 1, 3.3333333),
    ("N39", "elastic_net", [[1, -2, 3, -0.5]], {"l1_ratio": 0.5}, 1, 10.375),
    ("smooth inside", "smooth_l1", [[0.5, -0.25]], {}, 1, 0.15625),
    ("smooth outside", "smooth_l1", [[3, -2]], {"delta": 2.0}, 1, 3.0),
    ("D1", "kl_divergence", [P, P], {}, 1, 0.0),
    ("D2", "kl_divergence", [PI, UNIFORM], {}, 1, 0.106440135),
    ("D3", "kl_divergence", [PI, UNIFORM], {"direction": "reverse"}, 1, 0.121777274),
    ("D4", "kl_divergence", [PI, UNIFORM], {"symmetric": True}, 1, 0.114108705),
    ("D5", "js_divergence", [PI, UNIFORM], {}, 1, 0.027865613),
    ("D6", "kl_divergence", [P, Q], {}, 1, 0.939019084),
    ("D7", "kl_divergence", [P, Q], {"direction": "reverse"}, 1, 0.831471428),
    ("D7b", "kl_divergence", [Q, P], {}, 1, 0.831471428),
    ("D8", "kl_divergence", [P, Q], {"symmetric": True}, 1, 0.885245256),
    ("D8b", "kl_divergence", [Q, P], {"symmetric": True, "direction": "reverse"}, 1, 0.885245256),
    ("D9", "js_divergence", [P, Q], {}, 1, 0.203002278),
    ("D9b", "js_divergence", [Q, P], {}, 1, 0.203002278),
    ("D12", "kl_divergence", [[[-1, -2, -3]], [[-1.5, -1.5, -1.5]]], {}, 1, 0.041591476),
    ("D13", "kl_divergence", [TWO_P, TWO_Q], {"reduction": "none"}, 1, [0.116272079, 0.19170025]),
    ("D14", "kl_divergence", [TWO_P, TWO_Q], {"reduction": "sum"}, 1, 0.307972329),
    ("D14b", "kl_divergence", [TWO_P, TWO_Q], {"reduction": "mean"}, 1, 0.153986164),
    ("D15", "kl_divergence", [[[-1.1, -1.1, -1.1]], [[-0.1, -5, -5]]], {}, 1, 2.263523369),
    ("exact, not D16", "kl_divergence", [[0, -np.inf], [-np.inf, 0]], {}, 1, np.inf),
    ("exact, not D17", "kl_divergence", [np.log([0.5, 0.5]), [0, -np.inf]], {}, 1, np.inf),
    ("D17 by floor", "kl_divergence", [np.log([0.5, 0.5]), [0, -np.inf]], {"floor": -100}, 1, 49.3068528194),
    ("D19", "js_divergence", [[0, -100], [-100, 0]], {}, 1, 0.693147181),
    ("D19 in bits", "js_divergence", [[0, -100], [-100, 0]], {"base": 2}, 1, 1.0),
    ("JS distance", "js_divergence", [PI, UNIFORM], {"sqrt": True}, 1, 0.166929966),
    ("JS distance in bits", "js_divergence", [P, Q], {"sqrt": True, "base": 2}, 1, 0.541174999),
    ("JS distance of equals", "js_divergence", [P, P], {"sqrt": True}, 1, 0.0),
    ("hot KL", "kl_divergence", [P, Q], {"temperature": 2}, 1, 0.248767302),
    ("cold reverse KL", "kl_divergence", [P, Q], {"temperature": 0.5, "direction": "reverse"}, 1, 2.500219944),
    ("hot JS", "js_divergence", [P, Q], {"temperature": 3}, 1, 0.024989579),
    ("D20", "entropy", [UNIFORM], {}, 1, 1.386294361),
    ("D21", "entropy", [PI], {}, 1, 1.279854226),
    ("D21b", "entropy", [PI], {"normalize": True}, 1, 0.923219672),
    ("D22", "entropy", [PI], {"temperature": 0.5}, 1, 1.078476775),
    ("D22b", "entropy", [PI], {"temperature": 2}, 1, 1.355752068),
    ("D23", "entropy", [uniform(8)], {}, 1, 2.079441542),
    ("D23b", "entropy", [uniform(10)], {"normalize": True}, 1, 1.0),
    ("D24", "entropy", [[ONE_HOT]], {}, 1, 0.0),
    ("D24b", "entropy", [[ONE_HOT]], {"normalize": True}, 1, 0.0),
    ("D25", "entropy", [log_softmax(np.array([10.0, -100, -100, -100]))], {}, 1, 0.0),
    ("D26", "entropy", [PI], {"mode": "bonus"}, 1, -1.279854226),
    ("D26b", "entropy", [PI], {"mode": "bonus", "normalize": True, "temperature": 0.5}, -1, 1.078476775 / np.log(4)),
    ("D27", "entropy", [COLD], {}, 1, 1.089065596),
    ("D27b", "entropy", [COLD], {"temperature": 0.5}, 1, 0.740533257),
    ("D28", "entropy", [HOT], {}, 1, 0.231044574),
    ("D28b", "entropy", [HOT], {"temperature": 2}, 1, 0.743586748),
    ("D32", "entropy", [uniform(10)], {}, 1, 2.302585),
    ("D32b", "entropy", [uniform(100)], {}, 1, 4.605170),
    ("D32c", "entropy", [uniform(1000)], {}, 1, 6.907755),
    ("O1", "orthogonality", [np.eye(3)], {"mode": "hard"}, 1, 0.0),
    ("O1b", "orthogonality", [np.eye(4)], {}, 1, 0.0),
    ("O1c", "orthogonality", [np.eye(4)], {"mode": "spectral"}, 1, 0.0),
    ("O1d", "orthogonality", [np.eye(3)], {"axis": "sequence"}, 1, 0.0),
    ("O2", "orthogonality", [[[1, 0, 0, 0]] * 4], {}, 1, 12.0),
    ("O3", "orthogonality", [[[1, 0, 0]] * 3], {}, 1, 6.0),
    ("O4", "orthogonality", [[[2, 0], [0, 1]]], {"mode": "hard"}, 1, 0.0),
    ("O4b", "orthogonality", [[[2, 0], [0, 1]]], {"mode": "hard", "normalize": False}, 1, 9.0),
    ("O5", "orthogonality", [np.diag([2, 3, 4])], {"mode": "hard", "normalize": False}, 1, 298.0),
    ("O5 by σ", "orthogonality", [np.diag([2, 3, 4])], {"mode": "spectral", "normalize": False}, 1, 15.0),
    ("O7", "orthogonality", [[[1, 0], [0.1, 0.99]]], {}, 1, 0.02019998),
    ("O8", "orthogonality", [[[1, 0], [0.9, 0.1]]], {}, 1, 1.975609756),
    ("O9", "orthogonality", [with_corner(0.1)], {}, 1, 0.078423684),
    ("O9b", "orthogonality", [with_corner(0.9)], {}, 1, 1.977961601),
    ("O9 by σ", "orthogonality", [with_corner(0.1)], {"mode": "spectral"}, 1, 0.2 / 1.01),
    ("O10", "orthogonality", [[[1, 0.1], [0.1, 1]]], {}, 1, 0.078423684),
    ("O10b", "orthogonality", [[[1, 0.1], [0.1, 1]]], {"mode": "hard"}, 1, 0.078423684),
    ("O11", "orthogonality", [ROWS], {}, 1, 2.0),
    ("O11b", "orthogonality", [ROWS], {"mode": "hard"}, 1, 2.0),
    ("O12", "orthogonality", [ROWS], {"normalize": False}, 1, 1.0),
    ("O12b", "orthogonality", [ROWS], {"mode": "hard", "normalize": False}, 1, 1.25),
    ("O12 mean", "orthogonality", [ROWS], {"normalize": False, "reduction": "mean"}, 1, 1 / 6),
    ("O12b mean", "orthogonality", [ROWS], {"mode": "hard", "normalize": False, "reduction": "mean"}, 1, 1.25 / 9),
    ("O18", "orthogonality", [[[1, 2, 3]]], {}, 1, 0.0),
    ("O18b", "orthogonality", [[[1]]], {}, 1, 0.0),
    ("O19", "orthogonality", [1e-10 * np.eye(3)], {}, 1, 0.0),
    ("K1", "consistency", [[1, 2], [2, 4]], {}, 1, 2.5),
    ("K1b", "consistency", [[1, 2], [2, 4]], {"reduction": "sum"}, 1, 5.0),
    ("K1c", "consistency", [[1, 2], [2, 4]], {"reduction": "none"}, 1, [1.0, 4.0]),
    ("K2", "consistency", [[1, 2], [2, 4]], {"metric": "l1"}, 1, 1.5),
    ("K3", "consistency", [[1, 0], [0, 1]], {"metric": "cosine"}, 1, 1.0),
    ("K3b", "consistency", [[1, 2], [2, 4]], {"metric": "cosine"}, 1, 0.0),
    ("K3c", "consistency", [[1, 0], [-1, 0]], {"metric": "cosine"}, 1, 2.0),
    ("K4", "consistency", [1.0, 2.0], {}, 1, 1.0),
    ("K5", "consistency", [[1, 2, 3], [1.1, 2.1, 3.1]], {}, 1, 0.01),
    ("K6", "consistency", [[1, 2, 3], [1.1, 2.2, 2.8]], {}, 1, 0.03),
    ("K7", "consistency", [[1, 2, 3], [2, 3, 4]], {}, 1, 1.0),
    ("K7b", "consistency", [[1, 2, 3], [2, 3, 4]], {"metric": "l1"}, 1, 1.0),
    ("K7c", "consistency", [[1, 2, 3], [2, 3, 4]], {"metric": "cosine"}, 1, 0.007416666),
    ("K8", "consistency", [P, Q], {"metric": "kl"}, 1, 0.885245256),
    ("K12", "consistency", [P, P], {"metric": "kl"}, 1, 0.0),
    ("K13", "consistency", [[1e-8, 0], [0, 1e-8]], {"metric": "cosine"}, 1, 1.0),
    *((f"K14 {m}", "consistency", [P, P], {"metric": m}, 1, 0.0) for m in ("mse", "l1", "cosine", "kl")),
    ("G10", "output_magnitude", [[1, 0, 0]], {"reduction": "sum"}, 1, 0.0),
    ("G10b", "output_magnitude", [[2, 2, 2, 2]], {"target": 2}, 1, 0.0),
    ("G10c", "output_magnitude", [[3, 4]], {"target": 5, "reduction": "sum"}, 1, 0.0),
    ("G11", "output_magnitude", [[3, 4]], {"reduction": "sum"}, 1, 16.0),
    ("G13", "output_magnitude", [[1, 2, 3]], {}, 1, 1.346172868),
    ("G13b", "output_magnitude", [[1, 2, 3]], {"reduction": "sum"}, 1, 7.516685226),
]

CLEAN, NOISY = [1.0, 2.0, 3.0], [1.1, 2.1, 3.1]

GRADIENTS: list[tuple[str, str, list[Any], dict[str, Any], float, list[Any]]] = [
    ("N9", "l1", [[2, -3, 0.5]], {}, 1, [[1, -1, 1]]),
    ("N10", "l1", [[2, -3, 0]], {}, 1, [[1, -1, 0]]),
    ("N11", "l1", [[0, 0, 0]], {}, 1, [[0, 0, 0]]),
    ("N17", "l2", [[1000, 2000]], {"clip": 100}, 0.01, [[0, 0]]),
    ("N18", "l2", [[1, 2, 3]], {}, 0.5, [[1, 2, 3]]),
    ("N20", "l2", [[0, 0, 0]], {}, 1, [[0, 0, 0]]),
    ("N21", "l2", [[1, 2, 3]], {"center": "mean"}, 1, [[-2, 0, 2]]),
    ("N38", "elastic_net", [[2, -3]], {}, 1, [[2.5, -3.5]]),
    ("D10 D11", "kl_divergence", [P, Q], {}, 1, [[2.00107428, -0.04754403, -0.01060851, -0.00390265], -np.exp(P)]),
    ("D33", "entropy", [P], {}, 1, [[-0.54541134, 0.12667702, 0.09070377, 0.04868123]]),
    ("O13", "orthogonality", [ROWS], {}, 1, [[[0, 2], [2, 0], [0, 0]]]),
    ("M5", "consistency", [CLEAN, NOISY], {}, 1, [[-0.2 / 3] * 3, [0.2 / 3] * 3]),
    ("G11", "output_magnitude", [[3, 4]], {"reduction": "sum"}, 1, [[4.8, 6.4]]),
]

PENALTIES: list[tuple[str, str, list[float], float, float]] = [
    ("G1", "sum", [1, 2, 3, 4], 1.0, 1.0),
    ("G1b", "sum", [1, 2, 3, 4], 2.0, 0.0),
    ("G2", "sum", [1, 2, 3], 3**0.5, 0.0),
    ("G3", "sum", [1, 2, 3], 1.0, 0.535898385),
    ("G4", "sum", [1, 1, 1, 1], 2.0, 0.0),
    ("G4b", "sum", [1, 1, 1, 1], 10.0, 64.0),
    ("G5", "squares", [1, 2], 20**0.5, 0.0),
    ("G5b", "squares", [1, 2], 1.0, 12.05572809),
]
