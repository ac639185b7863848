"""Make the directions of a LoRA adapter differ from one another, with a term over the adapter's weights.

An adapter of rank 8 has eight directions in each layer, but training may align them all. A term over `params`, which
only a client in this process has, makes them orthogonal: the outputs of `A` and the inputs of `B`. The model is small
and random. Run it with `python examples/custom_lora_orthogonality.py`; it needs `pip install "penalties[train]"`.
"""

import torch
from torch import Tensor

import penalties as pn
from penalties.training import AdamParams, Datum, LocalTrainingClient, ModelInput, forward_backward_custom

STEPS = 40
FACTS = {"red": "rouge", "blue": "bleu", "green": "vert", "black": "noir", "white": "blanc", "grey": "gris"}


def directions(params: dict[str, Tensor]) -> list[Tensor]:
    """The eight directions of each factor as rows: those of `A` are its rows, those of `B` its columns."""
    return [matrix if "lora_A" in name else matrix.T for name, matrix in params.items()]


def overlap(params: dict[str, Tensor]) -> Tensor:
    """The mean squared cosine between two directions of a factor, averaged over factors."""
    return torch.stack([pn.orthogonality(rows, reduction="mean") for rows in directions(params)]).mean()


def effective_rank(params: dict[str, Tensor]) -> float:
    """The effective rank of the layers' changes: `‖BA‖² / σ₁²`, averaged over layers."""
    ranks = []
    for name, a in params.items():
        if "lora_A" in name:
            values = torch.linalg.svdvals(params[name.replace("lora_A", "lora_B")] @ a)
            ranks.append((values**2).sum() / values[0] ** 2)
    return torch.stack(ranks).mean().item()


def sequences(client: LocalTrainingClient) -> list[Datum]:
    """Words and their translations; only the translations count."""
    encode, data = client.get_tokenizer().encode, []
    count = sum(len(answer) + 1 for answer in FACTS.values())
    for question, answer in FACTS.items():
        tokens = encode(f"{question} = {answer}.")
        learned = len(answer) + 1
        weights = [0.0] * (len(tokens) - 1 - learned) + [1 / count] * learned
        data.append(Datum(ModelInput.from_ints(tokens[:-1]), {"target_tokens": tokens[1:], "weights": weights}))
    return data


def train(weight: float, *, report: bool = False) -> str:
    term = pn.Term(overlap, weight=weight)
    with LocalTrainingClient("tiny", rank=8, seed=0) as client:
        data = sequences(client)
        for step in range(STEPS + 1):
            passed = forward_backward_custom(client, data, "cross_entropy", regularizers=[term], step=step)
            client.optim_step(AdamParams(learning_rate=5e-3))
            numbers = passed.result().metrics
            if report and step % 10 == 0:
                print(f"{step:4d} {numbers['base_loss']:8.4f} {numbers['overlap']:8.4f} {numbers['total']:8.4f}")
        rank = effective_rank({name: one.detach() for name, one in client.parameters().items()})
        return f"loss {numbers['base_loss']:.4f}, overlap {numbers['overlap']:.4f}, effective rank {rank:.2f} of 8"


def main() -> None:
    torch.set_num_threads(1)  # the model is small
    print(f"{'step':>4} {'loss':>8} {'overlap':>8} {'total':>8}")
    apart = train(3.0, report=True)
    # At weight 0 the term is measured, but trains nothing.
    print(f"\nwithout the term: {train(0.0)}")
    print(f"with the term:    {apart}")


if __name__ == "__main__":
    main()
