"""Decide about loans alike in two groups, and say what that costs.

One group earns less, and its repayments were recorded with a bias. A network that is trained on the records approves
less than half as many of its loans. Demographic parity closes the gap; a permutation test says whether what remains
could be chance. Run it with `python examples/fair_loans.py`; it needs PyTorch.
"""

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import penalties as pn
from penalties.terms.fairness import demographic_parity

STEPS = 300
PARITY = pn.Term(
    demographic_parity,
    weight=pn.schedules.warmup(1.0, steps=100),
    name="parity",
    inputs={"p": "logits", "groups": "groups"},
    options={"logits": True},
)
PIPELINE = pn.Pipeline([PARITY], base=pn.Term(binary_cross_entropy_with_logits, inputs=("logits", "repaid")))


def applicants(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """What is known of applicants, whether they are said to have repaid, and the group of each."""
    generator = Generator().manual_seed(seed)
    groups = torch.randint(2, (count,), generator=generator)
    known = torch.randn(count, 5, generator=generator)
    known[:, 0] -= 0.9 * groups  # income
    known[:, 1] += 2.0 * groups  # a district says much about the group
    score = 1.6 * known[:, 0] + known[:, 2] - 0.6 * known[:, 3] - 0.2 * groups
    repaid = torch.rand(count, generator=generator) < torch.sigmoid(score + 0.4)
    return known, repaid.float(), groups


def train(pipeline: pn.Pipeline, *, report: bool = False) -> str:
    """Train on the records; returns accuracy and the gap on unseen applicants."""
    torch.manual_seed(0)
    known, repaid, groups = applicants(2000, seed=0)
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(STEPS + 1):
        out = pipeline(logits=model(known)[:, 0], repaid=repaid, groups=groups, step=step)
        optimizer.zero_grad()
        out.total.backward()
        optimizer.step()
        if report and step % 50 == 0:
            numbers = out.metrics()
            names = ("base_loss", "parity/gap", "parity/rate/0", "parity/rate/1")
            print(f"{step:4d} " + " ".join(f"{numbers[name]:13.3f}" for name in names))
    known, repaid, groups = applicants(4000, seed=1)
    with torch.no_grad():
        approved = (model(known)[:, 0] > 0).float()
    _, fair = demographic_parity(approved, groups, permutations=999)
    return (
        f"accuracy {(approved == repaid).double().mean().item():.1%}, "
        f"approved {fair['rate/0']:.1%} and {fair['rate/1']:.1%}, gap {fair['gap']:.3f} (p = {fair['p_value']:.3f})"
    )


def main() -> None:
    print("step " + " ".join(f"{name:>13}" for name in ("base", "gap", "group 0", "group 1")))
    taught = train(PIPELINE, report=True)
    print(f"\nwithout the term: {train(PIPELINE.disable('parity'))}")
    print(f"with it:          {taught}")


if __name__ == "__main__":
    main()
