"""Full logits of a reference: computed for a step by a model in this process, and never stored."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, cast

from ...errors import InputError
from ..futures import mapped

__all__ = ["check_vocabulary", "logits_of"]


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


def _vocabulary(tokenizer: Any) -> "Mapping[str, int] | None":
    get = getattr(tokenizer, "get_vocab", None)
    return cast("Mapping[str, int]", get()) if callable(get) else None
