"""Transformers models with a LoRA adapter of peft, ready for training in this process."""

import hashlib
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from ...arrays import Logits
from ...errors import OptionError
from ..libraries import library
from .tiny import ByteTokenizer, tiny_model

__all__ = ["TINY", "LocalModel", "end_tokens", "load"]

TINY: Final = "tiny"

_OWNER: Final = "LocalTrainingClient"
# Weights are drawn from torch's global generator, which is seeded and restored around it.
_drawing: Final = threading.Lock()


@dataclass(frozen=True)
class LocalModel:
    """A model with an adapter, and facts about it."""

    name: str
    model: Any
    """The peft model."""
    rank: int
    alpha: int
    device: Any

    @cached_property
    def base(self) -> Any:
        """The transformers model inside, with the adapter's layers."""
        return self.model.get_base_model()

    @cached_property
    def head(self) -> Any:
        """The output layer, from hidden states to logits."""
        return self.base.get_output_embeddings()

    def logits(self, hidden: Any) -> Logits:
        """What the output layer makes of hidden states, where `lazy` says that it can be computed later."""
        cap = getattr(self.base.config.get_text_config(), "final_logit_softcapping", None)
        return Logits(hidden, self.head.weight, self.head.bias, cap)

    @cached_property
    def lazy(self) -> bool:
        """Whether the output layer is linear and frozen, and the model only caps its logits; found by trying it."""
        import torch

        if type(self.head) is not torch.nn.Linear or any(one.requires_grad for one in self.head.parameters()):
            return False
        here, read = threading.get_ident(), list[Any]()

        def replace(module: Any, args: tuple[Any, ...]) -> Any:
            if threading.get_ident() != here:
                return None
            # The states of a padding token may be 0, and small logits hide a cap: large ones show all that is done.
            draws = torch.randn(args[0].shape, generator=torch.Generator().manual_seed(0)).to(args[0])
            read.append(draws * (100 / Logits(draws, self.head.weight).materialize().abs().max()))
            return (read[-1], *args[1:])

        handle = self.head.register_forward_pre_hook(replace)
        try:
            with torch.no_grad():
                tokens = torch.zeros((1, 2), dtype=torch.long, device=self.device)
                found = self.base(input_ids=tokens, use_cache=False).logits.float()
                mine = self.logits(read[-1]).materialize().float()
        finally:
            handle.remove()
        # Half precision rounds a factor that is applied to the logits afterwards.
        tolerance = 1e-4 if read[-1].element_size() >= 4 else 1e-2
        return bool((found - mine).abs().max() <= tolerance * found.abs().max())

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """The trainable parameters by name."""
        return {name: one for name, one in self.model.named_parameters() if one.requires_grad}

    @cached_property
    def vocabulary(self) -> int:
        """The number of tokens that the model reads."""
        return int(self.base.get_input_embeddings().weight.shape[0])

    @cached_property
    def outputs(self) -> int:
        """The number of tokens that the model predicts."""
        return int(self.head.weight.shape[0])

    @cached_property
    def context(self) -> float:
        """The longest sequence of tokens; infinite if the model does not say."""
        return getattr(self.base.config.get_text_config(), "max_position_embeddings", None) or math.inf

    @cached_property
    def layers(self) -> int:
        """The number of layers; hidden states are numbered from 0, the embedding, to this."""
        return int(self.base.config.get_text_config().num_hidden_layers)

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer, loaded when first used."""
        if self.name == TINY:
            return ByteTokenizer()
        from transformers import AutoTokenizer

        loader: Any = AutoTokenizer
        return loader.from_pretrained(self.name)

    @cached_property
    def ends(self) -> frozenset[int]:
        """The tokens that end a text."""
        given = getattr(self.base.generation_config, "eos_token_id", None)
        given = self.base.config.get_text_config().eos_token_id if given is None else given
        return frozenset(end_tokens(given))

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the frozen weights: a few of each, as bfloat16, so that it is the same in every dtype."""
        import torch

        digest = hashlib.sha256()
        for name, one in self.model.named_parameters():
            if not one.requires_grad:
                # Weights that are spread over processes come together here: all of them must ask.
                whole = one.full_tensor() if hasattr(one, "full_tensor") else one
                some = whole.detach().flatten()[:16].to("cpu", torch.bfloat16).view(torch.int16)
                # Without what the adapter inserts into the names of its layers.
                digest.update(f"{name.replace('.base_layer', '')} {tuple(one.shape)} {some.tolist()}\n".encode())
        return digest.hexdigest()


