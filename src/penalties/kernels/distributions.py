"""Several class-wise penalties of one pair of arrays, from one set of sums over each row.

Masks, means and factors belong to rows, of which there are few, and are applied here. Elements are for the kernels.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..functional.penalty import Classwise
from .products import products

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Part", "Swept", "unsupported", "value_and_gradients", "values"]

_ENTROPY, _KL, _REVERSE, _JS, _LABEL, _SYMMETRIC, _WHOLE = range(7)
"""The sums of a row by their index. The last two, a mean of two sums and all of them together, have only norms."""
_COUNT: Final = 5
_KINDS: Final = {"entropy": _ENTROPY, "symmetric_kl": _SYMMETRIC, "js": _JS, "target": _LABEL}


class Part(NamedTuple):
    """One penalty of a group, over the group's arrays x and y."""

    form: Classwise
    swapped: bool
    """Whether its p is y, and its q is x."""
    mean: bool
    mask: Any = None
    labels: Any = None
    """The index of a class for each row; the same for all parts of a group that have any."""

    @property
    def kind(self) -> int:
        """The index of its sum."""
        if self.form.kind == "kl":
            return _REVERSE if self.swapped != self.form.swapped else _KL
        return _KINDS[self.form.kind]

    @property
    def reads_both(self) -> bool:
        """Whether it reads y, too."""
        return self.kind not in (_ENTROPY, _LABEL)

    @property
    def sums(self) -> dict[int, float]:
        """Which sums of a row it is made of, and how much of each."""
        return {_KL: 0.5, _REVERSE: 0.5} if self.kind == _SYMMETRIC else {self.kind: 1.0}

    def factor(self, classes: int) -> float:
        """What its sum over this many classes is multiplied by."""
        if not self.form.per_log_classes:
            return self.form.factor
        return self.form.factor / math.log(classes) if classes > 1 else 0.0


class Swept(NamedTuple):
    """What the sweeps found."""

    values: "list[Tensor]"
    norms: "list[list[Tensor | None]]"
    """Of each one's unscaled gradient, at each array that gradients were taken at; None where it does not read one."""
    gradients: "list[Tensor]"
    """`Σ coefficient·gradient` at each of those arrays."""
    norm: "Tensor"
    """Of that."""


def unsupported(x: "Tensor", y: "Tensor | None", masks: Sequence[Any], labels: Any = None) -> str | None:
    """Why there is no kernel for class-wise penalties of these tensors; None where there is."""
    import torch

    if x.layout is not torch.strided or x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"no kernel for {x.dtype} tensors of layout {x.layout}"
    if not x.ndim or not x.shape[-1]:
        return f"no kernel for tensors of shape {tuple(x.shape)}"
    if y is not None and (y.shape != x.shape or y.dtype != x.dtype or y.device != x.device or y.layout != x.layout):
        return "its inputs differ in shape, dtype or device"
    for mask in masks:
        if not isinstance(mask, torch.Tensor) or mask.shape != x.shape[:-1] or mask.device != x.device:
            return "its mask is not a tensor on the same device, of the shape without the last axis"
        if mask.requires_grad or mask.is_complex():
            return "its mask requires a gradient, or is not real"
    if labels is not None:
        if type(labels) is not torch.Tensor or labels.shape != x.shape[:-1] or labels.device != x.device:
            return "its targets are not a tensor on the same device, of the shape without the last axis"
        if labels.is_floating_point() or labels.is_complex() or labels.dtype is torch.bool:
            return "its targets are not whole numbers"
    return None


