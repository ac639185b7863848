"""A recorded call once more."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..pipeline import LossOutput, Pipeline
from ..pipeline.inputs import INPUT
from ..pipeline.recordings import load
from .executor import Executor

__all__ = ["replay"]


def replay(
    path: str | os.PathLike[str],
    pipeline: Pipeline | None = None,
    *,
    inputs: Mapping[str, Any] | None = None,
    device: Any = None,
) -> LossOutput:
    """Run a call again that was recorded because a term failed; it fails again, or returns its output.

    The call has the terms, inputs, weights, step and state that it had, takes the same gradients, and runs with an
    executor like the one that made it. What its terms draw follows from their seeds and the step, so it is the same.

    Nothing in the folder is executed or unpickled, but without `pipeline` the functions that it names are imported and
    called: replay only folders that you trust, or pass a pipeline.

    - `path`: the folder of the call, as the note on its error says.
    - `pipeline`: the pipeline to call instead of the one that is described there, or where that has functions without
      a path, such as lambdas.
    - `inputs`: replaces inputs, and adds those that could not be recorded.
    - `device`: where the arrays go; by default to the memory of the host.

    >>> import tempfile
    >>> import numpy as np
    >>> import penalties as pn
    >>> pipeline = pn.Pipeline([pn.Term(pn.consistency, inputs=("a", "b"))])
    >>> folder = tempfile.mkdtemp()
    >>> with pn.recording(folder):
    ...     try:
    ...         pipeline(a=np.ones(3), b=np.ones(2))
    ...     except pn.TermError:
    ...         pass
    >>> try:
    ...     pn.replay(f"{folder}/call-consistency")
    ... except pn.TermError as error:
    ...     print(str(error).partition(": consistency")[0])
    consistency: raised ShapeError
    >>> float(pn.replay(f"{folder}/call-consistency", inputs={"b": np.zeros(3)}).total)
    1.0
    """
    found = load(Path(path), device)
    if pipeline is None:
        if found.config is None:
            raise InputError(
                f"replay: {path} does not name the functions of its terms ({found.no_config}); pass pipeline="
            )
        pipeline = Pipeline.from_config(found.config)
    given = {**found.inputs, **(inputs or {})}
    for name, reason in found.left_out.items():
        if name not in given:
            raise InputError(f'replay: the input "{name}" was not recorded ({reason}); pass inputs={{"{name}": …}}')
    arguments: dict[str, Any] = {"weights": found.weights, "step": found.step, "state": found.state}
    taken = found.gradients
    if taken is not None:
        arguments |= {"wrt": taken.wrt, "cosines": taken.cosines, "keep": taken.keep}
    if found.executor is not None:
        with Executor(**found.executor) as executor:
            return executor.run(pipeline, given[INPUT] if found.alone else given, **arguments)
    call = pipeline if taken is None else pipeline.value_and_grad
    if taken is not None:
        arguments["accumulate"] = taken.accumulate
    return call(given[INPUT], **arguments) if found.alone else call(**given, **arguments)
