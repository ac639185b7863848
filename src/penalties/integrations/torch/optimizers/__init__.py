"""Transforms of an optimizer's gradients and weights, as hooks of its steps."""

from .attached import Attached
from .centralizing import centralize
from .clipping import clip_norm, clip_units
from .decaying import decay
from .noise import gradient_noise
from .shrinking import proximal

__all__ = ["Attached", "centralize", "clip_norm", "clip_units", "decay", "gradient_noise", "proximal"]
