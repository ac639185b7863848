"""Structured training objectives: `loss = base + Σ weight·term`, on NumPy, PyTorch and JAX.

Names load when they are first used; importing this package loads neither torch nor jax.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import BackendError, GradientError, NonFiniteError, OptionError, PenaltiesError, ShapeError
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

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "GradientError",
    "NonFiniteError",
    "OptionError",
    "PenaltiesError",
    "ShapeError",
    "__version__",
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
]


def __getattr__(name: str) -> Any:
    """Load a public name on first use, and keep it."""
    if name not in __all__:
        # With name and obj Python itself says which name was meant.
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    home = importlib.import_module(".errors" if name.endswith("Error") else ".functional", __name__)
    value = getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__})
