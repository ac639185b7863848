"""For authors of terms: one call that checks whether a term can be used in training.

>>> import numpy as np
>>> import penalties as pn
>>> from penalties.testing import check_term
>>> bool(check_term(pn.Term(pn.l1), np.array([1.0, -2.0])))
True
"""

from .checking import check_term
from .verdict import Check, Status, Verdict

__all__ = ["Check", "Status", "Verdict", "check_term"]
