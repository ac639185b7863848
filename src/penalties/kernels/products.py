"""Sums over the rows of an input by how much each counts, and a small matrix of numbers times such sums."""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["products", "row_totals"]


def row_totals(table: "Tensor", shares: "Sequence[Tensor]", *, plain: bool, squares: bool) -> "Tensor":
    """Each line of the table, added up: if `plain` as it is, and then by each share, and with `squares` by its square.

    A share says how much each column counts. Where it is 0, neither does what is there.
    """
    import torch

    found: list[Tensor] = [table.sum(1)] if plain else []
    for share in shares:
        counted = table.masked_fill(share == 0, 0.0) * share
        found.append(counted.sum(1))
        if squares:
            found.append((counted * share).sum(1))
    return found[0] if len(found) == 1 else torch.cat(found)


def products(sums: "Tensor", factors: tuple[tuple[float, ...], ...]) -> "Tensor":
    """For each row of factors, the sum of its products with the sums; a factor of 0 takes no part, infinity or not."""
    import torch

    if torch.compiler.is_compiling() or (sums.is_cuda and torch.cuda.is_current_stream_capturing()):
        # Without constants in memory: a graph that was captured would go on reading what is no longer kept.
        return torch.stack([_product(sums, row) for row in factors])
    matrix, unused = _matrix(factors, sums.dtype, sums.device)
    return (matrix * sums).masked_fill_(unused, 0.0).sum(1)


def _product(sums: Any, factors: tuple[float, ...]) -> Any:
    used = [sums[index] * factor for index, factor in enumerate(factors) if factor]
    return sum(used[1:], used[0]) if used else sums.new_zeros(())


@functools.lru_cache(maxsize=64)
def _matrix(factors: tuple[tuple[float, ...], ...], dtype: Any, device: Any) -> "tuple[Tensor, Tensor]":
    """The factors, and which of them are 0: the same at every step, and a copy to a device waits for it."""
    import torch

    # Kept for calls that take gradients, too.
    with torch.inference_mode(False):
        matrix = torch.tensor(factors, dtype=dtype)
        # Compared here: a copy is there when it returns, and another stream would not wait for a kernel.
        return matrix.to(device), (matrix == 0).to(device)
