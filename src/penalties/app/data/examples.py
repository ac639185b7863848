"""Examples: what a line of a file or a row of a table has, checked, whatever its form."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast

from ..problems import joined, nearest
from .token_arrays import KEYS as ARRAY_KEYS
from .token_arrays import TokenArrays

__all__ = ["KEYS", "PAIRWISE", "Bad", "Chat", "Example", "Prompt", "Text", "example_of", "kind_of"]

_FIELDS: Final = {False: ("prompt", "completion"), True: ("chosen", "rejected")}
"""The required keys of a line, by whether it is a pair."""

PAIRWISE: Final = "dpo"
"""The loss whose lines are pairs."""

KEYS: Final = (
    *("prompt", "completion", "messages", "text", "chosen", "rejected"),
    *(key for keys in ARRAY_KEYS.values() for key in keys),
)
"""The keys that are read."""


class Bad(Exception):
    """An example that cannot be used."""


class Text(NamedTuple):
    """A prompt, which may be empty, and the text after it, which is learned."""

    prompt: str
    text: str
    arrays: TokenArrays = TokenArrays({})
    """What the loss needs for the tokens of the text."""


class Chat(NamedTuple):
    """A conversation, of which the assistant's turns are learned."""

    messages: tuple[Mapping[str, Any], ...]
    first: int = 0
    """The index of the first message that may be learned."""

    def split(self) -> "tuple[Prompt, str]":
        """The messages before the last turn of the assistant, and what it says there."""
        last = max(index for index, message in enumerate(self.messages) if message["role"] == "assistant")
        return self.messages[:last], self.messages[last]["content"]


Prompt: TypeAlias = str | tuple[Mapping[str, Any], ...]
"""What the model continues: a text, or the messages of a conversation, which the assistant answers."""

Example: TypeAlias = tuple[Text | Chat, ...]
"""One of them; or two, the chosen and the rejected one."""


def example_of(found: Any, loss: str) -> Example:
    """The example of an object as it was read, for a loss.

    >>> example_of({"prompt": "2 + 3 = ", "completion": "5"}, "cross_entropy")
    (Text(prompt='2 + 3 = ', text='5', arrays=TokenArrays(columns={})),)
    """
    pairs = loss == PAIRWISE
    wanted = _FIELDS[pairs]
    if not isinstance(found, dict):
        raise Bad(f"is {kind_of(found)}; expected an object with {joined(wanted, 'and')}")
    given = cast("dict[str, Any]", found)
    if not pairs and loss not in ARRAY_KEYS and "completion" not in given:
        if "messages" in given:
            return (_chat("messages", given["messages"]),)
        if "text" in given and "prompt" not in given:
            return (Text("", _text("text", given["text"])),)
    _check_keys(given, loss)
    prompt: Any = given.get("prompt", "")
    texts = [field for field in wanted if field != "prompt"]
    if loss not in ARRAY_KEYS and any(isinstance(given[field], list) for field in texts):
        return tuple(_continued(prompt, field, given[field]) for field in texts)
    start = _text("prompt", prompt, empty=True)
    checked = [_text(field, given[field]) for field in texts]
    try:
        arrays = TokenArrays.of(loss, given)
    except ValueError as error:
        raise Bad(str(error)) from error
    return tuple(Text(start, text, arrays) for text in checked)


def _check_keys(given: Mapping[str, Any], loss: str) -> None:
    pairs = loss == PAIRWISE
    if loss in ARRAY_KEYS:
        forms = f'{joined((*_FIELDS[False], *ARRAY_KEYS[loss]), "and")}, for train.loss = "{loss}"'
    else:
        forms = "prompt and completion, messages, or text"
    for field in _FIELDS[pairs]:
        if field in given:
            continue
        other = [one for one in _FIELDS[not pairs] if one != "prompt" and one in given]
        if other and not pairs:
            hint = ' (a pair is for train.loss = "dpo")'
        elif other:
            hint = ' (train.loss = "dpo" is for pairs)'
        else:
            hint = nearest(field, given) or ("" if pairs else f"; expected {forms}")
        raise Bad(f'has no "{field}"; found {joined(given or ["nothing"], "and")}{hint}')


def _text(field: str, text: Any, *, empty: bool = False) -> str:
    if not isinstance(text, str):
        raise Bad(f"{field} is {kind_of(text)}; expected a string")
    if not text and not empty:
        raise Bad(f"{field} is empty; expected some text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = repr(text[error.start])
        raise Bad(f"{field} has half of a surrogate pair ({half}); expected valid Unicode") from error
    return text


def _continued(prompt: Any, field: str, given: Any) -> Chat:
    """A prompt and the messages after it, which alone are learned; many files have the prompt in both."""
    chat = _chat(field, given)
    if isinstance(prompt, list):
        before = _messages("prompt", cast("list[Any]", prompt))
        return Chat((*before, *chat.messages), len(before))
    start = _text("prompt", prompt, empty=True)
    if not start:
        return chat
    if chat.messages[0]["role"] == "assistant":
        return Chat(({"role": "user", "content": start}, *chat.messages), 1)
    for index, message in enumerate(chat.messages):
        if message["role"] != "assistant" and message["content"].strip() == start.strip():
            return Chat(chat.messages, index + 1)
    raise Bad(
        f"prompt is not among the messages of {field}, which do not begin with the assistant; expected it as the "
        "content of one of them, or the assistant's answer to it alone"
    )


def _chat(field: str, given: Any) -> Chat:
    if not isinstance(given, list) or not given:
        found = kind_of(given) if not isinstance(given, list) else "empty"
        raise Bad(f"{field} is {found}; expected a list of messages, each with role and content")
    messages = _messages(field, cast("list[Any]", given))
    if all(message["role"] != "assistant" for message in messages):
        raise Bad(f'{field} has no message of role "assistant", so there is nothing to learn')
    return Chat(messages)


def _messages(field: str, given: Sequence[Any]) -> tuple[Mapping[str, Any], ...]:
    found: list[Mapping[str, Any]] = []
    for number, one in enumerate(given, 1):
        where = f"message {number} of {field}"
        if not isinstance(one, dict):
            raise Bad(f"{where} is {kind_of(one)}; expected an object with role and content")
        # Tables fill in the keys that other rows have.
        message = {key: value for key, value in cast("dict[str, Any]", one).items() if value is not None}
        for key in ("role", "content"):
            if key not in message:
                raise Bad(f'{where} has no "{key}"; found {joined(message or ["nothing"], "and")}')
            _text(f"{key} of {where}", message[key], empty=key == "content")
        if message.get("tool_calls"):
            raise Bad(f"{where} has tool_calls, which cannot be learned; write the call as its content")
        found.append(message)
    return tuple(found)


def kind_of(value: Any) -> str:
    """What JSON calls a value."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(cast("type[Any]", type(value)), "a number")
