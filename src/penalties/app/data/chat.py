"""Conversations as text, by the tokenizer's chat template, and which parts of it are the assistant's."""

import contextlib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from ...errors import said
from .examples import Bad, Chat

__all__ = ["Part", "learned_ends", "parts_of", "rendered", "special_tokens"]

Part: TypeAlias = tuple[str | list[int], bool]
"""A piece of a text, or its tokens, and whether it is learned."""

_MARKED: Final = re.compile(r"\{%-?\s*generation\b")
"""How a template itself says what the assistant's turns are."""


def parts_of(tokenizer: Any, chat: Chat) -> list[Part]:
    """The pieces of a conversation; an assistant's turn is learned with the token that ends it.

    Where the template marks these turns (`{% generation %}`), it decides. Otherwise a turn begins where the model
    would begin to generate it, and ends after the content of the message, with the special token that follows.
    """
    if getattr(tokenizer, "chat_template", None) is None:
        raise Bad(
            "has messages, but the tokenizer has no chat template; use prompt and completion, or a model that has one"
        )
    messages = chat.messages
    template = getattr(tokenizer, "get_chat_template", lambda: tokenizer.chat_template)()
    if _MARKED.search(template) and getattr(tokenizer, "is_fast", False):
        return _marked(tokenizer, chat)
    whole = rendered(tokenizer, messages)
    parts: list[Part] = []
    done = 0
    for index, message in enumerate(messages):
        if message["role"] != "assistant" or index < chat.first:
            continue
        start, end = _span(tokenizer, messages, index, whole)
        parts += [(whole[done:start], False), (whole[start:end], True)]
        done = end
    return [part for part in (*parts, (whole[done:], False)) if part[0]]


def _span(tokenizer: Any, messages: Sequence[Mapping[str, Any]], index: int, whole: str) -> tuple[int, int]:
    """Where the turn of an assistant begins and ends in the whole text."""
    before = rendered(tokenizer, messages[:index], add_generation_prompt=True) if index else ""
    # A character that stands for the content shows what the template writes after it.
    mark = next(one for one in map(chr, range(0xE000, 0xF8FF)) if one not in whole)
    marked = rendered(tokenizer, [*messages[:index], {**messages[index], "content": mark}, *messages[index + 1 :]])
    _, found, after = marked.partition(mark)
    end = len(whole) - len(after)
    if not found or mark in after or not whole.startswith(before) or not whole.endswith(after) or end < len(before):
        raise Bad(
            f"message {index + 1} cannot be found in what the chat template makes of this conversation; mark the "
            "assistant's turns in the template, with {% generation %}"
        )
    ends = re.match(rf"\s*(?:{'|'.join(map(re.escape, special_tokens(tokenizer))) or '(?!)'})|\s*", after)
    assert ends is not None, "it matches nothing, too"
    return len(before), end + ends.end()


def special_tokens(tokenizer: Any) -> list[str]:
    """The special tokens of a tokenizer that may end a turn, longest first."""
    added: Mapping[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
    known = {str(one) for one in (*added.values(), getattr(tokenizer, "eos_token", None)) if one is not None}
    return sorted(known - {getattr(tokenizer, "bos_token", None)}, key=len, reverse=True)


def learned_ends(tokenizer: Any, *, chat: bool) -> list[int]:
    """The tokens with which a model learns to end: that of a text, and with `chat` that of an assistant's turn.

    They need not be those of the model's generation config: base models often have a template that ends turns with
    another token than the one that ends their texts.
    """
    end = getattr(tokenizer, "eos_token_id", None)
    found = [] if end is None else [end]
    # Without a template, or with one that takes no such conversation, the end of a turn is not known.
    with contextlib.suppress(Bad):
        found += _turn_end(tokenizer) if chat else []
    return list(dict.fromkeys(found))


def _turn_end(tokenizer: Any) -> list[int]:
    """The special token at the end of an assistant's turn, if there is one."""
    talk = Chat(({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}))
    turn = next((part for part, learned in reversed(parts_of(tokenizer, talk)) if learned), "")
    text = (turn if isinstance(turn, str) else tokenizer.decode(turn)).rstrip()
    last = next(filter(text.endswith, special_tokens(tokenizer)), "")
    return list(tokenizer.encode(last, add_special_tokens=False))[-1:]


def _marked(tokenizer: Any, chat: Chat) -> list[Part]:
    found = _tried(
        lambda: tokenizer.apply_chat_template(
            list(chat.messages), tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
    )
    pairs = zip(found["input_ids"], found["assistant_masks"], strict=True)
    # Turns of the assistant that are part of the prompt.
    given = sum(message["role"] == "assistant" for message in chat.messages[: chat.first])
    parts: list[Part] = []
    for marked, group in itertools.groupby(pairs, key=lambda pair: pair[1]):
        parts.append(([token for token, _ in group], bool(marked) and given <= 0))
        given -= bool(marked)
    return parts


def rendered(tokenizer: Any, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
    """The text that the template makes of messages."""
    return _tried(lambda: tokenizer.apply_chat_template(list(messages), tokenize=False, **options))


def _tried(render: Callable[[], Any]) -> Any:
    try:
        return render()
    except Exception as error:
        # A template is code of the model's author: it may raise anything.
        raise Bad(f"its messages do not fit the chat template: {said(error).splitlines()[0]}") from error
