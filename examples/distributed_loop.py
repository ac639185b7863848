"""Train a classifier on noisy labels under DistributedDataParallel, with penalties that count as in one process.

Two of thirty inputs decide the class, and a quarter of the labels are wrong. Each process sees its part of the data,
and the result is that of one process that sees all. Run it with `torchrun --nproc-per-node 2
examples/distributed_loop.py`, or without torchrun; it needs PyTorch, and neither a GPU nor anything from the network.
"""

import gc
import os

import torch
import torch.distributed as dist
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import penalties as pn
from penalties.integrations import distributed

STEPS = 200

PIPELINE = pn.Pipeline(
    [
        # Few weights that are not small. It reads parameters, which every process has: it counts once.
        pn.Term(pn.l1, name="sparsity", weight=pn.schedules.warmup(0.025, steps=100), inputs="params"),
        # Less certainty than the labels suggest: a mean over examples, averaged over processes.
        pn.Term(
            pn.entropy, name="confidence", weight=0.2, inputs="prediction", options={"mode": "bonus", "logits": True}
        ),
        # Logits that stay small: a sum over examples, added up over processes.
        pn.Term(pn.l2, name="size", weight=1e-4, inputs="prediction"),
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


def train(x: Tensor, labels: Tensor, rank: int, ranks: int) -> nn.Sequential:
    """All of the training; `x` and `labels` are this process's part of the data."""
    model = network()
    wrapped = DistributedDataParallel(model) if ranks > 1 else model
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    # It sees that its model is under DDP: every term counts as its scope says, and metrics are those of all processes.
    step = pn.train_step(wrapped, cross_entropy, PIPELINE, optimizer)
    for number in range(1, STEPS + 1):
        metrics = step(x, labels)
        if number % 50 == 0 and rank == 0:
            names = ("base_loss", "sparsity_weighted", "confidence_weighted", "size_weighted")
            print(f"{number:4d}  " + " ".join(f"{metrics[name]:12.4f}" for name in names))
    # In a loop of your own: norms of the terms' gradients at the logits, of all processes together.
    logits = wrapped(x)
    out = PIPELINE(prediction=logits, params=list(model.parameters()), step=STEPS)
    shared = distributed.track(out, at=logits, base=cross_entropy(logits, labels))
    if rank == 0:
        print(f"\n{shared}")
    return model


@torch.no_grad()
def summary(model: nn.Sequential, x: Tensor, labels: Tensor) -> str:
    """The result, on unseen points with correct labels."""
    accuracy = (model(x).argmax(-1) == labels).double().mean().item()
    used = model[0].weight.abs().amax(0)
    return f"test accuracy {accuracy:6.1%}, inputs in use {int((used > 0.1).sum()):2d} of 30"


def main() -> None:
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    generator = Generator().manual_seed(0)
    x, labels = examples(400, 0.25, generator)
    test_x, test_labels = examples(2000, 0.0, generator)
    if rank == 0:
        print(f"{'step':>4}  " + " ".join(f"{name:>12}" for name in ("base", "sparsity", "confidence", "size")))
    # Equal parts: processes count equally.
    model = train(x.chunk(ranks)[rank], labels.chunk(ranks)[rank], rank, ranks)
    if rank == 0:
        print(f"\n{summary(model, test_x, test_labels)}")
    if ranks > 1:
        # DDP is in a cycle with its process group: threads of gloo that outlive the interpreter would abort it.
        gc.collect()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
