"""Direct preference optimization: teach a model which of two answers is better.

The loss, "dpo", compares the model with itself before training. So does an added term, which keeps the model from
drifting further than the preferences need: without it the margin grows for as long as training lasts. The model is
small and random, in this process. Run it with `python examples/custom_dpo.py`; it needs `pip install
"penalties[train]"`.
"""

from typing import Any

import torch
from torch import Tensor

import penalties as pn
from penalties.training import (
    AdamParams,
    Datum,
    LocalTrainingClient,
    ModelInput,
    adapters,
    forward_backward_custom,
    losses,
    references,
)

STEPS = 40
NAMES = ["ada", "alan", "barbara", "claude", "donald", "edsger", "emmy", "grace", "john", "kurt", "noam", "robin"]
UNSEEN = ["dana", "dennis", "haskell", "ken", "leslie", "radia"]
LOSS = {"fn": "dpo", "options": {"beta": 0.2}}
# Half the mean square of the change in the log-probabilities: its gradient is that of KL(now ‖ before).
DRIFT = pn.Term(
    adapters.kl,
    weight=0.02,
    name="drift",
    inputs={"logprobs": "logprobs", "reference": "initial", "mask": "mask"},
    options={"estimator": "k2"},
)


def pairs(client: LocalTrainingClient, names: list[str]) -> list[Datum]:
    """Two answers to each question, the better one first; the question itself does not count."""
    encode, data = client.get_tokenizer().encode, []
    for name in names:
        for answer in (f"hello {name}", f"HELLO {name.upper()}"):
            question, tokens = encode(f"greet {name}: "), encode(f"greet {name}: {answer}\n")
            weights = [0.0] * (len(question) - 1) + [1.0] * (len(tokens) - len(question))
            given = {"target_tokens": tokens[1:], "weights": weights}
            data.append(Datum(ModelInput.from_ints(tokens[:-1]), given))
    return data


def judged(client: LocalTrainingClient, data: list[Datum]) -> str:
    """How the model does on answers that it has not seen."""

    def logprobs(output: Any) -> list[Tensor]:
        return [one["logprobs"].to_torch() for one in output.loss_fn_outputs]

    now, before = logprobs(client.forward(data).result()), logprobs(client.forward_initial(data).result())
    _, numbers = losses.dpo(data, now, before, **LOSS["options"])
    return f"{float(numbers['accuracy']):4.0%} of unseen pairs right, margin {float(numbers['margin']):6.2f}"


def main() -> None:
    torch.set_num_threads(1)  # the model is small
    with LocalTrainingClient("tiny", seed=0) as client:
        data, unseen = pairs(client, NAMES), pairs(client, UNSEEN)
        given = {"initial": references.initial()}
        before = judged(client, unseen)
        print(f"{'step':>4} {'loss':>8} {'accuracy':>9} {'margin':>8} {'better':>8} {'worse':>8} {'drift':>8}")
        for step in range(STEPS + 1):
            passed = forward_backward_custom(client, data, LOSS, regularizers=[DRIFT], references=given, step=step)
            client.optim_step(AdamParams(learning_rate=1e-3))
            if step % 8 == 0:
                numbers = passed.result().metrics
                print(
                    f"{step:4d} {numbers['base_loss']:8.4f} {numbers['accuracy']:9.0%} {numbers['margin']:8.2f} ",
                    end="",
                )
                print(f"{numbers['chosen_reward']:8.2f} {numbers['rejected_reward']:8.2f} {numbers['drift']:8.4f}")
        print(f"\nbefore: {before}")
        print(f"after:  {judged(client, unseen)}")


if __name__ == "__main__":
    main()
