"""`penalties.report`: the page of a run, of outputs that a program kept, or of a log."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ...errors import InputError, OptionError
from ...pipeline.output import LossOutput
from .runs import needs_program

if TYPE_CHECKING:
    from ..report import Report

__all__ = ["report"]

History: TypeAlias = Iterable[LossOutput] | Mapping[int, LossOutput] | str | os.PathLike[str]


def report(history: History) -> "Report":
    """The report of a run: one page, which a notebook shows and `save(path)` writes.

    - `history`: outputs in order, a mapping from steps to outputs, the path of a log by `telemetry.JSONLines`, or the
      folder of a run of the program.

    Keep `out.read()`, which is numbers: an output itself keeps the graph of its step alive.

    >>> import numpy as np
    >>> import penalties as pn
    >>> pipeline = pn.Pipeline([pn.Term(pn.l1, weight=0.1), pn.Term(pn.l2, weight=0.01)])
    >>> page = pn.report([pipeline(np.ones(3) / (1 + step)).read() for step in range(10)])
    >>> page.verdicts["history"].summary.startswith("The loss fell by")
    True
    """
    needs_program("penalties.report")
    from ..report import make
    from ..report.histories import read_history
    from ..report.page import compose

    if isinstance(history, str | os.PathLike):
        return make([Path(history).expanduser()])
    named = isinstance(history, Mapping)
    try:
        pairs = cast("Mapping[int, Any]", history).items() if named else enumerate(cast("Iterable[Any]", history))
        outputs = dict(pairs)
    except TypeError:
        raise _wrong(history) from None
    for step, out in outputs.items():
        if not isinstance(out, LossOutput):
            raise _wrong(out)
        if not isinstance(cast("object", step), int) or step < 0:
            raise OptionError("report", "history", step, "steps that are whole numbers of at least 0")
    if not outputs:
        raise InputError("report: the history is empty; append out.read() at each step")
    return compose([read_history(outputs)], ["history"])


def _wrong(found: Any) -> OptionError:
    return OptionError(
        "report", "history", type(found).__name__, "outputs of a pipeline, or the path of a log or a run"
    )
