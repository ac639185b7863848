"""Searching with Optuna: it proposes values, and runs with them are trained here.

Its study is in the search's folder, so that a search that was killed goes on with the same runs.
"""

import contextlib
import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...errors import MissingLibraryError, PenaltiesError, said
from ..ablation.running import Training
from ..parallel import Task
from ..runs.disk import RunError, writing
from ..runs.lock import Lock
from ..runs.run import Run
from .goals import Constraint, Goal, check_names, measures
from .results import Found, Trial, holds_search, value_shown, write
from .space import Range

if TYPE_CHECKING:
    from ..config import Config

__all__ = ["Search", "search"]

_STUDY: Final = "study.db"
_NAME: Final = "penalties"
_FOLDER: Final = "folder"
_ENDED: Final = "ended"
"""What the study has of each trial: its folder, and whether its run ended, well or not."""


@dataclass(frozen=True)
class Search:
    """What is searched for, and among which values."""

    load: "Callable[[Sequence[str]], Config]"
    """Reads the config with some values set."""
    ranges: Sequence[Range]
    goals: Sequence[Goal]
    constraints: Sequence[Constraint]
    trials: int

    def check(self) -> "Config":
        """The config as it is; an error if a value cannot be used, or a metric will not be there."""
        _optuna()
        keys = [one.key for one in self.ranges]
        for key in keys:
            if keys.count(key) > 1:
                raise RunError(f"--over {key}: given twice; expected one range for each key", 2)
        for one in self.ranges:
            for setting in one.ends:
                self.load([setting])
        config = self.load([])
        check_names(config, [one.name for one in (*self.goals, *self.constraints)])
        return config

    @property
    def plain(self) -> dict[str, Any]:
        """What a resumed search has to have in common with the first, as plain data."""
        return {
            "over": [str(one) for one in self.ranges],
            "metrics": [f"{'highest' if one.highest else 'lowest'} {one.name}" for one in self.goals],
            "constraints": [str(one) for one in self.constraints],
        }


def search(wanted: Search, folder: Path, *, resume: bool = False, training: Training) -> Found:
    """Train trial after trial, each in its folder; returns all of them. One that fails does not stop the others."""
    optuna = _optuna()
    if holds_search(folder) and not resume:
        raise RunError(f"{folder} already has a search; use --resume, or choose another folder with --run", 2)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as ending:
        ending.callback(Lock(folder / "lock").release)
        try:
            storage = _storage(optuna, folder)
            ending.callback(storage.engine.dispose)
            ending.callback(storage.remove_session)
            trials = _Trials(optuna, storage, wanted, folder)
        except PenaltiesError:
            raise
        except Exception as error:
            # SQLAlchemy's, SQLite's or Optuna's own, by what is damaged.
            what = said(error).partition("\n")[0]
            hint = "restore the file, or choose another folder with --run"
            raise RunError(f"{folder / _STUDY} cannot be read: {what}; {hint}") from error
        write(folder, trials.found())
        training(trials.tasks(), trials.end)
        return trials.found()


def _optuna() -> Any:
    try:
        optuna: Any = importlib.import_module("optuna")
    except ImportError as error:
        raise MissingLibraryError("penalties search", "optuna", extra="search") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _storage(optuna: Any, folder: Path) -> Any:
    if "?" in str(folder):
        raise RunError(f"{folder}: no search can be stored under a path with a ?; choose another folder with --run", 2)
    with writing(folder / _STUDY):
        return optuna.storages.RDBStorage(f"sqlite:///{folder / _STUDY}")


