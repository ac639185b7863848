"""What a backend is: a module with these operations."""

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Backend"]


class Backend(Protocol):
    """The operations, named and shaped as in NumPy; operators, `.shape`, `.reshape` and `.T` are the arrays' own.

    Where libraries disagree at a kink, the docstring of the operation says what every backend returns.
    `function` is the name that an error message starts with.
    """

    @property
    def LIBRARY(self) -> str:
        """The name that error messages use."""
        ...

    @property
    def GENERATOR(self) -> str:
        """What `draws` accepts, for error messages."""
        ...

    def upcast(self, function: str, x: Any, /) -> Any:
        """Floats of at least 32 bits: half precision becomes float32, integers and bools the default float."""
        ...

    def cast(self, x: Any, like: Any, /) -> Any:
        """`x` in the dtype and on the device of `like`."""
        ...

    def constant(self, values: "np.ndarray[Any, Any]", like: Any, /) -> Any:
        """A NumPy array in this library, on the device of `like`; floats get its dtype, integers keep theirs."""
        ...

    def arange(self, size: int, like: Any, /) -> Any:
        """0, 1, … size − 1 in the dtype and on the device of `like`."""
        ...

    def eye(self, size: int, like: Any, /) -> Any:
        """The identity matrix in the dtype and on the device of `like`."""
        ...

    def packs(self, leaves: Sequence[Any], /) -> bool:
        """Whether one flat array of these leaves is faster than a loop over them."""
        ...

    def concatenate(self, leaves: Sequence[Any], /) -> Any:
        """All leaves as one flat array."""
        ...

    def add(self, scalars: Sequence[Any], /) -> Any:
        """The sum of 0-d arrays that may lie on different devices, where the first one lies."""
        ...

    def abs(self, x: Any, /) -> Any:
        """Absolute value, with gradient 0 at 0."""
        ...

    def square(self, x: Any, /) -> Any:
        """`x²`."""
        ...

    def smooth_abs(self, x: Any, delta: float, reduction: str, /) -> Any:
        """`x²/2δ` where `|x| < δ`, else `|x| − δ/2`; reduced by "sum", "mean" or "none" as one operation."""
        ...

    def exp(self, x: Any, /) -> Any:
        """`eˣ`."""
        ...

    def expm1(self, x: Any, /) -> Any:
        """`eˣ − 1`, accurate near 0."""
        ...

    def log(self, x: Any, /) -> Any:
        """Natural logarithm."""
        ...

    def xlogx(self, x: Any, offset: float, /) -> Any:
        """`x·(log x + offset)`, 0 at 0; its slope and curvature are in range where they are."""
        ...

    def cos(self, x: Any, /) -> Any:
        """Cosine."""
        ...

    def sqrt(self, x: Any, /) -> Any:
        """Square root."""
        ...

    def clip(self, x: Any, low: float | None, high: float | None, /) -> Any:
        """Clamp to `[low, high]`; at a bound the gradient is that of the inside, and NaN stays NaN."""
        ...

    def where(self, condition: Any, yes: Any, no: Any, /) -> Any:
        """`yes` where the condition holds, `no` elsewhere; the branch not taken gets gradient 0."""
        ...

    def subtract_where(self, condition: Any, a: Any, b: Any, /) -> Any:
        """`a − b` where the condition holds, 0 elsewhere, whatever stands there."""
        ...

    def limits(self, x: Any, /) -> tuple[float, float]:
        """The smallest normal number of this dtype, below which hardware may take numbers for 0, and the largest."""
        ...

    def sum(self, x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Any:
        """Sum over one axis, or over all."""
        ...

    def mean(self, x: Any, /) -> Any:
        """Mean of all elements, 0 when there are none."""
        ...

    def amax(self, x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Any:
        """Largest element along one axis or of all; NaN wins; the gradient is shared evenly between ties."""
        ...

    def any(self, x: Any, /) -> Any:
        """Whether anything along the last axis is true."""
        ...

    def log_softmax(self, x: Any, /) -> Any:
        """`x − log Σ eˣ` over the last axis."""
        ...

    def log_softmax_at(self, x: Any, indices: Any, shown: Any, temperature: float, /) -> Any:
        """`log_softmax(x / temperature)` at indices of the last axis, `(…, K)`, in floats of at least 32 bits.

        Where `shown`, a bool for each row, is false: 0, with gradient 0, whatever the row holds. None shows all.
        """
        ...

    def take_along(self, x: Any, indices: Any, /) -> Any:
        """The elements of `x` at indices of the last axis, `(…, K)`."""
        ...

    def indices(self, function: str, name: str, x: Any, /) -> Any:
        """Whole numbers as indices; any other dtype is a `BackendError` that names the array."""
        ...

    def at_hand(self, x: Any, /) -> bool:
        """Whether the values of `x` can be looked at without waiting for a device, and outside any compiler."""
        ...

    def matmul(self, a: Any, b: Any, /) -> Any:
        """Matrix product in the precision of its inputs, whatever autocast or JAX's default says."""
        ...

    def moveaxis(self, x: Any, source: int, to: int, /) -> Any:
        """`x` with one axis moved."""
        ...

    def svdvals(self, x: Any, /) -> Any:
        """Singular values of a matrix, largest first."""
        ...

    def take(self, x: Any, rows: Any, /) -> Any:
        """The given rows of a matrix."""
        ...

    def stop_gradient(self, x: Any, /) -> Any:
        """`x` as a constant."""
        ...

    def whole(self, x: Any, /) -> Any:
        """`x` as an ordinary array, where it is spread over processes."""
        ...

    def power_iteration(self, matrix: Any, start: Any, times: int, /) -> Any:
        """A vector along the eigenvectors of the largest |eigenvalue| of a symmetric matrix; of any length.

        Every turn applies the matrix twice: eigenvalues +c and −c would otherwise keep the vector turning.
        """
        ...

    def draws(self, seed: object, /) -> bool:
        """Whether `seed` is this library's own source of randomness."""
        ...

    def uniform(self, seed: Any, count: int, like: Any, /) -> Any:
        """That many draws from [0, 1)."""
        ...

    def choice(self, seed: Any, total: int, count: int, like: Any, /) -> Any:
        """That many different indices below `total`."""
        ...

    def value_and_gradient(self, function: str, fn: Callable[[Any], Any], x: Any, /) -> tuple[Any, Any]:
        """`fn(x)`, and the gradient of its sum at `x`, both differentiable again."""
        ...

    def tracing(self, x: object, /) -> bool:
        """Whether a compiler is tracing `x`: then nothing is measured, read or announced."""
        ...

    def device(self, x: Any, /) -> Any:
        """Where an array lies, to compare; None where the library sees to that itself."""
        ...

    def kind(self, x: Any, /) -> Hashable:
        """What can be known of an array without its values, and bears on how terms over it are computed."""
        ...

    def zero(self, like: Any, /) -> Any:
        """A 0-d array of 0, on the device of `like`."""
        ...

    def as_array(self, value: Any, like: Any, /) -> Any:
        """A number or an array of any library as an array of this one, in the dtype and on the device of `like`."""
        ...

    def differentiable(self, x: Any, /, *, requested: bool) -> bool:
        """Whether a gradient at `x` can be taken if it is requested, or is wanted without a request."""
        ...

    def captures(self, value: Any, inputs: Sequence[Any], /) -> bool:
        """Whether a value depends on an array that requires a gradient and is not one of the inputs."""
        ...

    def detached(self, value: Any, /) -> bool:
        """Whether a value of `value_and_gradients` is off the graph of its inputs: its gradient is all there is."""
        ...

    def weighted_sum(self, values: Sequence[Any], weights: Sequence[Any], /) -> Any:
        """`Σ weight·value` of 0-d arrays, where the first one lies."""
        ...

    def read(self, arrays: Sequence[Any], /) -> list[Any]:
        """Arrays as numbers, or as lists of them where they are not 0-d, in one transfer from the device."""
        ...

    def value_and_gradients(
        self, fn: Callable[[Sequence[Any]], tuple[Any, list[Any]]], leaves: Sequence[Any], /
    ) -> tuple[Any, list[Any], list[Any]]:
        """`fn(leaves)`, a scalar and further arrays, and the scalar's unscaled gradient at each leaf.

        At float16 the gradient is float32: it is taken times a large and a small number, and divided by it again, so
        that neither small nor large elements are lost.

        None for a leaf that the scalar does not depend on, as far as the library can tell.
        """
        ...

    def pullback(self, fn: Callable[[Any], Any], x: Any, /) -> tuple[Any, Callable[[Any], Any]]:
        """`fn(x)` off any graph, and what turns a gradient there into one at `x`, as often as it is called."""
        ...

    def accumulate(self, total: Any, gradient: Any, weight: Any, /, *, owned: bool) -> Any:
        """`total + weight·gradient`, which may overwrite a `total` that is `owned`; None counts as 0."""
        ...

    def add_weight_gradients(
        self, gradients: Sequence[Any], leaves: Sequence[Any], weighted: Sequence[tuple[Any, Any]], /
    ) -> list[Any]:
        """The gradients with `value·∂weight` added, for each value whose weight was computed from a leaf."""
        ...

    def zeros_like(self, x: Any, /) -> Any:
        """Zeros in the form of an array, without its graph."""
        ...

    def separate(self, gradients: Sequence[Any], /) -> list[Any]:
        """The gradients as arrays that may be written to, one without the others."""
        ...

    def norm(self, gradients: Sequence[Any], /) -> Any:
        """The length of some arrays taken as one vector."""
        ...

    def gram(self, rows: Sequence[Sequence[Any]], /) -> tuple[Any, Any]:
        """The dot products between rows, each some arrays taken as one vector, where None counts as 0; and scales.

        Each row is divided by its scale, a power of two: the products of very large or small rows are out of range.
        """
        ...

    def stitch(self, value: Any, inputs: Sequence[Any], gradients: Sequence[Any], /) -> Any:
        """A value that was computed elsewhere, as a function of inputs with this gradient; first order only."""
        ...

    def barred(self, value: Any, inputs: Sequence[Any], message: str, /) -> Any:
        """The same value; differentiating it with respect to one of these inputs raises an error with this message."""
        ...

    def block(self, like: Any, /) -> int:
        """How many elements to compute at a time: what fits a cache, or keeps an accelerator busy."""
        ...

    def map_rows(self, fn: Callable[..., Any], arrays: Sequence[Any], size: int, /) -> Any:
        """What `fn(piece)` has for each row, of pieces of that many rows; freed as those of `sum_over_rows` are."""
        ...

    def sum_over_rows(self, fn: Callable[..., Any], arrays: Sequence[Any], size: int, /) -> Any:
        """`Σ fn(piece)` over pieces of that many rows; each is freed before the next, and again in the backward."""
        ...
