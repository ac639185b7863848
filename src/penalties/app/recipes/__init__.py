"""Recipes: configs with comments that run as they are, to be copied and changed."""

import contextlib
import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ...files import open_plain, read_plain
from ..runs.disk import RunError, reason, writing

__all__ = ["RECIPES", "write"]

_HERE: Final = Path(__file__).parent
_DATA: Final = _HERE.parent / "demo"
_PHRASES: Final = ("pig_latin.jsonl", "pig_latin_eval.jsonl")

RECIPES: Final[Mapping[str, tuple[str, ...]]] = {
    "sft": _PHRASES,
    "dpo": ("pig_latin_pairs.jsonl", "pig_latin_pairs_eval.jsonl"),
    "distill": _PHRASES,
}
"""The recipes, and the data that each reads."""


def write(recipe: str, folder: Path) -> list[Path]:
    """Write the config of a recipe and its data to a folder; returns their paths, the config's first.

    Nothing is overwritten: a file with other contents is an error, and then nothing is written. One with the same
    contents stays, so that recipes share their data.
    """
    sources = {folder / f"{recipe}.toml": _HERE / f"{recipe}.toml"}
    sources |= {folder / name: _DATA / name for name in RECIPES[recipe]}
    texts = {path: source.read_bytes() for path, source in sources.items()}
    missing = {path: text for path, text in texts.items() if not _holds(path, text)}
    written: list[Path] = []
    with writing(folder, "--to"):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            for path, text in missing.items():
                descriptor = open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                written.append(path)
                with open(descriptor, "wb") as file:
                    file.write(text)
        except BaseException:
            for path in written:
                with contextlib.suppress(OSError):
                    path.unlink()
            raise
    return list(texts)


def _holds(path: Path, text: bytes) -> bool:
    """Whether a file has this text; an error if there is anything else under its name."""
    try:
        if read_plain(path) == text:
            return True
        why = "it exists, with other contents"
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        why = reason(error) if error.errno == errno.EINVAL else f"it exists, and cannot be read ({reason(error)})"
    raise RunError(f"{path} cannot be written: {why}; choose another folder with --to", 2)
