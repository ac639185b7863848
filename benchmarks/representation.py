"""Norms and cosines of five terms at a shared representation, a network of 5e6 parameters, against plain training."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import penalties as pn

from .harness import Row, compare, keep_memory

CLASSES = 10

PIPELINE = pn.Pipeline(
    [
        pn.Term(lambda logits, labels: cross_entropy(logits, labels), name="fit"),
        pn.Term(pn.kl_divergence, 0.5, inputs=("logprobs", "teacher")),
        pn.Term(pn.entropy, 0.01, inputs="logprobs"),
        pn.Term(pn.l2, 1e-3, inputs="hidden", options={"reduction": "mean"}),
        pn.Term(pn.smooth_l1, 1e-3, inputs="hidden", options={"reduction": "mean"}),
    ]
)


def written_out(logits: Tensor, labels: Tensor, logprobs: Tensor, teacher: Tensor, hidden: Tensor) -> Tensor:
    ratio = torch.where(logprobs > -86.0, logprobs - teacher, 0.0)
    return (
        cross_entropy(logits, labels)
        + 0.5 * (logprobs.exp() * ratio).sum(-1).mean()
        + 0.01 * -(logprobs.exp() * logprobs.clamp(min=-1e30)).sum(-1).mean()
        + 1e-3 * (hidden * hidden).mean()
        + 1e-3 * nn.functional.smooth_l1_loss(hidden, torch.zeros_like(hidden))
    )


class Training:
    """A network and one batch of its data."""

    def __init__(self, batch: int) -> None:
        torch.manual_seed(0)
        self.trunk = nn.Sequential(
            nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024), nn.ReLU()
        )
        self.head = nn.Linear(1024, CLASSES)
        self.images = torch.randn(batch, 784)
        self.labels = torch.randint(CLASSES, (batch,))
        self.teacher = torch.randn(batch, CLASSES).log_softmax(-1)

    def forward(self) -> dict[str, Tensor]:
        self.trunk.zero_grad()
        self.head.zero_grad()
        hidden = self.trunk(self.images)
        logits = self.head(hidden)
        return {
            "logits": logits,
            "labels": self.labels,
            "logprobs": logits.log_softmax(-1),
            "teacher": self.teacher,
            "hidden": hidden,
        }

    def plain(self) -> None:
        written_out(**self.forward()).backward()

    def tracked(self) -> pn.LossOutput:
        inputs = self.forward()
        return pn.gradients.track(PIPELINE(**inputs), at=inputs["hidden"])

    def gradients(self) -> list[Tensor | None]:
        return [parameter.grad for parameter in (*self.trunk.parameters(), *self.head.parameters())]


def run(scale: float) -> list[Row]:
    keep_memory()
    rows: list[Row] = []
    for batch in (128, 16):
        training = Training(batch)
        training.plain()
        expected = training.gradients()
        assert training.tracked().cosines.isfinite().all()
        torch.testing.assert_close(training.gradients(), expected)
        case = f"batch of {batch}"
        rows.append(compare(case, training.plain, training.tracked, seconds=12.0 * scale, unit="ms", most_ratio=1.2))
    return rows
