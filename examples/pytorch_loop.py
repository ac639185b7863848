"""Train a classifier on noisy labels with a base loss and three penalties, and watch which of them drives training.

Two of thirty inputs decide the class, and a quarter of the labels are wrong: without penalties the network learns the
wrong labels by heart. Run it with `python examples/pytorch_loop.py`; it needs PyTorch and nothing from the network.
"""

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

import penalties as pn

STEPS = 400
TRACK_EVERY = 50

PIPELINE = pn.Pipeline(
    [
        # Few weights that are not small: most inputs say nothing about the class.
        pn.Term(pn.l1, name="sparsity", weight=0.025, inputs="params"),
        # Less certainty than the labels suggest, because some of them are wrong: minus the mean entropy.
        pn.Term(pn.entropy, name="confidence", weight=0.2, inputs="logits", options={"mode": "bonus", "logits": True}),
        # Hidden units that respond to different examples. At every second step: the other steps are cheaper.
        pn.Term(pn.orthogonality, name="overlap", weight=0.1, inputs="units", options={"reduction": "mean"}, every=2),
    ],
    base=pn.Term(cross_entropy, inputs=("logits", "labels")),
    name="noisy labels",
)

# The penalty on weights waits until the network has found something.
SCHEDULES = {"sparsity": pn.schedules.warmup(0.025, steps=100)}


class Classifier(nn.Module):
    """One hidden layer, which is returned too."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(30, 32), nn.Tanh())
        self.head = nn.Linear(32, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.encoder(x)
        return hidden, self.head(hidden)


def examples(count: int, wrong: float, generator: Generator) -> tuple[Tensor, Tensor]:
    """Points whose class is the sign of the sum of their first two coordinates; some labels are flipped."""
    x = torch.randn(count, 30, generator=generator)
    labels = (x[:, 0] + x[:, 1] > 0).long()
    flipped = torch.rand(count, generator=generator) < wrong
    return x, labels ^ flipped.long()


def objective(
    pipeline: pn.Pipeline, model: Classifier, x: Tensor, labels: Tensor, step: int
) -> tuple[pn.LossOutput, Tensor]:
    """The structured loss, and the hidden layer that its terms share."""
    hidden, logits = model(x)
    weights = pn.schedules.weights(SCHEDULES, step)
    inputs = {"params": model.parameters(), "logits": logits, "units": hidden.T, "labels": labels}
    return pipeline(**inputs, weights=weights, step=step), hidden


def train(pipeline: pn.Pipeline, x: Tensor, labels: Tensor, *, report: bool = False) -> Classifier:
    """A plain loop: forward, pipeline, backward, step."""
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    monitor = pn.Monitor(every=STEPS // 2)
    for step in range(STEPS + 1):
        out, hidden = objective(pipeline, model, x, labels, step)
        optimizer.zero_grad()
        if report and step % TRACK_EVERY == 0:
            # The norm of each term's gradient at the hidden layer.
            out = pn.gradients.track(out, at=hidden)
            show(step, out)
        out.total.backward()
        optimizer.step()
        # It reports regularly, and whenever the loss jumps. That a penalty on weights has no gradient at the
        # hidden layer is expected.
        explanation = monitor(out, step) if report else None
        for finding in explanation.findings if explanation else ():
            if finding.kind != "no gradient":
                print(f"      monitor: {finding.message}")
    return model


def show(step: int, out: pn.LossOutput) -> None:
    """One line of the table; every number in it came in one transfer."""
    numbers = out.metrics()
    names = ["base_loss", "sparsity_weighted", "confidence_weighted", "overlap_weighted", "total"]
    names += ["base_loss_grad_norm", "confidence_grad_norm", "overlap_grad_norm"]
    if step == 0:
        print(f"{'':4}  {'contribution to the loss':>54}  {'gradient at the hidden layer':>32}")
        columns = ["base", "sparsity", "confidence", "overlap", "total", "base", "confidence", "overlap"]
        print(f"{'step':>4}  " + " ".join(f"{column:>10}" for column in columns))
    print(f"{step:4d}  " + " ".join(f"{numbers[name]:10.4f}" for name in names))


@torch.no_grad()
def summary(model: Classifier, x: Tensor, labels: Tensor) -> str:
    """The result, on unseen points with correct labels."""
    accuracy = (model(x)[1].argmax(-1) == labels).double().mean().item()
    used = model.encoder[0].weight.abs().amax(0)
    return f"test accuracy {accuracy:6.1%}, inputs in use {int((used > 0.1).sum()):2d} of 30"


def main() -> None:
    generator = Generator().manual_seed(0)
    x, labels = examples(400, 0.25, generator)
    test_x, test_labels = examples(2000, 0.0, generator)
    print(f"{PIPELINE}\n")
    penalised = train(PIPELINE, x, labels, report=True)
    # With respect to all parameters, rather than at one layer, the penalty on weights has a gradient too.
    out, _ = objective(PIPELINE, penalised, x, labels, STEPS)
    out = pn.gradients.track(out, wrt=penalised.parameters(), backward=False)
    print(f"\n{pn.explain(out)}")
    plain = train(PIPELINE.disable(*PIPELINE.names), x, labels)
    print(f"\nwithout penalties: {summary(plain, test_x, test_labels)}")
    print(f"with penalties:    {summary(penalised, test_x, test_labels)}")


if __name__ == "__main__":
    main()
