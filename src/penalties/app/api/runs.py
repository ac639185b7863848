"""Runs of the program, read back from their folders: numbers as columns, samples, the verdict, checkpoints."""

import contextlib
import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...errors import MissingLibraryError, OptionError
from ...pipeline.output import BASE
from ..problems import counted

if TYPE_CHECKING:
    from ..report.runlog import RunLog, Series

__all__ = ["Run", "read"]

_PROGRAM: Final = ("click", "pydantic", "jinja2", "filelock")
_FRAMES: Final = ("steps", "evaluations", "samples", "events")


@dataclass(frozen=True, repr=False, eq=False)
class Run:
    """A run, as its folder has it.

    >>> import tempfile
    >>> import penalties as pn
    >>> run = pn.train("demo", run=tempfile.mkdtemp(), overrides={"train.steps": 2}, quiet=True)
    >>> run.finished, run.steps["step"].tolist(), list(run.checkpoints)
    (True, [1, 2], [2])
    """

    folder: Path
    config: Mapping[str, Any] | None
    """The config with every default; None if the folder has none that can be read."""
    steps: Mapping[str, np.ndarray[Any, Any]]
    """Columns with a number for each step, NaN where there is none.

    `step`, `loss` (the total), `base_loss`, and of each term its value under its name, `<name>_weight`,
    `<name>_weighted`, `<name>_grad_norm` and `<name>/<metric>`; `total_grad_norm`, `learning_rate`, `tokens`, `seconds`
    and `memory`, in bytes.
    """
    evaluations: Mapping[str, np.ndarray[Any, Any]]
    """The same of held-out data, without gradients, and the metrics over samples; `step` 0 is before training."""
    samples: Sequence[Mapping[str, Any]]
    """What the model said: `step`, `prompt` and `text`."""
    events: Sequence[Mapping[str, Any]]
    """What happened: `step`, `event` and `message`."""
    verdict: str
    """How it went and which terms made the difference, in a sentence or two: the headline of the report."""
    findings: Sequence[str]
    """What is behind the verdict."""
    checkpoints: Mapping[int, Path]
    """Folders of checkpoints, by the number of finished steps."""
    environment: Mapping[str, Any]
    """The versions, and the commit of the working directory, of the process that trained it last."""
    finished: bool
    """Whether it came to its end."""
    unreadable: Sequence[int]
    """The numbers of lines of the log that could not be read, and are left out."""

    @property
    def report(self) -> Path:
        """The page with the charts."""
        return self.folder / "report.html"

    @property
    def weights(self) -> str | None:
        """Where the trained weights are, those of the best checkpoint if there is one; None if there are none."""
        from ..runs.disk import RunError
        from ..trained import find

        with contextlib.suppress(RunError):
            return find(self.folder).weights
        return None

    def to_pandas(self, what: str = "steps") -> Any:
        """A data frame of the steps, or of "evaluations", "samples" or "events".

        >>> import tempfile
        >>> import penalties as pn
        >>> run = pn.train("demo", run=tempfile.mkdtemp(), overrides={"train.steps": 2}, quiet=True)
        >>> run.to_pandas()[["step", "kl_weight"]].shape
        (2, 2)
        """
        if what not in _FRAMES:
            expected = ", ".join(f'"{name}"' for name in _FRAMES)
            raise OptionError("to_pandas", "what", what, f"one of {expected}")
        try:
            pandas: Any = importlib.import_module("pandas")
        except ImportError as error:
            raise MissingLibraryError("to_pandas", "pandas") from error
        found: Any = getattr(self, what)
        # Columns, or rows.
        return pandas.DataFrame(dict(found) if what in ("steps", "evaluations") else list(found))

    def __repr__(self) -> str:
        """Where it is, how far it came, and the verdict."""
        done = counted(len(self.steps["step"]), "step")
        return f"Run({str(self.folder)!r}): {done}{'' if self.finished else ', not finished'}. {self.verdict}"


def read(path: str | os.PathLike[str]) -> Run:
    """The run in a folder, finished or not, also while it is still training.

    An incomplete last line of its log is left out, and so are lines that were damaged.

    >>> import tempfile
    >>> import penalties as pn
    >>> folder = pn.train("demo", run=tempfile.mkdtemp(), overrides={"train.steps": 2}, quiet=True).folder
    >>> run = pn.runs.read(folder)
    >>> run.config["train"]["steps"], run.verdict.startswith("The held-out base loss fell by")
    (2, True)
    """
    needs_program("penalties.runs.read")
    from ..report.reading import read as read_log
    from ..report.summary import summarise
    from ..report.verdict.judge import judge
    from ..runs.run import Run as Folder

    folder = Path(path).expanduser()
    log = read_log(folder)
    verdict = judge(log, summarise(log))
    spoken = [
        {"step": step, "prompt": prompt, "text": text}
        for step, said in sorted(log.spoken.items())
        for prompt, text in said
    ]
    return Run(
        folder=folder,
        config=log.config,
        steps=_steps(log),
        evaluations=_evaluations(log),
        samples=spoken,
        events=[{"step": one.step, "event": one.kind, "message": one.message} for one in log.events],
        verdict=verdict.summary,
        findings=[str(finding) for finding in verdict.findings],
        checkpoints={int(one.name): one for one in Folder(folder).saved()},
        environment=log.environments[-1] if log.environments else {},
        finished=any(event.kind == "finished" for event in log.events),
        unreadable=list(log.unreadable),
    )


def needs_program(what: str) -> None:
    """Raise if a library of the program is missing."""
    missing = [name for name in _PROGRAM if find_spec(name) is None]
    if missing:
        raise MissingLibraryError(what, missing[0], extra="cli")


def _steps(log: "RunLog") -> dict[str, Any]:
    series: dict[str, Series] = {
        "loss": log.total,
        "total_grad_norm": log.grad_norm,
        "learning_rate": log.learning_rate,
        "tokens": log.tokens,
        "seconds": log.seconds,
        "memory": log.memory,
    }
    for name, term in log.terms.items():
        own = _free(name, series)
        series[own] = term.value
        if name != BASE:
            series |= {f"{own}_weight": term.weight, f"{own}_weighted": term.contribution}
        series[f"{own}_grad_norm"] = term.grad_norm
        series |= {f"{own}/{metric}": values for metric, values in term.metrics.items()}
    there = {name: one.on(log.steps) for name, one in series.items() if len(one)}
    return {"step": log.steps, **there}


def _evaluations(log: "RunLog") -> dict[str, Any]:
    found = log.evaluations
    series: dict[str, Series] = {"loss": found.total}
    for name, values in found.values.items():
        own = _free(name, series)
        series[own] = values
        if name != BASE and name in found.contributions:
            series[f"{own}_weighted"] = found.contributions[name]
        series |= {f"{own}/{metric}": one for (of, metric), one in found.metrics.items() if of == name}
    series |= {_free(name, series): values for name, values in log.task.items()}
    steps = np.unique(np.concatenate([one.steps for one in series.values()]))
    return {"step": steps, **{name: one.on(steps) for name, one in series.items() if len(one)}}


def _free(name: str, taken: Mapping[str, Any]) -> str:
    """The name of a term as a column, unless a quantity of the run has it."""
    return f"term/{name}" if name in taken or name == "step" else name
