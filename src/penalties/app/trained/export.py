"""The model of a run in a separate folder, as transformers, peft and vLLM load it.

model/
├── adapter_config.json, adapter_model.safetensors     the adapter; or
├── config.json, model.safetensors                     the whole model, with any adapter merged into its weights
├── generation_config.json
└── tokenizer.json, tokenizer_config.json              and whatever else the tokenizer has
"""

import contextlib
import importlib
from collections.abc import Generator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, cast

from ...files import check_plain, new_folder, read_plain
from ...training.local.model import TINY, end_tokens
from ..data import learned_ends
from ..runs.disk import RunError, reason, writing
from ..train.loading import loading, quietly
from .finding import Trained

__all__ = ["export"]

_ADAPTER: Final = ("adapter_config.json", "adapter_model.safetensors")
_UNTIES: Final = (0, 21)
"""The first release of peft that keeps a layer apart, when it merges, that the model ties to another."""


def export(trained: Trained, to: str | Path, *, merged: bool = False) -> None:
    """Write the adapter, or with `merged` the whole model, to a folder that is new or empty.

    Where there is no adapter, it is always the whole model. The folder appears when everything in it is on the disk.
    """
    target = Path(to)
    _check(trained, merged=merged)
    with _made(target) as part, quietly():
        if merged or trained.whole:
            _write_model(trained, part)
        else:
            _write_adapter(trained, part)


def _check(trained: Trained, *, merged: bool) -> None:
    folder, checkpoint = trained.run.folder, trained.checkpoint
    if trained.remote:
        raise RunError(
            f"{folder}: its weights are on a server, as {checkpoint.client}; download them with the server's own "
            f"program, such as `tinker checkpoint download {checkpoint.client}`",
            2,
        )
    if trained.config.model.name == TINY and not merged and not trained.whole:
        raise RunError(
            f'{folder} trained the built-in model, "{TINY}", which other programs do not have; export the whole model '
            "with --merged",
            2,
        )


@contextlib.contextmanager
def _made(target: Path) -> Generator[Path]:
    """A folder to write to, which takes the place of the target at the end, or disappears if the block fails."""
    with writing(target, "--to"):
        try:
            check_plain(target, folder=True)
        except OSError as error:
            raise RunError(f"{target} cannot be written: {reason(error)}; choose another with --to", 2) from error
        if target.is_dir() and any(target.iterdir()):
            raise RunError(f"{target} is not empty; choose a new folder with --to", 2)
        with new_folder(target) as part:
            yield part
            mode = part.stat().st_mode & 0o666
            for path in part.iterdir():
                # Some versions of safetensors write files that only their owner can read.
                path.chmod(mode)


def _write_adapter(trained: Trained, part: Path) -> None:
    """The files of the checkpoint, which are peft's; the weights of the model itself are not even loaded."""
    transformers: Any = importlib.import_module("transformers")
    for name in _ADAPTER:
        (part / name).write_bytes(read_plain(Path(trained.checkpoint.client, name)))
    base = trained.config.model.name
    with loading(base):
        try:
            generation = transformers.GenerationConfig.from_pretrained(base)
        except OSError:
            # Not every model has its own file for it.
            config = transformers.AutoConfig.from_pretrained(base, trust_remote_code=False)
            generation = transformers.GenerationConfig.from_model_config(config)
        tokenizer = _tokenizer(trained)
    _end_as_learned(generation, tokenizer, trained)
    generation.save_pretrained(str(part))
    tokenizer.save_pretrained(str(part))


def _tokenizer(trained: Trained) -> Any:
    transformers: Any = importlib.import_module("transformers")
    return transformers.AutoTokenizer.from_pretrained(trained.config.model.name, trust_remote_code=False)


def _write_model(trained: Trained, part: Path) -> None:
    if trained.config.model.quantize is not None:
        _write(_merged(trained, _unquantized(trained)), _tokenizer(trained), trained, part)
        return
    with trained.opened() as backend:
        model = backend.client.model
        _write(model if trained.whole else _merged(trained, model), backend.tokenizer, trained, part)


def _unquantized(trained: Trained) -> Any:
    """The adapter on weights as they are in the files: merged into rounded ones, it would be rounded too."""
    peft, transformers = (cast("Any", importlib.import_module(name)) for name in ("peft", "transformers"))
    name, dtype = trained.config.model.name, trained.config.model.dtype or "auto"
    base = transformers.AutoModelForCausalLM.from_pretrained(name, dtype=dtype, trust_remote_code=False)
    return peft.PeftModel.from_pretrained(base, trained.checkpoint.client)


def _merged(trained: Trained, model: Any) -> Any:
    tied = model.get_base_model().config.get_text_config().tie_word_embeddings
    major, minor, *_ = version("peft").split(".")
    if tied and trained.config.model.modules_to_save and (int(major), int(minor)) < _UNTIES:
        raise RunError(
            f"{trained.run.folder}: this release of peft would lose a layer of model.modules_to_save, since the model "
            'ties its embeddings; run: pip install "peft>=0.21"'
        )
    try:
        return model.merge_and_unload(safe_merge=True)
    except ValueError as error:
        raise RunError(f"{trained.run.folder}: the adapter cannot be merged: {error}") from error


def _write(model: Any, tokenizer: Any, trained: Trained, part: Path) -> None:
    _end_as_learned(model.generation_config, tokenizer, trained)
    # With its generation config.
    model.save_pretrained(str(part))
    tokenizer.save_pretrained(str(part))


def _end_as_learned(generation: Any, tokenizer: Any, trained: Trained) -> None:
    """Have generation also end with the tokens that the model learned to end with."""
    own = end_tokens(generation.eos_token_id)
    ends = list(dict.fromkeys([*own, *learned_ends(tokenizer, chat=trained.chat)]))
    if ends != own:
        generation.eos_token_id = ends
