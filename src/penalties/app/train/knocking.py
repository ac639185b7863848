"""Whether a server is there at all, before a library waits for it for minutes without a message."""

import socket
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies

from ...errors import said
from ..privacy import hide
from ..runs.disk import RunError

__all__ = ["knock"]

_ANSWER: Final = 10.0
"""Seconds that a server may take to accept a connection."""

_PORTS: Final = {"https": 443, "http": 80, "ray": 10001}


def knock(address: str, key: str) -> None:
    """Raise if no server answers at an address, which the config has under this key."""
    parts = urlsplit(address)
    port = parts.port or _PORTS.get(parts.scheme)
    if parts.scheme in getproxies() or parts.hostname is None or port is None:
        return
    try:
        socket.create_connection((parts.hostname, port), _ANSWER).close()
    except OSError as error:
        where = hide(address).removeprefix("ray://")
        raise RunError(f"no server answers at {where} ({said(error)}); start it, or fix {key}", 2) from error
