"""Run folders: the config, the log, checkpoints, references and the report of one run.

    runs/demo/
    ├── config.json       the config with every default
    ├── metrics.jsonl     one line a step, and one for each evaluation and event
    ├── environment.json  the versions and the commit that it was made with
    ├── checkpoints/      the last ones
    ├── references/       log-probabilities of the model before training, and others that are cached
    ├── report.html
    └── lock              the process that writes here

A folder is that of a run as soon as it has a config.
"""

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

from ...encoding import loads
from ...files import check_plain, open_plain, write_atomically
from .disk import RunError, read_object, reason, remove, writing
from .environment import ENVIRONMENT
from .lock import Lock
from .log import Log, now, records

__all__ = ["Run"]

_CONFIG: Final = "config.json"
_METRICS: Final = "metrics.jsonl"
_LOCK: Final = "lock"
_REACH: Final = 65536
# What the program writes into a run's folder; it removes nothing else.
_FILES: Final = (_CONFIG, _METRICS, ENVIRONMENT, _LOCK, "report.html", "sinks.json", "mlflow.db")
_SINKS: Final = ("tensorboard", "mlflow", "wandb")
_FOLDERS: Final = ("checkpoints", "references", *_SINKS)
_PART: Final = re.compile(r"\.(config\.json|environment\.json|sinks\.json|report\.html)\.(\w+\.)?part")
_ANY: Final = re.compile(r"(?s:.+)")
_STEP: Final = re.compile(r"\d{6,}")
_CHECKPOINT: Final = re.compile(r"\d{6,}|\.\d{6,}\.(part|gone)")
_ABANDONED: Final = 3600.0
"""Seconds after which an unfinished report is taken for what a killed process left."""
_REFERENCE: Final = re.compile(r"\w+\.npz|\.\w+\.npz(\.\w+)+")


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
        """A folder to read; nothing is read yet."""
        self.folder: Path = Path(folder)
        self.metrics: Path = self.folder / _METRICS
        self.checkpoints: Path = self.folder / "checkpoints"
        self.references: Path = self.folder / "references"
        self.report: Path = self.folder / "report.html"
        self._lock: Lock | None = None
        self._log: Log | None = None

    @classmethod
    def create(cls, folder: str | Path, config: Any) -> "Run":
        """A new run, in a folder without one; `config` is resolved: a `Config`, or the result of its `to_dict`."""
        run = cls(folder)
        try:
            run._check_kinds()
            if run.folder.is_dir():
                run.check_whole()
                run._check_own()
            with writing(run.folder):
                run.folder.mkdir(parents=True, exist_ok=True)
                run._lock = Lock(run.folder / _LOCK)
                run.checkpoints.mkdir(exist_ok=True)
                run.references.mkdir(exist_ok=True)
            if run.begun():
                raise RunError(
                    f"{run.folder} already has a run; resume it with --resume, or choose another folder with --run",
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
        """The run in a folder, to be resumed."""
        run = cls(folder)
        run.check_whole()
        if not run.exists():
            raise run._none()
        run._check_kinds()
        with writing(run.folder):
            run._lock = Lock(run.folder / _LOCK)
        return run

    def exists(self) -> bool:
        """Whether the folder is that of a run: other folders have a config.json too, such as Hugging Face models."""
        path = self.folder / _CONFIG
        if not os.path.lexists(path) or os.path.lexists(self.folder / _LOCK):
            return os.path.lexists(path)
        # A copy may lack the lock.
        with contextlib.suppress(RunError):
            return {"model", "data", "train"} <= set(read_object(path))
        return False

    def begun(self) -> bool:
        """Whether the run ever finished a step; one that did not, for example because of bad data, may be replaced."""
        try:
            return any(_named(self.checkpoints, _STEP)) or any(
                record.get("kind") == "step" for record in self.records()
            )
        except RunError:
            # A log that cannot be read may have steps.
            return True

    def check_whole(self) -> None:
        """Raise if the folder has something of a run, but not its config: a new run would continue another's."""
        if self.exists():
            return
        # A run makes its lock and its folders before its config, and may be killed in between.
        there = [self.folder / name for name in _FILES if name not in (_CONFIG, _LOCK)]
        there += [*_named(self.checkpoints, _CHECKPOINT), *_named(self.references, _REFERENCE)]
        there += [path for name in _SINKS for path in _named(self.folder / name, _ANY)]
        found = [path.relative_to(self.folder) for path in there if os.path.lexists(path)]
        if found:
            lacks = f"a {_CONFIG} that is not" if os.path.lexists(self.folder / _CONFIG) else f"no {_CONFIG}"
            raise RunError(
                f"{self.folder} has {found[0]} of a run, but {lacks}; restore that to resume the run, or choose "
                "another folder with --run",
                2,
            )

    def _check_kinds(self) -> None:
        """Raise if a name of the run's is that of a link, a pipe or anything else that a run did not write.

        Or if the folder's own name is not UTF-8: a checkpoint could be written there, but not be read.
        """
        try:
            str(self.folder.absolute()).encode()
        except UnicodeEncodeError:
            raise RunError(
                f"{self.folder.absolute()} is not valid UTF-8; choose another folder with --run", 2
            ) from None
        for name in (*_FILES, *_FOLDERS):
            path = self.folder / name
            try:
                check_plain(path, folder=name in _FOLDERS)
            except OSError as error:
                raise RunError(
                    f"{path} cannot be used: {reason(error)}; replace it, or choose another folder with --run", 2
                ) from error

    def _check_own(self) -> None:
        """Raise if the folder has anything that a run did not write."""
        names = {path.name for path in self.folder.iterdir()}
        own = {*_FILES, *_FOLDERS}
        others = sorted(name for name in names - own if not _PART.fullmatch(name))
        if _CONFIG in names and not self.exists():
            others.insert(0, _CONFIG)
        for folder, known in ((self.checkpoints, _CHECKPOINT), (self.references, _REFERENCE)):
            if folder.is_dir():
                others += [f"{folder.name}/{one.name}" for one in folder.iterdir() if not known.fullmatch(one.name)]
        if others:
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            raise RunError(
                f"{self.folder} has files that no run wrote: {others[0]}{more}; choose another folder with --run",
                2,
            )

    def config(self) -> dict[str, Any]:
        """The resolved config of the run."""
        try:
            return read_object(self.folder / _CONFIG)
        except FileNotFoundError:
            raise self._none() from None

    def _none(self) -> RunError:
        return RunError(f"{self.folder} is not the folder of a run: it has no {_CONFIG}", 2)

    def write_config(self, config: Any) -> None:
        """Write the resolved config."""
        resolved = config.to_dict() if hasattr(config, "to_dict") else config
        path = self.folder / _CONFIG
        with writing(path):
            write_atomically(path, (json.dumps(resolved, indent=2, allow_nan=False) + "\n"))

    def records(self) -> Iterator[dict[str, Any]]:
        """The records of the log so far."""
        return records(self.metrics)

    def saved(self) -> list[Path]:
        """The folders of its checkpoints, the first one first."""
        return sorted(_named(self.checkpoints, _STEP), key=lambda path: int(path.name))

    def last(self) -> dict[str, Any] | None:
        """The last record of the log; None if there is none, or a crash of the machine left something else."""
        try:
            with open(open_plain(self.metrics), "rb") as file:
                # From the end: a log may have a hundred thousand lines of a few thousand bytes.
                size = file.seek(0, os.SEEK_END)
                reach = _REACH
                while True:
                    file.seek(max(0, size - reach))
                    *whole, _ = file.read().split(b"\n")
                    if len(whole) > 1 or reach >= size:
                        found = loads(whole[-1]) if whole else None
                        return cast("dict[str, Any]", found) if isinstance(found, dict) else None
                    reach *= 2
        except (FileNotFoundError, ValueError):
            return None

    # Writing.

    def begin_log(self) -> Log:
        """Open the log for writing, after what is in it."""
        assert self._lock is not None, "only a run from create or open has a log to write"
        self._log = Log(self.metrics)
        return self._log

    @property
    def log(self) -> Log:
        """The log, open for writing."""
        assert self._log is not None, "begin_log comes first"
        return self._log

    def event(self, step: int, event: str, message: str, **details: Any) -> tuple[dict[str, Any], str]:
        """Write an event to the log; returns its record and its line."""
        record = {"kind": "event", "step": step, "time": now(), "event": event, "message": message, **details}
        return record, self.log.write(record)

    def _forget(self) -> None:
        """Remove the files of a run that never finished a step."""
        with writing(self.folder):
            # The config stays until another replaces it: a folder with a log alone would not be that of a run.
            for path in (self.metrics, self.report, self.folder / ENVIRONMENT, *_named(self.references, _REFERENCE)):
                path.unlink(missing_ok=True)
        self.clean()

    def clean(self) -> None:
        """Remove what an earlier process left unfinished."""
        for folder, known in ((self.folder, _PART), (self.checkpoints, _CHECKPOINT), (self.references, _REFERENCE)):
            for left in _named(folder, known):
                if not left.name.startswith(".") or (left.name.startswith(".report") and _age(left) < _ABANDONED):
                    # Another process may be writing a report, for which it needs no lock.
                    continue
                remove(left)

    def discard(self) -> None:
        """Remove the folder of a run that never finished a step, unless it has other files."""
        with contextlib.suppress(OSError, RunError), contextlib.ExitStack() as ending:
            ending.callback(Lock(self.folder / _LOCK).release)
            if self.begun():
                return
            self._check_kinds()
            self._check_own()
            self._forget()
            for path in (self.folder / "sinks.json", self.folder / _CONFIG, self.folder / _LOCK):
                path.unlink(missing_ok=True)
            for folder in (self.checkpoints, self.references, self.folder):
                if folder.is_dir():
                    folder.rmdir()

    def close(self) -> None:
        """Close the log and release the lock. Closing twice is the same as closing once."""
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


def _age(path: Path) -> float:
    """Seconds since a file was written; none if it is gone."""
    with contextlib.suppress(FileNotFoundError):
        return time.time() - path.lstat().st_mtime
    return 0.0


def _named(folder: Path, known: "re.Pattern[str]") -> list[Path]:
    return [path for path in folder.iterdir() if known.fullmatch(path.name)] if folder.is_dir() else []
