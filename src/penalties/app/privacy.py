"""Secrets are read from the environment, and never written anywhere."""

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
"""Addresses, which may contain a user and a password."""
_USER: Final = re.compile(r"(?<=://)[^/?#:]*:(?P<password>[^/?#]*)(?=@)")
_SHORTEST: Final = 6
"""The minimum length of a secret: shorter texts would be found inside words."""


def hide(text: str) -> str:
    """A text with every secret of the environment replaced by the name of its variable.

    Spaces around a secret are ignored, its JSON form is found too, and so is the password in an address.

    >>> os.environ["TINKER_API_KEY"] = "tml-0123456789"
    >>> hide("401: the key tml-0123456789 is unknown")
    '401: the key <TINKER_API_KEY> is unknown'
    >>> del os.environ["TINKER_API_KEY"]
    """
    # The longest first: one may contain another.
    for secret, name in sorted(_secrets(), key=lambda found: -len(found[0])):
        text = text.replace(secret, f"<{name}>")
    return text


def secret_in(text: str) -> str | None:
    """The environment variable whose secret a text contains; None if it contains none."""
    return next((name for secret, name in _secrets() if secret in text), None)


def _secrets() -> Iterator[tuple[str, str]]:
    """Every secret, in each form that it may have, and its variable."""
    found = [(os.environ[name], name) for name in _SECRET if name in os.environ]
    for name in _ADDRESSES:
        there = _USER.search(os.environ.get(name, ""))
        if there is not None:
            password = there["password"]
            # A plain word is hidden only as part of the address: other texts contain that word too.
            plain = [] if password.isalpha() else [password, unquote(password)]
            found += [(one, name) for one in (there[0], *plain)]
    for given, name in found:
        secret = given.strip()
        for form in {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}:
            if len(form) >= _SHORTEST:
                yield form, name
