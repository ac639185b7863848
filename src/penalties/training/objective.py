"""A base loss and regularizers as one pipeline over a batch: what each term reads, and how it is packed.

The log-probabilities of a batch are one array, `flat_logprobs`, one sequence after the other. Terms that ask for a
list, one array per datum, get views of it, so that a gradient is taken once for the batch and not for each datum.
"""

import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import numpy as np

from ..errors import InputError, OptionError
from ..functional import entropy, js_divergence, kl_divergence
from ..functional.options import POSITIVE, check_number
from ..pipeline import Evaluation, Pipeline, Term
from ..pipeline.catalogue import BUILT_IN, OVER_CLASSES, SEPARABLE
from ..pipeline.evaluate import compute
from ..pipeline.output import BASE
from ..pipeline.term import CALL_ARGUMENTS
from . import losses

__all__ = ["DISTRIBUTIONS", "FLAT", "LOGPROBS", "PACKED", "Objective", "Unpacked", "objective_of"]

FLAT: Final = "flat_"
"""What the packed form of an input has before its name."""

LOGPROBS: Final = "logprobs"
PACKED: Final = "flat_logprobs"

DISTRIBUTIONS: Final = (kl_divergence, js_divergence, entropy)
"""Penalties of whole distributions."""

_ALWAYS: Final = ("data", LOGPROBS, PACKED, "lengths", "mask", "flat_mask")
"""What every batch has."""

_LOCAL: Final = ("params", "logits", "hidden")
"""What only a model in this process has."""

_KEPT: Final = 4
"""Objectives that are kept, with all that their functions hold: a loop passes the same again and again."""


class Objective(NamedTuple):
    """A pipeline as an executor runs it, and what it reads."""

    pipeline: Pipeline
    reads: tuple[str, ...]
    """The names of its inputs, none of them twice."""
    local: tuple[str, ...]
    """Those that only a model in this process has: `params`, and packed ones, as `flat_logits`."""


class Unpacked:
    """A term whose lists are cut out of packed arrays when it is called."""

    def __init__(self, term: Term, packed: Mapping[str, str]) -> None:
        """`packed` says for each list that the term reads which packed array it is a part of."""
        self.term: Term = term
        self.packed: dict[str, str] = dict(packed)
        """By the name of each list."""
        others = [name for name in dict.fromkeys(term.inputs.values()) if name not in packed]
        self.reads: tuple[str, ...] = ("lengths", *dict.fromkeys(packed.values()), *others)

    @property
    def label(self) -> str:
        """How a term shows what it is."""
        return getattr(self.term.fn, "label", None) or self.term.name

    def unchanged(self) -> dict[str, str]:
        """The inputs that need not be shown."""
        return {f"*{index}": name for index, name in enumerate(self.reads)}

    def __call__(self, *inputs: Any, state: Any = None, step: Any = None) -> Evaluation:
        """The term's evaluation."""
        given = dict(zip(self.reads, inputs, strict=True))
        lengths = given["lengths"]
        for name, packed in self.packed.items():
            given[name] = list(given[packed].split(lengths))
        value, _, metrics, new = compute(self.term, given, step, state)
        return Evaluation(value, None, metrics, new)


def objective_of(
    loss_fn: Any,
    regularizers: Any,
    references: Mapping[str, bool],
    timeout: float | None,
    *,
    rows: bool,
    local: bool,
) -> Objective:
    """The objective that these make; the same one again for the same arguments.

    `references` says of each whether it has a number for each target; if not it has one for each datum. `rows` says
    that each place has several targets, so that the packed arrays have rows.
    """
    terms = _terms(regularizers)
    for name in references:
        if not name or name in (*_ALWAYS, *CALL_ARGUMENTS) or _local(name) or name.startswith(FLAT):
            taken = ", ".join((*_ALWAYS, *_LOCAL, *CALL_ARGUMENTS))
            raise OptionError("forward_backward_custom", "references", name, f"another name: {taken} are taken")
    if loss_fn is None and not terms:
        raise OptionError("forward_backward_custom", "loss_fn", None, "a loss, or regularizers, or both")
    if timeout is not None:
        timeout = check_number("forward_backward_custom", "timeout", timeout, "None, or seconds above 0", low=POSITIVE)
    # By identity: a term that is made anew each time is sent to its worker each time.
    kept: list[Any] = [loss_fn, terms]
    loss_key = _content(loss_fn, kept) if isinstance(loss_fn, Mapping) else id(loss_fn)
    key = (loss_key, tuple(map(id, terms)), tuple(references.items()), timeout, rows, local)
    with _lock:
        if key in _known:
            _known.move_to_end(key)
            return _known[key][0]
    objective = _made(loss_fn, terms, references, timeout, rows, local)
    with _lock:
        _known[key] = (objective, kept)
        if len(_known) > _KEPT:
            _known.popitem(last=False)
    return objective


