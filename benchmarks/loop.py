"""A plain training loop of transformers and peft, and the model that it and the client train."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from penalties.training import AdamParams, Datum

__all__ = ["ADAM", "VOCABULARY", "Loop", "save_model"]

ADAM = AdamParams(learning_rate=1e-4)
VOCABULARY = 2048


class Loop:
    """What a user writes without a client: the model, the optimizer, and a batch that was padded beforehand."""

    def __init__(self, folder: Path, data: Sequence[Datum]) -> None:
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        config = LoraConfig(r=8, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
        torch.manual_seed(0)
        self.model: Any = get_peft_model(AutoModelForCausalLM.from_pretrained(folder), config).eval()
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(
            parameters, ADAM.learning_rate, (ADAM.beta1, ADAM.beta2), ADAM.eps, 0.0, fused=True
        )
        shape = (len(data), max(datum.model_input.length for datum in data))
        self.tokens, self.targets = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
        self.mask, self.weights = torch.zeros(shape, dtype=torch.long), torch.zeros(shape)
        for row, datum in enumerate(data):
            length = datum.model_input.length
            self.tokens[row, :length] = torch.tensor(datum.model_input.to_ints())
            self.targets[row, :length] = torch.as_tensor(datum.loss_fn_inputs["target_tokens"].to_numpy())
            self.weights[row, :length] = torch.as_tensor(datum.loss_fn_inputs["weights"].to_numpy())
            self.mask[row, :length] = 1

    def nll(self) -> Tensor:
        logits = self.model(input_ids=self.tokens, attention_mask=self.mask, use_cache=False).logits
        return cross_entropy(logits.flatten(0, 1), self.targets.flatten(), reduction="none").view(self.targets.shape)

    def step(self, loss: Tensor) -> float:
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        # Nobody trains without looking at it.
        return loss.item()


def save_model(folder: Path) -> None:
    """Save a random model whose step takes tens of milliseconds."""
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
