"""A trial of a config: its objective once, on one real batch, so that what fails is known before a run."""

import contextlib
import math
import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...errors import NonFiniteError, PenaltiesError, TermError, said
from ...execution.executor import Executor
from ...pipeline import Pipeline
from ...pipeline.output import BASE, LossOutput
from ...training.custom_loss import forward_backward_custom
from ...training.local.model import TINY
from ..data import Stream
from ..problems import DataError, Problem
from .best import Best, NoMetric
from .clients import Backend, connect
from .evaluation import averaged, every_term, measured
from .execution import executing

if TYPE_CHECKING:
    from ..config import Config

__all__ = ["Trial", "is_here", "tried"]

_ROUNDING: Final = 1e-3
_WEIGHTS: Final = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")


class Trial(NamedTuple):
    """What a trial found."""

    loss: dict[str, Any] | None
    """The loss and each term, as in the run's log; None if the trial failed."""
    problems: list[Problem]
    notes: list[Problem]
    """Terms that failed, and may: the run would leave them out."""


def is_here(model: str) -> bool:
    """Whether a model can be loaded without a download; a ValueError for what no model on the hub is named."""
    if model == TINY or os.path.isdir(model):
        return True
    from huggingface_hub import try_to_load_from_cache

    files = [try_to_load_from_cache(model, name) for name in ("config.json", *_WEIGHTS)]
    return isinstance(files[0], str) and any(isinstance(one, str) for one in files[1:])


def tried(config: "Config") -> Trial:
    """Load the model, and run the base loss and every term on the first batch, with gradients; nothing is trained."""
    pipeline = every_term(config.pipeline())
    # Each failure is reported, not only the first.
    watched = Pipeline([term.replace(on_error="skip") for term in pipeline])
    with contextlib.ExitStack() as ending:
        try:
            # First: a cluster that does not answer is found before a model is loaded.
            executor = ending.enter_context(executing(config))
            backend = connect(config)
            ending.callback(backend.close, "success")
            data = backend.batch(Stream(config, backend.tokenizer, backend.limit).batch(0))
            passed = forward_backward_custom(
                backend.client,
                data,
                config.base,
                regularizers=watched,
                references=config.providers(backend.another),
                executor=executor,
                step=0,
                server=backend.server,
            )
            output = passed.result().custom_loss.read()
            parted = _in_parts(config, backend, executor, data)
        except DataError as error:
            return Trial(None, [Problem(f"{error.source}: {one.where}", one.message) for one in error.problems], [])
        except (PenaltiesError, OSError, RuntimeError) as error:
            return Trial(None, [Problem(_where(error), _message(error))], [])
    may = {term.name for term in pipeline if term.on_error == "skip"}
    failed = [term for term in output.all if term.error is not None]
    found = {
        term.name: Problem(f"term.{term.name}", f"fails on the first batch: {_message(term.error)}") for term in failed
    }
    wrong = [_not_separable(name, value, output[name].value) for name, value in parted.items()]
    return Trial(
        output.to_dict(),
        [
            *(one for name, one in found.items() if name not in may),
            *(one for one in wrong if one is not None),
            *([] if found else _best(config, output)),
        ],
        [one for name, one in found.items() if name in may],
    )


def _in_parts(config: "Config", backend: Backend, executor: Executor, data: list[Any]) -> dict[str, float]:
    """Terms that say they are separable, in parts of the batch as training has them."""
    terms = [term for term in every_term(config.pipeline()) if term.enabled and term.separable]
    if not terms:
        return {}
    passed = forward_backward_custom(
        backend.client,
        data,
        None,
        regularizers=terms,
        references=config.providers(backend.another),
        executor=executor,
        step=0,
        server=backend.server,
    )
    return {term.name: term.value for term in passed.result().custom_loss.read().all}


def _not_separable(name: str, parts: float, whole: float | None) -> Problem | None:
    """The problem with a term whose value over parts of a batch is another than over the whole."""
    if whole is None or math.isclose(parts, whole, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
        return None
    message = f"is {whole:.6g} over the first batch, but {parts:.6g} in parts of it; expected a sum or mean over rows"
    return Problem(f"term.{name}.separable", f"{message}: remove separable, or say over what: tokens or sequences")


def _best(config: "Config", output: LossOutput) -> list[Problem]:
    """The problem with `train.best_by`, if there is one; metrics over samples are known once there are samples."""
    if (config.train.best_by or "").partition("/")[0] in config.samples.names:
        return []
    try:
        Best(config.train).check(measured(averaged([(output, 1)])))
    except NoMetric as error:
        return [error.problem]
    return []


def _where(error: Exception) -> str:
    term = error.term if isinstance(error, TermError | NonFiniteError) else None
    return "the first batch" if term is None else "train.loss" if term == BASE else f"term.{term}"


def _message(error: Any) -> str:
    text = (
        error.message
        if isinstance(error, TermError | NonFiniteError)
        else str(error)
        if isinstance(error, PenaltiesError)
        else said(error)
    )
    return text.splitlines()[0]
