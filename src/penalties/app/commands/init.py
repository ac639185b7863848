"""`penalties init`: write a config to begin with."""

from pathlib import Path

import click

from ..console import say
from ..problems import joined
from ..recipes import RECIPES, write
from .options import command_line, debug, quiet

__all__ = ["command"]


@click.command("init")
@click.argument("recipe", type=click.Choice(list(RECIPES)))
@click.option(
    "--to",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=Path(),
    help="The folder to write to; by default here.",
)
@quiet
@debug
def command(recipe: str, to: Path, quiet: bool) -> None:
    """Write a config with comments for a recipe (sft, dpo or distill) that runs as it is.

    sft: supervised fine-tuning on prompts and completions. dpo: preferences between two completions. distill: a student
    and its teacher. The config comes with small data; nothing is overwritten.
    """
    paths = [str(path) for path in write(recipe, to)]
    if not quiet:
        say(f"wrote {joined(paths, 'and')}; train it with:", command_line("train", paths[0], ()))
