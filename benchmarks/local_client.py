"""A step of the local client, against the same model trained by a plain loop of transformers and peft."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from penalties.training.local import LocalTrainingClient
from penalties.training.types import AdamParams, Datum, ModelInput

from .harness import Row, compare, keep_memory

ADAM = AdamParams(learning_rate=1e-4)
VOCABULARY = 2048
# Sequences of many lengths, as data are.
LENGTHS = (64, 33, 48, 57, 21, 64, 40, 12)


def given() -> list[Datum]:
    rng = np.random.default_rng(0)
    data: list[Datum] = []
    for length in LENGTHS:
        tokens = rng.integers(0, VOCABULARY, length + 1)
        weights = (np.arange(length) >= length // 3).astype(np.float32)
        data.append(Datum(ModelInput.from_ints(tokens[:-1]), {"target_tokens": tokens[1:], "weights": weights}))
    return data


def save(folder: Path) -> None:
    """A model whose step takes tens of milliseconds."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=False,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)


class Loop:
    """What one writes without a client: the model, the optimizer, and a batch that was padded beforehand."""

    def __init__(self, folder: Path, data: Sequence[Datum]) -> None:
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        config = LoraConfig(r=8, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
        torch.manual_seed(0)
        self.model: Any = get_peft_model(AutoModelForCausalLM.from_pretrained(folder), config).eval()
        self.parameters = [one for one in self.model.parameters() if one.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, ADAM.learning_rate, (0.9, 0.95), 1e-12, 0.0, fused=True)
        shape = (len(data), max(one.model_input.length for one in data))
        self.tokens, self.targets = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
        self.mask, self.weights = torch.zeros(shape, dtype=torch.long), torch.zeros(shape)
        for row, one in enumerate(data):
            length = one.model_input.length
            self.tokens[row, :length] = torch.tensor(one.model_input.to_ints())
            self.targets[row, :length] = torch.as_tensor(one.loss_fn_inputs["target_tokens"].to_numpy())
            self.weights[row, :length] = torch.as_tensor(one.loss_fn_inputs["weights"].to_numpy())
            self.mask[row, :length] = 1

    def nll(self) -> Tensor:
        logits = self.model(input_ids=self.tokens, attention_mask=self.mask, use_cache=False).logits
        return cross_entropy(logits.flatten(0, 1), self.targets.flatten(), reduction="none").view(self.targets.shape)

    def end(self, loss: Tensor) -> float:
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        # Nobody trains without looking at it.
        return loss.item()


def surprise(logprobs: Tensor) -> Tensor:
    """A loss of one's own: not linear in the log-probabilities."""
    return (logprobs.exp() - 0.5).square().sum() - 0.1 * logprobs.sum()


def run(scale: float) -> list[Row]:
    keep_memory()
    data = given()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save(folder)
        # One each for every comparison, so that the sides are as far in their training when they are compared.
        return [
            _row("cross_entropy", folder, data, _step, _plain_step, scale),
            _row("a loss of one's own", folder, data, _custom, _plain_custom, scale),
        ]


def _row(
    case: str,
    folder: Path,
    data: list[Datum],
    ours: Callable[[LocalTrainingClient, list[Datum]], float],
    plain: Callable[[Loop], float],
    scale: float,
) -> Row:
    with LocalTrainingClient(folder, device="cpu") as client:
        loop = Loop(folder, data)
        # The same numbers, or it is no comparison.
        for _ in range(3):
            np.testing.assert_allclose(ours(client, data), plain(loop), rtol=1e-4)
        return compare(
            case, lambda: plain(loop), lambda: ours(client, data), seconds=20.0 * scale, unit="ms", most_ratio=1.05
        )


def _step(client: LocalTrainingClient, data: list[Datum]) -> float:
    passed = client.forward_backward(data, "cross_entropy")
    client.optim_step(ADAM).result()
    return passed.result().metrics["loss:sum"]


def _plain_step(loop: Loop) -> float:
    return loop.end((loop.nll() * loop.weights).sum())


def _custom(client: LocalTrainingClient, data: list[Datum]) -> float:
    graph = client.forward_with_graph(data).result()
    leaves = [one.detach().requires_grad_() for one in graph.logprobs]
    loss = surprise(torch.cat(leaves))
    graph.submit({"logprobs": torch.autograd.grad(loss, leaves)})
    client.optim_step(ADAM).result()
    return loss.item()


def _plain_custom(loop: Loop) -> float:
    return loop.end(surprise(-loop.nll()[loop.mask.bool()]))
