"""What the leader has the other processes do."""

from typing import Any, Final, NamedTuple

__all__ = ["CLOSE", "MAKE", "Order"]

MAKE: Final = "make"
CLOSE: Final = "close"


class Order(NamedTuple):
    """One operation of a client in every process."""

    client: int
    """Its number: there may be several, such as a teacher's."""
    operation: str
    """`MAKE`, `CLOSE`, or a method of `Member`."""
    arguments: tuple[Any, ...] = ()
    dropped: tuple[int, ...] = ()
    """Graphs that are gone at the leader."""
    seed: int = 0
    """For whatever a pass draws, such as dropout; it depends on the leader's generator, which checkpoints include."""
