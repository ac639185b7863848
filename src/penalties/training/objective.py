"""A base loss and regularizers as one pipeline over the packed arrays of a batch."""

import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

import numpy as np

from .. import functional
from ..errors import InputError, OptionError
from ..functional.options import POSITIVE, check_number
from ..functional.penalty import facts_of
from ..pipeline import Pipeline, Term
from ..pipeline.output import BASE
from ..pipeline.term import CALL_ARGUMENTS
from ..pipeline.wrappers.wrapper import facts_within
from . import losses
from .packing import ALWAYS, FLAT, LOCAL, LOGITS, LOGPROBS, PACKED, is_local, likeliest_of, packed
from .separable import Separation, is_ambiguous, separation_of
from .shares import shares_of

__all__ = ["FUNCTION", "Objective", "objective_of"]

FUNCTION: Final = "forward_backward_custom"

T = TypeVar("T")


class Objective(NamedTuple):
    """A pipeline as an executor runs it, and the inputs that it reads."""

    pipeline: Pipeline
    reads: tuple[str, ...]
    """The names of its inputs, without duplicates."""
    local: tuple[str, ...]
    """Those that only a model in this process has: `params`, and packed ones such as `flat_logits`."""
    separation: Separation
    """How its terms follow from parts of a batch."""


def objective_of(
    loss_fn: Any,
    regularizers: Any,
    references: Mapping[str, bool],
    timeout: float | None,
    *,
    candidates: int | None,
    local: bool,
    top_k: Collection[str] = (),
) -> Objective:
    """The objective for these arguments; equal arguments return the same object.

    `references` says of each whether it has one number per target, or one per datum; those in `top_k` have the
    likeliest tokens at each position instead. `candidates` is the number of targets per position, None for one sampled
    token; `local` says that the model is in this process.
    """
    terms = _terms(regularizers)
    for name in references:
        if not name or name in (*ALWAYS, *CALL_ARGUMENTS) or is_local(name) or name.startswith(FLAT):
            reserved = ", ".join((*ALWAYS, *LOCAL, *CALL_ARGUMENTS))
            raise OptionError(FUNCTION, "references", name, f"another name: {reserved} are reserved")
    if loss_fn is None and not terms:
        raise OptionError(FUNCTION, "loss_fn", None, "a loss, or regularizers, or both")
    if timeout is not None:
        timeout = check_number(FUNCTION, "timeout", timeout, "None, or seconds above 0", low=POSITIVE)
    # By identity: a term that is created again is also sent to its worker again.
    kept: list[Any] = [loss_fn, terms]
    loss_key = _content(loss_fn, kept) if isinstance(loss_fn, Mapping) else id(loss_fn)
    tops = tuple(name for name in references if name in top_k)
    key = (loss_key, tuple(map(id, terms)), tuple(references.items()), tops, timeout, candidates is None, local)
    return _objectives.get(key, kept, lambda: _made(loss_fn, terms, references, tops, timeout, candidates, local))


class _Recent(Generic[T]):
    """The most recent results, by key, each with the objects whose ids are in its key."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._found: OrderedDict[Any, tuple[T, list[Any]]] = OrderedDict()

    def get(self, key: Any, kept: list[Any], make: Callable[[], T]) -> T:
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key][0]
        made = make()
        with self._lock:
            self._found[key] = made, kept
            if len(self._found) > self._most:
                self._found.popitem(last=False)
        return made


# A loop passes the same objective repeatedly. A cached one holds everything that its functions hold.
_objectives: Final = _Recent[Objective](4)
_configured: Final = _Recent[tuple[Term, ...]](32)


def _content(value: Any, kept: list[Any]) -> Any:
    """A cache key for a config: numbers, strings and containers by value.

    Anything else by its id; it is appended to `kept`, so that nothing else can get the same id.
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
    """The terms, in whichever form they were passed."""
    if isinstance(regularizers, Pipeline):
        if regularizers.base is not None:
            expected = "a pipeline without a base: the base is loss_fn"
            raise OptionError(FUNCTION, "regularizers", regularizers.name, expected)
        return regularizers.terms
    if isinstance(regularizers, str | Term | Mapping) or not isinstance(regularizers, Sequence):
        expected = "a Pipeline, a list of terms, or a list of dicts with the arguments of a term"
        raise OptionError(FUNCTION, "regularizers", cast("Any", regularizers), expected)
    given = cast("Sequence[Any]", regularizers)
    if not any(isinstance(entry, Mapping) for entry in given):
        return Pipeline(given).terms
    if not all(isinstance(entry, Mapping) for entry in given):
        return Pipeline([_from_config([one])[0] if isinstance(one, Mapping) else one for one in given]).terms
    return _from_config(given)


