"""Whether the tables of a config fit together, and the files, functions, options and libraries that they name exist."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from ...errors import MissingLibraryError
from ..privacy import hide, secret_in
from ..problems import Problem, joined, nearest, shown
from .messages import label_of
from .objective import loss_problems, term_problems
from .reading import UNKNOWN

if TYPE_CHECKING:
    from .config import Config
    from .tables import BackendTable, ModelTable

__all__ = ["checked", "hidden", "without_secrets"]

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
"""The packages that a choice needs, and the extra that installs them."""

_STORE: Final = "sinks.mlflow.tracking_uri"
_INSTEAD: Final[Mapping[str, str]] = {
    "backend.base_url": "TINKER_API_KEY",
    _STORE: "MLFLOW_TRACKING_USERNAME and _PASSWORD, or all of it as MLFLOW_TRACKING_URI,",
}
"""The environment variables for what an address must not contain."""

_USER: Final = re.compile(r"([a-zA-Z][\w+.-]{1,30}:/{1,2})[^/?#\s]+@")
"""A user, and perhaps a password, in an address; a normalised path has one slash instead of two."""
_PASSWORDS: Final = ("password", "passwd", "pwd", "token", "secret")


def without_secrets(raw: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """The tables with secrets replaced by names, so that no message repeats one; and a problem for each.

    >>> without_secrets({"model": {"name": "https://me:pass@host/model"}})[0]
    {'model': {'name': 'https://<user>@host/model'}}
    """
    problems: list[Problem] = []

    def walk(value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, dict):
            table = cast("dict[str, Any]", value)
            return {hidden(key): walk(one, (*path, hidden(key))) for key, one in table.items()}
        if isinstance(value, list):
            entries = cast("list[Any]", value)
            return [walk(one, (*path, hidden(_numbered(path, entries, at)))) for at, one in enumerate(entries)]
        if isinstance(value, str) and hidden(value) != value:
            where = ".".join(path)
            problems.append(Problem(where, _about_secret(where, secret_in(value))))
            return hidden(value)
        return value

    return walk(dict(raw), ()), problems


def hidden(text: str) -> str:
    """A text without secrets: those of the environment, and the users in addresses."""
    return _USER.sub(r"\1<user>@", hide(text))


def _numbered(path: tuple[str, ...], entries: Sequence[Any], index: int) -> str:
    return label_of(entries, index) if path == ("term",) else str(index + 1)


def _about_secret(where: str, variable: str | None) -> str:
    if variable is not None:
        return f"contains the value of {variable}; keys are read from the environment, never from a config: remove it"
    instead = f"set {_INSTEAD[where]} instead" if where in _INSTEAD else "remove it"
    return f"contains more than an address; expected no user or password: {instead}"


def checked(config: "Config", raw: Mapping[str, Any]) -> list[Problem]:
    """Problems between the tables; `raw` is what was read, including values that are wrong by themselves."""
    terms, named = raw.get("term"), raw.get("references")
    # A reference with a problem of its own still exists.
    references = {*config.references, *(cast("dict[str, Any]", named) if isinstance(named, dict) else ())}
    given = cast("list[Any]", terms) if isinstance(terms, list) else []
    return [
        *_files(config),
        *_models(config),
        *_backend(config.backend, config.model),
        *_precision(config.backend, config.model),
        *_libraries(config, given),
        *_sinks(config),
        *loss_problems(config, references),
        *_names(config, given),
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
            yield Problem(f"data.{key}", f'found "{given}", which does not exist{nearest(path.name, there)}')
        elif not os.access(path, os.R_OK):
            yield Problem(f"data.{key}", f'found "{given}", which cannot be read: permission denied')


def _models(config: "Config") -> Iterator[Problem]:
    """Folders of models; names are looked up when a model is loaded."""
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
            message = f'is for backend.kind = "{other}", but this config has "{backend.kind}"; remove it'
            yield Problem(f"{name}.{key}", message)
    if remote and backend.base_url is not None:
        yield from _address("backend.base_url", backend.base_url)


def _precision(backend: "BackendTable", model: "ModelTable") -> Iterator[Problem]:
    """Whether PyTorch knows the device and the dtype; whether the device exists is seen when a model is loaded."""
    given = model.device is not None or model.dtype is not None
    if not given or backend.kind != "local" or find_spec("torch") is None:
        return
    import torch

    if model.device is not None:
        try:
            torch.device(model.device)
        except RuntimeError:
            hint = nearest(model.device, ("cpu", "cuda", "cuda:0", "mps", "xpu"), quoted=True)
            found = shown(model.device)
            yield Problem(
                "model.device", f'found {found}; expected a device of PyTorch, such as "cpu" or "cuda:0"{hint}'
            )
    dtype = getattr(torch, model.dtype or "float32", None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        hint = nearest(model.dtype, ("float32", "float16", "bfloat16", "float64"), quoted=True)
        expected = '"float32", "bfloat16" or another floating dtype of PyTorch'
        yield Problem("model.dtype", f"found {shown(model.dtype)}; expected {expected}{hint}")


def _names(config: "Config", terms: Sequence[Any]) -> Iterator[Problem]:
    """Names that `--set` cannot address: `term.2.weight` is the second term's, `a.b.weight` that of `a`."""
    for index, table in enumerate(config.term):
        name = table.name or ""
        if name.isdigit() or "." in name or "=" in name:
            message = f"found {shown(name)}; expected a name with no dot or equals sign, and not of digits alone"
            yield Problem(f"term.{label_of(terms, index)}.name", message)


def _address(where: str, given: str) -> Iterator[Problem]:
    try:
        found = urlsplit(given)
        right = found.scheme in ("http", "https") and bool(found.hostname) and (found.port or 1) > 0
    except ValueError:
        right, found = False, urlsplit("")
    if found.username is not None or found.password is not None or found.query:
        # Not repeated: it may contain a secret.
        message = f"contains more than an address; expected no user, password or query: set {_INSTEAD[where]} instead"
        yield Problem(where, message)
    elif not right:
        yield Problem(where, f"found {shown(given)}; expected an address, such as https://host:port")


def _libraries(config: "Config", terms: Sequence[Any]) -> Iterator[Problem]:
    wanted = {"backend.kind": config.backend.kind}
    runners = {f"term.{label_of(terms, index)}.runs": one.runs for index, one in enumerate(config.term)}
    wanted |= {where: runs for where, runs in runners.items() if runs in _NEEDS}
    sinks = {name: getattr(config.sinks, name) for name in type(config.sinks).model_fields}
    wanted |= {f"sinks.{name}": name for name, table in sinks.items() if table is not None}
    for where, choice in wanted.items():
        packages, extra = _NEEDS[choice]
        missing = [package for package in packages if find_spec(package) is None]
        if choice == "tensorboard" and find_spec("tensorboard") is not None:
            # PyTorch's own writer works too.
            continue
        if missing:
            yield Problem(where, str(MissingLibraryError(shown(choice), joined(missing, "and"), extra)))


def _sinks(config: "Config") -> Iterator[Problem]:
    mlflow = config.sinks.mlflow
    scheme, there, rest = ("", "", "") if mlflow is None else (mlflow.tracking_uri or "").partition("://")
    if there and scheme in ("http", "https"):
        yield from _address(_STORE, f"{scheme}{there}{rest}")
    elif there and scheme.partition("+")[0] not in ("sqlite", "file"):
        # A password in a database's address may have characters that other addresses forbid.
        query = rest.partition("?")[2].lower()
        if "@" in rest or any(word in query for word in _PASSWORDS):
            yield Problem(_STORE, _about_secret(_STORE, None))
