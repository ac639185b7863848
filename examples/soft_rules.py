"""Learn to name animals from few labels, with rules that every answer should satisfy.

There are sixty labelled animals, and a stream of animals without labels, on which the network is taught rules alone:
which animals have what, as fuzzy logic, and that each is of exactly one kind, by the semantic loss. Run it with `python
examples/soft_rules.py`; it needs PyTorch.
"""

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot

import penalties as pn
from penalties.terms.logic import semantic_loss, soft_rules

STEPS = 600
KINDS = ("dog", "trout", "eagle", "penguin", "bat")
TRAITS = ("fur", "wings", "swims", "flies")
HAVE = torch.tensor([[1, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 1], [0, 1, 1, 0], [1, 1, 0, 1]])

RULES = {
    "fur": "(dog | bat) >> fur",
    "wings": "(eagle | penguin | bat) >> wings",
    "swims": "(trout | penguin) >> swims",
    "flies": "(eagle | bat) >> flies",
    "wings to fly": "flies >> wings",
    "no wings in fur but a bat's": "(fur & wings) >> bat",
    "no wings that swim but a penguin's": "(wings & swims) >> penguin",
    "neither is a trout": "~(fur | wings) >> trout",
    "no flying swimmers": "~(flies & swims)",
    "no swimmers in fur": "~(fur & swims)",
}


def species(logits: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """How likely an answer is not to be of exactly one kind."""
    return semantic_loss(logits[:, : len(KINDS)], exactly=1, logits=True)


OPTIONS = {"rules": RULES, "variables": [*KINDS, *TRAITS], "logits": True, "loss": "log"}

PIPELINE = pn.Pipeline(
    [
        pn.Term(soft_rules, weight=0.3, name="rules", inputs="unlabelled", options=OPTIONS),
        pn.Term(species, weight=0.3, inputs="unlabelled"),
    ],
    base=pn.Term(binary_cross_entropy_with_logits, inputs=("labelled", "answers")),
)


class Animals:
    """Animals as vectors, noisy, and what is true of each."""

    def __init__(self, seed: int) -> None:
        self.generator = Generator().manual_seed(seed)
        self.typical = torch.randn(len(KINDS), 12, generator=self.generator)

    def some(self, count: int) -> tuple[Tensor, Tensor]:
        kinds = torch.randint(len(KINDS), (count,), generator=self.generator)
        seen = self.typical[kinds] + 0.8 * torch.randn(count, 12, generator=self.generator)
        return seen, torch.cat([one_hot(kinds, len(KINDS)), HAVE[kinds]], -1).float()


def train(pipeline: pn.Pipeline, *, report: bool = False) -> str:
    """Train on labels and rules; returns how many unseen animals are right, and how many answers satisfy all rules."""
    torch.manual_seed(0)
    animals = Animals(seed=1)
    (some, answers), (test, truth) = animals.some(60), animals.some(5000)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, len(KINDS) + len(TRAITS)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(STEPS + 1):
        others, _ = animals.some(500)
        out = pipeline(labelled=model(some), answers=answers, unlabelled=model(others))
        optimizer.zero_grad()
        out.total.backward()
        optimizer.step()
        if report and step % 100 == 0:
            numbers = out.metrics()
            names = ("base_loss", "rules", "rules/satisfied", "species", "species/satisfied")
            print(f"{step:4d} " + " ".join(f"{numbers[name]:17.3f}" for name in names))
    with torch.no_grad():
        logits = model(test)
    right = ((logits > 0) == (truth > 0)).all(-1).double().mean().item()
    (_, rules), (_, one) = soft_rules(logits, **OPTIONS), species(logits)
    return (
        f"{right:.1%} of unseen animals right, {rules['satisfied'].item():.1%} of answers satisfy all rules, "
        f"{one['satisfied'].item():.1%} are of one kind"
    )


def main() -> None:
    print("step " + " ".join(f"{name:>17}" for name in ("base", "rules", "rules satisfied", "species", "one kind")))
    taught = train(PIPELINE, report=True)
    print(f"\nwithout rules: {train(PIPELINE.disable('rules', 'species'))}")
    print(f"with rules:    {taught}")


if __name__ == "__main__":
    main()