def _from_config(config: Sequence[Any]) -> tuple[Term, ...]:
    """The terms that dicts describe. Dicts are often written inside the loop; equal ones return the same terms."""

    def make() -> tuple[Term, ...]:
        pipeline = Pipeline.from_config(config)
        if pipeline.base is not None:
            raise OptionError(FUNCTION, "regularizers", "base", "no base among them: the base is loss_fn")
        return pipeline.terms

    kept: list[Any] = []
    return _configured.get(_content(config, kept), kept, make)


def _made(
    loss_fn: Any,
    terms: Sequence[Term],
    references: Mapping[str, bool],
    top_k: Sequence[str],
    timeout: float | None,
    candidates: int | None,
    local: bool,
) -> Objective:
    flat = [name for name, per_target in references.items() if per_target]
    known = {*ALWAYS, *references, *(f"{FLAT}{name}" for name in flat)}
    known |= {f"{start}.{name}" for name in top_k for start in (LOGPROBS, PACKED)}
    if local:
        known |= {f"{start}{name}{LOGITS}" for name in flat for start in ("", FLAT)}

    def ready(term: Term) -> Term:
        term = _with_batch_inputs(term, known)
        if timeout is not None and term.timeout is None:
            term = term.replace(timeout=timeout)
        return packed(term, known, rows=candidates is not None, local=local)

    base = None if loss_fn is None else _base(loss_fn, [name for name in references if name not in top_k])
    pipeline = Pipeline([ready(term) for term in terms], base=None if base is None else ready(base))
    for term in pipeline.all_terms:
        _check_kind(term, candidates, local=local)
        _check_likeliest(term, top_k, candidates)
        if is_ambiguous(term):
            expected = '"tokens" or "sequences": it is a mean, and reads an array for each datum'
            raise OptionError(term.name, "separable", True, expected)
    reads = tuple(dict.fromkeys(name for term in pipeline.all_terms for name in term.inputs.values()))
    separation = separation_of(pipeline, references, candidates=candidates is not None)
    return Objective(pipeline, reads, tuple(name for name in reads if is_local(name)), separation)


def _check_kind(term: Term, candidates: int | None, *, local: bool) -> None:
    """Raise for a divergence over sampled tokens, and for an estimator over candidates that were not sampled."""
    facts = facts_within(term.fn)
    if facts is None or PACKED not in term.inputs.values():
        return
    name = facts.function.__name__
    if candidates is None and facts.distribution:
        estimator = _penalty_with("estimates", facts.divergence)
        fixes = [f"use {estimator} for tokens that the model sampled"] if estimator else []
        if local:
            names = [name.removeprefix(FLAT) for name in term.inputs.values()]
            logits = ["logits" if name == LOGPROBS else f"{name}{LOGITS}" for name in names if name != "mask"]
            fixes.insert(0, f'read {" and ".join(logits)} with options={{"logits": True}}')
        fixes.append("pass target_tokens of shape (N, K)")
        *others, last = fixes
        raise InputError(
            f"{term.name}: {name} needs full distributions, but each position has one sampled token; "
            f"{', '.join(others) + ', or ' if others else ''}{last}"
        )
    if candidates is not None and facts.estimates is not None:
        raise InputError(
            f"{term.name}: {name} needs one sampled token per position, but these target_tokens have several "
            f"that were not sampled; use {_penalty_with('divergence', facts.estimates)}"
        )


