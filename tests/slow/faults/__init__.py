"""Terms that misbehave, each in one way, and what an executor is to make of it.

They take `x`, an array of any library. Workers import these modules, so they import little. A new one is a function
under `@fault` in the module where it belongs; what happens around terms is one under `@surrounding`.
"""

from . import ending, hanging, misusing, raising, returning, surroundings
from .fault import CHATTER, EVERYWHERE, FAULTS, HEALTHY, Fault, awaited, line, released, squares
from .hanging import hangs, waits
from .surroundings import SURROUNDINGS, Surrounding

__all__ = [
    "CHATTER",
    "EVERYWHERE",
    "FAULTS",
    "HEALTHY",
    "SURROUNDINGS",
    "Fault",
    "Surrounding",
    "awaited",
    "ending",
    "hanging",
    "hangs",
    "line",
    "misusing",
    "raising",
    "released",
    "returning",
    "squares",
    "surroundings",
    "waits",
]
