"""Whether the objective of a config can be built: its base loss, its terms, and what they read."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ...errors import BackendError, InputError, MissingLibraryError, OptionError, PenaltiesError, did_you_mean, said
from ...functional.penalty import facts_of
from ...pipeline import Term, schedules
from ...pipeline.catalogue import BUILT_IN, find
from ...pipeline.config import pipeline_of
from ...pipeline.output import BASE
from ...training import adapters
from ...training.losses import BY_NAME
from ...training.objective import objective_of
from ...training.packing import LOGITS, likeliest_of
from ...training.separable import Separation
from ..problems import Problem, joined, nearest, shown, toml_value
from .messages import label_of
from .options import inputs_of, wrong_value
from .reading import UNKNOWN

if TYPE_CHECKING:
    from .config import Config
    from .tables import TermTable

__all__ = ["BY_RULE", "INPUTS", "LOCAL_BY_RULE", "LOCAL_INPUTS", "LOSSES", "NONE"]
__all__ += [
    "arguments",
    "base_term",
    "estimates",
    "functions_of",
    "is_path",
    "loss_problems",
    "needs_reference",
    "path_problem",
    "separation",
    "term_problems",
]

INPUTS: Final[Mapping[str, str]] = {
    "logprobs": "log-probabilities of the targets, one tensor per datum",
    "data": "the data of the step",
    "mask": "which positions count, one tensor per datum: those of prompts do not",
    "lengths": "how many positions each datum has",
    "flat_logprobs": "logprobs, one sequence after the other",
    "flat_mask": "mask, in the same way",
}
"""The inputs that terms may read on every backend."""

LOCAL_INPUTS: Final[Mapping[str, str]] = {
    "params": "the parameters that are trained, by name",
    "logits": "one tensor per datum, over all tokens",
    "hidden.<layer>": "one tensor per datum: the hidden states before, between and after the layers, from 0",
}
"""The inputs that terms may read from a model in this process."""

BY_RULE: Final[Mapping[str, str]] = {
    "<reference>": "a reference by its name under [references], one tensor per datum",
    "flat_<reference>": "the same, one sequence after the other",
    "logprobs.<reference>": "the model's log-probabilities of the tokens of a reference with top_k",
    "flat_logprobs.<reference>": "the same, one sequence after the other",
    "step": "the number of finished steps, for your own function that has a parameter of this name",
}
"""The other inputs of every backend: those whose names depend on the config, and what a function gets by its name."""

LOCAL_BY_RULE: Final[Mapping[str, str]] = {
    "<reference>.logits": "logits of a reference of kind initial or client, over all tokens",
    "flat_<reference>.logits": "the same, one sequence after the other",
    "flat_logits": "logits, one sequence after the other",
    "flat_hidden.<layer>": "hidden states, one sequence after the other",
}
"""The same of a model in this process."""

_ESTIMATING: Final = {f"{adapters.__name__}:{name}": name for name in ("kl", "entropy")}
"""The terms over a batch that estimate a sum over all tokens where each position has one."""

NONE: Final = "none"
"""No base loss: the terms alone."""

LOSSES: Final = (*BY_NAME, NONE)
"""The base losses by name."""

_WITH_LOGITS: Final = ("initial", "client")
"""The kinds of references that have logits."""

_CANDIDATES: Final = "reverse_kl"
"""The loss whose lines have candidates for each token."""


def arguments(table: "TermTable", steps: int) -> dict[str, Any]:
    """The arguments of a term in a run of that many steps, as `Pipeline.from_config` takes them."""
    entry = table.model_dump(exclude={"schedule"})
    if table.schedule is not None:
        entry["weight"] = schedules.from_config(table.schedule.model_dump(), table.weight, steps=steps)
    return {key: value for key, value in entry.items() if key != "name" or value is not None}


def base_term(path: str, options: Mapping[str, Any]) -> Term:
    """Your own loss: a function that reads its inputs by name, or takes (data, logprobs)."""
    # Made without inputs first, which checks the function and its options.
    term = Term(_found(path), name=BASE, options=options)
    by_position = len(term.inputs) == 2 and not set(term.inputs) & {*INPUTS, *LOCAL_INPUTS}
    return term.replace(inputs=("data", "logprobs")) if by_position else term


def loss_problems(config: "Config", references: Iterable[str], *, code: bool) -> Iterator[Problem]:
    """Problems with the base loss; a function of the user's is imported if `code` says so."""
    train, named = config.train, sorted(references)
    if is_path(train.loss):
        if not code:
            return
        try:
            term = base_term(train.loss, train.loss_options)
        except OptionError as error:
            where = f"train.loss_options.{error.option}" if error.option in train.loss_options else "train.loss"
            yield Problem(where, _of_option(error))
            return
        if not term.inputs:
            message = f"found {shown(train.loss)}, which has no inputs; expected a function of (data, logprobs)"
            yield Problem("train.loss", message)
        yield from _reads("train.loss", term, config, named, base=True)
        return
    if train.loss not in LOSSES:
        names = ", ".join(f'"{one}"' for one in LOSSES)
        hint = nearest(train.loss, LOSSES, quoted=True)
        message = f'found {shown(train.loss)}; expected {names} or "package.module:function"{hint}'
        yield Problem("train.loss", message)
        return
    if train.loss == NONE:
        yield from _no_loss(config)
        return
    yield from _loss_options(train.loss, train.loss_options)
    named = [name for name in named if name not in _top_k(config)]
    if needs_reference(train.loss) and "reference" not in named and len(named) != 1:
        add = 'add [references] with initial = { kind = "initial" }'
        fix = 'name the one to compare with "reference"' if named else add
        yield Problem(
            "train.loss",
            f'found "{train.loss}", which compares with one reference, but there are {len(named)}; {fix}',
        )
    if train.loss == _CANDIDATES and config.backend.server == "averages":
        found = f'found "{train.loss}", which has several targets per position'
        yield Problem("train.loss", f"{found}; a server that averages takes one: train on another backend")


