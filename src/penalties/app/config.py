"""The config of a run: TOML, checked as a whole, with every default in it.

>>> config = load("demo", ["train.steps=5"])
>>> config.train.steps, config.model.name, config.pipeline().names[0]
(5, 'tiny', 'kl')
"""

import copy
import os
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from pydantic import Field, PrivateAttr

from ..pipeline import Pipeline, Term
from ..pipeline.schedules import Schedule, constant
from ..training.losses import BY_NAME
from ..training.references import Provider, client, initial, perturbed
from .config_checks import checked, hidden, without_secrets
from .config_objective import arguments, base_term
from .config_overrides import override
from .config_problems import ConfigError, DataError, Problem, nearest
from .config_reading import read
from .config_schedules import made
from .config_table import Table
from .config_tables import (
    BackendTable,
    ClientTable,
    DataTable,
    ModelTable,
    PerturbedTable,
    ReferenceTable,
    SinksTable,
    TermTable,
    TrainTable,
)

__all__ = ["DEMO", "Config", "ConfigError", "DataError", "Problem", "examine", "find", "load", "load_again"]

DEMO: Final = "demo"
"""The config that ships with the program."""

_FOLDERS: Final = "folder"
"""A key beside the tables in what `to_dict` gives."""


class Config(Table):
    """Everything that a run is made of."""

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
    sinks: SinksTable = SinksTable()
    """Where metrics go beside the run's own log."""
    _folders: tuple[str, ...] = PrivateAttr(default=())
    """Where modules that it names were found, beside the config or in the working directory."""

    def to_dict(self) -> dict[str, Any]:
        """The whole config with every default, as data for JSON; there are no secrets in it.

        `folder` is there where it names modules beside the config, or in the working directory: a list of where they
        are, for whoever goes on with a run.
        """
        return self.model_dump(mode="json") | ({_FOLDERS: list(self._folders)} if self._folders else {})

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "Config":
        """The config that `to_dict` gave; neither files nor functions are looked for."""
        config, problems = read(cls, {key: value for key, value in given.items() if key != _FOLDERS})
        if problems:
            raise ConfigError("config", problems)
        return config.found_in(given.get(_FOLDERS, ()))

    def found_in(self, folders: Iterable[str]) -> "Config":
        """The same with its modules in these folders."""
        made = self.model_copy()
        made._folders = tuple(folders)
        return made

    def pipeline(self) -> Pipeline:
        """The terms, without the base loss."""
        return Pipeline.from_config([arguments(table) for table in self.term])

    @property
    def base(self) -> Term | dict[str, Any]:
        """The base loss, as `forward_backward_custom` takes it; made anew each time, so keep it."""
        if self.train.loss in BY_NAME:
            return {"fn": self.train.loss, "options": dict(self.train.loss_options)}
        return base_term(self.train.loss, self.train.loss_options)

    def schedules(self) -> dict[str, Schedule]:
        """The schedules of weights, by the names of their terms."""
        terms = zip(self.pipeline().names, self.term, strict=True)
        return {
            name: made(table.schedule, table.weight, self.train.steps)
            for name, table in terms
            if table.schedule is not None
        }

    def learning_rate(self) -> Schedule:
        """The learning rate as a function of the step."""
        train = self.train
        return (
            constant(train.learning_rate)
            if train.schedule is None
            else made(train.schedule, train.learning_rate, train.steps)
        )

    def providers(self, teacher: Callable[[ClientTable], Any]) -> dict[str, Provider]:
        """What makes each reference; `teacher` makes the client of another model."""
        return {name: _provider(table, teacher) for name, table in self.references.items()}


def load(path: str | os.PathLike[str] | None = None, overrides: Sequence[str] = ()) -> Config:
    """The config in a file, or the one that ships with the program (None or "demo").

    Paths in it are relative to its folder, those in overrides to the working directory. Functions of one's own are
    looked for beside the config and in the working directory too. Everything that is wrong is in one `ConfigError`.
    """
    config, problems = examine(path, overrides)
    if problems:
        raise ConfigError(find(path).name, problems)
    return config


def examine(path: str | os.PathLike[str] | None = None, overrides: Sequence[str] = ()) -> tuple[Config, list[Problem]]:
    """The config in a file without what is wrong in it, and all of that; a file that cannot be read is an error."""
    source = find(path)
    raw = _parsed(source)
    _absolute(raw, source.parent)
    places = (str(source.parent.absolute()), str(Path.cwd()))
    config, problems = _examined(raw, places, overrides)
    return config.found_in(_holding(config, places)), problems


