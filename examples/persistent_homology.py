"""Teach an autoencoder that its data are one loop, by persistent homology in a worker process.

The points lie on a trefoil knot. Seen from any side it crosses itself, so a flat code of it shows four loops where the
knot has one. The term `one_loop` finds them with Gudhi, which is independent of PyTorch: it returns its own gradient,
which trains the encoder. Run it with `python examples/persistent_homology.py`; it needs PyTorch and Gudhi.
"""

import math

import gudhi
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import penalties as pn

STEPS = 200
REPORT_AT = (0, 20, 50, 100, 150, 200)


def one_loop(code: Tensor, size: float = 1.5, visible: float = 0.3) -> pn.Evaluation:
    """How far the code is from one loop of a good size: `max(0, size - longest life) + Σ other lives`.

    A loop of the Vietoris-Rips filtration is born with one edge and dies with another; its life is the difference of
    their lengths. So the value is a sum of distances between points, and its gradient is made of unit vectors along
    those edges (Gabrielsson et al., "A Topology Layer for Machine Learning", 2020). Points without any loop have
    gradient 0. `visible` is for the count alone.
    """
    points = code.detach().double().numpy()
    tree = gudhi.RipsComplex(points=points).create_simplex_tree(max_dimension=2)
    tree.compute_persistence()
    dimensions = tree.flag_persistence_generators()[1]
    pairs = dimensions[0] if dimensions else np.empty((0, 4), int)  # one row per loop: the ends of both edges
    born = points[pairs[:, 0]] - points[pairs[:, 1]]
    died = points[pairs[:, 2]] - points[pairs[:, 3]]
    born_at, died_at = np.linalg.norm(born, axis=1), np.linalg.norm(died, axis=1)
    life = died_at - born_at

    longest = life.max(initial=0.0)
    value = max(0.0, size - longest) + life.sum() - longest
    slope = np.ones(len(life))  # of the value in each life
    if len(life):
        slope[life.argmax()] = -1.0 if longest < size else 0.0
    gradient = np.zeros_like(points)
    for ends, edges, by_length in (
        (pairs[:, :2], born, -slope / born_at),
        (pairs[:, 2:], died, slope / died_at),
    ):
        pull = by_length[:, None] * edges
        np.add.at(gradient, ends[:, 0], pull)
        np.add.at(gradient, ends[:, 1], -pull)
    metrics = {"count": int((life > visible).sum()), "longest": float(longest)}
    return pn.Evaluation(value, gradient={"code": gradient}, metrics=metrics)


PIPELINE = pn.Pipeline(
    [pn.Term(one_loop, weight=0.1, runs="process", timeout=10)],
    base=pn.Term(mse_loss, inputs=("decoded", "points")),
)


def trefoil(count: int) -> Tensor:
    """Noisy points along a knot in space."""
    t = 2 * math.pi * torch.arange(count) / count
    knot = torch.stack([t.sin() + 2 * (2 * t).sin(), t.cos() - 2 * (2 * t).cos(), -(3 * t).sin()], -1) / 1.5
    return knot + 0.03 * torch.randn(knot.shape)


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, outputs))


def train(pipeline: pn.Pipeline, executor: pn.Executor, *, report: bool = False) -> Tensor:
    """A plain loop around `executor.run`; returns the final code."""
    torch.manual_seed(0)
    points = trefoil(40)
    encoder, decoder = network(3, 2), network(2, 3)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=0.005)
    for step in range(STEPS + 1):
        code = encoder(points)
        out = executor.run(pipeline, {"code": code, "decoded": decoder(code), "points": points})
        optimizer.zero_grad()
        out.total.backward()
        optimizer.step()
        if report and step in REPORT_AT:
            numbers = out.metrics()
            names = ("base_loss", "one_loop", "one_loop/longest", "one_loop/count")
            print(f"{step:4d} " + " ".join(f"{numbers[name]:>12.4g}" for name in names))
    return encoder(points).detach()


def drawing(code: Tensor, width: int = 36, height: int = 14) -> list[str]:
    """The points of a flat code as characters."""
    rows = [[" "] * width for _ in range(height)]
    low, high = code.amin(0), code.amax(0)
    for x, y in ((code - low) / (high - low)).tolist():
        rows[round(y * (height - 1))][round(x * (width - 1))] = "o"
    return ["".join(row) for row in rows]


def main() -> None:
    torch.set_num_threads(1)  # the layers are small, and the other cores have terms to run
    print(f"{'step':>4} {'error':>12} {'one_loop':>12} {'longest':>12} {'loops':>12}")
    with pn.Executor(max_workers=1) as executor:
        taught = train(PIPELINE, executor, report=True)
        plain = train(PIPELINE.disable("one_loop"), executor)
    print(f"\n{'code without the term':<40}code with it\n")
    print("\n".join(f"{left:<40}{right}".rstrip() for left, right in zip(drawing(plain), drawing(taught), strict=True)))
    counts = [one_loop(code).metrics["count"] for code in (plain, taught)]
    print("\nloops in the code of a knot: {} without the term, {} with it".format(*counts))


if __name__ == "__main__":
    main()