def _no_loss(config: "Config") -> Iterator[Problem]:
    if not any(table.enabled for table in config.term):
        yield Problem("train.loss", f'found "{NONE}", but there is no [[term]] to train on; add one, or name a loss')
    for option, value in config.train.loss_options.items():
        yield Problem(f"train.loss_options.{option}", f"found {shown(value)}; expected no options without a loss")


def needs_reference(loss: str) -> bool:
    """Whether a loss by name compares with a reference."""
    return loss in BY_NAME and "reference" in inputs_of(BY_NAME[loss])


def _loss_options(loss: str, options: Mapping[str, Any]) -> Iterator[Problem]:
    function = BY_NAME[loss]
    for option, value in options.items():
        message = wrong_value(function, option, value)
        try:
            if message is None:
                Term(function, options={option: value})
                # Values are checked before the data, which are empty here.
                function(*[[]] * len(inputs_of(function)), **{option: value})
        except OptionError as error:
            message = _of_option(error)
        except (InputError, MissingLibraryError):
            pass
        if message is not None:
            yield Problem(f"train.loss_options.{option}", message)


def term_problems(config: "Config", raw: Sequence[Any], references: Iterable[str], *, code: bool) -> Iterator[Problem]:
    """Problems with the terms and with the names of references; `raw` has the terms as they were read.

    Functions of the user's are imported if `code` says so.
    """
    named: list[str] = []
    for name in sorted(references):
        if not name.isidentifier():
            yield Problem(f"references.{name}", "expected a name of letters, digits and underscores")
            continue
        try:
            objective_of(None, [_ANY], {name: True}, None, candidates=None, local=True)
            named.append(name)
        except OptionError as error:
            yield Problem(f"references.{name}", f"expected {error.expected}")
    names: dict[str, str] = {}
    for index, table in enumerate(config.term):
        where = f"term.{label_of(raw, index)}"
        if table.fn == UNKNOWN or (not code and any(is_path(path) for _, path in functions_of(table))):
            continue
        term, problems = _built(where, table, config.train.steps)
        yield from problems
        if term is None:
            continue
        if term.name in names:
            message = (
                f'found "{term.name}", which is the name of {names[term.name]} too; expected a unique name: set name'
            )
            yield Problem(f"{where}.name", message)
        names.setdefault(term.name, where)
        read = list(_reads(f"{where}.inputs", term, config, named, base=False))
        yield from read
        if not read and not problems:
            yield from _estimates(f"{where}.fn", table, term, config)