_lock: Final = threading.Lock()
_known: Final[OrderedDict[Any, tuple[Objective, list[Any]]]] = OrderedDict()
_described: Final[OrderedDict[Any, tuple[tuple[Term, ...], list[Any]]]] = OrderedDict()


def _content(value: Any, kept: list[Any]) -> Any:
    """What a description says, to be compared: numbers, words and containers by content.

    Anything else by its address, and is kept, so that nothing else gets that.
    """
    if isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value).items()
        return ("dict", *((_content(name, kept), _content(part, kept)) for name, part in entries))
    if isinstance(value, list | tuple):
        return ("list", *(_content(part, kept) for part in cast("Sequence[Any]", value)))
    plain: Any = cast("Any", value).item() if isinstance(value, np.generic) else value
    if plain is None or isinstance(plain, str | int | float | bool):
        return type(plain).__name__, plain
    kept.append(plain)
    return "object", id(plain)


def _terms(regularizers: Any) -> tuple[Term, ...]:
    """The terms, whatever form they were given in."""
    if isinstance(regularizers, Pipeline):
        if regularizers.base is not None:
            expected = "a pipeline without a base: the base is loss_fn"
            raise OptionError("forward_backward_custom", "regularizers", regularizers.name, expected)
        return regularizers.terms
    if isinstance(regularizers, str | Term | Mapping) or not isinstance(regularizers, Sequence):
        expected = "a Pipeline, a list of terms, or a list of dicts with the arguments of a term"
        raise OptionError("forward_backward_custom", "regularizers", cast("Any", regularizers), expected)
    given = cast("Sequence[Any]", regularizers)
    if not any(isinstance(entry, Mapping) for entry in given):
        return Pipeline(given).terms
    if not all(isinstance(entry, Mapping) for entry in given):
        return Pipeline([_described_terms([one])[0] if isinstance(one, Mapping) else one for one in given]).terms
    return _described_terms(given)


def _described_terms(config: Sequence[Any]) -> tuple[Term, ...]:
    """The terms that dicts describe; dicts are often written in the loop, and equal ones are the same terms."""
    kept: list[Any] = []
    key = _content(config, kept)
    with _lock:
        if key in _described:
            _described.move_to_end(key)
            return _described[key][0]
    pipeline = Pipeline.from_config(config)
    if pipeline.base is not None:
        raise OptionError("forward_backward_custom", "regularizers", "base", "no base among them: the base is loss_fn")
    with _lock:
        _described[key] = (pipeline.terms, kept)
        if len(_described) > 8 * _KEPT:
            _described.popitem(last=False)
    return pipeline.terms


def _made(
    loss_fn: Any, terms: Sequence[Term], references: Mapping[str, bool], timeout: float | None, rows: bool, local: bool
) -> Objective:
    known = {*_ALWAYS, *references, *(f"{FLAT}{name}" for name, packable in references.items() if packable)}
    base = None if loss_fn is None else _base(loss_fn, list(references))
    resolved = [_packed(_timed(_called(term, known), timeout), known, rows, local) for term in terms]
    if base is not None:
        base = _packed(_timed(_called(base, known), timeout), known, rows, local)
    pipeline = Pipeline(resolved, base=base)
    everything = [*resolved, *([] if base is None else [base])]
    reads = tuple(dict.fromkeys(name for term in everything for name in term.inputs.values()))
    return Objective(pipeline, reads, tuple(name for name in reads if _local(name)))


def _base(loss_fn: Any, references: Sequence[str]) -> Term:
    """The base loss as a term: a function as the SDK takes it, a name, a term, or the arguments of one."""
    if isinstance(loss_fn, Term):
        return loss_fn
    options: Mapping[str, Any] = {}
    if isinstance(loss_fn, Mapping):
        given = dict(cast("Mapping[str, Any]", loss_fn))
        if not isinstance(given.get("fn"), str) or given["fn"] not in losses.BY_NAME:
            return Pipeline.from_config([given]).terms[0]
        loss_fn, options = given.pop("fn"), given.pop("options", {})
        if given:
            expected = "only fn and options for a loss by name"
            raise OptionError("forward_backward_custom", "loss_fn", next(iter(given)), expected)
    for name, function in losses.BY_NAME.items():
        if loss_fn is function:
            loss_fn = name
    if isinstance(loss_fn, str):
        return _by_name(loss_fn, options, references)
    if not callable(loss_fn):
        expected = f"a function of (data, logprobs), one of {', '.join(losses.BY_NAME)}, a Term, or None"
        raise OptionError("forward_backward_custom", "loss_fn", loss_fn, expected)
    return Term(_SdkLoss(loss_fn), name=BASE, inputs=("data", LOGPROBS))


