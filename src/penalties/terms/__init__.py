"""Ready-made terms, most of which need a library of their own. Importing them loads none of these libraries.

Every module has functions for `Term`, by themselves or by a dotted path:
`"penalties.terms.fairness:demographic_parity"`.
"""

from . import fairness, logic

__all__ = ["fairness", "logic"]
