"""The options of a local model: what of it is trained, and how it computes; checked before anything is loaded."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, cast

from ...errors import OptionError
from ...functional.options import check_count, check_flag, check_number, is_whole

__all__ = ["OWNER", "ModelOptions"]

OWNER: Final = "LocalTrainingClient"

_LORA: Final = ("rank", "alpha", "target_modules", "lora_dropout", "rslora", "modules_to_save", "quantize")
"""What only an adapter has; quantized weights cannot be trained themselves."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The options of a local model, as `LocalTrainingClient` takes them."""

    adapter: str = "lora"
    rank: int = 8
    alpha: int = 32
    target_modules: str | Sequence[str] = "all-linear"
    lora_dropout: float = 0.0
    rslora: bool = False
    modules_to_save: Sequence[str] = ()
    keep_initial: bool = False
    quantize: str | None = None
    attention: str | None = None
    compile: bool | str = False
    checkpointing: bool = False
    seed: int = 0
    device: Any = None
    dtype: Any = None

    def __post_init__(self) -> None:
        """Check everything that can be checked without the model."""
        if self.adapter not in ("lora", "none"):
            raise OptionError(OWNER, "adapter", self.adapter, '"lora" or "none"')
        check_count(OWNER, "rank", self.rank, 1)
        check_count(OWNER, "alpha", self.alpha, 1)
        below = "a number from 0 to below 1"
        if check_number(OWNER, "lora_dropout", self.lora_dropout, below, 0.0, 1.0) == 1.0:
            raise OptionError(OWNER, "lora_dropout", self.lora_dropout, below)
        for name in ("rslora", "keep_initial", "checkpointing"):
            check_flag(OWNER, name, getattr(self, name))
        saved: Any = self.modules_to_save
        if isinstance(saved, str) or not all(isinstance(one, str) and one for one in cast("Sequence[Any]", saved)):
            raise OptionError(OWNER, "modules_to_save", saved, "a list of names of modules")
        if self.quantize not in (None, "4bit", "8bit"):
            raise OptionError(OWNER, "quantize", self.quantize, 'None, "4bit" or "8bit"')
        if self.attention is not None and (not isinstance(cast("Any", self.attention), str) or not self.attention):
            expected = 'None, "sdpa", "eager", "flash_attention_2" or another name that transformers has'
            raise OptionError(OWNER, "attention", self.attention, expected)
        if not isinstance(cast("Any", self.compile), bool | str) or self.compile == "":
            raise OptionError(OWNER, "compile", self.compile, "True, False or the name of a backend of torch.compile")
        if not is_whole(self.seed) or not -(2**63) <= self.seed < 2**63:
            raise OptionError(OWNER, "seed", self.seed, "a 64-bit integer")
        self._check_together()

    def _check_together(self) -> None:
        if self.lora and self.keep_initial:
            expected = "False: with an adapter, the model before training is the one without it, and needs no copy"
            raise OptionError(OWNER, "keep_initial", True, expected)
        defaults = {one.name: one.default for one in fields(self)}
        for name in () if self.lora else _LORA:
            given = getattr(self, name)
            if given != defaults[name] and given != []:
                raise OptionError(OWNER, name, given, 'nothing: adapter="none" trains the model itself')

    @property
    def lora(self) -> bool:
        """Whether an adapter is trained, rather than the model itself."""
        return self.adapter == "lora"
