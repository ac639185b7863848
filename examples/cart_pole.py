"""Balance a pole on a cart with a controller that is trained through a simulator that has no gradient.

The term `falls` simulates the cart (Barto, Sutton and Anderson, 1983) from twelve starts, and returns for what share of
the time the poles are down. It is piecewise constant: its gradient would be 0 if it had one.
Around it, evolution strategies estimate that of the smoothed term from pairs of perturbed controllers; `l2` beside it
keeps the controller small. Run it with `python examples/cart_pole.py`; it needs PyTorch.
"""

import numpy as np
import torch

import penalties as pn

STEPS = 24
LIMIT = 400
"""Moments of a simulation, of 20 ms each."""


def simulate(controller: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """How many moments the pole stays up from each start."""
    position, speed, angle, spin = starts.T.copy()
    up = np.ones(len(starts), bool)
    moments = np.zeros(len(starts))
    for _ in range(LIMIT):
        up &= (abs(position) < 2.4) & (abs(angle) < 0.21)
        if not up.any():
            break
        moments += up
        force = np.where(np.stack([position, speed, angle, spin], 1) @ controller > 0, 10.0, -10.0)
        pushed = (force + 0.05 * spin**2 * np.sin(angle)) / 1.1
        turn = (9.8 * np.sin(angle) - np.cos(angle) * pushed) / (0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1))
        push = pushed - 0.05 * turn * np.cos(angle) / 1.1
        position, speed = position + 0.02 * speed, speed + 0.02 * push
        angle, spin = angle + 0.02 * spin, spin + 0.02 * turn
    return moments


def falls(controller: torch.Tensor, starts: np.ndarray) -> pn.Evaluation:
    """The share of the time in which the poles are down."""
    moments = simulate(controller.numpy(), starts)
    return pn.Evaluation(1.0 - moments.mean() / LIMIT, metrics={"seconds": float(moments.mean() * 0.02)})


def main() -> None:
    rng = np.random.default_rng(0)
    seen, unseen = (rng.uniform(-0.08, 0.08, (count, 4)) for count in (12, 200))
    controller = torch.tensor([0.0, 0.0, 1.0, 0.0], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([controller], lr=0.2)
    pipeline = pn.Pipeline(
        [
            pn.EvolutionStrategies(pn.Term(falls), population=16, sigma=0.3, wrt="controller"),
            pn.Term(pn.l2, weight=1e-4, inputs="controller"),
        ]
    )
    print("step  seconds up  variance of the gradient")
    before = simulate(controller.detach().numpy(), unseen)
    for step in range(STEPS):
        optimizer.zero_grad()
        out = pipeline(controller=controller, starts=seen, step=step)
        out.total.backward()
        optimizer.step()
        metrics = out["falls"].metrics
        if step % 4 == 0:
            print(f"{step:4}  {metrics['seconds']:10.2f}  {metrics['gradient_variance']:.4f}")
    after = simulate(controller.detach().numpy(), unseen)
    print(f"\nfrom 200 other starts, of {LIMIT * 0.02:.0f} s:")
    for name, moments in (("before", before), ("after", after)):
        print(f"{name + ':':7} up for {moments.mean() * 0.02:.2f} s, to the end {(moments == LIMIT).mean():.0%}")


if __name__ == "__main__":
    main()
