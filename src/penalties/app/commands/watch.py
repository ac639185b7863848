"""`penalties watch`: the report of runs that go on."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import click

from ..console import say
from .options import debug, quiet

__all__ = ["command"]


@click.command("watch")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="The port; 0 for any free one."
)
@quiet
@debug
def command(runs: Sequence[Path], port: int, quiet: bool) -> None:
    """Serve the report of runs on this machine, kept up to date while they train.

    Ctrl-C ends it.
    """
    from ..report.watching import Watch

    with Watch(runs, port) as server:
        if not quiet:
            say(f"watching: {server.address}")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
