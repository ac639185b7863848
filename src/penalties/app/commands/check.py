"""`penalties check`."""

import json
import os
from typing import TYPE_CHECKING, Any

import click

from ...pipeline import Term
from ..console import styled
from ..problems import ConfigError, DataError, Problem
from .options import as_json, debug, quiet, values

if TYPE_CHECKING:
    from ..config import Config

__all__ = ["command"]


@click.command("check")
@click.argument("config", required=False)
@values
@as_json
@quiet
@debug
def command(config: str | None, overrides: tuple[str, ...], as_json: bool, quiet: bool) -> int:
    """List every problem of a config.

    CONFIG is a TOML file; without it, or with `demo`, the built-in config is checked. Files, functions, options and
    every line of the data are checked; nothing is trained.
    """
    source = config or "demo"
    loaded: Config | None = None
    notes: list[Problem] = []
    lines = 0
    try:
        from ..config import examine

        loaded, problems = examine(config, overrides)
    except ConfigError as error:
        problems, source = error.problems, error.source
    if loaded is not None and not any(one.where.startswith(("data", "train.loss")) for one in problems):
        lines, bad, skipped = _data(loaded)
        problems += bad
        notes += skipped
    if loaded is not None and not problems:
        notes += _notes(loaded)
    if as_json:
        said: dict[str, Any] = {
            "ok": not problems,
            "problems": [one._asdict() for one in problems],
            "notes": [one._asdict() for one in notes],
            "config": None if loaded is None or problems else loaded.to_dict(),
        }
        click.echo(json.dumps(said))
    else:
        for one in problems:
            styled((f"{source}: ", "dim"), (one.where, "bold red"), (f": {one.message}", ""), err=True)
        if not quiet:
            for one in notes:
                click.echo(f"note: {one}")
            click.echo(_summary(source, problems, loaded, lines), err=bool(problems))
    return 2 if problems else 0


def _summary(source: str, problems: list[Problem], config: "Config | None", lines: int) -> str:
    if problems or config is None:
        return f"{len(problems)} {'problem' if len(problems) == 1 else 'problems'}"
    train = config.train
    terms = ", ".join(str(term.name) for term in config.term) or "none"
    steps = f"{train.steps} {'step' if train.steps == 1 else 'steps'}, batch size {train.batch_size}"
    data = f"{lines} {'line' if lines == 1 else 'lines'} of data"
    return f"{source}: ok: {steps}, {data}, {train.loss}, terms: {terms}, backend: {config.backend.kind}"


class _Unknown:
    """Stands in for a tokenizer that is not loaded: it starts every text, and finds nothing too short."""

    bos_token_id = 0

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [0]


def _data(config: "Config") -> tuple[int, list[Problem], list[Problem]]:
    """Check every line of the data: how many can be used, the problems, and what is left out."""
    from ...training.local.model import TINY
    from ...training.local.tiny import CONTEXT, ByteTokenizer
    from ..data import Stream

    tokenizer: Any = ByteTokenizer()
    if config.model.name != TINY:
        # No tokenizer is downloaded to check lines: tokens are counted when training starts.
        config = config.model_copy(update={"data": config.data.model_copy(update={"max_length": None})})
        tokenizer = _Unknown()
    try:
        stream = Stream(config, tokenizer, CONTEXT if config.model.name == TINY else None)
    except DataError as error:
        return 0, [Problem(f"{error.source}: {one.where}", one.message) for one in error.problems], []
    return len(stream), [], stream.problems


def _notes(config: "Config") -> list[Problem]:
    """Things that are allowed, but probably not intended."""
    base = config.base
    terms = [*config.pipeline(), *([base] if isinstance(base, Term) else [])]
    read = {name.removeprefix("flat_") for term in terms for name in term.inputs.values()}
    notes = [
        Problem(f"references.{name}", "no term reads it, but it costs a pass through a model")
        for name in config.references
        if name not in read and config.train.loss != "dpo"
    ]
    if config.backend.kind == "tinker" and not os.environ.get("TINKER_API_KEY"):
        notes.append(Problem("backend.kind", "TINKER_API_KEY is not set in the environment; training needs it"))
    if config.data.eval_path == config.data.path:
        notes.append(Problem("data.eval_path", "is the same file as data.path: nothing is held out"))
    return notes
