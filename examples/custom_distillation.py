"""Distil a teacher into a student through the teacher's five likeliest tokens at each position.

The targets have shape (N, K): the student returns the log-probabilities of those K tokens, and so does the teacher,
another client that runs while the student's forward does. The loss is the divergence between the two over the K. Our
own term raises the student's total probability of the K, which that loss ignores. Both models are small, random and
different, in this process. Run it with `python examples/custom_distillation.py`; it needs `pip install
"penalties[train]"`.
"""

import numpy as np
import torch
from torch import Tensor

import penalties as pn
from penalties.training import (
    AdamParams,
    Datum,
    LocalTrainingClient,
    ModelInput,
    SamplingParams,
    forward_backward_custom,
    references,
)

CANDIDATES = 5
ADAM = AdamParams(learning_rate=6e-3)
QUESTIONS = [f"{number} is " for number in range(1, 21)]
ANSWERS = [f"{ten}{one}." for ten in ("", "x") for one in ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x")]


def lessons(client: LocalTrainingClient) -> list[Datum]:
    """Questions and answers; only the answers count."""
    encode, data = client.get_tokenizer().encode, []
    for question, answer in zip(QUESTIONS, ANSWERS, strict=True):
        tokens = encode(question + answer)
        weights = [0.0] * (len(question) - 1) + [1.0] * len(answer)
        data.append(Datum(ModelInput.from_ints(tokens[:-1]), {"target_tokens": tokens[1:], "weights": weights}))
    return data


def taught() -> LocalTrainingClient:
    """A teacher that knows Roman numerals."""
    teacher = LocalTrainingClient("tiny", seed=0)
    data = lessons(teacher)
    for _ in range(60):
        teacher.forward_backward(data, "cross_entropy")
        teacher.optim_step(ADAM)
    return teacher


def candidates(teacher: LocalTrainingClient, data: list[Datum]) -> list[Datum]:
    """The same sequences with the teacher's likeliest tokens as targets: (N,) becomes (N, K)."""
    size = len(teacher.get_tokenizer())
    every = [np.tile(np.arange(size), (one.model_input.length, 1)) for one in data]
    asked = [Datum(one.model_input, {"target_tokens": all_of}) for one, all_of in zip(data, every, strict=True)]
    found: list[Datum] = []
    for one, output in zip(data, teacher.forward(asked).result().loss_fn_outputs, strict=True):
        likeliest = np.argsort(-output["logprobs"].to_numpy(), -1)[:, :CANDIDATES]
        # A position that does not count has weight 0 for all its candidates.
        weights = np.repeat(one.loss_fn_inputs["weights"].to_numpy()[:, None], CANDIDATES, 1)
        found.append(Datum(one.model_input, {"target_tokens": likeliest.copy(), "weights": weights}))
    return found


def elsewhere(flat_logprobs: Tensor, flat_mask: Tensor) -> Tensor:
    """`-log` of the student's total probability of the candidates, averaged over positions."""
    return -flat_logprobs[flat_mask].logsumexp(-1).mean()


ELSEWHERE = pn.Term(elsewhere, weight=0.2)


def right(client: LocalTrainingClient) -> float:
    """The fraction of questions answered correctly with the likeliest tokens."""
    tokenizer, found = client.get_tokenizer(), 0
    for question, answer in zip(QUESTIONS, ANSWERS, strict=True):
        prompt, params = ModelInput.from_ints(tokenizer.encode(question)), SamplingParams(len(answer), temperature=0.0)
        found += tokenizer.decode(client.sample(prompt, sampling_params=params).result().sequences[0].tokens) == answer
    return found / len(QUESTIONS)


def main() -> None:
    torch.set_num_threads(1)  # the models are small
    with taught() as teacher, LocalTrainingClient("tiny", seed=1) as student:
        before = right(student)
        data = candidates(teacher, lessons(teacher))
        # The teacher does not change, so each datum is requested once.
        given = {"teacher": references.client(teacher, cache=True)}
        print(f"{'step':>4} {'reverse KL':>10} {'worst':>8} {'total':>8} {'student':>9} {'teacher':>9}")
        for step in range(81):
            passed = forward_backward_custom(
                student, data, "reverse_kl", regularizers=[ELSEWHERE], references=given, step=step
            )
            student.optim_step(ADAM)
            if step % 20 == 0:
                numbers = passed.result().metrics
                columns = f"{numbers['reverse_kl']:10.4f} {numbers['reverse_kl_max']:8.4f} {numbers['total']:8.4f}"
                print(f"{step:4d} {columns} {numbers['student_mass']:9.1%} {numbers['teacher_mass']:9.1%}")
        print(f"\nof the answers are right: teacher {right(teacher):.0%}, student {before:.0%} before", end="")
        print(f" and {right(student):.0%} after")


if __name__ == "__main__":
    main()
