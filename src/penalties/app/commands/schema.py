"""`penalties schema`."""

from pathlib import Path

import click

from ..console import say
from .options import debug

__all__ = ["command"]


@click.command("schema")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write it to a file.")
@debug
def command(out: Path | None) -> None:
    """Print the JSON Schema of a config, for editors.

    With `#:schema FILE` as the first line of a config, TOML editors complete and check it.
    """
    from ..config.schema import written

    if out is None:
        say(*written().splitlines())
        return
    try:
        out.write_text(written(), encoding="utf-8")
    except OSError as error:
        raise click.BadParameter(f"{out} cannot be written ({error.strerror})", param_hint="--out") from error
