"""A mixture of experts whose routers compute a loss of their own, which keeps all experts busy.

Two layers route each input to one of eight experts. Left alone a router prefers the experts that it happened to train
first, and the others never learn. The balance loss of the Switch Transformer (Fedus et al., 2021), experts · Σ fᵢ·pᵢ
with fᵢ the share of inputs that expert i gets and pᵢ the mean probability that the router gives it, is smallest, 1,
when all get the same. It is computed where the probabilities are, inside each layer, and becomes a term of the pipeline
by `pn.auxiliary` and `pn.collect`.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

import penalties as pn

EXPERTS, CLASSES, WIDTH, STEPS = 8, 16, 16, 200


class Experts(nn.Module):
    """A layer of experts behind a router that sends each input to the likeliest one."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        probabilities = self.router(x).softmax(-1)
        chance, chosen = probabilities.max(-1)
        shares = one_hot(chosen, EXPERTS).float().mean(0)
        # Here the loss is at hand; whoever trains the model decides what becomes of it.
        pn.auxiliary("balance", EXPERTS * (shares * probabilities.mean(0)).sum())
        pn.auxiliary("shares", shares)
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        return x + chance[:, None] * torch.tanh(outputs[torch.arange(len(x)), chosen])


def batch(generator: torch.Generator, size: int = 256) -> tuple[Tensor, Tensor]:
    """Points around a centre per class. What all centres share makes one expert look right for every input."""
    centres = 2 + torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(1))
    classes = torch.randint(CLASSES, (size,), generator=generator)
    return centres[classes] + 0.7 * torch.randn(size, WIDTH, generator=generator), classes


def train(weight: float, *, show: bool = False) -> tuple[float, float]:
    """Train with this weight of the balance loss; returns the share of the busiest expert and the accuracy."""
    torch.manual_seed(0)
    model = nn.Sequential(Experts(), Experts(), nn.Linear(WIDTH, CLASSES))
    pipeline = pn.Pipeline(
        [pn.Term(pn.precomputed, name="balance", weight=weight, inputs="losses.balance")],
        base=pn.Term(cross_entropy, inputs=("logits", "classes")),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(2)
    for step in range(STEPS + 1):
        x, classes = batch(generator)
        with pn.collect() as losses:
            logits = model(x)
        out = pipeline(logits=logits, classes=classes, losses=losses)
        optimizer.zero_grad()
        out.total.backward()
        optimizer.step()
        if show and step % 50 == 0:
            first, second = (float(losses[f"balance.{layer}"].detach()) for layer in (0, 1))
            print(f"{step:4d}  {float(out.base.value.detach()):6.3f}  {first:7.2f}  {second:8.2f}")
    x, classes = batch(generator, 2000)
    with torch.no_grad(), pn.collect() as losses:
        accuracy = (model(x).argmax(-1) == classes).float().mean()
    return max(float(shares.max()) for shares in losses["shares"]), float(accuracy)


def main() -> None:
    print("step    loss  layer 1  layer 2")
    balanced = train(0.1, show=True)
    print()
    for name, (busiest, accuracy) in (("without the term:", train(0.0)), ("with the term:", balanced)):
        print(f"{name:17}  the busiest expert gets {busiest:3.0%} of the inputs, accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
