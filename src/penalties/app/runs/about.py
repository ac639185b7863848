"""The types of what a checkpoint says about itself: a file may have any, under a checksum that is right."""

from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

__all__ = ["About", "Count", "wrong"]

Count = Annotated[int, Field(ge=0)]


class About(BaseModel, strict=True):
    """What a checkpoint says about itself, besides its version and its checksum."""

    files: dict[str, str]
    """By path: the checksum of each."""
    step: Count
    client: str
    log_size: Count
    has_state: bool
    # A run of an earlier version has no best.
    best: Count | None = None
    notes: dict[str, Any]


def wrong(error: ValueError) -> str:
    """The key of the first value that is missing, or is of another type."""
    assert isinstance(error, ValidationError), "as validation raises it"
    return ".".join(str(part) for part in error.errors(include_url=False, include_input=False)[0]["loc"])
