"""The mathematics: pure functions that take arrays of any backend and return a scalar there."""

from .divergences import entropy, js_divergence, kl_divergence
from .estimators import entropy_estimate, kl_estimate
from .finite import replace_nonfinite, validate
from .logprobs import renormalize, safe_log, valid_logprobs
from .norms import elastic_net, l1, l2, smooth_l1
from .smoothness import gradient_penalty, interpolated_gradient_penalty, output_magnitude, with_gradient_penalty
from .structure import consistency, orthogonality

__all__ = [
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
