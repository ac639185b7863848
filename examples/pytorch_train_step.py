"""Train a classifier on noisy labels with `train_step`, four micro-batches to a step, and a group lasso.

Two of thirty inputs decide the class, and a quarter of the labels are wrong: without terms the network learns the wrong
labels by heart. Run it with `python examples/pytorch_train_step.py`; it needs PyTorch and nothing from the network.
"""

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

import penalties as pn
from penalties.integrations.torch import proximal

STEPS = 300
MICRO_BATCHES = 4

PIPELINE = pn.Pipeline(
    [
        # Less certainty than the labels suggest, because some of them are wrong: minus the mean entropy. It is a mean
        # over examples, so it is averaged over the micro-batches.
        pn.Term(
            pn.entropy, name="confidence", weight=0.2, inputs="prediction", options={"mode": "bonus", "logits": True}
        ),
        # Small weights in the last layer. It reads parameters only, so it counts once in each step.
        pn.Term(pn.l2, name="decay", weight=0.01, inputs="head"),
    ]
)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 32), nn.Tanh(), nn.Linear(32, 2))


def examples(count: int, wrong: float, generator: Generator) -> tuple[Tensor, Tensor]:
    """Points whose class is the sign of the sum of their first two coordinates; some labels are flipped."""
    x = torch.randn(count, 30, generator=generator)
    labels = (x[:, 0] + x[:, 1] > 0).long()
    flipped = torch.rand(count, generator=generator) < wrong
    return x, labels ^ flipped.long()


def train(pipeline: pn.Pipeline, x: Tensor, labels: Tensor, sparsity: float) -> nn.Sequential:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    if sparsity:
        # After each step of the optimizer, inputs whose weights are all small get weights of exactly 0. It waits until
        # the network has found something.
        first = pn.select(model, "0.weight")
        proximal(optimizer, group=pn.schedules.warmup(sparsity, steps=100), axis=1, parameters=first)
    step = pn.train_step(model, cross_entropy, pipeline, optimizer, max_norm=1.0)
    head = pn.select(model, "2.weight")
    for number in range(1, STEPS + 1):
        parts = zip(x.chunk(MICRO_BATCHES), labels.chunk(MICRO_BATCHES), strict=True)
        metrics = step.accumulate([(part, target, {"head": head}) for part, target in parts])
        if len(pipeline) and number % 50 == 0:
            names = ("base_loss", "confidence_weighted", "decay_weighted", "total_grad_norm")
            print(f"{number:4d}  " + " ".join(f"{metrics[name]:20.4f}" for name in names))
    return model


@torch.no_grad()
def summary(model: nn.Sequential, x: Tensor, labels: Tensor) -> str:
    """The result, on unseen points with correct labels."""
    accuracy = (model(x).argmax(-1) == labels).double().mean().item()
    used = (model[0].weight != 0).any(0).sum()
    return f"test accuracy {accuracy:6.1%}, inputs in use {int(used):2d} of 30"


def main() -> None:
    generator = Generator().manual_seed(0)
    x, labels = examples(400, 0.25, generator)
    test_x, test_labels = examples(2000, 0.0, generator)
    print(f"{'step':>4}  " + " ".join(f"{name:>20}" for name in ("base", "confidence", "decay", "gradient norm")))
    penalised = train(PIPELINE, x, labels, sparsity=0.8)
    plain = train(pn.Pipeline([]), x, labels, sparsity=0.0)
    print(f"\nwithout terms: {summary(plain, test_x, test_labels)}")
    print(f"with terms:    {summary(penalised, test_x, test_labels)}")


if __name__ == "__main__":
    main()
