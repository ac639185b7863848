"""Whether the tables of a config fit together, and what they name is there: files, functions, options, libraries."""

import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from ..errors import MissingLibraryError
from .config_messages import label_of
from .config_objective import loss_problems, term_problems
from .config_problems import Problem, joined, nearest, shown
from .config_reading import UNKNOWN

if TYPE_CHECKING:
    from .config import Config
    from .config_tables import BackendTable, ModelTable

__all__ = ["checked"]

_LOCAL_ONLY: Final = ("alpha", "target_modules", "device", "dtype")
_REMOTE_ONLY: Final = ("base_url", "server")

_NEEDS: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "local": (("torch", "transformers", "peft"), "train"),
    "tinker": (("tinker", "torch"), "tinker,torch"),
    "process": (("pebble", "cloudpickle"), "process"),
    "ray": (("ray", "cloudpickle"), "ray"),
    "tensorboard": (("tensorboardX",), "tensorboard"),
    "mlflow": (("mlflow",), "mlflow"),
    "wandb": (("wandb",), "wandb"),
    "opentelemetry": (("opentelemetry",), "otel"),
}
"""The packages that a choice needs, and the extra that brings them."""


def checked(config: "Config", raw: Mapping[str, Any]) -> list[Problem]:
    """Everything that is wrong between the tables; `raw` is what was read, with what is wrong in itself."""
    terms, named = raw.get("term"), raw.get("references")
    # A reference that is wrong in itself is there all the same.
    references = {*config.references, *(cast("dict[str, Any]", named) if isinstance(named, dict) else ())}
    given = cast("list[Any]", terms) if isinstance(terms, list) else []
    return [
        *_files(config),
        *_models(config),
        *_backend(config.backend, config.model),
        *_libraries(config, given),
        *_sinks(config),
        *loss_problems(config, references),
        *term_problems(config, given, references),
    ]


def _files(config: "Config") -> Iterator[Problem]:
    for key in ("path", "eval_path"):
        given = getattr(config.data, key)
        if given is None or given == UNKNOWN:
            continue
        path = Path(given)
        if path.is_dir():
            yield Problem(f"data.{key}", f'found "{given}", a folder; expected a file of JSON lines')
        elif not path.is_file():
            there = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
            yield Problem(f"data.{key}", f'found "{given}", where there is no file{nearest(path.name, there)}')
        elif not os.access(path, os.R_OK):
            yield Problem(f"data.{key}", f'found "{given}", which may not be read')


def _models(config: "Config") -> Iterator[Problem]:
    """Folders of models; names are looked up when the model is loaded."""
    named = {"model.name": config.model.name}
    named |= {f"references.{name}.model": getattr(one, "model", "") for name, one in config.references.items()}
    for where, given in named.items():
        if os.path.isabs(given) and not (Path(given) / "config.json").is_file():
            yield Problem(where, f'found "{given}"; expected a folder with a model, which has a config.json')


def _backend(backend: "BackendTable", model: "ModelTable") -> Iterator[Problem]:
    remote = backend.kind == "tinker"
    table, keys = (model, _LOCAL_ONLY) if remote else (backend, _REMOTE_ONLY)
    for key in keys:
        if getattr(table, key) != type(table).model_fields[key].default:
            name, other = ("model", "local") if remote else ("backend", "tinker")
            message = (
                f'is for backend.kind = "{other}", and here it is "{backend.kind}"; expected no value: take it out'
            )
            yield Problem(f"{name}.{key}", message)
    if remote and backend.base_url is not None:
        yield from _address("backend.base_url", backend.base_url, "TINKER_API_KEY")


def _address(where: str, given: str, variable: str) -> Iterator[Problem]:
    try:
        found = urlsplit(given)
        right = found.scheme in ("http", "https") and bool(found.hostname) and (found.port or 1) > 0
    except ValueError:
        right, found = False, urlsplit("")
    if found.username is not None or found.password is not None or found.query:
        # Not repeated: it may hold what nobody else should read.
        yield Problem(where, f"holds more than an address; expected no user, password or query: set {variable} instead")
    elif not right:
        yield Problem(where, f"found {shown(given)}; expected an address, as https://host:port")


def _libraries(config: "Config", terms: Sequence[Any]) -> Iterator[Problem]:
    wanted = {"backend.kind": config.backend.kind}
    places = {f"term.{label_of(terms, index)}.runs": one.runs for index, one in enumerate(config.term)}
    wanted |= {where: runs for where, runs in places.items() if runs in _NEEDS}
    sinks = {name: getattr(config.sinks, name) for name in type(config.sinks).model_fields}
    wanted |= {f"sinks.{name}": name for name, table in sinks.items() if table is not None}
    for where, choice in wanted.items():
        packages, extra = _NEEDS[choice]
        missing = [package for package in packages if find_spec(package) is None]
        if choice == "tensorboard" and find_spec("tensorboard") is not None:
            # PyTorch's own writer serves as well.
            continue
        if missing:
            yield Problem(where, str(MissingLibraryError(shown(choice), joined(missing, "and"), extra)))


def _sinks(config: "Config") -> Iterator[Problem]:
    mlflow = config.sinks.mlflow
    if mlflow is not None and mlflow.tracking_uri is not None and "://" in mlflow.tracking_uri:
        found = mlflow.tracking_uri
        if urlsplit(found).scheme in ("http", "https"):
            yield from _address("sinks.mlflow.tracking_uri", found, "MLFLOW_TRACKING_USERNAME and _PASSWORD")
