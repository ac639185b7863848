"""Structured training objectives: `loss = base + Σ weight·term`, on NumPy, PyTorch and JAX.

Names load when they are first used; importing this package loads neither torch nor jax.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import telemetry, testing, training
    from .errors import (
        BackendError,
        CheckError,
        GradientError,
        InputError,
        MissingLibraryError,
        NonFiniteError,
        OptionError,
        PenaltiesError,
        ShapeError,
        TermError,
        TermTimeoutError,
        WorkerLostError,
    )
    from .execution.executor import Executor
    from .functional import (
        consistency,
        elastic_net,
        entropy,
        entropy_estimate,
        gradient_penalty,
        interpolated_gradient_penalty,
        js_divergence,
        kl_divergence,
        kl_estimate,
        l1,
        l2,
        orthogonality,
        output_magnitude,
        renormalize,
        replace_nonfinite,
        safe_log,
        smooth_l1,
        valid_logprobs,
        validate,
        with_gradient_penalty,
    )
    from .integrations import train_step, wrap_loss
    from .pipeline import (
        EMA,
        Evaluation,
        Explanation,
        LossOutput,
        Monitor,
        Normalized,
        Pipeline,
        Regularizer,
        Term,
        TermOutput,
        debug,
        explain,
        gradients,
        load_state,
        save_state,
        schedules,
    )

__version__ = "0.1.0"

_HOMES = {
    ".errors": (
        "BackendError",
        "CheckError",
        "GradientError",
        "InputError",
        "MissingLibraryError",
        "NonFiniteError",
        "OptionError",
        "PenaltiesError",
        "ShapeError",
        "TermError",
        "TermTimeoutError",
        "WorkerLostError",
    ),
    ".execution.executor": ("Executor",),
    ".functional": (
        "consistency",
        "elastic_net",
        "entropy",
        "entropy_estimate",
        "gradient_penalty",
        "interpolated_gradient_penalty",
        "js_divergence",
        "kl_divergence",
        "kl_estimate",
        "l1",
        "l2",
        "orthogonality",
        "output_magnitude",
        "renormalize",
        "replace_nonfinite",
        "safe_log",
        "smooth_l1",
        "valid_logprobs",
        "validate",
        "with_gradient_penalty",
    ),
    ".pipeline": (
        "EMA",
        "Evaluation",
        "Explanation",
        "LossOutput",
        "Monitor",
        "Normalized",
        "Pipeline",
        "Regularizer",
        "Term",
        "TermOutput",
        "debug",
        "explain",
        "gradients",
        "load_state",
        "save_state",
        "schedules",
    ),
    ".integrations": ("train_step", "wrap_loss"),
    ".telemetry": ("telemetry",),
    ".testing": ("testing",),
    ".training": ("training",),
}

__all__ = [
    "EMA",
    "BackendError",
    "CheckError",
    "Evaluation",
    "Executor",
    "Explanation",
    "GradientError",
    "InputError",
    "LossOutput",
    "MissingLibraryError",
    "Monitor",
    "NonFiniteError",
    "Normalized",
    "OptionError",
    "PenaltiesError",
    "Pipeline",
    "Regularizer",
    "ShapeError",
    "Term",
    "TermError",
    "TermOutput",
    "TermTimeoutError",
    "WorkerLostError",
    "__version__",
    "consistency",
    "debug",
    "elastic_net",
    "entropy",
    "entropy_estimate",
    "explain",
    "gradient_penalty",
    "gradients",
    "interpolated_gradient_penalty",
    "js_divergence",
    "kl_divergence",
    "kl_estimate",
    "l1",
    "l2",
    "load_state",
    "orthogonality",
    "output_magnitude",
    "renormalize",
    "replace_nonfinite",
    "safe_log",
    "save_state",
    "schedules",
    "smooth_l1",
    "telemetry",
    "testing",
    "train_step",
    "training",
    "valid_logprobs",
    "validate",
    "with_gradient_penalty",
    "wrap_loss",
]


def __getattr__(name: str) -> Any:
    """Load a public name on first use, and keep it."""
    for home, names in _HOMES.items():
        if name in names:
            module = importlib.import_module(home, __name__)
            value = module if home == f".{name}" else getattr(module, name)
            globals()[name] = value
            return value
    # With name and obj Python itself says which name was meant.
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__})
