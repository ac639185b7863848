"""Options that several commands have."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["as_json", "debug", "quiet", "values"]

F = TypeVar("F", bound=Callable[..., Any])


def debug(function: F) -> F:
    """`--debug`: what the program itself looks for where something went wrong."""
    return click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")(function)


def quiet(function: F) -> F:
    """`--quiet`: the argument `quiet`."""
    return click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")(function)


def as_json(function: F) -> F:
    """`--json`: the argument `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for a machine to read.")(function)


def values(function: F) -> F:
    """`--set KEY=VALUE`, any number of them: the argument `overrides`."""
    text = "Set a value of the config, as train.steps=200 or kl.weight=0.1; without a value, its default."
    option = click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help=text)
    return option(function)
