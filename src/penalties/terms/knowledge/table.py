"""Where a relation is in a database."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import OptionError
from ...pipeline.kinds import is_mapping
from .base import Thing, is_thing

__all__ = ["Table"]


def _nothing() -> Mapping[str, Thing]:
    return {}


@dataclass(frozen=True)
class Table:
    """Where the facts of a relation are: a table or a view, with a column of subjects and one of objects.

    - `name`: of the table or view. It is quoted, and may be any name.
    - `subject`, `object`: the columns. Rows without an object are not facts.
    - `where`: values that other columns must have, such as the relation's name in a table of triples.
    - `schema`: of the table, where it is not the default one.

    >>> from penalties.terms.knowledge import Table
    >>> Table("facts", "subject", "object", where={"relation": "capital of"}).columns
    ('subject', 'object', 'relation')
    """

    name: str
    subject: str
    object: str
    where: Mapping[str, Thing] = field(default_factory=_nothing)
    schema: str | None = None

    def __post_init__(self) -> None:
        """Check that names are names."""
        names: dict[str, Any] = {"name": self.name, "subject": self.subject, "object": self.object}
        if self.schema is not None:
            names["schema"] = self.schema
        for option, name in names.items():
            if not isinstance(name, str) or not name:
                raise OptionError("Table", option, name, "a name, a string that is not empty")
        if not is_mapping(self.where) or not all(
            isinstance(column, str) and is_thing(value) for column, value in self.where.items()
        ):
            raise OptionError("Table", "where", self.where, "a mapping from columns to strings or whole numbers")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return (self.subject, self.object, *self.where)
