"""The processes other than the first: they wait for orders, and obey."""

import contextlib

from .client import CLOSE, MAKE
from .group import FailedError, Group
from .member import Member

__all__ = ["serve"]


def serve(group: Group) -> None:
    """Take part in the operations of the leader's clients until it ends; a `LostError` if it ends without a word."""
    members: dict[int, Member] = {}
    while (order := group.next_order()) is not None:
        number, operation, arguments, dropped = order
        # What fails is told to the leader, which decides what becomes of it.
        with contextlib.suppress(FailedError):
            if operation == MAKE:
                model, options, shard = arguments
                members[number] = Member(group, model, options, shard=shard)
            elif operation == CLOSE:
                members.pop(number).close()
            else:
                members[number].forget(dropped)
                getattr(members[number], operation)(*arguments)
