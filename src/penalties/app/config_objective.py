"""Whether the objective of a config can be built: its base loss, its terms, and what they read."""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..errors import InputError, MissingLibraryError, OptionError, PenaltiesError, said
from ..pipeline import Term
from ..pipeline.catalogue import BUILT_IN, find
from ..pipeline.config import pipeline_of
from ..pipeline.output import BASE
from ..training.batch import Batch
from ..training.losses import BY_NAME
from ..training.objective import objective_of
from .config_messages import label_of
from .config_problems import Problem, joined, nearest, shown
from .config_reading import UNKNOWN

if TYPE_CHECKING:
    from .config import Config
    from .config_tables import TermTable

__all__ = ["INPUTS", "LOCAL_INPUTS", "LOSSES", "arguments", "base_term", "loss_problems", "term_problems"]

INPUTS: Final[Mapping[str, str]] = {
    "logprobs": "log-probabilities of the targets, one tensor per datum",
    "data": "the data of the step",
    "mask": "which places count, one tensor per datum: prompts do not",
    "lengths": "how many places each datum has",
    "flat_logprobs": "logprobs, one sequence after the other",
    "flat_mask": "mask, in the same way",
}
"""What terms may read, whatever the backend."""

LOCAL_INPUTS: Final[Mapping[str, str]] = {
    "params": "the parameters that are trained, by name",
    "logits": "one tensor per datum, over all tokens",
    "hidden.<layer>": "one tensor per datum: the hidden states before, between and after the layers, from 0",
}
"""What terms may read of a model in this process."""

LOSSES: Final = ("cross_entropy", "dpo")
"""The base losses that lines of prompt and completion, or of pairs, are enough for."""


def arguments(table: "TermTable") -> dict[str, Any]:
    """The arguments of a term, as `Pipeline.from_config` takes them."""
    entry = table.model_dump(exclude={"schedule"})
    return {key: value for key, value in entry.items() if key != "name" or value is not None}


def base_term(path: str, options: Mapping[str, Any]) -> Term:
    """A loss of one's own: a function that asks for its inputs by name, or takes (data, logprobs)."""
    function = _found(path)
    required = [
        one.name
        for one in inspect.signature(function).parameters.values()
        if one.default is one.empty
        and one.name not in options
        and one.kind in (one.POSITIONAL_OR_KEYWORD, one.POSITIONAL_ONLY)
    ]
    by_position = len(required) == 2 and not set(required) & {*INPUTS, *LOCAL_INPUTS}
    return Term(function, name=BASE, options=options, inputs=("data", "logprobs") if by_position else None)


def loss_problems(config: "Config", references: Iterable[str]) -> Iterator[Problem]:
    """What is wrong with the base loss."""
    train = config.train
    named = sorted(references)
    if train.loss in LOSSES:
        function = BY_NAME[train.loss]
        try:
            Term(function, options=train.loss_options)
            if train.loss_options:
                # Values are checked before data are looked at, of which there are none.
                function([], [], *([[]] if train.loss == "dpo" else []), **train.loss_options)
        except OptionError as error:
            yield Problem(f"train.loss_options.{error.option}", _of_option(error))
        except (InputError, MissingLibraryError):
            pass
        if train.loss == "dpo" and "reference" not in named and len(named) != 1:
            add = 'add [references] with initial = { kind = "initial" }'
            fix = 'call the one that it is to compare with "reference"' if named else add
            yield Problem(
                "train.loss", f'found "dpo", which compares with one reference, and there are {len(named)}; {fix}'
            )
        return
    expected = f'{joined(f"{chr(34)}{one}{chr(34)}" for one in LOSSES)}, or "package.module:function"'
    if ":" not in train.loss:
        reason = ", which needs more than lines of text" if train.loss in BY_NAME else ""
        hint = nearest(train.loss, LOSSES, quoted=True)
        yield Problem("train.loss", f"found {shown(train.loss)}{reason}; expected {expected}{hint}")
        return
    try:
        term = base_term(train.loss, train.loss_options)
    except OptionError as error:
        where = f"train.loss_options.{error.option}" if error.option in train.loss_options else "train.loss"
        yield Problem(where, _of_option(error))
        return
    yield from _reads("train.loss", term, config, named, base=True)


