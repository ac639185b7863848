"""`penalties version`."""

import json
import platform
from importlib import metadata
from typing import Final

import click

from ... import __version__
from ..console import say
from .options import as_json, debug

__all__ = ["command"]

_PACKAGES: Final = ("numpy", "torch", "transformers", "peft", "tinker")
"""The packages that a run's results depend on."""


@click.command("version")
@as_json
@debug
def command(as_json: bool) -> None:
    """Print the version."""
    if not as_json:
        say(f"penalties {__version__}")
        return
    versions = {"penalties": __version__, "python": platform.python_version()}
    say(json.dumps(versions | {package: _version(package) for package in _PACKAGES}))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
