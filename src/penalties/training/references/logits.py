"""Full logits of a reference: computed for a step by a model in this process, and never stored."""

import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, cast

from ...arrays import Logits
from ...errors import InputError
from ..futures import mapped

__all__ = ["check_vocabulary", "logits_of", "narrowed", "shared_outputs"]


def logits_of(provider: str, client: Any, data: Sequence[Any], **options: Any) -> "Future[Any]":
    """Request the logits of all positions, one datum after the other: an array, or with `lazy` perhaps `Logits`."""
    if not callable(getattr(client, "forward_with_graph", None)):
        raise InputError(
            f"{provider}: {type(client).__name__} returns only log-probabilities; logits need a LocalTrainingClient"
        )
    graph = client.forward_with_graph(list(data), ["logits"], evaluate=True, **options)
    return mapped(graph.future(), lambda found: found.packed["logits"])


def check_vocabulary(tokenizer: Any, teacher: Any, name: str) -> None:
    """Raise if the tokenizer of a teacher has other tokens: it would be asked about a text that nobody wrote."""
    mine, other = _vocabulary(tokenizer), _vocabulary(teacher)
    if mine is None or other is None or mine == other:
        return
    texts = {number: text for text, number in other.items()}
    text, number = next(((text, number) for text, number in mine.items() if texts.get(number) != text), ("", -1))
    there = repr(texts[number]) if number in texts else "absent"
    where = f"token {number} is {text!r}, and {there} there" if number >= 0 else "the teacher has more tokens"
    raise InputError(
        f"the teacher {name} has another vocabulary, of {len(other)} tokens rather than {len(mine)}: {where}; "
        "use a teacher with the same tokenizer"
    )


def shared_outputs(client: Any, teacher: Any) -> int:
    """The number of logits that a model and its teacher have in common; the teacher may have more, of no token.

    Models of one family share a tokenizer, but their output layers may be padded to different sizes.
    """
    mine, other = int(client.outputs), int(teacher.outputs)
    if mine == other:
        return mine
    tokens = None
    # A model in a folder may have no tokenizer.
    with contextlib.suppress(OSError, ValueError):
        tokens = _vocabulary(client.tokenizer)
    if mine > other or not tokens or max(tokens.values()) >= mine:
        raise InputError(
            f"the teacher {teacher.model_id} has {other} logits at a position, and the model {mine}; expected as many, "
            "or more that stand for no token of their tokenizer; top_k compares the likeliest tokens instead"
        )
    return mine


def narrowed(logits: Any, width: int) -> Any:
    """The first so many logits at each position."""
    if logits.shape[-1] == width:
        return logits
    if not isinstance(logits, Logits):
        return logits[..., :width]
    bias = None if logits.bias is None else logits.bias[:width]
    return Logits(logits.hidden, logits.weight[:width], bias, logits.softcap)


def _vocabulary(tokenizer: Any) -> "Mapping[str, int] | None":
    get = getattr(tokenizer, "get_vocab", None)
    return cast("Mapping[str, int]", get()) if callable(get) else None
