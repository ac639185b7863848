"""Configs read from TOML files, with values from the command line, and checked as a whole.

>>> config = load("demo", ["train.steps=5"])
>>> config.train.steps, config.model.name, config.pipeline().names[0]
(5, 'tiny', 'kl')
"""

import copy
import math
import os
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from ...files import read_plain
from ..problems import ConfigError, Problem, nearest
from .checks import checked, hidden, without_secrets
from .code import holding, inside
from .config import Config, folders_of
from .overrides import DEEPEST, override
from .reading import read

__all__ = ["DEMO", "examine", "find", "load", "load_again", "load_tables"]

DEMO: Final = "demo"
"""The config that ships with the program."""


def load(path: str | os.PathLike[str] | None = None, overrides: Sequence[str] = ()) -> Config:
    """The config in a file, or the one that ships with the program (None or "demo").

    Paths in it are relative to its folder, those in overrides to the working directory. Your own functions are
    looked up beside the config and in the working directory too. One `ConfigError` has every problem.
    """
    config, problems = examine(path, overrides)
    if problems:
        raise ConfigError(find(path).name, problems)
    return config


def examine(
    path: str | os.PathLike[str] | None = None, overrides: Sequence[str] = (), *, code: bool = True
) -> tuple[Config, list[Problem]]:
    """The config in a file without its problems, and the problems; a file that cannot be read is an error.

    The modules that it names are imported last, if there is no problem so far; with `code=False` they are not.
    """
    source = find(path)
    raw = _parsed(source)
    _check_depth(raw, source.name)
    _absolute(raw, source.parent)
    folders = (str(source.parent.absolute()), str(Path.cwd()))
    config, problems = _examined(raw, folders, overrides, code=code)
    return config.found_in(holding(config, folders)), problems


