"""How much each row counts: worked out once for penalties that have a mask in common."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Place", "Shares", "flags_of", "shares_of", "shown_by"]


class Place(NamedTuple):
    """Where the share of each row in one penalty is."""

    column: int | None
    """Its index among the shares that differ from row to row; None where all rows count alike."""
    share: float = 1.0
    """Of each row, where all count alike."""


class Shares(NamedTuple):
    """How much each row counts in each penalty."""

    columns: "list[Tensor]"
    """Those that differ from row to row."""
    places: tuple[Place, ...]
    """One for each penalty."""


def shares_of(masks: Sequence[Any], means: Sequence[bool], rows: int) -> Shares:
    """By the mask of each penalty, None where all rows count, and whether it is a mean over them or a sum."""
    made: list[tuple[Any, bool]] = []
    columns: list[Tensor] = []
    places: list[Place] = []
    for mask, mean in zip(masks, means, strict=True):
        if mask is None:
            places.append(Place(None, 1 / (rows or 1) if mean else 1.0))
            continue
        known = [index for index, (other, same) in enumerate(made) if other is mask and same == mean]
        if not known:
            known = [len(made)]
            made.append((mask, mean))
            columns.append(_share(mask, mean=mean))
        places.append(Place(known[0]))
    return Shares(columns, tuple(places))


def _share(mask: "Tensor", *, mean: bool) -> "Tensor":
    mask = mask.float()
    if not mean:
        return mask
    total = mask.sum()
    # A mean over nothing is 0.
    return mask / total.masked_fill(total == 0, math.inf)


def shown_by(masks: Sequence[Any]) -> Any:
    """Which rows count by any of the masks; None where one of them is None, and all do."""
    shown: Any = None
    seen: list[Any] = []
    for mask in masks:
        if mask is None:
            return None
        if any([mask is other for other in seen]):  # noqa: C419 (torch.compile cannot trace it as a generator)
            continue
        seen.append(mask)
        own = mask != 0
        shown = own if shown is None else shown | own
    return shown


def flags_of(shown: Any, with_y: Any, *, pairs: bool) -> Any:
    """For each row, 0 where it does not count, 1 where y does not, else 2; None where all rows count in full.

    By the masks, not by coefficients: a term of weight 0 has a norm, too.
    """
    import torch

    if shown is None:
        return None if with_y is None else with_y.to(torch.int8).add_(1)
    flags = shown.to(torch.int8)
    return flags.add_(with_y) if pairs else flags
