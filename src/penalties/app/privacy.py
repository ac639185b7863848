"""Keys come from the environment, and never go anywhere else."""

import json
import os
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

__all__ = ["API_KEY", "hide", "secret_in"]

API_KEY: Final = "TINKER_API_KEY"

_SECRET: Final = (
    API_KEY,
    "WANDB_API_KEY",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "HF_TOKEN",
    "OTEL_EXPORTER_OTLP_HEADERS",
)
_ADDRESSES: Final = ("MLFLOW_TRACKING_URI", "TINKER_BASE_URL")
"""Addresses, which may hold a user and a password."""
_USER: Final = re.compile(r"(?<=://)[^/?#:]*:(?P<password>[^/?#]*)(?=@)")
_SHORTEST: Final = 6
"""Signs of what may be a key: fewer would be found in the midst of words."""


def hide(text: str) -> str:
    """A text with every key that the environment holds replaced by its name.

    A key counts without the spaces around it, and as JSON has it too; so does the password in an address.

    >>> os.environ["TINKER_API_KEY"] = "tml-0123456789"
    >>> hide("401: the key tml-0123456789 is unknown")
    '401: the key <TINKER_API_KEY> is unknown'
    >>> del os.environ["TINKER_API_KEY"]
    """
    # The longest first: one may hold another.
    for secret, name in sorted(_secrets(), key=lambda found: -len(found[0])):
        text = text.replace(secret, f"<{name}>")
    return text


def secret_in(text: str) -> str | None:
    """The variable of the environment whose secret a text holds; None where it holds none."""
    return next((name for secret, name in _secrets() if secret in text), None)


def _secrets() -> Iterator[tuple[str, str]]:
    """What must not be seen, in every form that it may have, and the variable that it is from."""
    found = [(os.environ[name], name) for name in _SECRET if name in os.environ]
    for name in _ADDRESSES:
        there = _USER.search(os.environ.get(name, ""))
        if there is not None:
            password = there["password"]
            # Where it is a mere word, it is hidden as part of the address alone: other texts have that word too.
            plain = [] if password.isalpha() else [password, unquote(password)]
            found += [(one, name) for one in (there[0], *plain)]
    for given, name in found:
        secret = given.strip()
        for form in {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}:
            if len(form) >= _SHORTEST:
                yield form, name
