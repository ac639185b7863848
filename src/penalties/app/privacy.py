"""Keys come from the environment, and never go anywhere else."""

import os
from typing import Final

__all__ = ["API_KEY", "hide"]

API_KEY: Final = "TINKER_API_KEY"

_SECRET: Final = (
    API_KEY,
    "WANDB_API_KEY",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "HF_TOKEN",
    "OTEL_EXPORTER_OTLP_HEADERS",
)
_SHORTEST: Final = 6
"""Signs of what may be a key: fewer would be found in the midst of words."""


def hide(text: str) -> str:
    """A text with every key that the environment holds replaced by its name.

    >>> os.environ["TINKER_API_KEY"] = "tml-0123456789"
    >>> hide("401: the key tml-0123456789 is unknown")
    '401: the key <TINKER_API_KEY> is unknown'
    >>> del os.environ["TINKER_API_KEY"]
    """
    for name in _SECRET:
        secret = os.environ.get(name, "")
        if len(secret) >= _SHORTEST and secret in text:
            text = text.replace(secret, f"<{name}>")
    return text