def load_tables(given: Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """The config in nested mappings, with some values set, checked like a file.

    Its paths are relative to the working directory, where its modules are looked up too.

    >>> load_tables({"data": {"path": str(find("demo").parent / "pig_latin.jsonl")}}, ["train.steps=3"]).train.steps
    3
    """
    _check_depth(given, "config")
    raw = _plain(given)
    folders, wrong = folders_of(raw)
    both = [*folders, str(Path.cwd())]
    config, problems = _examined(raw, both, overrides, wrong)
    if problems:
        raise ConfigError("config", problems)
    return config.found_in(holding(config, both))


def _plain(nest: Any) -> Any:
    """A copy of nested mappings as a file would have them."""
    if isinstance(nest, Mapping):
        return {str(key): _plain(part) for key, part in cast("Mapping[Any, Any]", nest).items()}
    if isinstance(nest, list | tuple):
        return [_plain(part) for part in cast("Sequence[Any]", nest)]
    return str(nest) if isinstance(nest, Path) else nest


def load_again(given: Mapping[str, Any], run: Path, overrides: Sequence[str] = (), *, code: bool = True) -> Config:
    """The config that a run's folder has, with some values set, checked like a file.

    Its modules are where they were found before, or in the working directory, but not in the run's folder: nothing
    there is code. With `code=False` they are not imported.
    """
    _check_depth(given, str(run))
    raw = copy.deepcopy(dict(given))
    folders, wrong = folders_of(raw)
    whole = run.resolve()
    outside = [one for one in (*folders, str(Path.cwd())) if not Path(one).resolve().is_relative_to(whole)]
    config, problems = _examined(raw, outside, overrides, wrong, code=code, apart=run)
    if problems:
        raise ConfigError(str(run), problems)
    return config.found_in(folders)


def _examined(
    raw: dict[str, Any],
    folders: Sequence[str],
    overrides: Sequence[str],
    wrong: Sequence[Problem] = (),
    *,
    code: bool = True,
    apart: Path | None = None,
) -> tuple[Config, list[Problem]]:
    """The config that was read, and its problems, with those known before.

    Its modules may be in these folders, but not in the one that is kept apart.
    """
    found = override(raw, overrides, list(Config.model_fields))
    problems = [*wrong, *(Problem(hidden(one.where), hidden(one.message)) for one in found)]
    _absolute(raw, Path.cwd())
    raw, secrets = without_secrets(raw)
    problems += secrets
    config, wrong = read(Config, {"data": {}, **raw})
    problems += [one for one in wrong if not _reported(one, problems)]
    problems += [one for one in checked(config, raw, code=False) if not _reported(one, problems)]
    if problems or not code:
        # Modules run when they are imported, which is not done for a config that cannot be used.
        return config if problems else _with_steps(config), problems
    for folder in folders:
        if folder not in sys.path:
            # At the end, where it hides nothing that is installed.
            sys.path.append(folder)
    problems = ([] if apart is None else inside(config, apart)) or checked(config, raw, code=True)
    if problems:
        return config, problems
    config = _with_steps(config)
    names = config.pipeline().names
    terms = [table.model_copy(update={"name": name}) for table, name in zip(config.term, names, strict=True)]
    return config.model_copy(update={"term": terms}), []


def _with_steps(config: Config) -> Config:
    """The config with the steps that its epochs take."""
    from ..data.sources import count

    train = config.train
    if train.epochs is None:
        return config
    lines = sum(count(path) for path in config.data.paths)
    steps = max(1, math.ceil(train.epochs * lines / train.batch_size))
    return config.model_copy(update={"train": train.model_copy(update={"steps": steps, "epochs": None})})


def find(path: str | os.PathLike[str] | None) -> Path:
    """The file of a config."""
    if path is None or (os.fspath(path) == DEMO and not Path(DEMO).is_file()):
        return Path(__file__).parents[1] / "demo" / "demo.toml"
    return Path(path)


def _parsed(source: Path) -> dict[str, Any]:
    try:
        # A link is followed: it is the user who names the file.
        return tomllib.loads(read_plain(os.path.realpath(source)).decode("utf-8-sig"))
    except FileNotFoundError:
        there = [one.name for one in source.parent.glob("*.toml")] if source.parent.is_dir() else []
        hint = nearest(source.name, [*there, DEMO]) or "; give the path of a TOML file"
        raise ConfigError(str(source), [Problem("file", f"does not exist{hint}")]) from None
    except OSError as error:
        raise ConfigError(str(source), [Problem("file", f"cannot be read ({error.strerror})")]) from error
    except RecursionError:
        raise _too_deep(source.name) from None
    except ValueError as error:
        # Of TOML, of UTF-8, or of Python, for a number of thousands of digits.
        raise ConfigError(source.name, [Problem("file", f"is not valid TOML ({error})")]) from error


def _check_depth(raw: Mapping[str, Any], source: str) -> None:
    """Raise where what was read is nested so deeply that whatever walks through it would run out of stack."""
    level: list[Any] = [raw]
    for _ in range(DEEPEST):
        within = [part for nest in level for part in _parts(nest)]
        level = [part for part in within if isinstance(part, Mapping | list)]
    if level:
        raise _too_deep(source)


def _parts(nest: Any) -> Iterable[Any]:
    return cast("Iterable[Any]", nest.values() if isinstance(nest, Mapping) else nest)


def _too_deep(source: str) -> ConfigError:
    return ConfigError(source, [Problem("file", f"is nested too deeply; expected at most {DEEPEST} levels")])


def _absolute(raw: dict[str, Any], folder: Path) -> None:
    """Make paths that were read absolute: of data, of models that are folders, of what sinks and terms write."""
    tables = {name: cast("Any", table) for name, table in raw.items() if isinstance(table, dict)}
    sinks = tables.get("sinks", {})
    paths: list[tuple[Any, str]] = [
        (tables.get("data", {}), "path"),
        (tables.get("data", {}), "eval_path"),
        (tables.get("model", {}), "name"),
        (sinks.get("tensorboard"), "folder"),
        (sinks.get("mlflow"), "tracking_uri"),
    ]
    paths += [(one, "model") for one in tables.get("references", {}).values()]
    paths += [(layer, "folder") for term in _tables(raw.get("term")) for layer in _tables(term.get("wrap"))]
    for table, key in paths:
        # A sink may be `true`, and anything may be wrong.
        value = cast("dict[str, Any]", table).get(key) if isinstance(table, dict) else None
        if isinstance(value, list):
            table[key] = [_absolute_path(key, one, folder) for one in cast("list[Any]", value)]
        elif value is not None:
            table[key] = _absolute_path(key, value, folder)


def _tables(given: Any) -> list[dict[str, Any]]:
    """The tables of a list; anything may be wrong with it."""
    rows = cast("list[Any]", given) if isinstance(given, list) else []
    return [cast("dict[str, Any]", one) for one in rows if isinstance(one, dict)]


def _absolute_path(key: str, value: Any, folder: Path) -> Any:
    if not isinstance(value, str) or not value or (before := _before_path(key, value)) is None:
        return value
    path = os.path.expanduser(value.removeprefix(before))
    return before + os.path.normpath(folder.absolute() / path)


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


def _reported(problem: Problem, before: Sequence[Problem]) -> bool:
    """Whether a problem with this key, or with its table, is known already."""
    return any(problem.where == one.where or problem.where.startswith(f"{one.where}.") for one in before)