def estimates(fn: str) -> str | None:
    """Which sum over all tokens a built-in term estimates from one at each position; None for any other."""
    facts = facts_of(BUILT_IN.get(fn))
    return _ESTIMATING.get(fn) if facts is None else facts.estimates


def _estimates(where: str, table: "TermTable", term: Term, config: "Config") -> Iterator[Problem]:
    """An estimator over tokens of a data set, of which it says nothing: it is for tokens that the model sampled."""
    what = estimates(table.fn)
    if (
        what is None
        or not table.enabled
        or config.data.sampled
        or "logprobs" not in {name.removeprefix("flat_") for name in term.inputs.values()}
    ):
        return
    exact = next(name for name, fn in BUILT_IN.items() if (of := facts_of(fn)) is not None and of.divergence == what)
    other = term.inputs.get("reference", "").removeprefix("flat_")
    inputs = {"p": "logits", **({"q": f"{other}{LOGITS}"} if other else {}), "mask": "mask"}
    fix = f'fn = "{exact}" with inputs = {toml_value(inputs)} and options = {{ logits = true }} is exact'
    if config.backend.kind != "local":
        fix += ', with backend.kind = "local"'
        if other:
            fix += (
                f'; with references.{other}.top_k = 20, inputs = ["logprobs.{other}", "{other}"] is near it on a server'
            )
    yield Problem(
        where,
        f"found {shown(table.fn)}, which is for tokens that the model itself sampled, and a data set has others; "
        f"{fix}; or set data.sampled = true if the model sampled them",
    )


def separation(config: "Config") -> Separation:
    """How the objective of a config without problems follows from parts of a batch."""
    given = dict.fromkeys(config.references, True)
    candidates = 2 if config.train.loss == _CANDIDATES else None
    local = config.backend.kind == "local"
    pipeline = config.pipeline()
    top_k = _top_k(config)
    return objective_of(config.base, pipeline, given, None, candidates=candidates, local=local, top_k=top_k).separation


_ANY: Final = Term("l1", inputs="logprobs")


def _built(where: str, table: "TermTable", steps: int) -> tuple[Term | None, list[Problem]]:
    """The term without its wrong options, and the problems; None if it cannot be built without them."""
    problems: list[Problem] = []
    try:
        function = _found(table.fn)
    except OptionError as error:
        return None, [Problem(f"{where}.fn", _of_option(error) + _similar(table.fn))]
    right: dict[str, Any] = {}
    for option, value in table.options.items():
        message = wrong_value(function, option, value) or _option_problem(function, option, value)
        if message is None:
            right[option] = value
        else:
            problems.append(Problem(f"{where}.options.{option}", message))
    try:
        return pipeline_of([arguments(table.model_copy(update={"options": right}), steps)])[0][0], problems
    except OptionError as error:
        # An argument that a term does not have is that of something around it.
        key = error.option if error.option in type(table).model_fields else "wrap"
        path = f"{where}.options.{error.option}" if error.option in right else f"{where}.{key}"
        return None, [*problems, Problem(path, _of_option(error))]


def _option_problem(function: Any, option: str, value: Any) -> str | None:
    """The problem with one option by itself; None if there is none."""
    try:
        Term(function, name="any", options={option: value})
    except OptionError as error:
        return _of_option(error) if error.option == option else None
    except BackendError:
        return f"found {shown(value)}; expected an array, which a term reads from an input: inputs = {{ {option} = … }}"
    return None


