"""Loading a model: its weights, their precision, and the adapter that is trained or none."""

import copy
import importlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from ...errors import OptionError, did_you_mean
from ..libraries import library, without_remarks
from .model import TINY, LocalModel
from .options import OWNER, ModelOptions
from .tiny import tiny_model

__all__ = ["load"]

# Weights are drawn from torch's global generator, which is seeded and restored around it.
_drawing: Final = threading.Lock()

# The older, reentrant kind needs inputs that require gradients.
_CHECKPOINTING: Final = {"use_reentrant": False}


def load(
    name: str | Path, options: ModelOptions, prepare: Callable[[Any, Any], None] = lambda model, device: None
) -> LocalModel:
    """A model by name or folder, or the built-in one; a new adapter is the identity.

    `prepare` gets it, and its device, before it goes there.
    """
    with without_remarks():
        torch, _, _ = (library(OWNER, package, "train") for package in ("torch", "transformers", "peft"))
    where, precision = _device(options.device), _dtype(options.dtype)
    if precision is None and not options.lora:
        # Optimizer steps are too small for less, whatever the files have.
        precision = torch.float32
    with _drawing, torch.random.fork_rng(devices=[]), without_remarks():
        # The CPU generator alone: `torch.manual_seed` would seed those of GPUs too.
        torch.default_generator.manual_seed(options.seed)
        base = _base(str(name), precision, where, options)
        if base.get_output_embeddings() is None:
            raise OptionError(OWNER, "model", str(name), "a causal language model, with an output layer")
        _set_attention(base, options.attention)
        model = _adapted(base, options) if options.lora else base.requires_grad_(True)
    prepare(model, where)
    model.to(where)
    if options.checkpointing:
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs=_CHECKPOINTING)
        # What only the reentrant kind needs, and makes embeddings require gradients even in an evaluation.
        base.disable_input_require_grads()
    before = LocalModel(str(name), _frozen(model), options, where) if options.keep_initial else None
    if options.compile:
        # Without the output layer, whose input differs from pass to pass.
        base.base_model.compile(backend=_compiler(options.compile))
    loaded = LocalModel(str(name), model, options, where, before)
    # Before anything else passes through it, and before weights are trained that the fingerprint is of.
    with without_remarks():
        _ = loaded.random, None if options.lora else loaded.fingerprint
    return loaded


def _base(name: str, precision: Any, where: Any, options: ModelOptions) -> Any:
    if name == TINY and options.quantize is not None:
        expected = "None: the built-in model has no files, from which weights are quantized; save it to a folder"
        raise OptionError(OWNER, "quantize", options.quantize, expected)
    if name == TINY:
        return tiny_model(precision)
    from transformers import AutoModelForCausalLM

    loader: Any = AutoModelForCausalLM
    more = {} if options.quantize is None else _quantized(name, options.quantize, precision, where)
    try:
        # On the CPU first, where the adapter is drawn, so that every device gets the same numbers.
        return loader.from_pretrained(
            name, dtype="auto" if precision is None else precision, trust_remote_code=False, **more
        )
    except (OSError, ValueError) as error:
        expected = (
            f'"tiny", a folder with a causal language model, or the name of one on the Hugging Face hub ({error})'
        )
        raise OptionError(OWNER, "model", name, expected) from error


def _quantized(name: str, quantize: str, precision: Any, where: Any) -> dict[str, Any]:
    """How transformers quantizes a model while it loads it, on the device where it stays."""
    for package in ("bitsandbytes", "accelerate"):
        library(f'quantize="{quantize}"', package, "quantize")
    import torch
    from transformers import AutoConfig, BitsAndBytesConfig

    if quantize == "8bit":
        config: Any = BitsAndBytesConfig(load_in_8bit=True)
    else:
        # As in QLoRA: Dettmers et al., 2023, https://arxiv.org/abs/2305.14314.
        own: Any = AutoConfig
        computed = (
            precision or getattr(own.from_pretrained(name, trust_remote_code=False), "dtype", None) or torch.float32
        )
        config = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=computed,
        )
    return {"quantization_config": config, "device_map": {"": where}}


def _set_attention(base: Any, attention: str | None) -> None:
    if attention is not None:
        try:
            base.set_attn_implementation(attention)
        except (ImportError, ValueError) as error:
            expected = f'one that this model and machine have, such as "sdpa" or "eager" ({_first(error)})'
            raise OptionError(OWNER, "attention", attention, expected) from error


def _adapted(base: Any, options: ModelOptions) -> Any:
    """The model with a LoRA adapter."""
    peft: Any = importlib.import_module("peft")
    from transformers.pytorch_utils import Conv1D

    if options.quantize is not None:
        base = peft.prepare_model_for_kbit_training(base, use_gradient_checkpointing=False)
        _keep_unpacked(base)
    _check_modules(base, options.modules_to_save)
    targets = options.target_modules
    config = peft.LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,
        lora_dropout=options.lora_dropout,
        use_rslora=options.rslora,
        target_modules=targets if isinstance(targets, str) else list(targets),
        modules_to_save=list(options.modules_to_save) or None,
        # GPT-2 and similar models store weights transposed, in their own layer class.
        fan_in_fan_out=any(isinstance(one, Conv1D) for one in base.modules()),
        bias="none",
        task_type="CAUSAL_LM",
    )
    try:
        # Adapters are float32 whatever the model is: optimizer steps are too small for less.
        return peft.get_peft_model(base, config)
    except ValueError as error:
        expected = f"names of linear layers of the model ({error})"
        raise OptionError(OWNER, "target_modules", targets, expected) from error


def _keep_unpacked(base: Any) -> None:
    """Have no pass pack weights of 4 bits.

    On a CPU that has AVX-512 for bfloat16, bitsandbytes does so at the first pass in eval mode, for good, and no
    gradient passes through packed weights.
    """
    kind = importlib.import_module("bitsandbytes").nn.Linear4bit
    for module in base.modules():
        if isinstance(module, kind):
            module.support_avx512bf16_for_cpu = False


def _check_modules(base: Any, wanted: Sequence[str]) -> None:
    known = [name for name, _ in base.named_modules() if name]
    for given in wanted:
        if not any(name == given or name.endswith(f".{given}") for name in known):
            last = sorted({name.rpartition(".")[2] for name in known})
            expected = f"names of modules of the model{did_you_mean(given, last)}"
            raise OptionError(OWNER, "modules_to_save", given, expected)


def _compiler(given: bool | str) -> str:
    compiler: Any = importlib.import_module("torch.compiler")
    name, known = "inductor" if given is True else str(given), compiler.list_backends(exclude_tags=())
    if name not in known:
        words = ", ".join(f'"{one}"' for one in known)
        raise OptionError(OWNER, "compile", given, f"True, False or a backend of torch.compile: {words}")
    return name


def _frozen(model: Any) -> Any:
    return copy.deepcopy(model).requires_grad_(False)


def _first(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


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
        raise OptionError(OWNER, "device", given, expected) from error
    return device


def _dtype(given: Any) -> Any:
    import torch

    found = getattr(torch, given, None) if isinstance(given, str) else given
    if given is not None and not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise OptionError(OWNER, "dtype", given, '"float32", "bfloat16" or another floating torch dtype')
    return found
