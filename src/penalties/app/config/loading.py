"""Configs read from TOML files, with values from the command line, and checked as a whole.

>>> config = load("demo", ["train.steps=5"])
>>> config.train.steps, config.model.name, config.pipeline().names[0]
(5, 'tiny', 'kl')
"""

import copy
import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from ..problems import ConfigError, Problem, nearest
from .checks import checked, hidden, without_secrets
from .config import FOLDERS, Config
from .overrides import override
from .reading import read

__all__ = ["DEMO", "examine", "find", "load", "load_again"]

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


def examine(path: str | os.PathLike[str] | None = None, overrides: Sequence[str] = ()) -> tuple[Config, list[Problem]]:
    """The config in a file without its problems, and the problems; a file that cannot be read is an error."""
    source = find(path)
    raw = _parsed(source)
    _absolute(raw, source.parent)
    folders = (str(source.parent.absolute()), str(Path.cwd()))
    config, problems = _examined(raw, folders, overrides)
    return config.found_in(_holding(config, folders)), problems


def load_again(given: Mapping[str, Any], source: str, overrides: Sequence[str] = ()) -> Config:
    """The config that `to_dict` returned, with some values set, checked like a file; `source` is for messages."""
    raw = copy.deepcopy(dict(given))
    folders = raw.pop(FOLDERS, ())
    config, problems = _examined(raw, (*folders, str(Path.cwd())), overrides)
    if problems:
        raise ConfigError(source, problems)
    return config.found_in(folders)


def _examined(raw: dict[str, Any], folders: Sequence[str], overrides: Sequence[str]) -> tuple[Config, list[Problem]]:
    """The config that was read, and its problems; its modules may be in these folders."""
    problems = [
        Problem(hidden(one.where), hidden(one.message)) for one in override(raw, overrides, list(Config.model_fields))
    ]
    _absolute(raw, Path.cwd())
    raw, secrets = without_secrets(raw)
    problems += secrets
    for folder in folders:
        if folder not in sys.path:
            # At the end, where it hides nothing that is installed.
            sys.path.append(folder)
    config, wrong = read(Config, {"data": {}, **raw})
    problems += [one for one in wrong if not _reported(one, problems)]
    problems += [one for one in checked(config, raw) if not _reported(one, problems)]
    if problems:
        return config, problems
    names = config.pipeline().names
    terms = [table.model_copy(update={"name": name}) for table, name in zip(config.term, names, strict=True)]
    return config.model_copy(update={"term": terms}), []


def _holding(config: Config, folders: Sequence[str]) -> dict[str, None]:
    """The folders that hold the modules that the config names; the first one counts."""
    named = [path.partition(":") for path in (config.train.loss, *(table.fn for table in config.term))]
    found: dict[str, None] = {}
    for root in [module.partition(".")[0] for module, colon, _ in named if colon]:
        there = [one for one in folders if Path(one, f"{root}.py").is_file() or Path(one, root).is_dir()]
        found |= dict.fromkeys(there[:1])
    return found


def find(path: str | os.PathLike[str] | None) -> Path:
    """The file of a config."""
    if path is None or (os.fspath(path) == DEMO and not Path(DEMO).is_file()):
        return Path(__file__).parents[1] / "demo" / "demo.toml"
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
    """Make the paths that were read absolute: of data, of models that are folders, and of what sinks write."""
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
    for table, key in paths:
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


def _reported(problem: Problem, before: Sequence[Problem]) -> bool:
    """Whether a problem with this key, or with its table, is known already."""
    return any(problem.where == one.where or problem.where.startswith(f"{one.where}.") for one in before)
