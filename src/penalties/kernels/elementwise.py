"""Several element-wise penalties of one set of arrays, from the sums of one sweep over all elements."""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..backends.torch.lengths import in_range, norm
from ..functional.penalty import Elementwise
from . import cpu, triton_unavailable, unavailable
from .products import products

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["MOST_DELTAS", "Part", "Swept", "too_small", "unsupported", "value_and_gradients"]

MOST_DELTAS: Final = 3
"""How many different deltas one sweep can have."""


class Part(NamedTuple):
    """One penalty of a group."""

    form: Elementwise
    mean: bool


class Swept(NamedTuple):
    """What a sweep found."""

    values: "list[Tensor]"
    norms: "list[Tensor]"
    """Of each one's unscaled gradient."""
    gradients: "Sequence[Tensor]"
    """`Σ coefficient·gradient` at each array."""
    norm: "Tensor"
    """Of that."""


def too_small(x: "Tensor") -> str | None:
    """Why a kernel does not pay off for this one array; None where it may."""
    return cpu.too_small(x) if x.is_cpu and triton_unavailable(x) is not None else None


def unsupported(xs: "Sequence[Tensor]") -> str | None:
    """Why there is no kernel for element-wise penalties of these arrays; None where there is."""
    import torch

    if (reason := unavailable(xs[0])) is not None:
        return reason
    first = xs[0]
    if len(xs) == 1 and first.is_cpu and triton_unavailable(first) is not None:
        return cpu.unsupported(first)
    if (reason := triton_unavailable(first)) is not None:
        return f"no kernel for a nest on {first.device.type}" if len(xs) > 1 and first.is_cpu else reason
    if first.is_cuda and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is captured, and a table of addresses would not live as long as it"
    for x in xs:
        if type(x) is not type(first) and (reason := unavailable(x)) is not None:
            return reason
        if x.layout is not torch.strided or x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            return f"no kernel for {x.dtype} tensors of layout {x.layout}"
        if x.device != first.device or x.dtype != first.dtype or not x.numel():
            return "its arrays differ in device or dtype, or one of them is empty"
    return None


def value_and_gradients(
    xs: "Sequence[Tensor]", parts: Sequence[Part], coefficients: Sequence[float], into: "Sequence[Tensor] | None" = None
) -> Swept:
    """The penalties, and their gradient: in arrays of its own, or added to what is in `into`."""
    import torch

    setting = _setting(tuple(parts), tuple(coefficients), sum(x.numel() for x in xs))
    with torch.inference_mode(False), torch.no_grad():
        whole = [x if x.is_contiguous() else x.contiguous() for x in xs]
        # Float16 would lose what is small before a loss is scaled.
        wide = torch.float32 if xs[0].dtype == torch.float16 else xs[0].dtype
        gradients = [torch.empty_like(x, dtype=wide) for x in whole] if into is None else into
        how = setting.straight, setting.deltas, setting.bends
        by_triton = triton_unavailable(xs[0]) is None
        if by_triton:
            from .triton.elementwise import sweep

            sums = sweep(whole, gradients, *how, add=into is not None)
        else:
            sums = cpu.sweep(whole[0], gradients[0], *how, add=into is not None)
        found = products(sums, _factors(setting.forms, setting.shares, setting.deltas, sums.shape[0]))
        squares = found[len(parts) :]
        # Those of Triton's kernel are in float64, and in range: reading them here would wait for the device.
        far = [] if by_triton else [index for index, one in enumerate(squares) if not in_range(one)]
        squares.sqrt_()
        numbers = list(found.to(torch.promote_types(xs[0].dtype, torch.float32)).unbind())
        values, norms = numbers[: len(parts)], numbers[len(parts) :]
        for index in far:
            some = range(len(parts)) if index == len(parts) else [index]
            factors = setting.scales if index == len(parts) else setting.shares
            # Not what is in `into`, which has more.
            gradient: Any = [sum(factors[i] * cpu.gradient_of(setting.forms[i], x) for i in some) for x in whole]
            norms[index] = norm(gradient)
    return Swept(values, norms[:-1], gradients, norms[-1])


class _Setting(NamedTuple):
    """The settings of a sweep, and values derived from them."""

    forms: tuple[Elementwise, ...]
    shares: tuple[float, ...]
    """What each penalty is multiplied by, a mean by one over the number of elements."""
    scales: tuple[float, ...]
    """The same times its coefficient."""
    straight: float
    deltas: tuple[float, ...]
    """In ascending order; one of 0 is a sign."""
    bends: tuple[float, ...]


@functools.lru_cache(maxsize=64)
def _setting(parts: tuple[Part, ...], coefficients: tuple[float, ...], count: int) -> _Setting:
    """For so many elements: the same at every step, unless weights change."""
    shares = tuple(1 / count if part.mean else 1.0 for part in parts)
    scales = tuple(coefficient * share for coefficient, share in zip(coefficients, shares, strict=True))
    forms = tuple(part.form for part in parts)
    deltas = tuple(sorted({form.delta for form in forms if form.bent}))
    scaled = list(zip(forms, scales, strict=True))
    bends = tuple(
        float(sum(form.bent * scale for form, scale in scaled if form.bent and form.delta == delta)) for delta in deltas
    )
    straight = float(sum(form.straight * scale for form, scale in scaled))
    return _Setting(forms, shares, scales, straight, deltas, bends)


@functools.lru_cache(maxsize=64)
def _factors(
    forms: tuple[Elementwise, ...], shares: tuple[float, ...], deltas: tuple[float, ...], count: int
) -> tuple[tuple[float, ...], ...]:
    """What each sum of a sweep counts for the value of each penalty, then for the squared norm of each, and of all."""
    values: list[list[float]] = []
    squares: list[list[float]] = []
    for form, share in zip(forms, shares, strict=True):
        value, square = [0.0] * count, [0.0] * count
        value[0], square[0] = share * form.straight / 2, (share * form.straight) ** 2
        if form.bent:
            index = deltas.index(form.delta)
            at = 2 + 2 * index if index else 1
            value[at : at + 2] = share * form.bent, -share * form.bent * form.delta / 2
            square[at : at + 2] = 2 * share**2 * form.bent * form.straight, (share * form.bent) ** 2
        values.append(value)
        squares.append(square)
    whole = [float(index == 3) for index in range(count)]
    return tuple(map(tuple, [*values, *squares, whole]))
