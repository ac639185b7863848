"""Teach an autoencoder that its data are one loop, by persistent homology in a worker process.

The points lie on a trefoil knot, which is one loop. Seen from any side it crosses itself, so a flat code of it shows
four loops where the knot has one. The term `target_betti` wants one loop of a good size, and no others; its gradient
goes through the edges that open and close each loop. Run it with `python examples/persistent_homology.py`; it needs
`pip install "penalties[torch,process,topology]"`.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import penalties as pn
from penalties.terms import topology

STEPS = 200
REPORT_AT = (0, 20, 50, 100, 150, 200)
VISIBLE = 0.3  # loops that live longer count in the metrics

ONE_LOOP = pn.Term(
    topology.target_betti,
    name="one_loop",
    weight=0.1,
    inputs="code",
    options={"betti": {1: 1}, "size": 1.5, "visible": VISIBLE},
    runs="process",
    timeout=20,
)
PIPELINE = pn.Pipeline([ONE_LOOP], base=pn.Term(mse_loss, inputs=("decoded", "points")))


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
            names = ("base_loss", "one_loop", "one_loop/longest_1", "one_loop/betti_1")
            print(f"{step:4d} " + " ".join(f"{numbers[name]:>12.4g}" for name in names))
    return encoder(points).detach()


def drawing(code: Tensor, width: int = 36, height: int = 14) -> list[str]:
    """The points of a flat code as characters."""
    rows = [[" "] * width for _ in range(height)]
    low, high = code.amin(0), code.amax(0)
    for x, y in ((code - low) / (high - low)).tolist():
        rows[round(y * (height - 1))][round(x * (width - 1))] = "o"
    return ["".join(row) for row in rows]


def loops(points: Tensor, max_edge_length: float | None = None) -> int:
    """How many loops the points have that live long enough to be seen, or are there where edges stop."""
    evaluation = topology.total_persistence(points, dimensions=1, visible=VISIBLE, max_edge_length=max_edge_length)
    return evaluation.metrics["betti_1"]


def main() -> None:
    torch.set_num_threads(1)  # the layers are small, and the other cores have terms to run
    print(f"{'step':>4} {'error':>12} {'one_loop':>12} {'longest':>12} {'loops':>12}")
    with pn.Executor(max_workers=1) as executor:
        taught = train(PIPELINE, executor, report=True)
        plain = train(PIPELINE.disable("one_loop"), executor)
    print(f"\n{'code without the term':<40}code with it\n")
    print("\n".join(f"{left:<40}{right}".rstrip() for left, right in zip(drawing(plain), drawing(taught), strict=True)))
    print(f"\nloops in 200 points of the knot, by edges too short to join two strands: {loops(trefoil(200), 0.5)}")
    print(f"loops in the code of a knot: {loops(plain)} without the term, {loops(taught)} with it")


if __name__ == "__main__":
    main()