def _by_name(name: str, options: Mapping[str, Any], references: Sequence[str]) -> Term:
    if name not in losses.BY_NAME:
        expected = f"one of {', '.join(losses.BY_NAME)}, or a function of (data, logprobs)"
        raise OptionError("forward_backward_custom", "loss_fn", name, expected)
    term = Term(losses.BY_NAME[name], name=BASE, options=options)
    if "reference" not in term.inputs.values():
        return term
    if "reference" in references:
        return term
    if len(references) != 1:
        there = ", ".join(references) or "none"
        raise InputError(
            f'{name}: needs log-probabilities to compare with, as references={{"reference": ...}}; there is {there}'
        )
    return term.replace(inputs={**term.inputs, "reference": references[0]})


class _SdkLoss:
    """A loss in the form that the SDK takes, `(data, logprobs) -> (loss, metrics)`, whatever its parameters are."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.function = function

    def __call__(self, data: Any, logprobs: Any) -> Any:
        return self.function(data, logprobs)


def _called(term: Term, known: set[str]) -> Term:
    """The term as it is, unless none of its parameters is an input.

    Then a function of two or three gets data, logprobs and its options; a penalty of one gets logprobs.
    """
    names = list(term.inputs.values())
    if any(parameter != name for parameter, name in term.inputs.items()):
        return term
    if any(name in known or _local(name) for name in names):
        return term
    if term.fn in BUILT_IN.values():
        return term.replace(inputs=LOGPROBS) if len(names) == 1 else term
    if len(names) not in (2, 3):
        return term
    changed: dict[str, Any] = {"inputs": dict(zip(names, ("data", LOGPROBS), strict=False))}
    if len(names) == 3:
        changed["options"] = {**term.options, names[2]: {}}
    return term.replace(**changed)


def _local(name: str) -> bool:
    """Whether an input is inside the model."""
    return name.removeprefix(FLAT).partition(".")[0] in _LOCAL


def _packable(name: str) -> bool:
    """Whether an input that is inside the model is a list with one array per datum."""
    return not name.startswith(FLAT) and name != "params"


def _timed(term: Term, timeout: float | None) -> Term:
    return term if timeout is None or term.timeout is not None else term.replace(timeout=timeout)


def _packed(term: Term, known: set[str], rows: bool, local: bool) -> Term:
    """The same term over packed arrays."""
    for name in term.inputs.values():
        if name.startswith("params.") or name == f"{FLAT}params":
            raise InputError(f'{term.name}: reads "{name}"; expected "params", a dict of all of them by name')
        if _local(name):
            if not local:
                raise InputError(
                    f'{term.name}: reads "{name}", which is inside the model; this client gives log-probabilities '
                    "alone: use a LocalTrainingClient"
                )
        elif name not in known:
            there = ", ".join(sorted(known - {f"{FLAT}{one}" for one in known}))
            raise InputError(f'{term.name}: no input is named "{name}"; there is {there}')
    term = _normalised(_masked(term, rows), rows)
    names = dict.fromkeys(term.inputs.values())
    lists = [name for name in names if f"{FLAT}{name}" in known or (_local(name) and _packable(name))]
    if not lists:
        return term
    if term.fn in SEPARABLE and len(lists) == len(names):
        # Sums and means over all elements: over the packed arrays they are the same, in one piece.
        return term.replace(inputs={parameter: f"{FLAT}{name}" for parameter, name in term.inputs.items()})
    unpacked = Unpacked(term, {name: f"{FLAT}{name}" for name in lists})
    return Term(
        unpacked,
        term.weight,
        term.name,
        unpacked.reads,
        enabled=term.enabled,
        differentiable=term.differentiable,
        runs="async" if term.runs == "inline" and term.asynchronous else term.runs,
        timeout=term.timeout,
        on_error=term.on_error,
        every=term.every,
        idempotent=term.idempotent,
    )


def _masked(term: Term, rows: bool) -> Term:
    """The term with the mask of the batch, where it takes one and does not say which: prompts do not count."""
    inputs = term.inputs
    reads = set(inputs.values()) & {LOGPROBS, PACKED}
    if not reads or "mask" in inputs or "mask" in term.options or not callable(term.fn):
        return term
    try:
        takes = "mask" in inspect.signature(term.fn).parameters
    except ValueError:
        # Of C code, which does not say.
        return term
    if not takes or (term.fn in OVER_CLASSES and not rows):
        return term
    return term.replace(inputs={**inputs, "mask": "mask" if LOGPROBS in reads else "flat_mask"})


def _normalised(term: Term, rows: bool) -> Term:
    """The term with what makes distributions of its inputs: the candidates of a place alone are part of one."""
    if term.fn not in DISTRIBUTIONS or "logits" in term.options:
        return term
    reads = {name.removeprefix(FLAT).partition(".")[0] for name in term.inputs.values()}
    if "logits" in reads:
        expected = "True: these are logits, and no log-probabilities"
        raise OptionError(term.name, "logits", False, f'options={{"logits": {expected}}}')
    return term.replace(options={**term.options, "logits": True}) if rows and LOGPROBS in reads else term
