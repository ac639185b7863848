"""What a call of a pipeline returns: the data, how it is read from its device, and the forms it is shown in."""

from .data import BASE, LossOutput, TermOutput
from .pytrees import register_with_jax

__all__ = ["BASE", "LossOutput", "TermOutput", "register_with_jax"]
