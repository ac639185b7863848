"""Whether the tables of a config fit together, and the files, functions, options and libraries that they name exist."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from ...errors import MissingLibraryError
from ...pipeline.output import BASE
from ..data.sources import package_for
from ..metrics import METRICS
from ..privacy import hide, secret_in
from ..problems import Problem, counted, joined, nearest, shown
from .messages import label_of
from .objective import is_path, loss_problems, path_problem, term_problems
from .reading import UNKNOWN

if TYPE_CHECKING:
    from .config import Config
    from .table import Table
    from .tables import TermTable

__all__ = ["checked", "hidden", "without_secrets"]

_ADAPTER_ONLY: Final = (
    "model.rank",
    "model.alpha",
    "model.target_modules",
    "model.lora_dropout",
    "model.rslora",
    "model.modules_to_save",
    "model.quantize",
)
_LOCAL_ONLY: Final = (
    "model.adapter",
    *(path for path in _ADAPTER_ONLY if path != "model.rank"),
    "model.device",
    "model.dtype",
    "model.attention",
    "model.compile",
    "model.checkpointing",
    "train.micro_batch_tokens",
    "train.packing",
    "train.shard",
    "train.optimizer",
)
_WHOLE_ONLY: Final = ("model.adapter", "model.quantize", "model.compile", "train.packing")
"""What a model cannot have whose weights are spread over processes."""
_REMOTE_ONLY: Final = ("backend.base_url", "backend.server")

_NEEDS: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "local": (("torch", "transformers", "peft"), "train"),
    "tinker": (("tinker", "torch"), "tinker,torch"),
    "4bit": (("bitsandbytes", "accelerate"), "quantize"),
    "8bit": (("bitsandbytes", "accelerate"), "quantize"),
    "adamw8bit": (("bitsandbytes",), "quantize"),
    "process": (("pebble", "cloudpickle"), "process"),
    "ray": (("ray", "cloudpickle"), "ray"),
    "tensorboard": (("tensorboardX",), "tensorboard"),
    "mlflow": (("mlflow",), "mlflow"),
    "wandb": (("wandb",), "wandb"),
    "opentelemetry": (("opentelemetry",), "otel"),
    "pyarrow": (("pyarrow",), "data"),
    "datasets": (("datasets",), "data"),
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


def checked(config: "Config", raw: Mapping[str, Any], *, code: bool) -> list[Problem]:
    """Problems between the tables; `raw` is what was read, including values that are wrong by themselves.

    Functions of the user's are looked up, which runs their modules, only if `code` says so.
    """
    terms, named = raw.get("term"), raw.get("references")
    # A reference with its own problem still exists.
    references = {*config.references, *(cast("dict[str, Any]", named) if isinstance(named, dict) else ())}
    given = cast("list[Any]", terms) if isinstance(terms, list) else []
    return [
        *_files(config),
        *_length(raw),
        *_best(config),
        *_shard(config),
        *_models(config),
        *_backend(config),
        *_adapter(config),
        *_precision(config),
        *_cluster(config.executor.ray_address),
        *_libraries(config, given),
        *_sinks(config),
        *loss_problems(config, references, code=code),
        *_names(config, given),
        *term_problems(config, given, references, code=code),
        *_samples(config, code=code),
    ]


def _files(config: "Config") -> Iterator[Problem]:
    data = config.data
    named = [*(("path", path) for path in data.paths), ("eval_path", data.eval_path)]
    for key, given in named:
        if given is None or given == UNKNOWN:
            continue
        path = Path(given)
        # Those of os.path say no where a name is too long.
        if os.path.isdir(path):
            if not os.path.isfile(path / "state.json") and not os.path.isfile(path / "dataset_dict.json"):
                form = "a file, or a folder written by save_to_disk of datasets"
                yield Problem(f"data.{key}", f'found "{given}", a folder; expected {form}')
        elif os.path.exists(path) and not os.path.isfile(path):
            yield Problem(f"data.{key}", f'found "{given}", a pipe or device; expected a file')
        elif not os.path.isfile(path):
            there = os.listdir(path.parent) if os.access(path.parent, os.R_OK) and os.path.isdir(path.parent) else []
            yield Problem(f"data.{key}", f'found "{given}", which does not exist{nearest(path.name, there)}')
        elif not os.access(path, os.R_OK):
            yield Problem(f"data.{key}", f'found "{given}", which cannot be read: permission denied')
    if data.group_by_length and not data.shuffle:
        message = "found true, but data.shuffle = false keeps the order of the file; remove one of the two"
        yield Problem("data.group_by_length", message)
    if data.weights is not None and len(data.weights) != len(data.paths):
        files = counted(len(data.paths), "file")
        yield Problem("data.weights", f"found {shown(data.weights)}; expected one for each path, and there are {files}")


def _length(raw: Mapping[str, Any]) -> Iterator[Problem]:
    train = raw.get("train")
    if isinstance(train, dict) and "steps" in train and cast("dict[str, Any]", train).get("epochs") is not None:
        yield Problem("train.epochs", "found train.steps too; expected one of them: remove the other")


def _best(config: "Config") -> Iterator[Problem]:
    """What picks the best checkpoint; whether its metric exists is known at the first evaluation."""
    train = config.train
    if train.best_by is None:
        for key in ("best_is", "min_improvement", "patience"):
            if getattr(train, key) != type(train).model_fields[key].default:
                message = f"found {shown(getattr(train, key))}, but there is no train.best_by to apply it to; set both"
                yield Problem(f"train.{key}", message)
    elif config.data.eval_path is None:
        yield Problem("train.best_by", f"found {shown(train.best_by)}, but nothing is evaluated; add data.eval_path")


def _shard(config: "Config") -> Iterator[Problem]:
    if not config.train.shard:
        return
    for path in _changed(config, _WHOLE_ONLY):
        name, key = path.split(".")
        given = shown(getattr(getattr(config, name), key))
        yield Problem(path, f"found {given}, which a model with train.shard cannot have yet; remove one of the two")
    if config.train.micro_batch_tokens == "auto":
        why = "expected a number with train.shard: a process that runs out of memory would keep the others waiting"
        yield Problem("train.micro_batch_tokens", f'found "auto"; {why}')


def _samples(config: "Config", *, code: bool) -> Iterator[Problem]:
    """Metrics over samples; a function of the user's is imported if `code` says so."""
    where, metrics, names = "samples.metrics", config.samples.metrics, config.samples.names
    for metric in metrics:
        if is_path(metric):
            message = path_problem(metric) if code else None
        else:
            expected = joined([*(f'"{one}"' for one in METRICS), '"package.module:function"'])
            hint = nearest(metric, METRICS, quoted=True)
            message = None if metric in METRICS else f"found {shown(metric)}; expected {expected}{hint}"
        if message is not None:
            yield Problem(where, message)
    if len(set(names)) < len(names):
        yield Problem(where, f"found {shown(metrics)}; expected functions of different names")
    taken = {*map(_name, config.term), "loss", "total", BASE}
    for metric, name in zip(metrics, names, strict=True):
        if name in taken:
            message = f"found {shown(metric)}, but the objective has a metric {shown(name)}; expected another name"
            yield Problem(where, message)
    if metrics and config.data.eval_path is None:
        yield Problem(where, f"found {shown(metrics)}, but there are no held-out lines; add data.eval_path")
    elif metrics and config.train.loss == "dpo":
        yield Problem(where, f"found {shown(metrics)}, but pairs have no completion to compare with; remove it")