def path_problem(path: str) -> str | None:
    """What is wrong with the path of a function of the user's, which is imported; None if nothing is."""
    try:
        _found(path)
    except OptionError as error:
        return _of_option(error)
    return None


def functions_of(table: "TermTable") -> Iterator[tuple[str, str]]:
    """The functions that a term names, each with its key: its own, and those of what is around it."""
    yield "fn", table.fn
    for index, layer in enumerate(table.wrap, 1):
        if layer.kind == "straight_through":
            yield f"wrap.{index}.discretize", layer.discretize


def is_path(name: str) -> bool:
    """Whether a name is the path of a function of the user's, which looking it up imports."""
    return ":" in name


def _found(path: str) -> Any:
    """The function that a path names; whatever ends the import is an error about the path."""
    try:
        return find(path)
    except PenaltiesError:
        raise
    except (Exception, SystemExit) as error:
        expected = f'"package.module:function" that can be imported ({said(error)})'
        raise OptionError("Term", "fn", path, expected) from error


def _similar(name: str) -> str:
    """Penalties whose names contain this one, or are contained in it, unless one is spelled almost the same."""
    near = [one for one in BUILT_IN if name.lower() in one or one in name.lower()]
    return "" if ":" in name or not near or did_you_mean(name, BUILT_IN) else f"; did you mean {joined(near)}?"


def _reads(where: str, term: Term, config: "Config", references: Sequence[str], *, base: bool) -> Iterator[Problem]:
    """Inputs of a term that do not exist."""
    local = config.backend.kind == "local"
    given = dict.fromkeys(references, True)
    # How many there are is in the lines; that there are several is what matters here.
    candidates = 2 if config.train.loss == _CANDIDATES else None
    try:
        objective_of(
            term if base else None,
            [] if base else [term],
            given,
            None,
            candidates=candidates,
            local=local,
            top_k=_top_k(config),
        )
    except (InputError, OptionError) as error:
        known = [*references, *INPUTS, *(LOCAL_INPUTS if local else ())]
        unknown = [name for name in term.inputs.values() if not _is_input(name, references)]
        targets = [of for name in term.inputs.values() if (of := likeliest_of(name)) and of not in _top_k(config)]
        if not unknown and targets:
            if targets[0] not in config.references:
                # It has its own problem.
                return
            fix = f"set references.{targets[0]}.top_k, or read logprobs"
            yield Problem(where, f'found "logprobs.{targets[0]}", but {targets[0]} has no likeliest tokens; {fix}')
            return
        if not unknown:
            yield Problem(where, str(error))
            return
        hint = nearest(unknown[0], known) or "; references are named under [references]"
        yield Problem(where, f'found "{unknown[0]}"{hint} (the inputs are {", ".join(known)})')
        return
    for name in term.inputs.values():
        likeliest = likeliest_of(name)
        if likeliest is not None and config.backend.server == "averages":
            found = f'found "{name}", of several tokens per position'
            yield Problem(where, f"{found}; a server that averages takes one: train on another backend")
        table = config.references.get(name.removeprefix("flat_").removesuffix(LOGITS))
        if name.endswith(LOGITS) and table is not None and table.kind not in _WITH_LOGITS:
            kinds = " or ".join(f'"{kind}"' for kind in _WITH_LOGITS)
            yield Problem(where, f'found "{name}", of a reference of kind "{table.kind}"; expected one of kind {kinds}')


def _is_input(name: str, references: Sequence[str]) -> bool:
    """Whether a model, here or on a server, or a reference has an input of this name."""
    plain = name.removeprefix("flat_").removesuffix(LOGITS)
    if likeliest_of(name) in references:
        return True
    return name in INPUTS or plain in references or plain.partition(".")[0] in ("params", "logits", "hidden")


def _top_k(config: "Config") -> list[str]:
    """The references that have the likeliest tokens at each position."""
    return [name for name, table in config.references.items() if getattr(table, "top_k", None) is not None]


def _of_option(error: OptionError) -> str:
    return f"found {shown(error.value)}; expected {error.expected}"