def load_again(given: Mapping[str, Any], source: str, overrides: Sequence[str] = ()) -> Config:
    """The config that `to_dict` gave, with some values set, checked as that of a file; `source` is for messages."""
    raw = copy.deepcopy(dict(given))
    folders = raw.pop(_FOLDERS, ())
    config, problems = _examined(raw, (*folders, str(Path.cwd())), overrides)
    if problems:
        raise ConfigError(source, problems)
    return config.found_in(folders)


def _examined(raw: dict[str, Any], places: Sequence[str], overrides: Sequence[str]) -> tuple[Config, list[Problem]]:
    """The config of what was read, whose modules are in some places too, and what is wrong with it."""
    problems = [
        Problem(hidden(one.where), hidden(one.message)) for one in override(raw, overrides, list(Config.model_fields))
    ]
    _absolute(raw, Path.cwd())
    raw, secrets = without_secrets(raw)
    problems += secrets
    for place in places:
        if place not in sys.path:
            # At the end, where it hides nothing that is installed.
            sys.path.append(place)
    config, wrong = read(Config, {"data": {}, **raw})
    problems += [one for one in wrong if not _reported(one, problems)]
    problems += [one for one in checked(config, raw) if not _reported(one, problems)]
    if problems:
        return config, problems
    names = config.pipeline().names
    terms = [table.model_copy(update={"name": name}) for table, name in zip(config.term, names, strict=True)]
    return config.model_copy(update={"term": terms}), []


def _holding(config: Config, places: Sequence[str]) -> dict[str, None]:
    """Those of the places that hold a module which the config names, each module in the first that does."""
    named = [path.partition(":") for path in (config.train.loss, *(table.fn for table in config.term))]
    found: dict[str, None] = {}
    for root in [module.partition(".")[0] for module, colon, _ in named if colon]:
        there = [one for one in places if Path(one, f"{root}.py").is_file() or Path(one, root).is_dir()]
        found |= dict.fromkeys(there[:1])
    return found


def find(path: str | os.PathLike[str] | None) -> Path:
    """The file of a config."""
    if path is None or (os.fspath(path) == DEMO and not Path(DEMO).is_file()):
        return Path(__file__).parent / "demo" / "demo.toml"
    return Path(path)


def _parsed(source: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(source.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        there = [one.name for one in source.parent.glob("*.toml")] if source.parent.is_dir() else []
        hint = nearest(source.name, [*there, DEMO]) or "; give the path of a TOML file"
        raise ConfigError(str(source), [Problem("file", f"does not exist{hint}")]) from None
    except OSError as error:
        raise ConfigError(str(source), [Problem("file", f"cannot be read ({error.strerror})")]) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(source.name, [Problem("file", f"is not valid TOML ({error})")]) from error


def _absolute(raw: dict[str, Any], folder: Path) -> None:
    """Make paths in what was read absolute: those of data, of models that are folders, and of what sinks write."""
    tables = {name: cast("Any", table) for name, table in raw.items() if isinstance(table, dict)}
    sinks = tables.get("sinks", {})
    places: list[tuple[Any, str]] = [
        (tables.get("data", {}), "path"),
        (tables.get("data", {}), "eval_path"),
        (tables.get("model", {}), "name"),
        (sinks.get("tensorboard"), "folder"),
        (sinks.get("mlflow"), "tracking_uri"),
    ]
    places += [(one, "model") for one in tables.get("references", {}).values()]
    for table, key in places:
        # A sink may be `true`, and anything may be wrong.
        value = cast("dict[str, Any]", table).get(key) if isinstance(table, dict) else None
        if isinstance(value, str) and value and (before := _before_path(key, value)) is not None:
            path = Path(value.removeprefix(before)).expanduser()
            table[key] = before + os.path.normpath(folder.absolute() / path)


def _before_path(key: str, value: str) -> str | None:
    """What stands before the path in a value; None where there is no path that may be relative."""
    if key in ("name", "model"):
        return "" if value.startswith((".", "/", "~")) else None
    if key != "tracking_uri":
        return ""
    if value.startswith("sqlite:///"):
        return None if value.endswith(("///", ":memory:")) else "sqlite:///"
    if value.startswith("file:"):
        return None if value.startswith("file://") else "file:"
    return None if ":" in value or value.startswith("databricks") else ""


def _provider(table: ReferenceTable, teacher: Callable[[ClientTable], Any]) -> Provider:
    if isinstance(table, ClientTable):
        return client(teacher(table), cache=table.cache)
    if isinstance(table, PerturbedTable):
        return perturbed(table.token_dropout, table.seed, table.replacement)
    return initial()


def _reported(problem: Problem, before: Sequence[Problem]) -> bool:
    """Whether something at this place, or around it, is wrong already."""
    return any(problem.where == one.where or problem.where.startswith(f"{one.where}.") for one in before)