def values(x: "Tensor", y: "Tensor | None", parts: Sequence[Part]) -> "list[Tensor]":
    """The value of each part, on the graph of x and y."""
    import torch

    from .triton.operators import row_sums, totals

    form, parts, classes = parts[0].form, _counted(parts), x.shape[-1]
    setting = _wanted(parts), form.temperature, form.logits
    shares = [_share(part, x.numel() // classes) for part in parts]
    if not torch.compiler.is_compiling() and all(isinstance(share, float) for share in shares):
        return list(totals(x, y, _labels(parts), *setting, _even(parts, shares, classes, None, _COUNT)).unbind())
    sums = row_sums(x, y, _labels(parts), _shown(parts), *setting)
    return list(_weighted(sums, parts, shares, classes, None).unbind())


def value_and_gradients(
    x: "Tensor", y: "Tensor | None", parts: Sequence[Part], coefficients: Sequence[float], at: Sequence[bool]
) -> Swept:
    """The value of each part, and gradients at those of x and y that `at` says, one entry for each."""
    import torch

    from .triton.gradients import gradient
    from .triton.rows import turned, turned_sums
    from .triton.statistics import statistics

    form, wanted, classes = parts[0].form, _wanted(parts), x.shape[-1]
    setting = form.temperature, form.logits, True
    with torch.inference_mode(False), torch.no_grad():
        parts, labels = _counted(parts), _labels(parts)
        shown, with_y = _shown(parts), _shown([part for part in parts if part.reads_both])
        rows = statistics(x, y, labels, shown, wanted, form.temperature, form.logits)
        flags = _flags(parts, shown, with_y, rows.sums)
        shares = [_share(part, rows.sums.shape[1]) for part in parts]
        constants, by_row = _row_coefficients(parts, shares, coefficients, rows.sums, classes)
        gradients: list[Tensor] = []
        table, first = rows.numbers, rows.numbers.shape[0] - rows.squares.shape[0]
        squares: list[int] = []
        if at[0]:
            gradients.append(gradient(x, y, labels, flags, rows, constants, by_row, wanted, *setting))
            squares.append(first)
        if y is not None and at[1]:
            other = turned(rows)
            if by_row is not None:
                by_row = torch.stack(turned_sums(by_row.unbind(), torch.zeros_like(by_row[0])))
            sums = turned_sums(wanted, False)
            flags = None if with_y is None else 2 * with_y.to(torch.int8)
            gradients.append(gradient(y, x, None, flags, other, turned_sums(constants, 0.0), by_row, sums, *setting))
            squares.append(table.shape[0])
            table = torch.cat([table, *turned_sums([*other.squares[:, None]], torch.zeros_like(other.squares[:1]))])
        found = _weighted(table, parts, shares, classes, tuple(squares))
        found[len(parts) :].sqrt_()
        numbers = found.unbind()
        values, lengths = numbers[: len(parts)], numbers[len(parts) :]
        norms = [
            [
                lengths[i * len(parts) + j] if start == first or part.reads_both else None
                for i, start in enumerate(squares)
            ]
            for j, part in enumerate(parts)
        ]
        return Swept(list(values), norms, gradients, lengths[-1])


def _wanted(parts: Sequence[Part]) -> list[bool]:
    wanted = {kind for part in parts for kind in part.sums}
    return [kind in wanted for kind in range(_COUNT)]


def _labels(parts: Sequence[Part]) -> Any:
    labels = next((part.labels for part in parts if part.labels is not None), None)
    return None if labels is None else labels.reshape(-1).long()


def _counted(parts: Sequence[Part]) -> list[Part]:
    """The parts with masks of one axis, that leave out targets which do not count."""
    import torch

    counted: list[Part] = []
    for part in parts:
        if part.mask is None and part.form.ignore_index is None:
            counted.append(part)
            continue
        mask = None if part.mask is None else part.mask.reshape(-1)
        if part.form.ignore_index is not None:
            known = part.labels.reshape(-1) != part.form.ignore_index
            mask = known if mask is None else torch.where(known, mask, 0)
        counted.append(part._replace(mask=mask))
    return counted


def _flags(parts: Sequence[Part], shown: Any, with_y: Any, like: Any) -> Any:
    """For each row, 0 where it does not count, 1 where y does not, else 2; None where all rows count in full.

    By the masks, not by the coefficients: a term of weight 0 has a norm, too.
    """
    import torch

    if all(part.mask is None for part in parts):
        return None
    everywhere = torch.ones(like.shape[1], dtype=torch.int8, device=like.device)
    pairs = any(part.reads_both for part in parts)
    return (everywhere if shown is None else everywhere * shown) + everywhere * (pairs if with_y is None else with_y)


def _shown(parts: Sequence[Part]) -> Any:
    """Which rows count for any part; None where all do."""
    shown: Any = None
    for part in parts:
        if part.mask is None:
            return None
        own = part.mask != 0
        shown = own if shown is None else shown | own
    return shown


def _share(part: Part, rows: int) -> Any:
    """How much each row counts: a number for all of them, or one for each."""
    import torch

    if part.mask is None:
        return 1 / (rows or 1) if part.mean else 1.0
    mask = part.mask.float()
    if not part.mean:
        return mask
    total = mask.sum()
    none = total == 0
    return torch.where(none, 0.0, mask / torch.where(none, 1.0, total))


class _Entry(NamedTuple):
    """What one number is made of: rows of a table times their factors, summed over columns times their shares."""

    factors: dict[int, float]
    share: Any


def _entries(
    parts: Sequence[Part], shares: Sequence[Any], classes: int, squares: tuple[int, ...] | None
) -> Iterator[_Entry]:
    """The value of each part; and with `squares`, where squared norms begin in the table, those of each, and of all."""
    for part, share in zip(parts, shares, strict=True):
        yield _Entry({kind: part.factor(classes) * amount for kind, amount in part.sums.items()}, share)
    if squares is None:
        return
    for start in squares:
        for part, share in zip(parts, shares, strict=True):
            yield _Entry({start + part.kind: part.factor(classes) ** 2}, share * share)
    yield _Entry({start + _WHOLE: 1.0 for start in squares}, 1.0)


def _weighted(
    table: Any, parts: Sequence[Part], shares: Sequence[Any], classes: int, squares: tuple[int, ...] | None
) -> "Tensor":
    """The number of each entry."""
    import torch

    if all(isinstance(share, float) for share in shares):
        return products(table.sum(1), _even(parts, shares, classes, squares, table.shape[0]))
    found: list[Tensor] = []
    for factors, share in _entries(parts, shares, classes, squares):
        first, *others = [table[index] * factor for index, factor in factors.items()]
        weighted = sum(others, first) * share
        # Where a row does not count, neither does what is there.
        found.append((weighted if isinstance(share, float) else torch.where(share != 0, weighted, 0.0)).sum())
    return torch.stack(found)


def _even(
    parts: Sequence[Part], shares: Sequence[float], classes: int, squares: tuple[int, ...] | None, count: int
) -> tuple[tuple[float, ...], ...]:
    """What each of so many rows of the table counts for each entry, where all columns count alike."""
    # Without labels, which are in the table by now.
    plain = tuple([part if part.labels is None else part._replace(labels=None) for part in parts])
    return _factors(plain, tuple(shares), classes, squares, count)


@functools.lru_cache(maxsize=64)
def _factors(
    parts: tuple[Part, ...], shares: tuple[float, ...], classes: int, squares: tuple[int, ...] | None, count: int
) -> tuple[tuple[float, ...], ...]:
    """The same at every step."""
    return tuple(
        tuple(entry.share * entry.factors.get(index, 0.0) for index in range(count))
        for entry in _entries(parts, shares, classes, squares)
    )


def _row_coefficients(
    parts: Sequence[Part], shares: Sequence[Any], coefficients: Sequence[float], sums: Any, classes: int
) -> tuple[list[float], Any]:
    """What each sum is multiplied by: constants, and where there are masks, numbers for each row besides."""
    import torch

    constants = [0.0] * _COUNT
    rows: Any = None
    for part, share, coefficient in zip(parts, shares, coefficients, strict=True):
        for kind, amount in part.sums.items():
            factor = coefficient * amount * part.factor(classes)
            if isinstance(share, float):
                constants[kind] += factor * share
            else:
                rows = torch.zeros_like(sums) if rows is None else rows
                rows[kind].add_(share, alpha=factor)
    return constants, rows
