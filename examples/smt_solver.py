"""Learn to read digits from sums that have to come out right, with an SMT solver in the loss.

There is one labelled image of each digit. Every other image is part of an equation such as `??+?=57`, and the term
`equations` asks Z3 for the readings nearest to the network's under which the equations hold. Solvers can take forever:
this one runs in a process with a timeout, and one of the puzzles is as hard as breaking a cipher. Run it with `python
examples/smt_solver.py`; it needs PyTorch and Z3.
"""

import numpy as np
import torch
import z3
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

import penalties as pn

STEPS = 40
PUZZLES = 6
HARD_AT, HARD = 15, "??????*??????=999962000357"  # the product of two primes


def nearest(scores: np.ndarray, puzzle: str) -> list[int]:
    """The digits of the highest total score that satisfy a puzzle."""
    digits = z3.Ints(" ".join(f"digit{place}" for place in range(len(scores))))
    optimizer = z3.Optimize()
    optimizer.set(maxsat_engine="wmax")  # twice as fast as the default on puzzles this small
    optimizer.add([z3.And(digit >= 0, digit <= 9) for digit in digits])
    equation, result = puzzle.split("=")
    operator = "*" if "*" in equation else "+"
    first = equation.index(operator)
    one, other = (
        z3.Sum([digit * 10**power for power, digit in enumerate(reversed(number))])
        for number in (digits[:first], digits[first:])
    )
    optimizer.add((one * other if operator == "*" else one + other) == int(result))
    for digit, row in zip(digits, scores, strict=True):
        for reading, price in enumerate(row.max() - row):
            if price > 0:
                optimizer.add_soft(digit != reading, float(price))
    verdict = optimizer.check()
    if verdict != z3.sat:
        raise ValueError(f"{puzzle} is {verdict}")
    model = optimizer.model()
    return [model[digit].as_long() for digit in digits]


def equations(scores: Tensor, puzzles: list[str]) -> pn.Evaluation:
    """The mean margin of each puzzle's best reading over the best one that satisfies it; 0 where they agree.

    A difference of scores, so the gradient is 1 at the readings of the network and -1 at those of the solver: the
    structured perceptron (Collins, 2002). `scores` has one row per question mark, in the order of the puzzles.
    """
    table = scores.detach().double().numpy()
    gradient = np.zeros_like(table)
    ends = np.cumsum([puzzle.count("?") for puzzle in puzzles])
    solved = 0
    for puzzle, rows in zip(puzzles, np.split(np.arange(len(table)), ends[:-1]), strict=True):
        wanted = nearest(table[rows], puzzle)
        read = table[rows].argmax(1)
        gradient[rows, read] += 1 / len(puzzles)
        gradient[rows, wanted] -= 1 / len(puzzles)
        solved += (read == wanted).all()
    return pn.Evaluation((gradient * table).sum(), gradient={"scores": gradient}, metrics={"solved": int(solved)})


PIPELINE = pn.Pipeline(
    # A batch takes about 0.1 s. A puzzle that takes forever costs this step its term, and nothing else.
    [pn.Term(equations, weight=0.3, runs="process", timeout=2.0, on_error="skip")],
    base=pn.Term(cross_entropy, inputs=("logits", "labels")),
)


class Digits:
    """Images of digits as vectors, noisy."""

    def __init__(self, seed: int) -> None:
        self.generator = Generator().manual_seed(seed)
        self.clean = torch.randn(10, 16, generator=self.generator)

    def images(self, digits: Tensor) -> Tensor:
        return self.clean[digits] + 0.8 * torch.randn(len(digits), 16, generator=self.generator)

    def puzzles(self, count: int) -> tuple[Tensor, list[str]]:
        """The images of some puzzles, and the puzzles."""
        digits = torch.randint(10, (count, 3), generator=self.generator)
        return self.images(digits.flatten()), [f"??+?={10 * a + b + c}" for a, b, c in digits.tolist()]


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
        images, puzzles = data.puzzles(PUZZLES)
        if step == HARD_AT:
            images, puzzles = torch.cat([images, data.images(torch.arange(12) % 10)]), [*puzzles, HARD]
        scores = model(images).log_softmax(-1)
        inputs = {"logits": model(labelled), "labels": labels, "scores": scores, "puzzles": puzzles}
        out = executor.run(pipeline, inputs)
        optimizer.zero_grad()
        out.total.backward()
        optimizer.step()
        if report and out["equations"].error is not None:
            print(f"{step:4d}  skipped {out['equations'].error}")
        elif report and step % 10 == 0:
            numbers = out.metrics()
            names = ("base_loss", "equations", "equations/solved")
            print(f"{step:4d} " + " ".join(f"{numbers[name]:10.4g}" for name in names))
    return f"{(model(test).argmax(-1) == test_labels).double().mean().item():.1%}"


def main() -> None:
    torch.set_num_threads(1)  # the layers are small, and the other cores have terms to run
    print(f"{'step':>4} {'base':>10} {'equations':>10} {f'solved of {PUZZLES}':>10}")
    with pn.Executor(max_workers=1) as executor:
        taught = train(PIPELINE, executor, report=True)
        plain = train(PIPELINE.disable("equations"), executor)
    print(f"\ntest accuracy with ten labels: {plain} without the solver, {taught} with it")


if __name__ == "__main__":
    main()
