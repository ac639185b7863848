"""Learn to read digits from sums that have to come out right, with an SMT solver in the loss.

There is one labelled image of each digit. Every other image is part of an equation such as `??+?=57`, and the term
`equations` asks Z3 for the readings nearest to the network's under which the equations hold. Solvers can take forever:
this one runs in a process with a timeout, and one of the puzzles is as hard as breaking a cipher. Run it with `python
examples/smt_solver.py`; it needs PyTorch and Z3.
"""

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

import penalties as pn
from penalties.terms.logic import hard_rules

STEPS = 40
PUZZLES = 6
HARD_AT, HARD = 15, 999_962_000_357  # the product of two primes

# The margin of the network's readings over the nearest right ones: the structured perceptron (Collins, 2002). A batch
# takes about 0.1 s. One that takes forever costs a step its term, and nothing else.
SOLVED = {"runs": "process", "timeout": 2.0, "on_error": "skip"}
EQUATIONS = pn.Term(
    hard_rules,
    weight=0.3,
    name="equations",
    inputs={"scores": "scores", "facts": "known"},
    options={"rules": {"sum": "10 * tens + ones + other == total"}, "variables": ["tens", "ones", "other"]},
    **SOLVED,
)


def number(name: str) -> str:
    return " + ".join(f"{10 ** (5 - place)} * {name}{place}" for place in range(6))


FACTORS = pn.Term(
    hard_rules,
    name="factors",
    inputs={"scores": "factors"},
    options={
        "rules": {"product": f"({number('a')}) * ({number('b')}) == {HARD}"},
        "variables": [f"{name}{place}" for name in "ab" for place in range(6)],
    },
    **SOLVED,
)
PIPELINE = pn.Pipeline([EQUATIONS], base=pn.Term(cross_entropy, inputs=("logits", "labels")))


class Digits:
    """Images of digits as vectors, noisy."""

    def __init__(self, seed: int) -> None:
        self.generator = Generator().manual_seed(seed)
        self.clean = torch.randn(10, 16, generator=self.generator)

    def images(self, digits: Tensor) -> Tensor:
        return self.clean[digits] + 0.8 * torch.randn(*digits.shape, 16, generator=self.generator)

    def puzzles(self, count: int) -> tuple[Tensor, Tensor]:
        """The images of some puzzles, three each, and what the sums have to be."""
        digits = torch.randint(10, (count, 3), generator=self.generator)
        return self.images(digits), digits @ torch.tensor([10, 1, 1])


def train(pipeline: pn.Pipeline, executor: pn.Executor, *, report: bool = False) -> str:
    """Train on ten labels and a stream of puzzles; returns the accuracy on unseen images."""
    torch.manual_seed(0)
    data = Digits(seed=0)
    labels = torch.arange(10)
    labelled = data.images(labels)
    test_labels = torch.arange(2000) % 10
    test = data.images(test_labels)
    model = nn.Linear(16, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for step in range(STEPS + 1):
        images, totals = data.puzzles(PUZZLES)
        scores = model(images).log_softmax(-1)
        inputs = {"logits": model(labelled), "labels": labels, "scores": scores, "known": {"total": totals}}
        hard = report and step == HARD_AT
        if hard:
            inputs["factors"] = model(data.images(torch.arange(12) % 10)).log_softmax(-1)
        out = executor.run(pipeline.add(FACTORS) if hard else pipeline, inputs)
        optimizer.zero_grad()
        out.total.backward()
        optimizer.step()
        if hard:
            print(f"{step:4d}  skipped {out['factors'].error}")
        elif report and step % 10 == 0:
            numbers = out.metrics()
            names = ("base_loss", "equations", "equations/satisfied", "equations/core")
            print(f"{step:4d} " + " ".join(f"{numbers[name]:10.4g}" for name in names))
    return f"{(model(test).argmax(-1) == test_labels).double().mean().item():.1%}"


def main() -> None:
    torch.set_num_threads(1)  # the layers are small, and the other cores have terms to run
    print("step " + " ".join(f"{name:>10}" for name in ("base", "equations", "satisfied", "core")))
    with pn.Executor(max_workers=1) as executor:
        taught = train(PIPELINE, executor, report=True)
        plain = train(PIPELINE.disable("equations"), executor)
    print(f"\ntest accuracy with ten labels: {plain} without the solver, {taught} with it")


if __name__ == "__main__":
    main()
