"""`penalties check`."""

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ...encoding import dumps
from ...pipeline import Term
from ...pipeline.output import BASE
from ...training.packing import LOGITS
from ..console import say, styled
from ..problems import ConfigError, DataError, Problem, counted, joined, shown
from ..train.progress import terms_shown
from .options import as_json, debug, quiet, values

if TYPE_CHECKING:
    from ..config import Config
    from ..data import Lengths

__all__ = ["command"]


@click.command("check")
@click.argument("config", required=False)
@values
@as_json
@quiet
@click.option("--code/--no-code", "code", default=True, help="Import the modules that it names (default), or do not.")
@click.option(
    "--model/--no-model", "model", default=True, help="Run each term on one batch of the model (default), or do not."
)
@debug
def command(config: str | None, overrides: tuple[str, ...], as_json: bool, quiet: bool, code: bool, model: bool) -> int:
    """List every problem with a config.

    CONFIG is a TOML file; without it, or with `demo`, the built-in config is checked. Files, functions, options and
    every line of the data are checked; nothing is trained. The modules of your own functions are imported, which runs
    them, if nothing else is wrong; --no-code leaves them alone. Then the base loss and each term run once, on the first
    batch, if the model is here: nothing is downloaded. --no-model leaves that out.
    """
    from ..config import examine

    source = config or "demo"
    loaded: Config | None = None
    notes: list[Problem] = []
    data = _Data(0)
    loss: dict[str, Any] | None = None
    try:
        loaded, problems = examine(config, overrides, code=False)
    except ConfigError as error:
        problems, source = error.problems, error.source
    except DataError as error:
        # Epochs count the lines of the data.
        data = _bad(error)
        problems = list(data.problems)
    if loaded is not None and not any(one.where.startswith(("data", "train.loss")) for one in problems):
        data = _data(loaded)
        problems += data.problems
        notes += data.notes
    if loaded is not None and not problems and code:
        # Modules are imported last.
        loaded, problems = examine(config, overrides)
        notes += [] if problems else _notes(loaded)
        if not problems and model:
            loss, problems, more = _tried(loaded)
            notes += more
    elif loaded is not None:
        notes += _not_imported(loaded)
    found = len(problems) + data.more
    if as_json:
        said: dict[str, Any] = {
            "ok": not problems,
            "problems": [one._asdict() for one in problems],
            "notes": [one._asdict() for one in notes],
            "lengths": None if data.lengths is None else data.lengths._asdict(),
            "loss": loss,
            "config": None if loaded is None or problems else loaded.to_dict(),
        }
        say(dumps(said))
    else:
        for one in problems:
            styled((f"{source}: ", "dim"), (one.where, "bold red"), (f": {one.message}", ""), err=True)
        if data.more:
            say(f"{source}: and {data.more} more lines are bad", err=True)
        if not quiet:
            for one in notes:
                say(f"note: {one}")
            if loaded is not None and not problems and data.lengths is not None:
                say(_of_lengths(data.lengths, loaded.data.max_length))
            if loss is not None:
                say(f"the first batch: {terms_shown(loss)}")
            say(_summary(source, found, loaded, data.lines), err=bool(problems))
    return 2 if problems else 0


def _of_lengths(lengths: "Lengths", room: int | None) -> str:
    said = f"tokens: median {lengths.median}, 95 % have at most {lengths.most}, longest {lengths.longest}"
    if lengths.cut:
        said += (
            f"; data.max_length = {room} cuts {lengths.cut} of {lengths.measured}, and {lengths.lost:.1%} of all tokens"
        )
    return said


def _summary(source: str, problems: int, config: "Config | None", lines: int) -> str:
    if problems or config is None:
        return counted(problems, "problem")
    train = config.train
    terms = ", ".join(term.name or term.fn for term in config.term) or "none"
    steps = f"{counted(train.steps, 'step')}, batch size {train.batch_size}"
    data = f"{counted(lines, 'line')} of data"
    return f"{source}: ok: {steps}, {data}, {train.loss}, terms: {terms}, backend: {config.backend.kind}"


class _Data(NamedTuple):
    """What was found in the data."""

    lines: int
    """How many can be used."""
    problems: Sequence[Problem] = ()
    more: int = 0
    """Bad lines that are not listed."""
    notes: Sequence[Problem] = ()
    lengths: "Lengths | None" = None


class _Unknown:
    """Stands in for a tokenizer that is not loaded: it starts every text, and finds nothing too short."""

    bos_token_id = 0
    chat_template = "unknown"
    stands_in = True

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [0]

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        return "".join(f"{message['role']}: {message['content']}\n" for message in messages)


def _data(config: "Config") -> _Data:
    """Check every line of the data, and count its tokens if that needs no download."""
    from ..data import Stream

    model = config.model.name
    try:
        tokenizer, limit = _tokenizer(model)
    except ValueError:
        if config.backend.kind == "local":
            from ..train.loading import own_code

            return _Data(0, [Problem("model.name", own_code(model))])
        # The server loads the model, and its SDK the tokenizer.
        tokenizer, limit = _Unknown(), None
    known = not isinstance(tokenizer, _Unknown)
    if not known:
        # No tokenizer is downloaded to check lines: tokens are counted when training starts.
        config = config.model_copy(update={"data": config.data.model_copy(update={"max_length": None})})
    try:
        stream = Stream(config, tokenizer, limit)
    except DataError as error:
        return _bad(error)
    notes = stream.problems
    if stream.bad > len(notes):
        notes.append(Problem("data", f"and {stream.bad - len(notes)} more lines were left out"))
    return _Data(len(stream), notes=notes, lengths=stream.lengths() if known else None)


