"""One of two processes that tune a model together by TRL; torchrun starts it."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from ..torchrun import leave
from . import cases, tuning

KINDS: Final[dict[str, tuple[Callable[..., Any], Callable[..., Any]]]] = {
    "supervised": (tuning.supervised, tuning.supervised_by_hand),
    "preferring": (tuning.preferring, tuning.preferring_by_hand),
}
ACCUMULATION = (1, 4)
ROWS = 36 * cases.ROWS


def main(folder: Path) -> None:
    runs: dict[str, Any] = {}
    for kind, (build, _) in KINDS.items():
        for accumulation in ACCUMULATION:
            trainer = build(folder / "run", accumulation, ROWS)
            trainer.train()
            runs[f"{kind} {accumulation}"] = {
                "model": trainer.model.state_dict(),
                "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
                "output": trainer.loss_output.metrics(),
                "ranks": trainer.accelerator.num_processes,
            }
    torch.save(runs, folder / f"rank{trainer.args.process_index}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    leave()