def _models(config: "Config") -> Iterator[Problem]:
    """Folders of models; names are looked up when a model is loaded."""
    named = {"model.name": config.model.name}
    named |= {f"references.{name}.model": getattr(one, "model", "") for name, one in config.references.items()}
    for where, given in named.items():
        if os.path.isabs(given) and not os.path.isfile(os.path.join(given, "config.json")):
            yield Problem(where, f'found "{given}"; expected a folder with a model, which has a config.json')


def _backend(config: "Config") -> Iterator[Problem]:
    backend = config.backend
    remote = backend.kind == "tinker"
    paths = [*_LOCAL_ONLY, *_of_teachers(config)] if remote else _REMOTE_ONLY
    for path in _changed(config, paths):
        other = "local" if remote else "tinker"
        yield Problem(path, f'is for backend.kind = "{other}", but this config has "{backend.kind}"; remove it')
    if remote and backend.base_url is not None:
        yield from _address("backend.base_url", backend.base_url)


def _adapter(config: "Config") -> Iterator[Problem]:
    if config.model.adapter == "none":
        for path in _changed(config, _ADAPTER_ONLY):
            yield Problem(path, 'is for an adapter, but this config has model.adapter = "none"; remove it')


def _of_teachers(config: "Config") -> list[str]:
    teachers = [name for name, one in config.references.items() if one.kind == "client"]
    return [f"references.{name}.{key}" for name in teachers for key in ("device", "dtype")]


