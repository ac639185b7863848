"""The mathematics: pure functions that take arrays of any backend and return a scalar there."""

from .divergences import cross_entropy, entropy, js_divergence, kl_divergence
from .estimators import entropy_estimate, kl_estimate
from .finite import replace_nonfinite, validate
from .logprobs import renormalize, safe_log, target_logprobs, valid_logprobs
from .norms import elastic_net, l1, l2, smooth_l1
from .precomputed import precomputed
from .smoothness import gradient_penalty, interpolated_gradient_penalty, output_magnitude, with_gradient_penalty
from .structure import consistency, orthogonality

__all__ = [
    "consistency",
    "cross_entropy",
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
    "precomputed",
    "renormalize",
    "replace_nonfinite",
    "safe_log",
    "smooth_l1",
    "target_logprobs",
    "valid_logprobs",
    "validate",
    "with_gradient_penalty",
]
