"""What a checkpoint has for the training loop, checked: a file may have any types under a checksum that is right."""

import json
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from ..problems import counted
from ..runs.about import Count, wrong
from ..runs.disk import RunError

if TYPE_CHECKING:
    from ..runs.checkpoints import Checkpoint

__all__ = ["Notes"]


class _Best(BaseModel, strict=True):
    """The best evaluation; see `Best`."""

    step: Count | None
    value: float | None
    waited: Count


class Notes(BaseModel, strict=True):
    """The notes of a checkpoint."""

    config: dict[str, Any]
    data: str
    """Their fingerprint."""
    findings: dict[str, tuple[int, int, int]]
    """See `Findings`."""
    references: dict[str, tuple[Count, str]] = {}
    """By name: how many data are cached, and their checksum."""
    best: _Best | None = None

    @property
    def known_best(self) -> dict[str, Any] | None:
        """As `Best` takes it."""
        return None if self.best is None else self.best.model_dump()

    @classmethod
    def of(cls, checkpoint: "Checkpoint") -> "Notes":
        """Those of a checkpoint; a `RunError` if it does not have them."""
        try:
            # As JSON, in which a tuple is a list.
            return cls.model_validate_json(json.dumps(dict(checkpoint.notes)))
        except ValueError as error:
            after = counted(checkpoint.step, "step")
            raise RunError(
                f"the checkpoint after {after} cannot be used: notes.{wrong(error)} is missing or invalid; remove it "
                "to resume from the one before, or start again in another folder"
            ) from error
