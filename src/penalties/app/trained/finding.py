"""The model of a run, as one of its checkpoints has it."""

import contextlib
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..problems import nearest
from ..runs import checkpoints
from ..runs.checkpoints import Checkpoint
from ..runs.disk import RunError
from ..runs.run import Run

if TYPE_CHECKING:
    from ..config import Config
    from ..train.clients import Backend

__all__ = ["Trained", "find"]


@dataclass(frozen=True)
class Trained:
    """A run, its config, and one of its checkpoints."""

    run: Run
    config: "Config"
    checkpoint: Checkpoint

    @property
    def remote(self) -> bool:
        """Whether a server has the weights."""
        return self.config.backend.kind != "local"

    @property
    def chat(self) -> bool:
        """Whether it was trained on conversations."""
        return bool(self.checkpoint.notes.get("chat"))

    @property
    def whole(self) -> bool:
        """Whether the weights of the model itself were trained, rather than an adapter."""
        return self.config.model.adapter == "none"

    @property
    def weights(self) -> str:
        """Where the trained weights are: a folder, for an adapter in peft's format, or the name that a server has."""
        if self.remote:
            return self.checkpoint.client
        # As the folder of the run was given, which is shorter than an absolute path.
        return str(self.run.checkpoints / f"{self.checkpoint.step:06d}" / Path(self.checkpoint.client).name)

    @contextlib.contextmanager
    def opened(self) -> "Generator[Backend]":
        """The model, loaded, in this process or on its server."""
        from ..train.clients import connect

        backend, status = connect(self.config, self.checkpoint.client), "errored"
        try:
            yield backend
            status = "success"
        finally:
            backend.close(status)


def find(folder: str | Path, which: str | int | None = None, *, device: str | None = None) -> Trained:
    """The model of a run at a checkpoint: see `checkpoints.find`. A device takes the place of the config's.

    Neither data nor the functions of terms are looked up: they may be gone.
    """
    from ..config import Config, ConfigError

    run = Run(folder)
    if not run.exists():
        run.check_whole()
        there = [one.name for one in run.folder.absolute().parent.glob("*") if Run(one).exists()]
        raise RunError(f"{run.folder} holds no run{nearest(run.folder.name, there)}", 2)
    try:
        config = Config.from_dict(run.config())
    except ConfigError as error:
        raise RunError(
            f"{run.folder}: its config is from another version of penalties: {error.problems[0]}", 2
        ) from error
    if device is not None and config.backend.kind != "local":
        raise RunError(f"{run.folder}: its model is on a server; leave --device out", 2)
    if device is not None:
        config = config.model_copy(update={"model": config.model.model_copy(update={"device": device})})
    return Trained(run, config, checkpoints.find(run, which))
