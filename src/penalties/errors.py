"""The errors this library raises; every one derives from `PenaltiesError`."""

__all__ = ["BackendError", "GradientError", "NonFiniteError", "OptionError", "PenaltiesError", "ShapeError"]


class PenaltiesError(Exception):
    """The parent of every error that this library raises on purpose.

    >>> import numpy as np
    >>> import penalties as pn
    >>> try:
    ...     pn.l1(np.ones(3), reduction="avg")
    ... except pn.PenaltiesError as error:
    ...     print(error)
    l1: reduction="avg"; expected "sum", "mean" or "none"
    """


class OptionError(PenaltiesError, ValueError):
    """An option that does not exist, or a value it cannot take.

    The message names the function, the option, the value and what is allowed; the parts are attributes too.

    >>> import numpy as np
    >>> import penalties as pn
    >>> try:
    ...     pn.smooth_l1(np.ones(3), delta=-1)
    ... except pn.OptionError as error:
    ...     print(error.option, error.value, error.expected, sep=" | ")
    delta | -1 | a finite number above 0
    """

    def __init__(self, function: str, option: str, value: object, expected: str) -> None:
        """Keep the parts, and say them in one line."""
        self.function = function
        self.option = option
        self.value = value
        self.expected = expected
        shown = f'"{value}"' if isinstance(value, str) else repr(value)
        super().__init__(f"{function}: {option}={shown}; expected {expected}")

    def __reduce__(self) -> tuple[type["OptionError"], tuple[str, str, object, str]]:
        """Pickle by the parts, so that the error survives a trip between processes."""
        return type(self), (self.function, self.option, self.value, self.expected)


class ShapeError(PenaltiesError, ValueError):
    """Shapes that do not fit: paired inputs that differ, a mask of the wrong shape, a rank that is too small.

    >>> import numpy as np
    >>> import penalties as pn
    >>> try:
    ...     pn.consistency(np.ones((2, 3)), np.ones((2, 1)))
    ... except pn.ShapeError as error:
    ...     print(error)
    consistency: a has shape (2, 3) and b has shape (2, 1); expected equal shapes (nothing is broadcast)
    """


class BackendError(PenaltiesError, TypeError):
    """Something that is no array of one backend, two backends in one call, or a dtype that has no meaning here.

    >>> import numpy as np
    >>> import penalties as pn
    >>> try:
    ...     pn.l1([1.0, 2.0])
    ... except pn.BackendError as error:
    ...     print(error)
    l1: x[0] is a float; expected a NumPy array, a torch.Tensor or a jax.Array
    """


class GradientError(PenaltiesError, RuntimeError):
    """A gradient was needed and there is no path to take it along.

    >>> import penalties as pn
    >>> issubclass(pn.GradientError, RuntimeError)
    True
    """


class NonFiniteError(PenaltiesError, ValueError):
    """NaN or infinity where finite numbers were expected; `kind` says which.

    >>> import numpy as np
    >>> import penalties as pn
    >>> try:
    ...     pn.validate(np.array([1.0, np.inf, np.nan]))
    ... except pn.NonFiniteError as error:
    ...     print(error.kind)
    nan
    """

    def __init__(self, kind: str, message: str) -> None:
        """Keep the kind beside the message."""
        self.kind = kind
        super().__init__(message)

    def __reduce__(self) -> tuple[type["NonFiniteError"], tuple[str, str]]:
        """Pickle by the parts, so that the error survives a trip between processes."""
        return type(self), (self.kind, str(self))
