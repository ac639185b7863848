"""Loading models and tokenizers of transformers: without progress bars, and without code that comes with a model."""

import contextlib
from collections.abc import Generator

from ...errors import PenaltiesError, said
from ...training.libraries import library, without_remarks
from ..runs.disk import RunError

__all__ = ["loading", "needs_code", "own_code", "quietly"]


def needs_code(error: Exception) -> bool:
    """Whether transformers would have to run code from a model's folder or repository."""
    return isinstance(error, ValueError) and "trust_remote_code" in str(error)


def own_code(model: str) -> str:
    """What is wrong with a model that needs code."""
    return (
        f'"{model}" comes with its own code, which is never run; choose a model that transformers can load without it'
    )


@contextlib.contextmanager
def loading(model: str) -> Generator[None]:
    """Turn the error about a model or tokenizer that cannot be loaded into a `RunError`."""
    try:
        yield
    except (OSError, ValueError) as error:
        if needs_code(error):
            raise RunError(own_code(model), 2) from error
        if isinstance(error, PenaltiesError):
            raise
        raise RunError(f'"{model}" cannot be loaded: {said(error).splitlines()[0]}', 2) from error


@contextlib.contextmanager
def quietly() -> Generator[None]:
    """Keep progress bars of transformers and of the hub, and remarks of other libraries, out of what is printed."""
    bars = library("LocalTrainingClient", "transformers", "train").logging
    were_on = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        with without_remarks():
            yield
    finally:
        if were_on:
            bars.enable_progress_bar()
