"""Data of one shape, since the server compiles each: four texts of at most 32 tokens, each of another length."""

from typing import Any

import numpy as np

TEXTS = (
    ("One and one ", "make two."),
    ("One and two ", "make three, I think."),
    ("Two and two ", "make four; so they say."),
    ("No ", "and no."),
)


def batch() -> list[Any]:
    """Answers that count and questions that do not."""
    from tinker import types

    data: list[Any] = []
    for question, answer in TEXTS:
        tokens = list(f"{question}{answer}".encode())
        weights = np.repeat(np.float32([0, 1]), [len(question) - 1, len(answer)])
        inputs = {
            "target_tokens": types.TensorData.from_numpy(np.asarray(tokens[1:])),
            "weights": types.TensorData.from_numpy(weights),
        }
        data.append(types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs))
    return data
