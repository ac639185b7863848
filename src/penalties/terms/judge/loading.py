"""Loading a judge: a classifier and its tokenizer, once in each process."""

import threading
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

from ...errors import OptionError
from ...training.libraries import library

__all__ = ["OWNER", "load_model", "load_tokenizer"]

OWNER: Final = "Judge"

_lock: Final = threading.Lock()
_models: Final = WeakValueDictionary[tuple[str, str, str], Any]()


def load_model(model: str | Path, device: str | None, dtype: str | None) -> Any:
    """A classifier by name or folder, on its device. Judges of the same one share it; code of its own is never run."""
    torch = library("a judge", "torch", extra="judge")
    library("a judge", "transformers", extra="judge")
    from transformers import AutoModelForSequenceClassification

    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    key = str(model), str(where), str(dtype)
    # One thread loads it, and the others wait for it.
    with _lock:
        found = _models.get(key)
        if found is None:
            own: Any = AutoModelForSequenceClassification
            try:
                found, info = own.from_pretrained(
                    str(model), dtype=dtype or "auto", trust_remote_code=False, output_loading_info=True
                )
            except (OSError, ValueError) as error:
                expected = f"a folder with a sequence classifier, or the name of one on the Hugging Face hub ({error})"
                raise OptionError(OWNER, "model", str(model), expected) from error
            if info["missing_keys"]:
                missing = ", ".join(sorted(info["missing_keys"])[:3])
                expected = f"a classifier that was trained: its files lack {missing}, which would be random"
                raise OptionError(OWNER, "model", str(model), expected)
            found = found.requires_grad_(False).eval().to(where)
            _models[key] = found
    return found


def load_tokenizer(model: str | Path) -> Any:
    """The tokenizer in the folder of a model."""
    library("a judge", "transformers", extra="judge")
    from transformers import AutoTokenizer

    own: Any = AutoTokenizer
    try:
        found = own.from_pretrained(str(model), trust_remote_code=False)
    except (OSError, ValueError) as error:
        expected = f"a tokenizer, since there is none with the model ({error})"
        raise OptionError(OWNER, "tokenizer", None, expected) from error
    # Where there are no files of one, transformers makes one of the model's kind that knows no word.
    if len(found) <= len(found.all_special_ids):
        raise OptionError(OWNER, "tokenizer", None, "a tokenizer, since there is none with the model")
    return found