def _bad(error: DataError) -> _Data:
    return _Data(0, [Problem(f"{error.source}: {one.where}", one.message) for one in error.problems], error.more)


def _tokenizer(model: str) -> tuple[Any, int | None]:
    """The tokenizer of a model, and how many tokens the model reads, as far as they are here.

    A ValueError if transformers would run code of the model's for that.
    """
    from ...training.local.model import TINY
    from ...training.local.tiny import CONTEXT, ByteTokenizer

    if model == TINY:
        return ByteTokenizer(), CONTEXT
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError:
        return _Unknown(), None
    # The config too: a model may need code where its tokenizer does not.
    _, tokenizer = (_pretrained(one, model) for one in (transformers.AutoConfig, transformers.AutoTokenizer))
    return _Unknown() if tokenizer is None else tokenizer, None


def _pretrained(loader: Any, model: str) -> Any:
    """What transformers loads for a model; None if that is not here, or cannot be read."""
    from ..train.loading import needs_code

    try:
        return loader.from_pretrained(model, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        if needs_code(error):
            raise
        return None


def _tried(config: "Config") -> tuple[dict[str, Any] | None, list[Problem], list[Problem]]:
    """The terms on one batch: the loss, problems, and notes."""
    if config.backend.kind != "local":
        return None, [], [Problem("backend.kind", "the model is on a server, so no term was run")]
    from ..train.trial import is_here, tried

    named = {"model.name": config.model.name}
    named |= {
        f"references.{name}.model": getattr(one, "model", config.model.name) for name, one in config.references.items()
    }
    for where, name in named.items():
        try:
            here = is_here(name)
        except ValueError:
            message = f"{shown(name)} is neither a folder nor a name that a model can have on the hub"
            return None, [Problem(where, message)], []
        if not here:
            return None, [], [Problem(where, f"{shown(name)} is not downloaded yet, so no term was run")]
    return tried(config)


def _not_imported(config: "Config") -> list[Problem]:
    """The functions that were not looked up, because of --no-code or of other problems."""
    from ..config.code import named

    return [Problem(where, f'"{path}" was not imported, nor its options checked') for where, path in named(config)]


def _notes(config: "Config") -> list[Problem]:
    """Things that are allowed, but probably not intended."""
    from ..config.objective import needs_reference
    from ..train.clients import needs_copy

    base = config.base
    terms = [*config.pipeline(), *([base] if isinstance(base, Term) else [])]
    read = {name.removeprefix("flat_").removesuffix(LOGITS) for term in terms for name in term.inputs.values()}
    notes = [
        Problem(f"references.{name}", "no term reads it, but it costs a pass through a model")
        for name in config.references
        if name not in read and not needs_reference(config.train.loss)
    ]
    if needs_copy(config):
        copied = [name for name, one in config.references.items() if one.kind == "initial"]
        why = 'model.adapter = "none" keeps a copy of the weights for it, which takes as much memory again'
        notes.append(Problem(f"references.{copied[0]}", why))
    if config.model.adapter == "none" and config.model.dtype in ("bfloat16", "float16"):
        why = "the weights are trained in it too, so small updates are rounded away; without it they are float32"
        notes.append(Problem("model.dtype", why))
    if config.backend.kind == "tinker" and not os.environ.get("TINKER_API_KEY"):
        notes.append(Problem("backend.kind", "TINKER_API_KEY is not set in the environment; training needs it"))
    if config.executor.ray_address is not None and all(term.runs != "ray" for term in config.term):
        notes.append(Problem("executor.ray_address", 'no term has runs = "ray"'))
    if config.train.micro_batch_tokens is not None and config.backend.kind == "local":
        notes += _second_forward(config)
    if config.data.eval_path in config.data.paths:
        notes.append(Problem("data.eval_path", "is the same file as data.path: nothing is held out"))
    scheduled = [one.name or one.fn for one in config.term if one.enabled and one.schedule is not None]
    if config.train.best_by == "loss" and scheduled:
        changing = f"the weight of {joined(scheduled, 'and')} changes"
        why = f'{changing}, so evaluations of "loss" cannot be compared; choose "base_loss" or a term'
        notes.append(Problem("train.best_by", why))
    return notes


def _second_forward(config: "Config") -> list[Problem]:
    """Terms that need the whole batch, for which all parts of it go through the model twice."""
    from ..config.objective import NONE, separation

    said = "needs the whole batch, so with train.micro_batch_tokens each part goes through the model twice: "
    notes: list[Problem] = []
    for name, one in separation(config).whole.items():
        where, fix = f"term.{name}", one.fix
        if name == BASE:
            where, fix = "train.loss", f'a [[term]] with separable, and train.loss = "{NONE}", can avoid that'
        notes.append(Problem(where, f"{said}{one.why}; {fix}"))
    over_logits = {name for term in config.pipeline() for name in term.inputs.values() if name.endswith("logits")}
    if notes and over_logits and config.train.gradients_every:
        why = (
            "in two passes, a step that measures the gradient of each term has the logits of the whole batch in "
            "memory, over all tokens of the vocabulary; 0 leaves those steps out"
        )
        notes.append(Problem("train.gradients_every", why))
    return notes
