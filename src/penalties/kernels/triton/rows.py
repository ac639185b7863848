"""Rows of logits or log-probabilities: reading them, and the numbers that kernels find for each."""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from triton.language import constexpr

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "LN2",
    "LOWEST",
    "SAVED",
    "SMALLEST",
    "SQUARES",
    "SUMS",
    "ZERO",
    "Launch",
    "Rows",
    "exp2",
    "load",
    "log2",
    "tile_of",
    "tiles_of",
    "turned",
    "turned_sums",
]

SUMS: Final = 5
"""The sums of a row: p·log p, p·(log p − log q), q·(log q − log p), Jensen–Shannon, and log p of its label."""

SQUARES: Final = 7
"""The squared norms of a row: of the gradient of each sum, of the mean of the second and third, and of the whole."""

SAVED: Final = 4
"""What the gradient needs besides: KL(P‖M), KL(Q‖M), and the log-sum-exps of both in base 2."""

LOWEST: Any = constexpr(-1e30)
"""Stands for −inf, so that its product with a probability of 0 is 0."""
ZERO: Any = constexpr(-124.0)
"""A probability of 2 to this power or less counts as zero, as it does in the penalties."""
SMALLEST: Any = constexpr(1e-37)
_LOG2E: Final = 1.4426950408889634
LN2: Any = constexpr(0.6931471805599453)

_PROGRAMS: Final = 528
"""Programs that keep a GPU busy: with fewer rows, each row is split."""
_NARROW: Final = 4096
"""Columns for which fewer threads suffice."""


@triton.jit
def exp2(x: "Any", NVIDIA: constexpr) -> "Any":
    """By the instruction for it; what is below the normal numbers is 0."""
    if NVIDIA:
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    return tl.exp2(x)


@triton.jit
def log2(x: "Any", NVIDIA: constexpr) -> "Any":
    """By the instruction for it."""
    if NVIDIA:
        return tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    return tl.log2(x)


@triton.jit
def load(X: "Any", start: "Any", at: "Any", shift: "Any", V: "Any", scale: "Any", EDGE: constexpr) -> "Any":
    """A tile of a row in base 2, with a number for −inf; beyond the ends of the row, that number."""
    if EDGE:
        x = tl.load(X + start + at, mask=(at >= shift) & (at < V + shift), other=float("-inf"))
    else:
        x = tl.load(X + start + at)
    return tl.maximum(x.to(tl.float32) * scale, LOWEST, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def tiles_of(row: "Any", stride: "Any", V: "Any", PER: "Any", T: constexpr, W: constexpr) -> "Any":
    """Where the row begins, less the elements after the last multiple of W; those elements; the program's tiles."""
    begin = row.to(tl.int64) * stride
    shift = (begin % W).to(tl.int32)
    first = tl.program_id(1) * PER
    last = tl.minimum(first + PER, tl.cdiv(V + shift, T * W))
    return tl.multiple_of(begin - shift, W), shift, first, last


@triton.jit
def tile_of(
    X: "Any", Y: "Any", x_start: "Any", y_start: "Any", tile: "Any", shift: "Any", V: "Any", scale: "Any",
    HAS_Y: constexpr, T: constexpr, W: constexpr,
) -> "Any":  # fmt: skip
    """A tile of both rows, and its columns. Only the first and the last need masks."""
    at = tile * (T * W) + tl.arange(0, T)[:, None] * W + tl.arange(0, W)[None, :]
    if (tile == 0) | ((tile + 1) * (T * W) > V + shift):
        x = load(X, x_start, at, shift, V, scale, True)
        y = x
        if HAS_Y:
            y = load(Y, y_start, at, shift, V, scale, True)
    else:
        x = load(X, x_start, at, shift, V, scale, False)
        y = x
        if HAS_Y:
            y = load(Y, y_start, at, shift, V, scale, False)
    return x, y, at


class Rows(NamedTuple):
    """Numbers for each row, in one piece of memory: what a kernel found, and room for what the next one finds."""

    numbers: "Tensor"
    """All of them: sums, saved numbers, squares."""
    sums: "Tensor"
    saved: "Tensor"
    squares: "Tensor"

    @classmethod
    def of(cls, numbers: "Tensor") -> "Rows":
        """The parts of such a tensor, with or without squares."""
        return cls(numbers, *numbers.split((SUMS, SAVED, numbers.shape[0] - SUMS - SAVED)))


def turned(found: Rows) -> Rows:
    """The same with x and y exchanged. The entropy of x, and its label, have no gradient at y."""
    _, kl, reverse, js, _ = found.sums
    of_p, of_q, x_log_sum, y_log_sum = found.saved
    none = torch.zeros_like(kl)
    return Rows.of(torch.stack([none, reverse, kl, js, none, of_q, of_p, y_log_sum, x_log_sum, *[none] * SQUARES]))


def turned_sums(of: Sequence[Any], nothing: Any) -> list[Any]:
    """What belongs to each sum, or to each squared norm, with x and y exchanged."""
    _, kl, reverse, js, _, *rest = of
    return [nothing, reverse, kl, js, nothing, *rest]


def _rows(x: "Tensor", width: int) -> "Tensor":
    """As a matrix of rows that begin where contiguous ones would, up to a multiple of `width` elements."""
    x = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
    aligned = x.stride(1) == 1 and (x.shape[0] == 1 or x.stride(0) % width == x.shape[1] % width)
    return x if aligned else x.contiguous()


class _Grid(NamedTuple):
    """How rows are shared out among programs."""

    warps: int
    per: int
    """Tiles that a program reads."""
    splits: int
    """Programs for each row."""


@functools.lru_cache(maxsize=256)
def _grid(rows: int, columns: int, width: int) -> _Grid:
    warps = 8 if columns > _NARROW else 4
    tiles = -(-(columns + width - 1) // (32 * warps * width))
    per = -(-tiles // min(-(-_PROGRAMS // max(rows, 1)), -(-tiles // 4)))
    return _Grid(warps, per, -(-tiles // per))


class Launch:
    """The matrices, the grid, and the arguments that every kernel has."""

    def __init__(self, x: "Tensor", y: "Tensor | None", temperature: float) -> None:
        """For two tensors of the same shape and dtype, or one."""
        self.width: int = 16 // x.element_size()
        self.x: Any = _rows(x, self.width)
        self.y: Any = self.x if y is None else _rows(y, self.width)
        self.rows: int = self.x.shape[0]
        self.columns: int = self.x.shape[1]
        warps, per, splits = _grid(self.rows, self.columns, self.width)
        self.per: int = per
        self.splits: int = splits
        self.scale: float = _LOG2E / temperature
        self.constants: dict[str, Any] = {
            "HAS_Y": y is not None,
            "T": 32 * warps,
            "W": self.width,
            "NVIDIA": x.is_cuda and torch.version.hip is None,
            "num_warps": warps,
        }

    def new(self, *shape: int) -> "Tensor":
        """An empty tensor on the same device."""
        return torch.empty(shape, dtype=torch.float32, device=self.x.device)