def _changed(config: "Config", paths: Sequence[str]) -> Iterator[str]:
    """The keys among these that have another value than the default."""
    for path in paths:
        name, *middle, key = path.split(".")
        table: Table = config.references[middle[0]] if middle else getattr(config, name)
        if getattr(table, key) != type(table).model_fields[key].default:
            yield path


def _precision(config: "Config") -> Iterator[Problem]:
    """Whether PyTorch knows devices and dtypes; whether a device exists is seen when a model is loaded."""
    teachers = {f"references.{name}": one for name, one in config.references.items() if one.kind == "client"}
    given = {where: one for where, one in {"model": config.model, **teachers}.items() if one.device or one.dtype}
    if not given or config.backend.kind != "local" or find_spec("torch") is None:
        return
    import torch

    for where, table in given.items():
        try:
            torch.device(table.device or "cpu")
        except RuntimeError:
            hint = nearest(table.device, ("cpu", "cuda", "cuda:0", "mps", "xpu"), quoted=True)
            expected = 'a device of PyTorch, such as "cpu" or "cuda:0"'
            yield Problem(f"{where}.device", f"found {shown(table.device)}; expected {expected}{hint}")
        dtype = getattr(torch, table.dtype or "float32", None)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            hint = nearest(table.dtype, ("float32", "float16", "bfloat16", "float64"), quoted=True)
            expected = '"float32", "bfloat16" or another floating dtype of PyTorch'
            yield Problem(f"{where}.dtype", f"found {shown(table.dtype)}; expected {expected}{hint}")


def _names(config: "Config", terms: Sequence[Any]) -> Iterator[Problem]:
    """Names that `--set` cannot address, such as `2` or `a.b`, and the one that metrics use for the total."""
    for index, table in enumerate(config.term):
        name = table.name or ""
        if name.isdigit() or "." in name or "=" in name or not name.isprintable():
            message = f"found {shown(name)}; expected a printable name, no dot or equals sign, and not digits alone"
            message += ": --set finds terms by name"
            yield Problem(f"term.{label_of(terms, index)}.name", message)
        elif _name(table) == "loss":
            message = 'found "loss", which is what metrics call the total; expected another name'
            yield Problem(f"term.{label_of(terms, index)}.name", message)


def _name(table: "TermTable") -> str:
    """The name of a term, by default that of its function."""
    return table.name or table.fn.rpartition(":")[2]


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


def _cluster(given: str | None) -> Iterator[Problem]:
    if given is None or given == "auto":
        return
    try:
        found = urlsplit(given if "://" in given else f"//{given}")
        right = bool(found.hostname) and found.port is not None
    except ValueError:
        right = False
    if not right:
        expected = '"auto", host:port or ray://host:port, as for ray.init'
        yield Problem("executor.ray_address", f"found {shown(given)}; expected {expected}")


def _libraries(config: "Config", terms: Sequence[Any]) -> Iterator[Problem]:
    wanted = {"backend.kind": config.backend.kind}
    runners = {f"term.{label_of(terms, index)}.runs": one.runs for index, one in enumerate(config.term)}
    wanted |= {where: runs for where, runs in runners.items() if runs in _NEEDS}
    bits = {"model.quantize": config.model.quantize, "train.optimizer": config.train.optimizer}
    wanted |= {where: one for where, one in bits.items() if one in _NEEDS and config.backend.kind == "local"}
    files = {"data.path": config.data.paths, "data.eval_path": [config.data.eval_path or ""]}
    wanted |= {where: found for where, paths in files.items() for one in paths if (found := package_for(one))}
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
