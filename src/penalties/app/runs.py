"""Run folders: the config, the log, checkpoints, references and the report of one run.

    runs/demo/
    ├── config.json       the config with every default
    ├── metrics.jsonl     one line a step, and one for each evaluation and event
    ├── checkpoints/      the last ones, each whole
    ├── references/       what the model said before it was trained
    ├── report.html
    └── lock              who writes here

A folder holds a run from the moment that its config is there.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from ..encoding import loads
from .disk import RunError, write_whole, writing
from .lock import Lock
from .log import Log, now, records

__all__ = ["Run", "RunError", "differences"]

_CONFIG: Final = "config.json"
_METRICS: Final = "metrics.jsonl"
_REACH: Final = 65536
# What may be another when a run goes on: how long, and what is written and looked at, not what is trained.
_FREE: Final = ("train.steps", "train.checkpoint_every", "train.eval_every", "sinks")


class Run:
    """A run folder. `create` and `open` lock it for writing; `Run(folder)` reads only.

    >>> import tempfile
    >>> with Run.create(Path(tempfile.mkdtemp(), "first"), {"train": {"steps": 3}}) as run:
    ...     _ = run.begin_log()
    ...     _ = run.event(0, "warning", "this is an example")
    >>> [record["message"] for record in Run(run.folder).records()]
    ['this is an example']
    """

    def __init__(self, folder: str | Path) -> None:
        """A folder to read; nothing is looked at yet."""
        self.folder: Path = Path(folder)
        self._lock: Lock | None = None
        self._log: Log | None = None

    @classmethod
    def create(cls, folder: str | Path, config: Any) -> "Run":
        """A new run, in a folder that has none; `config` is resolved: a `Config`, or what its `to_dict` gives."""
        run = cls(folder)
        try:
            with writing(run.folder):
                run.checkpoints.mkdir(parents=True, exist_ok=True)
                run.references.mkdir(exist_ok=True)
                run._lock = Lock(run.folder / "lock")
            if run.begun():
                raise RunError(
                    f"{run.folder} holds a run already; go on with it by --resume, or choose another folder with --run",
                    2,
                )
            run._forget()
            run.write_config(config)
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        """The run in a folder, to go on with it."""
        run = cls(folder)
        if not run.exists():
            raise RunError(f"{run.folder} holds no run: there is no {_CONFIG} in it", 2)
        with writing(run.folder):
            run._lock = Lock(run.folder / "lock")
        return run

    def exists(self) -> bool:
        """Whether the folder holds a run."""
        return (self.folder / _CONFIG).is_file()

    def begun(self) -> bool:
        """Whether the run ever finished a step; one that did not, as for bad data, is in nobody's way."""
        return self.exists() and any(record["kind"] == "step" for record in self.records())

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.folder / "checkpoints"

    @property
    def references(self) -> Path:
        """The folder of what references remember."""
        return self.folder / "references"

    @property
    def report(self) -> Path:
        """Where the report is, once it is written."""
        return self.folder / "report.html"

    @property
    def metrics(self) -> Path:
        """Where the log is."""
        return self.folder / _METRICS

    def config(self) -> dict[str, Any]:
        """The resolved config that the run was made with."""
        path = self.folder / _CONFIG
        try:
            found = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise RunError(f"{self.folder} holds no run: there is no {_CONFIG} in it", 2) from None
        except ValueError as error:
            raise RunError(f"{path} cannot be read: {error}") from error
        return found

    def write_config(self, config: Any) -> None:
        """Write the resolved config."""
        resolved = config.to_dict() if hasattr(config, "to_dict") else config
        path = self.folder / _CONFIG
        with writing(path):
            write_whole(path, (json.dumps(resolved, indent=2, allow_nan=False) + "\n").encode())

    def records(self) -> Iterator[dict[str, Any]]:
        """The records of the log so far."""
        return records(self.metrics)

    def last(self) -> dict[str, Any] | None:
        """The last record of the log."""
        try:
            with self.metrics.open("rb") as file:
                # A line is a few thousand bytes; from the end, since a log may have a hundred thousand of them.
                size = file.seek(0, os.SEEK_END)
                reach = _REACH
                while True:
                    file.seek(max(0, size - reach))
                    *whole, _ = file.read().split(b"\n")
                    if len(whole) > 1 or reach >= size:
                        return loads(whole[-1]) if whole else None
                    reach *= 2
        except FileNotFoundError:
            return None

    # Writing.

    def begin_log(self, size: int = 0) -> Log:
        """Open the log for writing, and cut off what is beyond this size."""
        assert self._lock is not None, "a run that is only read has no log to write"
        self._log = Log(self.metrics, size)
        return self._log

    @property
    def log(self) -> Log:
        """The log, open for writing."""
        assert self._log is not None, "begin_log comes first"
        return self._log

    def event(self, step: int, event: str, message: str) -> tuple[dict[str, Any], str]:
        """Write an event to the log; gives its record and its line."""
        record = {"kind": "event", "step": step, "time": now(), "event": event, "message": message}
        return record, self.log.write(record)

    def _forget(self) -> None:
        """Remove what a run left that never began."""
        with writing(self.folder):
            for path in (self.folder / _CONFIG, self.metrics, *self.references.iterdir()):
                path.unlink(missing_ok=True)
            for folder in self.checkpoints.iterdir():
                shutil.rmtree(folder)

    def clean(self) -> None:
        """Remove what was begun when an earlier process ended."""
        for folder in (self.folder, self.checkpoints, self.references):
            for left in folder.glob(".*"):
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the log and let others write. To close twice is to close once."""
        log, self._log = self._log, None
        lock, self._lock = self._lock, None
        try:
            if log is not None:
                log.close()
        finally:
            if lock is not None:
                lock.release()

    def __enter__(self) -> "Run":
        """Itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()

    def __repr__(self) -> str:
        """Where it is."""
        return f"Run({str(self.folder)!r})"


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What is another in a config that a run cannot go on with, as `"term.0.weight was 0.1 and is 0.2"`.

    >>> differences({"train": {"steps": 3, "seed": 0}}, {"train": {"steps": 9, "seed": 1}})
    ['train.seed was 0 and is 1']
    """
    # A schedule without steps of its own is over those of the run.
    free = [key for key in _FREE if key != "train.steps" or not _depends(after)]
    return [
        f"{place} was {old} and is {new}"
        for place, old, new in _changes("", before, after)
        if not any(f"{place}.".startswith(f"{key}.") for key in free)
    ]


def _depends(config: Any) -> bool:
    """Whether there is a schedule whose steps are those of the run."""
    if isinstance(config, Mapping):
        table = cast("Mapping[str, Any]", config)
        without = "kind" in table and "steps" in table and table["steps"] is None
        return without or any(_depends(part) for part in table.values())
    return isinstance(config, list) and any(_depends(part) for part in cast("list[Any]", config))


def _changes(place: str, before: Any, after: Any) -> Iterator[tuple[str, str, str]]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        old, new = cast("Mapping[str, Any]", before), cast("Mapping[str, Any]", after)
    elif isinstance(before, list) and isinstance(after, list):
        old = {str(index): part for index, part in enumerate(cast("list[Any]", before))}
        new = {str(index): part for index, part in enumerate(cast("list[Any]", after))}
    else:
        if before != after:
            yield place, _shown(before), _shown(after)
        return
    for key in dict.fromkeys((*old, *new)):
        yield from _changes(f"{place}.{key}" if place else key, old.get(key, _NOTHING), new.get(key, _NOTHING))


_NOTHING: Final = object()


def _shown(value: Any) -> str:
    return "not there" if value is _NOTHING else json.dumps(value, default=str)
