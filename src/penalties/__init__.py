"""Structured training objectives: `loss = base + Σ weight·term`, on NumPy, PyTorch and JAX.

Names load when they are first used; importing this package loads neither torch nor jax.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import telemetry as telemetry
    from . import terms as terms
    from . import testing as testing
    from . import training as training
    from .app.api import report as report
    from .app.api import runs as runs
    from .app.api import train as train
    from .arrays import Logits as Logits
    from .errors import BackendError as BackendError
    from .errors import CheckError as CheckError
    from .errors import GradientError as GradientError
    from .errors import InputError as InputError
    from .errors import MissingLibraryError as MissingLibraryError
    from .errors import NonFiniteError as NonFiniteError
    from .errors import OptionError as OptionError
    from .errors import PenaltiesError as PenaltiesError
    from .errors import ServiceError as ServiceError
    from .errors import ShapeError as ShapeError
    from .errors import TermError as TermError
    from .errors import TermTimeoutError as TermTimeoutError
    from .errors import WorkerLostError as WorkerLostError
    from .execution.executor import Executor as Executor
    from .execution.replaying import replay as replay
    from .functional import *
    from .integrations import auxiliary as auxiliary
    from .integrations import capture as capture
    from .integrations import collect as collect
    from .integrations import select as select
    from .integrations import train_step as train_step
    from .integrations import wrap_loss as wrap_loss
    from .pipeline import EMA as EMA
    from .pipeline import SPSA as SPSA
    from .pipeline import Cached as Cached
    from .pipeline import Evaluation as Evaluation
    from .pipeline import EvolutionStrategies as EvolutionStrategies
    from .pipeline import Explanation as Explanation
    from .pipeline import LossOutput as LossOutput
    from .pipeline import Monitor as Monitor
    from .pipeline import Normalized as Normalized
    from .pipeline import Pipeline as Pipeline
    from .pipeline import Regularizer as Regularizer
    from .pipeline import ScoreFunction as ScoreFunction
    from .pipeline import Stale as Stale
    from .pipeline import StraightThrough as StraightThrough
    from .pipeline import Term as Term
    from .pipeline import TermOutput as TermOutput
    from .pipeline import debug as debug
    from .pipeline import explain as explain
    from .pipeline import gradients as gradients
    from .pipeline import load_state as load_state
    from .pipeline import plot as plot
    from .pipeline import recording as recording
    from .pipeline import save_state as save_state
    from .pipeline import schedules as schedules

__version__ = "0.1.0"

# Where names live, except for the mathematics: `functional.__all__` is the one list of that.
_HOMES = {
    ".app.api": ("report", "runs", "train"),
    ".arrays": ("Logits",),
    ".errors": (
        "BackendError",
        "CheckError",
        "GradientError",
        "InputError",
        "MissingLibraryError",
        "NonFiniteError",
        "OptionError",
        "PenaltiesError",
        "ServiceError",
        "ShapeError",
        "TermError",
        "TermTimeoutError",
        "WorkerLostError",
    ),
    ".execution.executor": ("Executor",),
    ".execution.replaying": ("replay",),
    ".pipeline": (
        "EMA",
        "SPSA",
        "Cached",
        "Evaluation",
        "EvolutionStrategies",
        "Explanation",
        "LossOutput",
        "Monitor",
        "Normalized",
        "Pipeline",
        "Regularizer",
        "ScoreFunction",
        "Stale",
        "StraightThrough",
        "Term",
        "TermOutput",
        "debug",
        "explain",
        "gradients",
        "load_state",
        "plot",
        "recording",
        "save_state",
        "schedules",
    ),
    ".integrations": ("auxiliary", "capture", "collect", "select", "train_step", "wrap_loss"),
    ".telemetry": ("telemetry",),
    ".terms": ("terms",),
    ".testing": ("testing",),
    ".training": ("training",),
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use, and keep it."""
    if name == "__all__":
        value = sorted(["__version__", *(name for names in _HOMES.values() for name in names), *_functional().__all__])
    else:
        value = _found(name)
    globals()[name] = value
    return value


def _found(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            module = importlib.import_module(home, __name__)
            return module if home == f".{name}" else getattr(module, name)
    if not name.startswith("_") and name in _functional().__all__:
        return getattr(_functional(), name)
    # With name and obj Python itself says which name was meant.
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])


def _functional() -> Any:
    return importlib.import_module(".functional", __name__)


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__getattr__("__all__")})
