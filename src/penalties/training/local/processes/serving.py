"""The processes other than the first: they wait for orders, and obey."""

import contextlib

from .group import FailedError, Group
from .member import Member
from .orders import CLOSE, MAKE

__all__ = ["serve"]


def serve(group: Group) -> None:
    """Take part in the operations of the leader's clients until it ends; a `LostError` if it ends without a word."""
    members: dict[int, Member] = {}
    while (order := group.next_order()) is not None:
        # What fails is reported to the leader, which decides what becomes of it.
        with contextlib.suppress(FailedError):
            if order.operation == MAKE:
                model, options, shard = order.arguments
                members[order.client] = Member(group, model, options, shard=shard)
            elif order.operation == CLOSE:
                members.pop(order.client).close()
            else:
                members[order.client].obey(order)
