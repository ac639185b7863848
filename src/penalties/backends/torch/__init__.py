"""The operations on PyTorch tensors.

Nothing here imports torch at module level: these functions only ever see its arrays, so torch is loaded by then.
"""

from . import arrays, composition, lengths, picking
from .arrays import *
from .composition import *
from .lengths import *
from .picking import *

__all__: list[str] = []
__all__ += arrays.__all__
__all__ += composition.__all__
__all__ += lengths.__all__
__all__ += picking.__all__
