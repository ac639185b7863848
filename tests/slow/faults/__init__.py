"""Terms that misbehave, each in one way, and what an executor is to make of it.

They take `x`, an array of any library. Workers import these modules, so they import little.
"""

from . import ending, hanging, misusing, raising, returning
from .fault import CHATTER, EVERYWHERE, FAULTS, HEALTHY, Fault, awaited, released, squares
from .hanging import hangs, waits

__all__ = [
    "CHATTER",
    "EVERYWHERE",
    "FAULTS",
    "HEALTHY",
    "Fault",
    "awaited",
    "ending",
    "hanging",
    "hangs",
    "misusing",
    "raising",
    "released",
    "returning",
    "squares",
    "waits",
]
