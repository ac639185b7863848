"""The data of a run: files of several forms, read when they are needed, in an order that the seed and the step fix."""

from .chat import learned_ends
from .encoding import prompt_tokens
from .examples import PAIRWISE, Bad, Prompt
from .stream import Lengths, Stream

__all__ = ["PAIRWISE", "Bad", "Lengths", "Prompt", "Stream", "learned_ends", "prompt_tokens"]
