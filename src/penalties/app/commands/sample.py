"""`penalties sample`: continue prompts with the model of a run."""

from collections.abc import Sequence
from pathlib import Path

import click

from ...encoding import dumps
from ..console import say, styled
from .options import as_json, checkpoint, debug, device, warn_of_damage

__all__ = ["command"]


@click.command("sample")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("prompts", metavar="PROMPT...", nargs=-1, required=True)
@checkpoint
@click.option("-n", "--count", type=click.IntRange(1), default=1, show_default=True, help="Samples per prompt.")
@click.option("--max-tokens", type=click.IntRange(1), default=64, show_default=True, help="The most tokens per sample.")
@click.option(
    "--temperature",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="0 always takes the likeliest token, 1 samples from the model's own distribution.",
)
@click.option("--top-k", type=click.IntRange(1), help="Sample only from this many of the likeliest tokens.")
@click.option(
    "--top-p",
    type=click.FloatRange(0, 1, min_open=True),
    help="Sample only from the likeliest tokens that together have this probability.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The seed of the samples.")
@device
@as_json
@debug
def command(
    run: Path,
    prompts: Sequence[str],
    which: str | int | None,
    count: int,
    max_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int,
    device: str | None,
    as_json: bool,
) -> None:
    """Continue each PROMPT with the model of RUN.

    Prompts are read as in training: give them as they are in the data, with a space at the end if those have one. A
    model that was trained on messages answers each as the turn of a user, by the tokenizer's chat template.
    """
    if count > 1 and temperature == 0:
        raise click.UsageError("--count needs --temperature above 0: at 0, all samples are the same")
    from ..trained import find
    from ..trained.sampling import asked, continued

    trained = find(run, which, device=device)
    warn_of_damage(trained)
    given = {"top_k": top_k, "top_p": top_p}
    options = {name: value for name, value in given.items() if value is not None}
    turns = [asked(prompt, chat=trained.chat) for prompt in prompts]
    with trained.opened() as backend:
        texts = continued(backend, turns, count, max_tokens=max_tokens, temperature=temperature, seed=seed, **options)
    step = trained.checkpoint.step
    for index, (prompt, some) in enumerate(zip(prompts, texts, strict=True)):
        for number, text in enumerate(some):
            if as_json:
                say(dumps({"kind": "sample", "step": step, "prompt": prompt, "text": text}))
                continue
            if index or number:
                say("")
            if len(prompts) * count > 1:
                styled((prompt, "cyan"))
            # Line by line: control characters within a line are escaped.
            say(*text.split("\n"))
