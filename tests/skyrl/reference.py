"""The same model and adapter in torch: what the server's numbers are held against."""

import json
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import peft
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

# The exported configuration leaves them out.
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# The server multiplies these by one lora_A, and writes it once for each.
SHARED = (("self_attn", ("q_proj", "k_proj", "v_proj")), ("mlp", ("gate_proj", "up_proj")))

Loss = Callable[[Sequence[Any], Sequence[torch.Tensor]], tuple[torch.Tensor, dict[str, float]]]


class Reference:
    """A model with an adapter that the server exported."""

    def __init__(self, folder: Path, adapter: Path) -> None:
        options, tensors = exported(adapter)
        config = peft.LoraConfig(r=options["r"], lora_alpha=options["lora_alpha"], target_modules=list(MODULES))
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.model = peft.get_peft_model(model, config)
        missed = peft.set_peft_model_state_dict(self.model, tensors)
        assert not missed.unexpected_keys, missed.unexpected_keys
        for layer in self.model.base_model.model.model.layers:
            for block, names in SHARED:
                first, *others = (getattr(getattr(layer, block), name).lora_A["default"] for name in names)
                for other in others:
                    assert torch.equal(first.weight, other.weight)
                    other.weight = first.weight

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """What is trained, by the server's names, a shared matrix once."""
        return {name.replace(".default", ""): p for name, p in self.model.named_parameters() if p.requires_grad}

    def logprobs(self, data: Sequence[Any]) -> list[torch.Tensor]:
        """One tensor per datum, each computed alone: nothing is padded."""
        found: list[torch.Tensor] = []
        for datum in data:
            logits = self.model(torch.tensor([datum.model_input.to_ints()])).logits[0]
            targets = torch.tensor(datum.loss_fn_inputs["target_tokens"].data)
            found.append(logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0])
        return found

    def gradients(self, loss: Loss, data: Sequence[Any]) -> dict[str, torch.Tensor]:
        """The gradient of a loss at everything that is trained, by autograd through the whole model."""
        parameters = self.parameters()
        gradients = torch.autograd.grad(loss(data, self.logprobs(data))[0], list(parameters.values()))
        return dict(zip(parameters, gradients, strict=True))


def exported(adapter: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """An adapter as the server writes it: its configuration and its weights."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(adapter) as archive:
            archive.extractall(folder, filter="data")
        return json.loads(Path(folder, "adapter_config.json").read_text()), load_file(
            Path(folder, "adapter_model.safetensors")
        )


def norm(gradients: dict[str, torch.Tensor]) -> float:
    return float(torch.cat([g.flatten().double() for g in gradients.values()]).norm())


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """How far two gradients are apart, as a part of the second."""
    assert one.keys() == other.keys()
    return norm({name: one[name] - other[name] for name in one}) / norm(other)
