"""Secrets are read from the environment, and never written anywhere."""

import json
import os
import re
from collections.abc import Iterator
from functools import partial
from typing import Final
from urllib.parse import quote, quote_plus, unquote

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
_LIKELY: Final = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD")
"""How the names of other variables with secrets end: those of services that terms call."""
_HARMLESS: Final = re.compile(r"[A-Za-z]+|\d+|[./~].*/.*")
"""What such a variable may have instead: a word, a number, or the path of a file."""
_ADDRESSES: Final = ("MLFLOW_TRACKING_URI", "TINKER_BASE_URL")
"""Addresses, which may contain a user and a password."""
_USER: Final = re.compile(r"(?<=://)[^/?#:]*:(?P<password>[^/?#]*)(?=@)")
_SHORTEST: Final = 6
"""The minimum length of a secret: shorter texts would be found inside words."""


def hide(text: str) -> str:
    """A text with every secret of the environment replaced by the name of its variable.

    Spaces around a secret are ignored. It is found as JSON, Python and addresses write it too, and so is the password
    in an address.

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
    named = [name for name in list(os.environ) if name in _SECRET or name.upper().endswith(_LIKELY)]
    found = [(os.environ.get(name, ""), name) for name in named]
    found = [(value, name) for value, name in found if name in _SECRET or not _HARMLESS.fullmatch(value)]
    for name in _ADDRESSES:
        there = _USER.search(os.environ.get(name, ""))
        if there is not None:
            password = there["password"]
            # A plain word is hidden only as part of the address: other texts contain that word too.
            plain = [] if password.isalpha() else [password, unquote(password)]
            found += [(one, name) for one in (there[0], *plain)]
    for given, name in found:
        secret = given.strip()
        written = (json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1])
        # In an address, of which every library leaves other characters as they are.
        quoted = [partial(way, secret, errors="surrogateescape") for way in (quote, quote_plus)]
        in_addresses = [way(safe=safe) for way in quoted for safe in ("", "/", "/:@!$&'()*+,;=")]
        for form in {secret, *written, *in_addresses}:
            if len(form) >= _SHORTEST:
                yield form, name