def end_tokens(given: int | Sequence[int] | None) -> list[int]:
    """An `eos_token_id` of transformers as a list."""
    return [] if given is None else [given] if isinstance(given, int) else list(given)


def load(
    name: str | Path,
    *,
    rank: int,
    alpha: int,
    target_modules: str | Sequence[str],
    seed: int,
    device: Any,
    dtype: Any,
    prepare: Callable[[Any, Any], None] = lambda model, device: None,
) -> LocalModel:
    """A model by name or folder, or the built-in one, with an adapter that starts as the identity.

    `prepare` gets it, and its device, before it goes there.
    """
    torch, _, _ = (library(_OWNER, package, "train") for package in ("torch", "transformers", "peft"))
    from peft import LoraConfig, get_peft_model
    from transformers.pytorch_utils import Conv1D

    where, precision = _device(device), _dtype(dtype)
    make: Any = get_peft_model
    with _drawing, torch.random.fork_rng(devices=[]):
        # The CPU generator alone: `torch.manual_seed` would seed those of GPUs too.
        torch.default_generator.manual_seed(seed)
        base = tiny_model(precision) if str(name) == TINY else _pretrained(str(name), precision)
        if base.get_output_embeddings() is None:
            raise OptionError(_OWNER, "model", str(name), "a causal language model, with an output layer")
        config = LoraConfig(
            r=rank,
            lora_alpha=alpha,
            lora_dropout=0.0,
            target_modules=target_modules if isinstance(target_modules, str) else list(target_modules),
            # GPT-2 and similar models store weights transposed, in a layer class of their own.
            fan_in_fan_out=any(isinstance(one, Conv1D) for one in base.modules()),
            bias="none",
            task_type="CAUSAL_LM",
        )
        try:
            # Adapters are float32 whatever the model is: optimizer steps are too small for less.
            model = make(base, config)
        except ValueError as error:
            expected = f"names of linear layers of the model ({error})"
            raise OptionError(_OWNER, "target_modules", target_modules, expected) from error
    prepare(model, where)
    # No dropout in model or adapter: a pass is repeatable.
    model.to(where).eval()
    return LocalModel(str(name), model, rank, alpha, where)


def _pretrained(name: str, precision: Any) -> Any:
    from transformers import AutoModelForCausalLM

    loader: Any = AutoModelForCausalLM
    try:
        # On the CPU first, where the adapter is drawn, so that every device gets the same numbers.
        return loader.from_pretrained(name, dtype="auto" if precision is None else precision)
    except (OSError, ValueError) as error:
        expected = (
            f'"tiny", a folder with a causal language model, or the name of one on the Hugging Face hub ({error})'
        )
        raise OptionError(_OWNER, "model", name, expected) from error


def _device(given: Any) -> Any:
    import torch

    if given is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(given)
        # PyTorch accepts the names of devices that are absent.
        torch.empty(0, device=device)
    except (RuntimeError, TypeError, AssertionError) as error:
        expected = f'an available torch device, such as "cpu" or "cuda:0" ({str(error).splitlines()[0]})'
        raise OptionError(_OWNER, "device", given, expected) from error
    return device


def _dtype(given: Any) -> Any:
    import torch

    found = getattr(torch, given, None) if isinstance(given, str) else given
    if given is not None and not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise OptionError(_OWNER, "dtype", given, '"float32", "bfloat16" or another floating torch dtype')
    return found
