"""The config of a run as a whole: its tables, and what they build."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

from pydantic import Field, PrivateAttr

from ...pipeline import Pipeline, Term
from ...pipeline.schedules import Schedule, constant, from_config
from ...training.losses import BY_NAME
from ...training.references import Provider, client, initial, perturbed
from ..problems import ConfigError, Problem, shown
from .objective import NONE, arguments, base_term
from .reading import read
from .table import Table
from .tables import (
    BackendTable,
    ClientTable,
    DataTable,
    ExecutorTable,
    ModelTable,
    PerturbedTable,
    ReferenceTable,
    SamplesTable,
    SinksTable,
    TermTable,
    TrainTable,
)

__all__ = ["Config", "folders_of"]

FOLDERS: Final = "folder"
"""A key beside the tables in the result of `to_dict`."""


class Config(Table):
    """Everything that defines a run."""

    model: ModelTable = ModelTable()
    """The model that is trained."""
    backend: BackendTable = BackendTable()
    """Where the model is trained."""
    data: DataTable
    """What it is trained on."""
    train: TrainTable = TrainTable()
    """How it is trained."""
    references: dict[str, ReferenceTable] = Field(default={})
    """What terms compare with: one array for each example, by name."""
    term: list[TermTable] = Field(default=[])
    """The terms of the objective, beside the base loss."""
    executor: ExecutorTable = ExecutorTable()
    """Where terms run if not in the loop itself, and for how long."""
    samples: SamplesTable = SamplesTable()
    """What the model says at each evaluation, and task metrics over it."""
    sinks: SinksTable = SinksTable()
    """Where metrics go besides the run's own log."""
    _folders: tuple[str, ...] = PrivateAttr(default=())
    """Where the modules that it names were found: beside the config, or in the working directory."""

    def to_dict(self) -> dict[str, Any]:
        """The whole config with every default, as data for JSON; there are no secrets in it.

        If the config names modules beside it or in the working directory, `folder` lists where they are, so that the
        run can be resumed from anywhere.
        """
        return self.model_dump(mode="json") | ({FOLDERS: list(self._folders)} if self._folders else {})

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "Config":
        """The config that `to_dict` returned; neither files nor functions are looked up."""
        tables = dict(given)
        folders, wrong = folders_of(tables)
        config, problems = read(cls, tables)
        if problems or wrong:
            raise ConfigError("config", [*problems, *wrong])
        return config.found_in(folders)

    def found_in(self, folders: Iterable[str]) -> "Config":
        """The same config, with its modules in these folders."""
        made = self.model_copy()
        made._folders = tuple(folders)
        return made

    def pipeline(self) -> Pipeline:
        """The terms, without the base loss."""
        return Pipeline.from_config([arguments(table, self.train.steps) for table in self.term])

    @property
    def base(self) -> Term | dict[str, Any] | None:
        """The base loss, as `forward_backward_custom` takes it. Every access makes a new one, so keep it."""
        if self.train.loss == NONE:
            return None
        if self.train.loss in BY_NAME:
            return {"fn": self.train.loss, "options": dict(self.train.loss_options)}
        return base_term(self.train.loss, self.train.loss_options)

    def learning_rate(self) -> Schedule:
        """The learning rate as a function of the step."""
        train = self.train
        if train.schedule is None:
            return constant(train.learning_rate)
        return from_config(train.schedule.model_dump(), train.learning_rate, steps=train.steps)

    def providers(self, teacher: Callable[[ClientTable], Any]) -> dict[str, Provider]:
        """The provider of each reference; `teacher` makes the client of another model."""
        return {name: _provider(table, teacher) for name, table in self.references.items()}


def folders_of(raw: dict[str, Any]) -> tuple[list[str], list[Problem]]:
    """Take the folders of modules out of what `to_dict` returned, and the problem if they are anything else."""
    found = raw.pop(FOLDERS, [])
    if isinstance(found, list) and all(isinstance(one, str) and os.path.isabs(one) for one in cast("list[Any]", found)):
        return cast("list[str]", found), []
    return [], [Problem(FOLDERS, f"found {shown(found)}; expected a list of absolute paths")]


def _provider(table: ReferenceTable, teacher: Callable[[ClientTable], Any]) -> Provider:
    if isinstance(table, ClientTable):
        return client(teacher(table), cache=table.cache, top_k=table.top_k)
    if isinstance(table, PerturbedTable):
        return perturbed(table.token_dropout, table.seed, table.replacement)
    return initial(top_k=table.top_k)
