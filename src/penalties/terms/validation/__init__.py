"""Samples that a service validates over HTTP, with gradients for what drew them.

>>> from penalties.terms.validation import Validation
>>> Validation("https://validator.example/v1").name
'validation'
"""

from .term import Validation

__all__ = ["Validation"]
