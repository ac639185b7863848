"""`penalties export`: write the model of a run to a folder for other programs."""

from pathlib import Path

import click

from ...encoding import dumps
from ..console import say
from ..problems import counted
from .options import as_json, checkpoint, debug, device, quiet, warn_of_damage

__all__ = ["command"]


@click.command("export")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--to", required=True, metavar="DIR", type=click.Path(path_type=Path), help="The folder to write: new, or empty."
)
@click.option("--merged", is_flag=True, help="Write the whole model, with the adapter merged into its weights.")
@checkpoint
@device
@quiet
@as_json
@debug
def command(
    run: Path, to: Path, merged: bool, which: str | int | None, device: str | None, quiet: bool, as_json: bool
) -> None:
    """Write the model of RUN to a folder that transformers, peft and vLLM load.

    It has the adapter, or with --merged the whole model, the tokenizer and the generation config. A run without an
    adapter always writes the whole model.
    """
    from ..trained import find
    from ..trained.export import export

    trained = find(run, which, device=device)
    warn_of_damage(trained)
    export(trained, to, merged=merged)
    if as_json:
        step = trained.checkpoint.step
        say(dumps({"kind": "export", "run": str(run), "step": step, "merged": merged, "folder": str(to)}))
    elif not quiet:
        what = "the whole model" if merged or trained.whole else f"the adapter of {trained.config.model.name}"
        say(f"{what}, after {counted(trained.checkpoint.step, 'step')}: {to}")
        if trained.config.model.modules_to_save and not merged:
            say("note: vLLM loads no adapter with model.modules_to_save; for vLLM, export the model with --merged")
