"""Ready-made terms, most of which need their own library. Importing them loads none of these libraries.

Every module has functions or objects for `Term`; a function may be named by a dotted path:
`"penalties.terms.fairness:demographic_parity"`.
"""

from . import fairness as fairness
from . import judge as judge
from . import knowledge as knowledge
from . import logic as logic
from . import topology as topology
from . import validation as validation

__all__: list[str] = [
    "fairness",
    "judge",
    "knowledge",
    "logic",
    "topology",
    "validation",
]