def _check_likeliest(term: Term, top_k: Sequence[str], candidates: int | None) -> None:
    """Raise for a term over the likeliest tokens of references that it cannot be computed over."""
    names = [name.removeprefix(FLAT) for name in term.inputs.values()]
    tokens = {name: name if name in top_k else likeliest_of(name) for name in names}
    reads = {name: of for name, of in tokens.items() if of is not None}
    if not reads:
        return
    if candidates is not None:
        raise InputError(
            f"{term.name}: reads {next(iter(reads))}, of the likeliest tokens of a reference, but these target_tokens "
            "have several per position; pass target_tokens of shape (N,)"
        )
    facts = facts_within(term.fn)
    if facts is None:
        return
    name = facts.function.__name__
    if facts.estimates is not None:
        raise InputError(
            f"{term.name}: {name} needs one sampled token per position, but {next(iter(reads))} has the likeliest "
            f"tokens, which were not sampled; use {_penalty_with('divergence', facts.estimates)}"
        )
    arrays = [one for one in names if one != "mask"]
    if len(arrays) > 1 and (len(reads) < len(arrays) or len(set(reads.values())) > 1):
        one = next(iter(reads.values()))
        raise InputError(
            f"{term.name}: {name} compares {' with '.join(arrays)}, which are of different tokens; expected "
            f"logprobs.{one} and {one}"
        )


def _penalty_with(fact: str, value: Any) -> str | None:
    """The name of the penalty that has this fact."""
    facts = {name: facts_of(getattr(functional, name)) for name in functional.__all__}
    return next((name for name, one in facts.items() if one is not None and getattr(one, fact) == value), None)


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
            raise OptionError(FUNCTION, "loss_fn", next(iter(given)), expected)
    if isinstance(loss_fn, str):
        if loss_fn not in losses.BY_NAME:
            expected = f"one of {', '.join(losses.BY_NAME)}, or a function of (data, logprobs)"
            raise OptionError(FUNCTION, "loss_fn", loss_fn, expected)
        return _with_reference(Term(losses.BY_NAME[loss_fn], name=BASE, options=options), loss_fn, references)
    if not callable(loss_fn):
        expected = f"a function of (data, logprobs), one of {', '.join(losses.BY_NAME)}, a Term, or None"
        raise OptionError(FUNCTION, "loss_fn", loss_fn, expected)
    if _needs_reference(loss_fn):
        return _with_reference(Term(loss_fn, name=BASE), getattr(loss_fn, "__name__", BASE), references)
    if shares_of(loss_fn) is not None:
        return Term(loss_fn, name=BASE, inputs=("data", LOGPROBS))
    return Term(_SdkLoss(loss_fn), name=BASE, inputs=("data", LOGPROBS))


def _needs_reference(function: Callable[..., Any]) -> bool:
    """Whether a loss takes a `reference` in addition to data and log-probabilities."""
    try:
        parameter = inspect.signature(function).parameters.get("reference")
    except ValueError:
        # A function in C without a signature.
        return False
    return parameter is not None and parameter.default is parameter.empty


def _with_reference(term: Term, name: str, references: Sequence[str]) -> Term:
    """The only reference, or the one named "reference", for a loss that needs one."""
    if "reference" not in term.inputs.values() or "reference" in references:
        return term
    if len(references) != 1:
        there = ", ".join(references) or "none"
        raise InputError(
            f'{name}: needs log-probabilities to compare with; pass references={{"reference": ...}}; there is {there}'
        )
    return term.replace(inputs={**term.inputs, "reference": references[0]})


class _SdkLoss:
    """A loss in the SDK's form, `(data, logprobs) -> (loss, metrics)`, whatever its parameters are called."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.function = function

    def __call__(self, data: Any, logprobs: Any) -> Any:
        return self.function(data, logprobs)


def _with_batch_inputs(term: Term, known: set[str]) -> Term:
    """The term itself if it names any input of the batch.

    Otherwise a function of two or three parameters gets data, logprobs and its options; a penalty of one input gets
    logprobs.
    """
    names = list(term.inputs.values())
    if any(parameter != name for parameter, name in term.inputs.items()):
        return term
    if any(name in known or is_local(name) for name in names):
        return term
    if facts_within(term.fn) is not None:
        return term.replace(inputs=LOGPROBS) if len(names) == 1 else term
    if len(names) not in (2, 3):
        return term
    changed: dict[str, Any] = {"inputs": dict(zip(names, ("data", LOGPROBS), strict=False))}
    if len(names) == 3:
        changed["options"] = {**term.options, names[2]: {}}
    return term.replace(**changed)
