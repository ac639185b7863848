"""Teach a language model to add, and keep it unchanged on everything else.

The loss is cross-entropy on the sums. Two terms are added: the divergence from the model before training, estimated on
texts that it sampled itself, and an entropy bonus. The model is small and random, in this process. Run it with `python
examples/custom_supervised.py`; it needs `pip install "penalties[train]"`.
"""

from typing import Any

import numpy as np
import torch

import penalties as pn
from penalties.training import (
    AdamParams,
    Datum,
    LocalTrainingClient,
    ModelInput,
    SamplingParams,
    adapters,
    forward_backward_custom,
    references,
)

STEPS = 60
KEPT = 16
"""How many of its own texts the model sees at each step."""
ADAM = AdamParams(learning_rate=6e-3)
SUMS = [(f"{a}+{b}=", f"{a + b};") for a in range(8) for b in range(a, 8)]

TERMS = [
    # KL(before ‖ now) from texts that the model sampled before: unbiased, and 0 if nothing has changed. The mask is a
    # reference, because the data's own weights select the sums.
    pn.Term(
        "kl_estimate",
        weight=1.0,
        name="drift",
        inputs={"logprobs": "before", "reference": "logprobs", "mask": "drawn"},
    ),
    # Entropy over the whole vocabulary, at the positions of the answers. Only a client in this process has logits.
    pn.Term(
        adapters.entropy,
        weight=0.3,
        name="entropy",
        inputs={"logprobs": "logits", "mask": "mask"},
        options={"mode": "bonus"},
    ),
]


def datum(tokens: list[int], answer: int, weight: float = 1.0) -> Datum:
    """A sequence whose last `answer` tokens are to be learned."""
    weights = [0.0] * (len(tokens) - 1 - answer) + [weight] * answer
    return Datum(ModelInput.from_ints(tokens[:-1]), {"target_tokens": tokens[1:], "weights": weights})


def sums(client: LocalTrainingClient) -> list[Datum]:
    """The sums; their weights add up to 1, so that the loss is a mean like the terms."""
    encode = client.get_tokenizer().encode
    count = sum(len(answer) for _, answer in SUMS)
    return [datum(encode(question + answer), len(answer), 1 / count) for question, answer in SUMS]


def texts(client: LocalTrainingClient, count: int, seed: int) -> list[Datum]:
    """Texts that the model samples; they are not to be learned."""
    start = client.get_tokenizer().encode("\n")
    params = SamplingParams(max_tokens=16, seed=seed)
    drawn = client.sample(ModelInput.from_ints(start), num_samples=count, sampling_params=params).result()
    return [datum(start + sequence.tokens, 0) for sequence in drawn.sequences]


def logprobs(output: Any) -> np.ndarray[Any, Any]:
    return np.concatenate([one["logprobs"].to_numpy() for one in output.loss_fn_outputs])


def right(client: LocalTrainingClient) -> float:
    """The fraction of sums that the model gets right with its likeliest tokens."""
    tokenizer, found = client.get_tokenizer(), 0
    for question, answer in SUMS:
        prompt, params = ModelInput.from_ints(tokenizer.encode(question)), SamplingParams(len(answer), temperature=0.0)
        said = client.sample(prompt, sampling_params=params).result().sequences[0].tokens
        found += tokenizer.decode(said) == answer
    return found / len(SUMS)


def train(terms: list[pn.Term], *, report: bool = False) -> str:
    """Train, and report on the sums and on unseen texts."""
    with LocalTrainingClient("tiny", seed=0) as client:
        learned, said = sums(client), texts(client, KEPT * (STEPS + 1), seed=1)
        others = texts(client, 200, seed=2)
        before = references.initial()
        for step in range(STEPS + 1):
            data = [*learned, *said[KEPT * step : KEPT * (step + 1)]]
            drawn = [np.full(one.model_input.length, float(place >= len(learned))) for place, one in enumerate(data)]
            given = {"before": before, "drawn": drawn}
            passed = forward_backward_custom(
                client, data, "cross_entropy", regularizers=terms, references=given, step=step
            )
            client.optim_step(ADAM)
            numbers = passed.result().metrics
            if report and step % 20 == 0:
                columns = ("mean_nll", "drift", "entropy/entropy", "total")
                print(f"{step:4d} " + " ".join(f"{numbers[name]:9.4f}" for name in columns))
        first, now = logprobs(client.forward_initial(others).result()), logprobs(client.forward(others).result())
        drift = float(pn.kl_estimate(first, now))
        entropy = numbers["entropy/entropy"]
        return (
            f"{right(client):4.0%} of sums right, entropy {entropy:.2f}, {drift:.2f} nats a token from the model before"
        )


def main() -> None:
    torch.set_num_threads(1)  # the model is small
    print(f"{'step':>4} {'sums':>9} {'drift':>9} {'entropy':>9} {'total':>9}")
    held = train(TERMS, report=True)
    # At weight 0 a term is measured, but trains nothing.
    free = train([term.with_weight(0.0) for term in TERMS])
    print(f"\nwithout terms: {free}")
    print(f"with terms:    {held}")


if __name__ == "__main__":
    main()