def term_problems(config: "Config", raw: Sequence[Any], references: Iterable[str]) -> Iterator[Problem]:
    """What is wrong with the terms, and with the names of references; `raw` has the terms as they were read."""
    named: list[str] = []
    for name in sorted(references):
        try:
            objective_of(None, [_ANY], {name: True}, None, rows=False, local=True)
            named.append(name)
        except OptionError as error:
            yield Problem(f"references.{name}", f"expected {error.expected}")
    names: dict[str, str] = {}
    for index, table in enumerate(config.term):
        where = f"term.{label_of(raw, index)}"
        if table.fn == UNKNOWN:
            continue
        try:
            term = _term(table)
        except OptionError as error:
            wrong = _each(where, table, error)
            yield from wrong.values()
            left = {key: value for key, value in table.options.items() if key not in wrong}
            if "fn" not in wrong and "inputs" not in wrong and left != table.options:
                term = _term(table.model_copy(update={"options": left}))
                yield from _reads(f"{where}.inputs", term, config, named, base=False)
            continue
        if term.name in names:
            first = names[term.name]
            message = f'found "{term.name}", as {first} is called; expected a name of its own: set name'
            yield Problem(f"{where}.name", message)
            continue
        names[term.name] = where
        yield from _reads(f"{where}.inputs", term, config, named, base=False)


_ANY: Final = Term("l1", inputs="logprobs")


def _term(table: "TermTable") -> Term:
    _found(table.fn)
    return pipeline_of([arguments(table)])[0][0]


def _found(path: str) -> Any:
    """What a path names; whatever a module raises where it is imported is an error about the path."""
    try:
        return find(path)
    except PenaltiesError:
        raise
    except Exception as error:
        expected = f'"package.module:function" that can be imported ({said(error)})'
        raise OptionError("Term", "fn", path, expected) from error


def _each(where: str, table: "TermTable", first: OptionError) -> dict[str, Problem]:
    """Every wrong option of a term, each tried alone, beside what was found first; by the argument or option."""
    errors = {first.option: first}
    if first.option != "fn":
        for option, value in table.options.items():
            try:
                Term(table.fn, name="any", options={option: value})
            except OptionError as error:
                errors.setdefault(error.option, error)
    found: dict[str, Problem] = {}
    for option, error in errors.items():
        message = _of_option(error)
        if option == "fn" and "did you mean" not in message and ":" not in table.fn:
            near = [name for name in BUILT_IN if table.fn.lower() in name or name in table.fn.lower()]
            message += f"; did you mean {joined(near)}?" if near else ""
        place = f"{where}.options.{option}" if option in table.options else f"{where}.{option}"
        found[option] = Problem(place, message)
    return found


def _reads(where: str, term: Term, config: "Config", references: Sequence[str], *, base: bool) -> Iterator[Problem]:
    """What a term asks for and cannot get."""
    local = config.backend.kind == "local"
    given = dict.fromkeys(references, True)
    try:
        objective = objective_of(term if base else None, [] if base else [term], given, None, rows=False, local=local)
        Batch([], [], (), [], None).check(objective)
    except (InputError, OptionError) as error:
        message = str(error).removeprefix(f"{term.name}: ")
        known = [*references, *INPUTS, *(LOCAL_INPUTS if local else ())]
        unknown = [name for name in term.inputs.values() if f'no input is named "{name}"' in message]
        if unknown:
            name = unknown[0]
            hint = nearest(name, known) or "; a reference is named under [references]"
            message = f'found "{name}"{hint} (there are {", ".join(known)})'
        yield Problem(where, message)


def _of_option(error: OptionError) -> str:
    return f"found {shown(error.value)}; expected {error.expected}"
