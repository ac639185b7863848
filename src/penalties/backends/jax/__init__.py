"""The operations on JAX arrays, traced ones too.

Nothing here imports jax at module level: these functions only ever see its arrays, so jax is loaded by then.
"""

from . import arrays, composition
from .arrays import *
from .composition import *

__all__: list[str] = []
__all__ += arrays.__all__
__all__ += composition.__all__
