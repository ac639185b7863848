"""The lines of a log, as far as a report reads them; the rest of a line is not even converted."""

import json
import re
from typing import Annotated, Any, Final, Literal, Required

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

__all__ = [
    "EventRecord",
    "Loss",
    "LossRecord",
    "Part",
    "SamplesRecord",
    "Spoken",
    "TextRecord",
    "check_config",
    "parse",
]

_Step = Annotated[int, Field(strict=True, ge=0, lt=10**15)]
"""A step; the bound is more than any run takes."""


class Part(TypedDict, total=False):
    """The base loss or a term."""

    value: Any
    weight: Any
    contribution: Any
    grad_norm: Any
    grad_norms: Any
    grad_error: Any
    custom: Any


class Loss(TypedDict, total=False):
    """The output of a pipeline, as its `to_dict` returns it."""

    loss_total: Required[Any]
    total_grad_norm: Any
    base_loss: Part
    regularizers: dict[str, Part]
    cosines: Any


class TextRecord(TypedDict, total=False):
    """A held-out text with the loss of each token."""

    index: Required[_Step]
    kinds: Required[list[str]]
    tokens: Required[list[tuple[str, Any]]]
    loss: Any
    before: _Step
    after: _Step


class LossRecord(TypedDict, total=False):
    """A step, or an evaluation."""

    kind: Required[Literal["step", "eval"]]
    step: Required[_Step]
    loss: Required[Loss]
    time: Any
    seconds: Any
    tokens: Any
    learning_rate: Any
    memory: Any
    durations: dict[str, Any]
    errors: dict[str, Any]
    examples: list[TextRecord]


class Spoken(TypedDict):
    """What the model said to a prompt."""

    prompt: str
    text: str


class SamplesRecord(TypedDict, total=False):
    """What the model said at an evaluation, and metrics over samples."""

    kind: Required[Literal["samples"]]
    step: Required[_Step]
    samples: list[Spoken]
    metrics: dict[str, Any]


class EventRecord(TypedDict, total=False):
    """Something that happened to the run."""

    kind: Required[Literal["event"]]
    step: Required[_Step]
    event: Any
    message: Any
    best: Any
    early: Any


class _Config(TypedDict, total=False):
    """The config of a run, as far as a report reads it."""

    model: dict[str, Any]
    backend: dict[str, Any]
    train: dict[str, Any]
    term: list[dict[str, Any]]


_CONFIG: Final = TypeAdapter(_Config)

# Takes a quarter of the time of the standard library's parser, and checks the line too.
_RECORD: Final = TypeAdapter[LossRecord | SamplesRecord | EventRecord](
    Annotated[LossRecord | SamplesRecord | EventRecord, Field(discriminator="kind")]
)


def parse(line: str) -> LossRecord | SamplesRecord | EventRecord | None:
    """The record in a line; None if it is of a kind that a later version writes. Anything else is a `ValueError`."""
    try:
        return _RECORD.validate_json(line)
    except ValidationError as error:
        # A line with several problems has none of these two; listing all of them may take a millisecond.
        only = error.error_count() == 1
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]["type"] if only else ""
        if problem == "union_tag_invalid":
            return None
        # It may be no more than half of a surrogate pair, from the name of a file that is not UTF-8.
        if problem != "json_invalid" or not re.search(r"\\u[dD]", line):
            raise
        try:
            return _RECORD.validate_python(json.loads(line))
        except RecursionError:
            raise error from None


def check_config(found: Any) -> None:
    """Raise a `ValueError` if this is not a config that a report can show."""
    _CONFIG.validate_python(found, strict=True)
