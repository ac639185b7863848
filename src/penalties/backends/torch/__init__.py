"""The operations on PyTorch tensors.

Nothing here imports torch at module level: these functions only ever see its arrays, so torch is loaded by then.
"""

from . import arrays, composition
from .arrays import *
from .composition import *

__all__: list[str] = []
__all__ += arrays.__all__
__all__ += composition.__all__
