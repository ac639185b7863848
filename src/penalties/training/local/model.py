"""A transformers model in this process, with an adapter or without, and what passes through it have in common."""

import contextlib
import hashlib
import importlib
import math
import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from ...arrays import Logits
from ...errors import OptionError
from ..libraries import without_remarks
from .options import ModelOptions
from .tiny import ByteTokenizer

__all__ = ["TINY", "LocalModel", "end_tokens"]

TINY: Final = "tiny"


@dataclass(frozen=True)
class LocalModel:
    """A model, what of it is trained, and facts about it."""

    name: str
    model: Any
    """The peft model, or without an adapter the transformers model itself; in eval mode between passes."""
    options: ModelOptions
    device: Any
    copy: "LocalModel | None" = None
    """The model before training, where it is kept."""
    _lock: Any = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        """Begin in eval mode."""
        self._set_mode(False)

    @cached_property
    def base(self) -> Any:
        """The transformers model, with the adapter's layers if it has one."""
        return self.model.get_base_model() if self.options.lora else self.model

    # Passes.

    @contextlib.contextmanager
    def passing(self, *, training: bool = False, generator: Any = None) -> Generator[None]:
        """One pass through the model: in train mode, where dropout is on, or in eval mode.

        The mode is that of the whole model, so passes of several threads take turns. Dropout draws from torch's own
        generators, which are seeded from `generator` for this pass, and restored.
        """
        talks = self.options.quantize == "8bit"
        with (
            self._lock,
            without_remarks() if talks else contextlib.nullcontext(),
            self._mode(training and self._trains_differently),
        ):
            drawn = generator is not None and training and self.random
            with self._seeded(generator) if drawn else contextlib.nullcontext():
                yield

    @contextlib.contextmanager
    def untrained(self) -> "Generator[LocalModel]":
        """One pass through the model as it was before training."""
        with self.passing():
            if self.copy is not None:
                yield self.copy
            else:
                self.check_initial("forward_initial")
                with self.model.disable_adapter():
                    yield self

    def check_initial(self, function: str) -> None:
        """Raise if the model before training is gone."""
        if not self.options.lora and self.copy is None:
            expected = (
                f'True: {function} needs the model before training, of which adapter="none" keeps a copy only then; '
                "it takes as much memory as the weights"
            )
            raise OptionError("LocalTrainingClient", "keep_initial", False, expected)

    @contextlib.contextmanager
    def eager(self) -> Generator[None]:
        """Nothing is compiled: for passes of shapes that come once, or grow with each token."""
        import torch

        with torch.compiler.set_stance("force_eager") if self.options.compile else contextlib.nullcontext():
            yield

    @cached_property
    def _trains_differently(self) -> bool:
        """Whether train mode computes anything else: to switch 200 modules on and off takes 2 ms."""
        return self.random or self.options.checkpointing or bool(self.trained_norms)

    @contextlib.contextmanager
    def _mode(self, training: bool) -> Generator[None]:
        before = self.model.training
        if before != training:
            self._set_mode(training)
        try:
            yield
        finally:
            if before != training:
                self._set_mode(before)

    def _set_mode(self, training: bool) -> None:
        torch, transformers = (importlib.import_module(name) for name in ("torch", "transformers"))
        # Models of transformers also load other kernels, if they are to use some.
        usual = (torch.nn.Module.train, transformers.PreTrainedModel.train)
        modules: list[Any] = list(self.model.modules())
        for module in modules:
            if module.__class__.train in usual and not getattr(module, "use_kernels", False):
                # As `train` does, but for a search among the parameters: a third of the time, of 2400 modules.
                object.__setattr__(module, "training", training)
            else:
                module.train(training)
        for module in self._frozen_norms:
            # Their statistics are part of the frozen model.
            module.eval()

    @contextlib.contextmanager
    def _seeded(self, generator: Any) -> Generator[None]:
        import torch

        seed = int(torch.randint(2**62, (), generator=generator))
        with self._forked() as gpus:
            torch.default_generator.manual_seed(seed)
            for gpu in gpus:
                with torch.cuda.device(gpu):
                    torch.cuda.manual_seed(seed)
            yield

    @contextlib.contextmanager
    def _forked(self) -> Generator[list[Any]]:
        """Restore torch's generators afterwards; yields the GPUs that have one."""
        random: Any = importlib.import_module("torch").random
        gpus = [self.device] if self.device.type == "cuda" else []
        with random.fork_rng(devices=gpus):
            yield gpus

    @cached_property
    def random(self) -> bool:
        """Whether a training pass draws random numbers, as dropout does; found by trying it."""
        import torch

        def states(gpus: Sequence[Any]) -> list[Any]:
            others = [] if gpus or self.device.type == "cpu" else [torch.get_device_module(self.device)]
            found = [torch.cuda.get_rng_state(gpu) for gpu in gpus] + [one.get_rng_state() for one in others]
            return [torch.get_rng_state(), *found]

        with self._mode(True), self._forked() as gpus, torch.no_grad(), self.eager():
            for _, module in self.norms:
                # Statistics are kept out of it.
                module.eval()
            before = states(gpus)
            self.base(input_ids=torch.zeros((1, 2), dtype=torch.long, device=self.device), use_cache=False)
            for name, module in self.norms:
                module.train(name in self.trained_norms)
            return any(not torch.equal(one, other) for one, other in zip(before, states(gpus), strict=True))

    @cached_property
    def norms(self) -> list[tuple[str, Any]]:
        """The layers of batch normalisation, by name."""
        from torch import nn

        kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
        return [(name, module) for name, module in self.model.named_modules() if isinstance(module, kinds)]

    @cached_property
    def _frozen_norms(self) -> list[Any]:
        if not self.options.lora:
            return []
        return [module for _, module in self.norms if not any(one.requires_grad for one in module.parameters())]

    @cached_property
    def trained_norms(self) -> list[str]:
        """The names of those that are trained, whose statistics are then those of a batch."""
        return [name for name, module in self.norms if all(module is not one for one in self._frozen_norms)]

    # Facts.

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
        """Whether the output layer is linear, and the model only caps its logits; found by trying it."""
        import torch

        if type(self.head) is not torch.nn.Linear:
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
            with self._mode(False), torch.no_grad(), self.eager():
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
    def saved(self) -> dict[str, Any]:
        """What checkpoints have: the trainable parameters, and what else of trained modules changes in training."""
        norms = {
            f"{name}.{key}": one
            for name, module in self.norms
            if name in self.trained_norms
            for key, one in module.named_buffers(recurse=False)
        }
        return {**self.parameters, **norms}

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
        return loader.from_pretrained(self.name, trust_remote_code=False)

    @cached_property
    def ends(self) -> frozenset[int]:
        """The tokens that end a text."""
        given = getattr(self.base.generation_config, "eos_token_id", None)
        given = self.base.config.get_text_config().eos_token_id if given is None else given
        return frozenset(end_tokens(given))

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the weights before training: a few of each, as bfloat16, so that it is the same in every dtype.

        Those of an adapter are left out, and those that were rounded to integers, as a device does it.
        """
        import torch

        digest = hashlib.sha256()
        for name, one in self.model.named_parameters():
            if one.is_floating_point() and not (self.options.lora and one.requires_grad):
                # Weights that are spread over processes come together here: all of them must ask.
                whole = one.full_tensor() if hasattr(one, "full_tensor") else one
                some = whole.detach().flatten()[:16].to("cpu", torch.bfloat16).view(torch.int16)
                # Without what the adapter inserts into the names of its layers.
                digest.update(f"{name.replace('.base_layer', '')} {tuple(one.shape)} {some.tolist()}\n".encode())
        return digest.hexdigest()


def end_tokens(given: int | Sequence[int] | None) -> list[int]:
    """An `eos_token_id` of transformers as a list."""
    return [] if given is None else [given] if isinstance(given, int) else list(given)
