"""Ready-made terms, each of which needs a library of its own. Importing them loads none of these libraries.

Every module has functions for `Term`, by themselves or by a path: `"penalties.terms.fairness:demographic_parity"`.
"""

from . import judge as judge
from . import knowledge as knowledge
from . import validation as validation

__all__: list[str] = [
    "judge",
    "knowledge",
    "validation",
]
