"""Problems with a config or with data: all of them at once, each with its config path and what to do."""

import difflib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from ..errors import PenaltiesError

__all__ = ["ConfigError", "DataError", "Problem", "counted", "joined", "nearest", "shown", "sized"]
__all__ += ["toml_key", "toml_value"]

_LONGEST: Final = 60
"""Characters of a value that a message shows."""


class Problem(NamedTuple):
    """One problem.

    >>> print(Problem("train.steps", "found 0; expected a whole number of at least 1"))
    train.steps: found 0; expected a whole number of at least 1
    """

    where: str
    """The table and the key, such as `train.steps` or `term.kl.weight`; or the line of a file."""
    message: str
    """What was found, and what is allowed."""

    def __str__(self) -> str:
        """Both, in one line."""
        return f"{self.where}: {self.message}"


class _Problems(PenaltiesError, ValueError):
    """Several problems at once."""

    status = 2
    """The exit status of the program."""

    def __init__(self, source: str, problems: Sequence[Problem], more: int = 0) -> None:
        """Keep all of them, and how many `more` there are; the message has one per line."""
        self.source: str = source
        self.problems: list[Problem] = list(problems)
        self.more: int = more
        lines = [f"{source}: {problem}" for problem in self.problems]
        super().__init__("\n".join([*lines, *([f"{source}: and {more} more"] if more else [])]))

    def __reduce__(self) -> Any:
        """Pickle by the parts."""
        return type(self), (self.source, self.problems, self.more)


class ConfigError(_Problems):
    """A config that cannot be used; `problems` has every problem.

    >>> error = ConfigError("run.toml", [Problem("train.steps", "missing"), Problem("modle", "no such table")])
    >>> print(error)
    run.toml: train.steps: missing
    run.toml: modle: no such table
    """


class DataError(_Problems):
    """Data that cannot be used; `problems` has the first bad lines of each file, and `more` is how many others are bad.

    >>> print(DataError("pairs.jsonl", [Problem("line 3", "completion is empty; expected some text")]))
    pairs.jsonl: line 3: completion is empty; expected some text
    """


def shown(value: Any) -> str:
    """A value as a config would have it, cut if it is long.

    >>> shown("tiny"), shown(True), shown([1, 2.5]), shown({"kind": "initial"})
    ('"tiny"', 'true', '[1, 2.5]', '{ kind = "initial" }')
    """
    text = toml_value(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def toml_value(value: Any) -> str:
    """A value as TOML, on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        inner = ", ".join(f"{toml_key(str(key))} = {toml_value(one)}" for key, one in pairs if one is not None)
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, cast('Sequence[Any]', value)))}]"
    return str(value)


def toml_key(key: str) -> str:
    """A key of a TOML table, in quotes if it needs them."""
    return key if key and all(sign.isalnum() or sign in "-_" for sign in key) else json.dumps(key, ensure_ascii=False)


def sized(count: float) -> str:
    """A number of bytes.

    >>> sized(900), sized(123_456_789), sized(79.6e9)
    ('900 B', '123 MB', '79.6 GB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5 or unit == "GB":
            break
        count /= 1000
    return f"{count:.3g} {unit}" if count < 999.5 else f"{count:.0f} {unit}"


def joined(names: Iterable[str], last: str = "or") -> str:
    """Names as a list in a sentence.

    >>> joined(["a"]), joined(["a", "b"]), joined(["a", "b", "c"])
    ('a', 'a or b', 'a, b or c')
    """
    *others, final = names
    return f"{', '.join(others)} {last} {final}" if others else final


def counted(count: int, noun: str, written: Callable[[int], str] = str) -> str:
    """A number of things, in words.

    >>> counted(1, "step"), counted(20, "step")
    ('1 step', '20 steps')
    """
    return f"{written(count)} {noun}" if count == 1 else f"{written(count)} {noun}s"


def nearest(name: Any, names: Iterable[str], *, quoted: bool = False) -> str:
    """`"; did you mean …?"` if one of the names is similar, and nothing otherwise.

    >>> nearest("wieght", ["weight", "name"]), nearest("x", ["weight"])
    ('; did you mean weight?', '')
    """
    listed = {one.lower(): one for one in names}
    near = difflib.get_close_matches(str(name).lower(), listed, n=1)
    if not near:
        return ""
    found = listed[near[0]]
    return f'; did you mean "{found}"?' if quoted else f"; did you mean {found}?"
