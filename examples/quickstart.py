"""Train a small classifier on two moons with four penalties in its loss, and print what each of them contributes.

Run it with `python examples/quickstart.py`; it needs PyTorch and nothing from the network.
"""

import math

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

import penalties as pn

STEPS = 300
REPORT_AT = (0, 100, 200, 300)
WEIGHTS = {"sparsity": 5e-4, "confidence": 0.05, "overlap": 0.01, "consistency": 0.5}


def two_moons(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """`count` noisy points on two interleaved half circles, and the circle of each."""
    labels = torch.arange(count) % 2
    angle = math.pi * torch.rand(count, generator=generator)
    upper = torch.stack([angle.cos(), angle.sin()], -1)
    lower = torch.stack([1 - angle.cos(), 0.5 - angle.sin()], -1)
    points = torch.where(labels[:, None] == 0, upper, lower)
    return points + 0.2 * torch.randn(count, 2, generator=generator), labels


def penalty_terms(model: nn.Sequential, points: Tensor, logits: Tensor, generator: Generator) -> dict[str, Tensor]:
    """The four penalties, unweighted."""
    shifted = points + 0.1 * torch.randn(points.shape, generator=generator)
    return {
        # Fewer large weights.
        "sparsity": pn.l1(model.parameters()),
        # Less certainty than the data allow: minus the mean entropy of the predictions.
        "confidence": pn.entropy(logits, mode="bonus", logits=True),
        # Hidden units that look in different directions.
        "overlap": pn.orthogonality(model[2].weight),
        # The same prediction for a point and for its neighbour.
        "consistency": pn.consistency(logits.log_softmax(-1), model(shifted).log_softmax(-1), metric="kl"),
    }


def report(step: int, base: Tensor, terms: dict[str, Tensor]) -> None:
    """One line for the loss without penalties, one per penalty, one for the sum."""
    total = base.item()
    print(f"{step:4d}  {'base':<12} {total:9.4f} {'':>8} {total:13.4f}")
    for name, value in terms.items():
        contribution = WEIGHTS[name] * value.item()
        total += contribution
        print(f"{'':4}  {name:<12} {value.item():9.4f} {WEIGHTS[name]:8.4f} {contribution:13.4f}")
    print(f"{'':4}  {'total':<12} {'':>9} {'':>8} {total:13.4f}\n")


@torch.no_grad()
def summary(model: nn.Sequential, points: Tensor, labels: Tensor) -> str:
    """The result, on unseen points."""
    logits = model(points)
    accuracy = (logits.argmax(-1) == labels).double().mean().item()
    parameters = torch.cat([parameter.reshape(-1) for parameter in model.parameters()])
    return (
        f"test accuracy {accuracy:6.1%}, weights within 0.01 of zero {(parameters.abs() < 0.01).double().mean():6.1%}, "
        f"overlap {pn.orthogonality(model[2].weight).item():6.2f}"
    )


def main() -> None:
    torch.manual_seed(0)
    generator = Generator().manual_seed(0)
    points, labels = two_moons(400, generator)
    test_points, test_labels = two_moons(1000, generator)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    before = summary(model, test_points, test_labels)
    print(f"{'step':>4}  {'term':<12} {'value':>9} {'weight':>8} {'contribution':>13}")
    for step in range(STEPS + 1):
        logits = model(points)
        base = cross_entropy(logits, labels)
        terms = penalty_terms(model, points, logits, generator)
        if step in REPORT_AT:
            report(step, base, terms)
        if step == STEPS:
            break
        loss = base + sum(WEIGHTS[name] * value for name, value in terms.items())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"before: {before}")
    print(f"after:  {summary(model, test_points, test_labels)}")


if __name__ == "__main__":
    main()
