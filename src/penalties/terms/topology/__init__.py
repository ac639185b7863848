"""Terms on the shape of data: pieces, loops and voids of a cloud of points or of an array, by persistent homology.

Gudhi computes when each feature is born and dies, and with which edge, sphere or cell; the gradient goes through
these. A term returns it in an `Evaluation`: it works on NumPy, PyTorch and JAX, in any precision, inline, in a thread
or in a process, and has no second derivatives. `pip install "penalties[topology]"`.
"""

from .betti import target_betti
from .diagrams import diagram
from .reference import wasserstein
from .total import total_persistence

__all__ = ["diagram", "target_betti", "total_persistence", "wasserstein"]
