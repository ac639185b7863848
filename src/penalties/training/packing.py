"""Terms over packed arrays.

The log-probabilities of a batch are one array, `flat_logprobs`, with one sequence after the other. Terms that read a
list with one array per datum get views of it, so that a gradient is taken once per batch rather than once per datum.
"""

import inspect
from collections.abc import Mapping
from typing import Any, Final

from ..errors import InputError, OptionError
from ..pipeline import Evaluation, Term
from ..pipeline.evaluate import compute
from ..pipeline.inputs import CallInputs
from ..pipeline.wrappers.wrapper import facts_within

__all__ = ["ALWAYS", "FLAT", "LOCAL", "LOGITS", "LOGPROBS", "PACKED", "Unpacked", "is_local", "likeliest_of"]
__all__ += ["packed"]

FLAT: Final = "flat_"
"""The prefix of a packed input's name."""

LOGPROBS: Final = "logprobs"
PACKED: Final = "flat_logprobs"

ALWAYS: Final = ("data", LOGPROBS, PACKED, "lengths", "mask", "flat_mask")
"""The inputs that every batch has."""

LOCAL: Final = ("params", "logits", "hidden")
"""The inputs that only a model in this process has."""


LOGITS: Final = ".logits"
"""The end of the name of a reference's logits."""


def is_local(name: str) -> bool:
    """Whether an input is inside the model."""
    return name.removeprefix(FLAT).partition(".")[0] in LOCAL


def likeliest_of(name: str) -> str | None:
    """The reference of which an input has the tokens, with the model's log-probabilities; None for other inputs.

    >>> likeliest_of("flat_logprobs.teacher"), likeliest_of("logprobs")
    ('teacher', None)
    """
    start, _, reference = name.removeprefix(FLAT).partition(".")
    return reference if start == LOGPROBS and reference else None


class Unpacked:
    """A term whose lists are split from packed arrays at each call."""

    def __init__(self, term: Term, packed: Mapping[str, str]) -> None:
        """`packed` maps the name of each list that the term reads to the name of its packed array."""
        self.term: Term = term
        self.packed: dict[str, str] = dict(packed)
        others = [name for name in dict.fromkeys(term.inputs.values()) if name not in packed]
        self.reads: tuple[str, ...] = ("lengths", *dict.fromkeys(packed.values()), *others)

    @property
    def label(self) -> str:
        """How a term displays this function."""
        return getattr(self.term.fn, "label", None) or self.term.name

    def unchanged(self) -> dict[str, str]:
        """The inputs that a term need not display."""
        return {f"*{index}": name for index, name in enumerate(self.reads)}

    def __call__(self, *inputs: Any, state: Any = None, step: Any = None) -> Evaluation:
        """The term's evaluation."""
        given = dict(zip(self.reads, inputs, strict=True))
        lengths = given["lengths"]
        for name, packed in self.packed.items():
            given[name] = list(given[packed].split(lengths))
        evaluation = compute(self.term, CallInputs.of(given), step, state)
        return Evaluation(evaluation.value, None, evaluation.metrics, evaluation.state)


def packed(term: Term, known: set[str], *, rows: bool, local: bool) -> Term:
    """The same term over packed arrays.

    `known` are the inputs of the batch. `rows` says that each position has several targets, so that packed arrays have
    rows; `local` that the model is in this process.
    """
    _check_inputs(term, known, local)
    rows = rows or any(likeliest_of(name) for name in term.inputs.values())
    term = _with_logits(_with_mask(term, rows), rows)
    names = dict.fromkeys(term.inputs.values())
    lists = [name for name in names if f"{FLAT}{name}" in known or _is_local_list(name)]
    if not lists:
        return term
    facts = facts_within(term.fn)
    if facts is not None and facts.rows and len(lists) == len(names):
        # A sum or mean over all elements is the same over the packed arrays, in one piece.
        return term.replace(inputs={parameter: f"{FLAT}{name}" for parameter, name in term.inputs.items()})
    unpacked = Unpacked(term, {name: f"{FLAT}{name}" for name in lists})
    runs = "async" if term.runs == "inline" and term.asynchronous else term.runs
    # Everything that is about the function itself is the inner term's.
    return term.replace(
        fn=unpacked, inputs=unpacked.reads, options=None, chunk=None, runs=runs, separable=None, compile=False
    )


def _check_inputs(term: Term, known: set[str], local: bool) -> None:
    for name in term.inputs.values():
        if name.startswith("params.") or name == f"{FLAT}params":
            raise InputError(f'{term.name}: reads "{name}"; expected "params", a dict of all parameters by name')
        of_reference = name.endswith(LOGITS) and name.removesuffix(LOGITS) in known
        if (is_local(name) or of_reference) and not local:
            raise InputError(
                f'{term.name}: reads "{name}", which is inside the model; this client returns only log-probabilities: '
                "use a LocalTrainingClient"
            )
        if not is_local(name) and name not in known:
            there = ", ".join(sorted(known - {f"{FLAT}{one}" for one in known}))
            raise InputError(f'{term.name}: no input is named "{name}"; there is {there}')


def _is_local_list(name: str) -> bool:
    """Whether an input is inside the model and a list with one array per datum."""
    return is_local(name) and not name.startswith(FLAT) and name != "params"


def _with_mask(term: Term, rows: bool) -> Term:
    """The term with the mask of the batch, if it takes one and does not say which, so that prompts do not count."""
    inputs = term.inputs
    reads = {name.partition(".")[0] for name in inputs.values()} & {LOGPROBS, PACKED}
    if not reads or "mask" in inputs or "mask" in term.options or not callable(term.fn):
        return term
    try:
        takes = "mask" in inspect.signature(term.fn).parameters
    except ValueError:
        # A function in C without a signature.
        return term
    facts = facts_within(term.fn)
    if not takes or (facts is not None and facts.classes and not rows):
        return term
    return term.replace(inputs={**inputs, "mask": "mask" if LOGPROBS in reads else "flat_mask"})


def _with_logits(term: Term, rows: bool) -> Term:
    """The term with `logits=True` over K candidates, whose log-probabilities alone do not sum to one."""
    facts = facts_within(term.fn)
    if facts is None or not facts.distribution or "logits" in term.options:
        return term
    reads = {name.removeprefix(FLAT).partition(".")[0] for name in term.inputs.values()}
    if "logits" in reads or any(name.endswith(LOGITS) for name in term.inputs.values()):
        raise OptionError(term.name, "logits", False, 'options={"logits": True}: these are logits, not logprobs')
    return term.replace(options={**term.options, "logits": True}) if rows and LOGPROBS in reads else term