class _Trials:
    """The trials of a study, and their runs."""

    def __init__(self, optuna: Any, storage: Any, wanted: Search, folder: Path) -> None:
        self._optuna = optuna
        self._wanted = wanted
        self._folder = folder
        self._running: dict[Path, Any] = {}
        self._study: Any = optuna.create_study(
            study_name=_NAME,
            storage=storage,
            directions=["maximize" if goal.highest else "minimize" for goal in wanted.goals],
            load_if_exists=True,
        )
        known = self._study.user_attrs.get("search")
        if known not in (None, wanted.plain):
            changed = [key for key, value in wanted.plain.items() if known[key] != value]
            parts = (f"{key} was {', '.join(known[key]) or 'empty'}" for key in changed)
            raise RunError(
                f"{folder}: the search changed: {'; '.join(parts)}; resume it as it was, or choose another folder with "
                "--run",
                2,
            )
        self._study.set_user_attr("search", wanted.plain)
        # The sampler has no state of its own: after a resume it draws other numbers than at the start.
        seed = wanted.load([]).train.seed + len(self._study.trials)
        self._study.sampler = optuna.samplers.TPESampler(seed=seed)
        self._renew()

    def _renew(self) -> None:
        """Queue the trials whose runs did not end, for example because the search was killed."""
        states = self._optuna.trial.TrialState
        known = self._study.trials
        taken = {trial.user_attrs.get(_FOLDER) for trial in known if _ended(trial) or trial.state == states.WAITING}
        for trial in known:
            if trial.state == states.RUNNING:
                name = trial.user_attrs.get(_FOLDER)
                if name is not None and name not in taken:
                    self._study.enqueue_trial(trial.params, user_attrs={_FOLDER: name})
                self._study.tell(trial.number, state=states.FAIL)

    def tasks(self) -> Iterator[Task]:
        """The trials that are left, each proposed when it is to start."""
        spaces = {one.key: self._distribution(one) for one in self._wanted.ranges}
        while sum(map(_ended, self._study.trials)) + len(self._running) < self._wanted.trials:
            trial = self._study.ask(spaces)
            name = trial.user_attrs.get(_FOLDER)
            if name is None:
                name = f"trial-{trial.number:04d}"
                trial.set_user_attr(_FOLDER, name)
            folder = self._folder / name
            self._running[folder] = trial
            settings = [one.setting(trial.params[one.key]) for one in self._wanted.ranges]
            told = ", ".join(f"{key} {value_shown(value)}" for key, value in trial.params.items())
            yield Task(f"{name}: {told}", folder, self._wanted.load(settings))

    def _distribution(self, one: Range) -> Any:
        kinds = self._optuna.distributions
        if one.kind == "choice":
            return kinds.CategoricalDistribution(one.values)
        if one.kind == "int":
            return kinds.IntDistribution(*one.values)
        return kinds.FloatDistribution(*one.values, log=one.kind == "log")

    def end(self, task: Task, error: str | None) -> None:
        """Tell the study what a run measured."""
        trial = self._running.pop(task.folder)
        measured = {} if error is not None else measures(Run(task.folder))
        names = [one.name for one in (*self._wanted.goals, *self._wanted.constraints)]
        metrics = {name: float(measured[name]) for name in names if math.isfinite(measured.get(name, math.nan))}
        trial.set_user_attr("metrics", metrics)
        trial.set_user_attr("error", error)
        if len(metrics) == len(set(names)):
            for one in self._wanted.constraints:
                trial.set_constraint(str(one), one.excess(metrics[one.name]))
            trial.set_user_attr(_ENDED, True)
            self._study.tell(trial, [metrics[goal.name] for goal in self._wanted.goals])
        else:
            trial.set_user_attr(_ENDED, True)
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        write(self._folder, self.found())

    def found(self) -> Found:
        """The trials whose runs ended."""
        made: list[Trial] = []
        for trial in filter(_ended, self._study.trials):
            about = trial.user_attrs
            made.append(Trial(self._folder / about[_FOLDER], trial.params, about["metrics"], about["error"]))
        made.sort(key=lambda trial: trial.folder.name)
        return Found(self._wanted.goals, self._wanted.constraints, self._wanted.trials, made)


def _ended(trial: Any) -> bool:
    return bool(trial.user_attrs.get(_ENDED)) and trial.state.is_finished()
