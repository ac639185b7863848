"""Several class-wise penalties of one pair of arrays, from one set of sums over each row.

Masks, means and factors belong to rows, of which there are few, and are applied here. Elements are for the kernels.
"""

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..functional.penalty import Classwise
from .counting import Place, Shares, flags_of, shares_of, shown_by
from .products import products, row_totals

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
        if (
            type(mask) not in (torch.Tensor, torch.nn.Parameter)
            or mask.shape != x.shape[:-1]
            or mask.device != x.device
        ):
            return "its mask is not a plain tensor on the same device, of the shape without the last axis"
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
    labels, shown = _labels(parts), shown_by([part.mask for part in parts])
    setting = _wanted(parts), form.temperature, form.logits
    shares = _shares(parts, x.numel() // classes)
    plain = any([place.column is None for place in shares.places])  # noqa: C419 (torch.compile cannot trace a generator)
    counted = _plain(parts), shares.places, classes, None, _COUNT
    if not torch.compiler.is_compiling():
        return list(totals(x, y, labels, shown, *setting, shares.columns, plain, _kept_factors(*counted)).unbind())
    sums = row_totals(row_sums(x, y, labels, shown, *setting), shares.columns, plain=plain, squares=False)
    # Not those that are kept: torch.compile warns of every cache.
    return list(products(sums, _factors(*counted)).unbind())


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
        shown = shown_by([part.mask for part in parts])
        pairs = [part.mask for part in parts if part.reads_both]
        with_y = shown if len(pairs) == len(parts) else shown_by(pairs)
        rows = statistics(x, y, labels, shown, wanted, form.temperature, form.logits)
        flags = flags_of(shown, with_y, pairs=bool(pairs))
        shares = _shares(parts, rows.sums.shape[1])
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
        factors = _kept_factors(_plain(parts), shares.places, classes, tuple(squares), table.shape[0])
        found = products(row_totals(table, shares.columns, plain=True, squares=True), factors)
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
    """The parts with masks of one axis, that leave out targets which do not count; of parts that count alike, one."""
    import torch

    counted: list[Part] = []
    made: list[tuple[Any, int | None, Any]] = []
    for part in parts:
        ignored = part.form.ignore_index
        if part.mask is None and ignored is None:
            counted.append(part)
            continue
        masks = [mask for given, index, mask in made if given is part.mask and index == ignored]
        if not masks:
            mask = None if part.mask is None else part.mask.reshape(-1)
            if ignored is not None:
                known = part.labels.reshape(-1) != ignored
                mask = known if mask is None else torch.where(known, mask, 0)
            masks = [mask]
            made.append((part.mask, ignored, mask))
        counted.append(part._replace(mask=masks[0]))
    return counted


def _shares(parts: Sequence[Part], rows: int) -> Shares:
    return shares_of([part.mask for part in parts], [part.mean for part in parts], rows)


def _plain(parts: Sequence[Part]) -> tuple[Part, ...]:
    """The parts without arrays, which are in the sums by now."""
    return tuple(
        [part if part.mask is None and part.labels is None else part._replace(mask=None, labels=None) for part in parts]
    )


def _factors(
    parts: tuple[Part, ...], places: tuple[Place, ...], classes: int, squares: tuple[int, ...] | None, count: int
) -> tuple[tuple[float, ...], ...]:
    """What each number of `row_totals` of a table of `count` lines counts for the value of each part.

    With `squares`, where squared norms begin in the table, also for that of each part, and of all of them together.
    """
    plain = squares is not None or any([place.column is None for place in places])  # noqa: C419 (as above)
    each = 1 if squares is None else 2
    length = count * (plain + each * len({place.column for place in places if place.column is not None}))

    def line(numbers: dict[int, float], place: Place, power: int) -> tuple[float, ...]:
        start = 0 if place.column is None else count * (plain + each * place.column + power - 1)
        row = [0.0] * length
        for index, number in numbers.items():
            row[start + index] = number * place.share**power
        return tuple(row)

    both = list(zip(parts, places, strict=True))
    found = [
        line({kind: part.factor(classes) * amount for kind, amount in part.sums.items()}, place, 1)
        for part, place in both
    ]
    for start in squares or ():
        found += [line({start + part.kind: part.factor(classes) ** 2}, place, 2) for part, place in both]
    if squares is not None:
        found.append(line({start + _WHOLE: 1.0 for start in squares}, Place(None), 1))
    return tuple(found)


_kept_factors: Final = functools.lru_cache(maxsize=64)(_factors)
"""The same at every step."""


def _row_coefficients(
    parts: Sequence[Part], shares: Shares, coefficients: Sequence[float], sums: Any, classes: int
) -> tuple[list[float], Any]:
    """What each sum is multiplied by: constants, and where there are masks, numbers for each row besides."""
    import torch

    constants = [0.0] * _COUNT
    by_row: dict[tuple[int, int], float] = {}
    for part, place, coefficient in zip(parts, shares.places, coefficients, strict=True):
        for kind, amount in part.sums.items():
            factor = coefficient * amount * part.factor(classes)
            if place.column is None:
                constants[kind] += factor * place.share
            else:
                key = kind, place.column
                by_row[key] = by_row.get(key, 0.0) + factor
    if not by_row:
        return constants, None
    rows = torch.zeros_like(sums)
    for (kind, column), factor in by_row.items():
        rows[kind].add_(shares.columns[column], alpha=factor)
    return constants, rows
