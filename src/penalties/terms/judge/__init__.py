"""Reward models and other classifiers as terms.

>>> from penalties.terms.judge import Judge
>>> Judge("rewards/helpful").name
'judge'
"""

from .term import Judge

__all__ = ["Judge"]
